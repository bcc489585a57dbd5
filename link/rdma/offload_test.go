package rdma

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// flooded is an endpoint with a filter whose time a test advances, and a wire to flood it by.
type flooded struct {
	t      *testing.T
	now    atomic.Int64 // by which scores age, in ns
	filter *filter.Filter
	nic    *simnic.NIC
	dev    *dv.Device
	ep     *Endpoint
	far    wire.Wire
	judged uint64 // frames that the filter is known to have dropped
}

func newFlooded(t *testing.T, text string, s setup) *flooded {
	t.Helper()
	w := &flooded{t: t}
	list, err := filter.Parse(text)
	if err == nil {
		w.filter, err = filter.New(list, clocktest.Showing(func() time.Time {
			return time.Unix(1, w.now.Load())
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.nic, w.dev = openDevice(t, 1, s)
	near, far := wire.Pair()
	w.far = far
	if err := w.nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	if err := far.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	s.opts.Filter = w.filter
	h := &host{nic: w.nic, dev: w.dev}
	h.open(t, s)
	w.ep = h.ep
	w.filter.OnDrops(func() {}) // the test says when the rules follow
	return w
}

// flood sends n frames from a source, of which the filter is to see all or none.
func (w *flooded) flood(src string, port uint16, n int, seen bool) {
	w.t.Helper()
	f := synFrom(netip.MustParseAddr(src), port)
	copy(f, w.dev.MAC())
	for i := range n {
		if sent, err := w.far.Send([]frame.Frame{{Data: f}}); sent != 1 {
			w.t.Fatal(err)
		}
		if seen {
			w.judged++
		}
		if i%64 == 0 || i == n-1 { // less than a ring has room for
			w.awaitJudged()
		}
	}
}

// awaitJudged waits until the filter has dropped what it is to.
func (w *flooded) awaitJudged() {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for w.ep.Stats().RxFiltered < w.judged && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if got := w.ep.Stats().RxFiltered; got != w.judged {
		w.t.Fatalf("the filter has dropped %d frames, want %d", got, w.judged)
	}
}

// synFrom is a SYN to a port of ours.
func synFrom(src netip.Addr, port uint16) []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, 30001)
	binary.BigEndian.PutUint16(tcp[2:], port)
	tcp[12], tcp[13] = 0x50, 2
	eth := make([]byte, 14)
	if src.Is4() {
		eth[12], eth[13] = 0x08, 0
		ip := []byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0}
		ip = append(append(ip, src.AsSlice()...), 10, 9, 0, 1)
		return append(append(eth, ip...), tcp...)
	}
	eth[12], eth[13] = 0x86, 0xdd
	ip := append([]byte{0x60, 0, 0, 0, 0, 20, 6, 64}, src.AsSlice()...)
	return append(append(append(eth, ip...), make([]byte, 16)...), tcp...)
}

// second lets a second pass, and the rules follow.
func (w *flooded) second() {
	w.now.Add(int64(time.Second))
	w.ep.offload.followBusy()
}

// dropRules returns the rules of the device that drop.
func (w *flooded) dropRules() (all []string) {
	for _, r := range w.dev.Rules() {
		if r.To == "nobody (dropped)" {
			match, _, _ := strings.Cut(r.Match, ", MAC")
			all = append(all, match)
		}
	}
	return all
}

// TestOffload: what a prefix that is denied sends in numbers is dropped by the device, so that
// nothing of it comes to the rings, and is counted; what is allowed or denied no more comes again.
func TestOffload(t *testing.T) {
	w := newFlooded(t, "chain input {\n ip saddr 198.51.100.0/24 tcp dport { 80, 443 } drop\n}",
		setup{})
	bad := netip.MustParsePrefix("203.0.113.0/24")
	if err := w.filter.Deny(bad, 0); err != nil {
		t.Fatal(err)
	}
	w.flood("203.0.113.7", 80, 10, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 0 {
		t.Fatalf("for ten packets there are the rules %q", rules)
	}
	w.flood("203.0.113.7", 80, 200, true)
	w.flood("198.51.100.9", 443, 2000, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 4 {
		t.Fatalf("rules %q", rules)
	}
	w.flood("203.0.113.8", 80, 1000, false)
	w.flood("198.51.100.9", 443, 1000, false)
	w.flood("198.51.100.9", 444, 1, false)
	w.flood("203.0.113.8", 40000, 5, true) // where answers come
	w.second()
	s := w.filter.Status()
	if s.Offloaded != 4 || s.Waiting != 0 || s.OffloadDropped != 2000 || s.OffloadRefused != 0 {
		t.Errorf("%+v", s)
	}
	if n := s.Entries[0].Packets; n != 1215 {
		t.Errorf("of the prefix %d packets are counted, want 1215", n)
	}
	if n := s.Chains[0].Rules[0].Packets; n != 3000 {
		t.Errorf("of the rule %d packets are counted, want 3000", n)
	}
	if err := w.filter.Allow(netip.MustParsePrefix("203.0.113.128/25"), 0); err != nil {
		t.Fatal(err)
	}
	w.ep.offload.followBusy()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Errorf("with a part of the prefix allowed: %q", rules)
	}
	w.filter.Forget(netip.MustParsePrefix("203.0.113.128/25"))
	w.ep.offload.followBusy()
	if rules := w.dropRules(); len(rules) != 4 {
		t.Errorf("with nothing allowed: %q", rules)
	}
	if err := w.filter.Load(nil); err != nil {
		t.Fatal(err)
	}
	w.filter.Forget(bad)
	w.ep.offload.followBusy()
	if rules := w.dropRules(); len(rules) != 0 {
		t.Errorf("with everything let in: %q", rules)
	}
}

// TestOffloadEnds: a rule that drops nothing any more goes, and the timer with it.
func TestOffloadEnds(t *testing.T) {
	w := newFlooded(t, "chain input { ip6 saddr 2001:db8:bad::/48 drop; }", setup{})
	w.flood("2001:db8:bad::7", 80, 2000, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Fatalf("rules %q", rules)
	}
	for i := 0; len(w.dropRules()) > 0; i++ {
		if w.second(); i == 200 {
			t.Fatal("the rules stay")
		}
	}
	for i := 0; ; i++ { // whether they go on soon
		if _, more := w.filter.Busiest(); !more {
			break
		}
		if w.second(); i == 200 {
			t.Fatal("the filter is busy still")
		}
	}
	w.flood("2001:db8:bad::7", 80, 2000, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Errorf("in the next flood there are the rules %q", rules)
	}
}

// TestOffloadWithoutRoom: what the device has no room for is dropped by the filter, the busiest
// sources by the device, and both are told.
func TestOffloadWithoutRoom(t *testing.T) {
	w := newFlooded(t, "", setup{caps: func(c *simnic.Caps) { c.LogMaxFlows = 4 }})
	sources := []string{"203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5",
		"203.0.113.6"}
	for i, src := range sources {
		if err := w.filter.Deny(netip.MustParsePrefix(src+"/32"), 0); err != nil {
			t.Fatal(err)
		}
		w.flood(src, 80, 100*(i+1), true)
	}
	w.second()
	rules, s := w.dropRules(), w.filter.Status()
	if len(rules) == 0 || len(rules) >= 12 || s.Offloaded != len(rules) ||
		s.Waiting != 12-len(rules) || s.OffloadRefused == 0 {
		t.Fatalf("%d rules; %+v", len(rules), s)
	}
	w.flood(sources[5], 80, 100, false)
	w.flood(sources[0], 80, 100, true)
}

// TestOffloadMoves: another device has the rules once it is in use, the one before none; packet
// sockets and nothing at all have none.
func TestOffloadMoves(t *testing.T) {
	w := newFlooded(t, "chain input { ip saddr 203.0.113.0/24 drop; }", setup{})
	w.flood("203.0.113.7", 80, 2000, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Fatalf("rules %q", rules)
	}
	if err := w.ep.Switch(None()); err != nil {
		t.Fatal(err)
	}
	w.ep.offload.followBusy()
	if rules := w.dropRules(); len(rules) != 0 {
		t.Errorf("a device that is not in use has the rules %q", rules)
	}
	if s := w.filter.Status(); s.Offloaded != 0 || s.Waiting != 2 {
		t.Errorf("%+v", s)
	}
	if err := w.ep.Switch(Rings(w.dev)); err != nil {
		t.Fatal(err)
	}
	w.ep.offload.followBusy()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Errorf("back on the device there are the rules %q", rules)
	}
	w.flood("203.0.113.7", 80, 100, false)
	w.ep.Close()
	if rules := w.dropRules(); len(rules) != 0 {
		t.Errorf("behind the end there are the rules %q", rules)
	}
}

// TestOffloadChangedInFlood changes lists, prefixes and queues while a source that is denied
// floods: where nothing is denied no rule is left.
func TestOffloadChangedInFlood(t *testing.T) {
	const text = "chain input { ip saddr 203.0.113.0/24 drop; }"
	w := newFlooded(t, text, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 2}}})
	list, err := filter.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		bad := synFrom(netip.MustParseAddr("203.0.113.7"), 80)
		copy(bad, w.dev.MAC())
		for {
			select {
			case <-done:
				return
			default:
			}
			_, _ = w.far.Send([]frame.Frame{{Data: bad}})
		}
	})
	prefix := netip.MustParsePrefix("203.0.113.7/32")
	for i := range 50 {
		w.second()
		switch i % 5 {
		case 0:
			err = w.filter.Load(nil)
		case 1:
			err = w.filter.Load(list)
		case 2:
			err = w.filter.Deny(prefix, 0)
		case 3:
			err = w.dev.Rebalance([]int{1 + i, 2})
		default:
			w.filter.Forget(prefix)
		}
		if err != nil {
			t.Error(err)
		}
		w.ep.offload.followBusy()
		if rules := w.dropRules(); i%5 == 0 && len(rules) != 0 {
			t.Errorf("without a list there are the rules %q", rules)
		}
	}
	close(done)
	all.Wait()
}

