//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// filterState is what filter show --json tells.
type filterState struct {
	Denials, Spared uint64
	Sources         int
	Offloaded       int
	OffloadDropped  uint64 `json:"offload_dropped"`
	Entries         []struct{ Packets uint64 }
	Chains          []struct{ Rules []struct{ Packets uint64 } }
}

// reached returns how many frames have reached the process and met a rule there.
func (s filterState) reached() (n uint64) {
	for _, c := range s.Chains {
		for _, r := range c.Rules {
			n += r.Packets // those of the NIC too
		}
	}
	return n - s.OffloadDropped
}

// newFiltered starts a web server with a list of the packet filter.
func newFiltered(t *testing.T, list string) *world {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list.nft")
	must(t, os.WriteFile(file, []byte(list), 0o644))
	return newServer(t, "http", "--root", site(t), "--filter", file)
}

// filtered returns what the server's packet filter has done.
func (w *world) filtered() (s filterState) {
	w.t.Helper()
	var out bytes.Buffer // megabytes, if thousands are denied
	cmd := exec.Command(program(w.t), "filter", "show", "--json", "--pid",
		sprintf("%d", w.cmd.Process.Pid))
	cmd.Stdout = &out
	err := w.home().Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &s)
	}
	if err != nil {
		w.t.Fatalf("filter show: %v: %.1000s", err, out.Bytes())
	}
	return s
}

// limited denies who sends more than two SYNs a second for three seconds.
const limited = `table inet filter {
	set flood {
		type ipv4_addr
		size 65535
		flags dynamic
	}
	set denied {
		type ipv4_addr
		size 65535
		flags dynamic,timeout
	}
	chain input {
		type filter hook input priority filter; policy accept;
		ip saddr @denied drop
		ip saddr 198.18.0.0/15 tcp flags syn / fin,syn,rst,ack update @flood { ip saddr limit rate over 2/second } add @denied { ip saddr timeout 1m } drop
	}
}
`

// TestFloodsOfSources floods a server that limits SYNs by source: clients are served, and those
// sources that keep it up are denied.
func TestFloodsOfSources(t *testing.T) {
	for _, sources := range []int{1, 100, 10000} {
		name := fmt.Sprintf("SYNs of %d sources, limited", sources)
		t.Run(name, func(t *testing.T) {
			w := newFiltered(t, limited)
			p := w.port()
			f := newForge(t, p)
			sent, next, most := 0, 0, int(floodRate*processorShare(t))
			r := w.under(name, w.browsers(), func(done <-chan struct{}) {
				sent = flood(t, p, most, done, func() []byte {
					a := [4]byte{198, 18}
					binary.BigEndian.PutUint16(a[2:], uint16(next%sources))
					next++
					return f.tcp(netip.AddrFrom4(a), 80, flagSYN)
				})
			})
			s := w.filtered()
			r.note = w.rate(sent, "frames") + sprintf(", %d sources denied, %d dropped by the NIC",
				s.Denials, s.OffloadDropped)
			// 10,000 sources send some five SYNs each in a second, on a busy machine fewer
			if sources <= 100 && s.Denials < uint64(sources) {
				t.Errorf("of %d sources %d are denied", sources, s.Denials)
			}
			w.judge(r)
		})
	}
}

// nobody names a MAC that no NIC has.
var nobody = net.HardwareAddr{0x02, 0, 0x5e, 0x10, 0xff, 0xff}

// TestDeniedFlood measures requests, on each kind of link, while sources that are denied send all
// that the machine makes; while the same frames go to a MAC that nobody has, which costs the
// machine the sending alone; and without any. The ratios are for the table, and not judged:
// machines are busy.
func TestDeniedFlood(t *testing.T) {
	for _, tt := range []struct {
		name string
		link []string // nil: a software ConnectX
	}{
		{"rings", nil},
		{"packet sockets", []string{"--backend", "packet", "--mac", serverMAC}},
		{"AF_XDP", []string{"--backend", "xdp", "--mac", serverMAC}},
		{"the host's address", []string{"--backend", "packet", "--address", "host"}},
		{"the host's address, AF_XDP", []string{"--backend", "xdp", "--address", "host"}},
	} {
		t.Run(tt.name, func(t *testing.T) { floodDenied(t, tt.link) })
	}
}