// TestOffloadOfHost: in host mode each of our ports has its own rule, which ends with the port:
// from then on Linux has the frames of a source that is denied.
func TestOffloadOfHost(t *testing.T) {
	w := &flooded{t: t}
	var err error
	if w.filter, err = filter.New(nil, clocktest.Showing(func() time.Time {
		return time.Unix(1, w.now.Load())
	})); err != nil {
		t.Fatal(err)
	}
	if w.nic, err = simnic.New(simnic.Config{MAC: []byte{2, 0, 0, 0, 0, 9}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.nic.Close() })
	near, far := wire.Pair()
	linux, ours := wire.Pair()
	var toLinux atomic.Uint64
	for _, err := range []error{w.nic.ConnectWire(near), w.nic.ConnectNetdev(ours),
		far.Start(func([]frame.Frame) {}),
		linux.Start(func(f []frame.Frame) { toLinux.Add(uint64(len(f))) })} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.far, w.dev = far, openHostDevice(t, w.nic)
	h := &host{nic: w.nic, dev: w.dev}
	h.open(t, setup{opts: Options{Filter: w.filter}})
	w.ep = h.ep
	w.filter.OnDrops(func() {})
	web := tcpPort(80)
	web.Addr = netip.MustParseAddr("10.9.0.1")
	other := web
	other.Port = 8080
	for _, r := range []dv.HostRule{web, other} {
		if err := w.ep.AddRule(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.filter.Deny(netip.MustParsePrefix("203.0.113.0/24"), 0); err != nil {
		t.Fatal(err)
	}
	w.flood("203.0.113.7", 80, 200, true)
	w.second()
	if rules := w.dropRules(); len(rules) != 2 {
		t.Fatalf("rules %q", rules)
	}
	w.flood("203.0.113.7", 80, 100, false)
	if n := toLinux.Load(); n != 0 {
		t.Errorf("%d frames to a port of ours came to Linux", n)
	}
	w.flood("203.0.113.7", 22, 100, false)
	if n := toLinux.Load(); n != 100 {
		t.Errorf("of 100 frames to a port of Linux %d came there", n)
	}
	if err := w.ep.RemoveRule(web); err != nil {
		t.Fatal(err)
	}
	if rules := w.dropRules(); len(rules) != 1 {
		t.Errorf("without the port there are the rules %q", rules)
	}
	w.flood("203.0.113.7", 80, 100, false)
	if n := toLinux.Load(); n != 200 {
		t.Errorf("of 100 frames to a port that is Linux's now %d came there", n-100)
	}
}