func floodDenied(t *testing.T, link []string) {
	file := filepath.Join(t.TempDir(), "list.nft")
	must(t, os.WriteFile(file, []byte("chain input { ip saddr 198.18.0.0/15 drop; }"), 0o644))
	args := []string{"--root", site(t), "--filter", file}
	if !slices.Contains(link, "host") {
		args = append(args, "--address", server4+"/24", "--gateway", client4)
	}
	w := newWorld(t)
	if link != nil {
		w = newFarCable(t, link...)
	}
	w.start("http", args...)
	p := w.port()
	f := newForge(t, p)
	if slices.Contains(link, "host") {
		must(t, w.far.Do(func() error {
			i, err := net.InterfaceByName("wire0")
			if err == nil {
				f.dst = i.HardwareAddr
			}
			return err
		}))
	}
	denied, elsewhere := make([][]byte, 1000), make([][]byte, 1000)
	for i := range denied {
		denied[i] = f.tcp(f.stranger(), 80, flagSYN)
		elsewhere[i] = slices.Concat(nobody, denied[i][6:])
	}
	w.timesUnder(p, f, denied) // the process has the NIC drop what it has seen to come
	var quiet, apart, flooded []time.Duration
	w.times() // connections are made, the server is warm, and has read what has come until then
	before := w.filtered()
	sent := 0
	var spent time.Duration
	for range max(1, int(*attackTime/(10*time.Second))) { // in turns
		quiet = append(quiet, w.times()...)
		during, _ := w.timesUnder(p, f, elsewhere)
		apart = append(apart, during...)
		from := time.Now()
		during, n := w.timesUnder(p, f, denied)
		flooded = append(flooded, during...)
		sent += n
		spent += time.Since(from)
	}
	s := w.filtered()
	reached := s.reached() - before.reached()
	t.Logf("%.0f frames/s of denied sources: %d, %d counted as dropped before our queues, %d "+
		"dropped behind them", float64(sent)/spent.Seconds(), sent,
		s.OffloadDropped-before.OffloadDropped, reached)
	for _, part := range []int{50, 99} {
		none, alone, with := percentile(quiet, part), percentile(apart, part),
			percentile(flooded, part)
		t.Logf("p%d of %d, %d and %d requests: %v without, %v with frames to nobody, %v with "+
			"denied ones: ratios %.2f and %.2f", part, len(quiet), len(apart), len(flooded), none,
			alone, with, float64(with)/float64(none), float64(with)/float64(alone))
	}
	most := sent / 1000
	if slices.Contains(link, "packet") {
		most = sent / 500 // of which the kernel lets one in 1,024 pass, as it does not count
	}
	if s.Offloaded == 0 || reached > uint64(most) {
		t.Errorf("of %d frames %d reach our queues: %+v", sent, reached, s)
	}
	// The filter of a packet socket does not count.
	if s.OffloadDropped == 0 && (link == nil || slices.Contains(link, "xdp")) {
		t.Errorf("nothing is counted as dropped before our queues: %+v", s)
	}
}

// timesUnder does what times does while frames are sent, and returns how many were.
func (w *world) timesUnder(p *lab.Port, f *forge, frames [][]byte) ([]time.Duration, int) {
	w.t.Helper()
	done, ended := make(chan struct{}), make(chan int)
	go func() {
		ended <- flood(w.t, p, 10_000_000, done,
			func() []byte { return frames[f.rng.IntN(len(frames))] })
	}()
	all := w.times()
	close(done)
	return all, <-ended
}

// times makes requests of several clients for a second, or a sixth of a longer attack, and returns
// how long each took.
func (w *world) times() (all []time.Duration) {
	w.t.Helper()
	newClient := w.browsers()
	ctx, cancel := context.WithTimeout(context.Background(), max(time.Second, *attackTime/6))
	defer cancel()
	var mu sync.Mutex
	var each sync.WaitGroup
	for range clients {
		each.Go(func() {
			c := newClient()
			for ctx.Err() == nil {
				began := time.Now()
				if err := c(context.Background()); err != nil {
					w.t.Errorf("a request: %v", err)
					return
				}
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
		})
	}
	each.Wait()
	return all
}

func percentile(all []time.Duration, part int) time.Duration {
	slices.Sort(all)
	return all[len(all)*part/100].Round(time.Microsecond)
}
