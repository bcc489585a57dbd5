package dv_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

var (
	hostV4, hostV6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	secondV4       = netip.MustParseAddr("192.0.2.2")
)

const tcp, udp = 6, 17

// listener is the rule of a listener.
func listener(proto uint8, addr netip.Addr, port uint16) dv.HostRule {
	return dv.HostRule{Priority: dv.PriorityListener, Proto: proto, Addr: addr, Port: port}
}

// block is the rule of the block of ports from first on.
func block(proto uint8, addr netip.Addr, first uint16) dv.HostRule {
	return dv.HostRule{Priority: dv.PriorityBlock, Proto: proto, Addr: addr, Port: first,
		Ports: dv.BlockPorts}
}

// openHost opens the NIC in host mode.
func (s *sim) openHost(t testing.TB, cfg dv.Config) *dv.Device {
	t.Helper()
	cfg.HostMode, cfg.MAC = true, netdevMAC
	return s.open(t, cfg)
}

func addRule(t testing.TB, d *dv.Device, r dv.HostRule) *dv.Rule {
	t.Helper()
	rule, err := d.AddRule(r)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

// toHost is a frame to the netdev's own MAC.
func toHost(proto uint8, dst netip.Addr, port uint16) []byte {
	src := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), 30001)
	if dst.Is6() {
		src = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::7"), 30001)
	}
	f := packet(src, netip.AddrPortFrom(dst, port), proto, 40)
	copy(f, netdevMAC)
	return f
}

// fragment is f as the first fragment of a datagram.
func fragment(f []byte) []byte {
	f = bytes.Clone(f)
	f[14+6] |= 0x20 // more fragments
	f[14+10], f[14+11] = 0, 0
	sum := ^checksum(f[14:34])
	f[14+10], f[14+11] = byte(sum>>8), byte(sum)
	return f
}

// goes sends a frame, which must come to us once, or to Linux once.
func (s *sim) goes(t *testing.T, d *dv.Device, what string, f []byte, ours bool) {
	t.Helper()
	s.wire.send(t, f)
	n := 0
	for i := range d.NumRx() {
		n += len(poll(d.Rx(i)))
	}
	linux := len(s.netdev.drain())
	if ours && (n != 1 || linux != 0) || !ours && (n != 0 || linux != 1) {
		t.Errorf("%s: %d to us, %d to Linux; ours is %v", what, n, linux, ours)
	}
}

// TestHostMode: only what a rule names comes to us, to the queue that QueueFor says, and counts.
func TestHostMode(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	if !bytes.Equal(d.MAC(), netdevMAC) || !d.HostMode() {
		t.Errorf("MAC %v, host mode %v", d.MAC(), d.HostMode())
	}
	s.goes(t, d, "before any rule", toHost(tcp, hostV4, 443), false)
	rules := map[string]*dv.Rule{}
	for _, r := range []dv.HostRule{listener(tcp, hostV4, 443), listener(udp, hostV4, 53),
		listener(tcp, hostV6, 443), listener(udp, hostV6, 53), block(tcp, hostV4, dv.FirstBlock),
		block(udp, hostV6, 0xff00)} {
		rules[r.String()] = addRule(t, d, r)
	}
	for _, c := range []struct {
		name  string
		frame []byte
		ours  bool
	}{
		{"TCP over IPv4", toHost(tcp, hostV4, 443), true},
		{"UDP over IPv4", toHost(udp, hostV4, 53), true},
		{"TCP over IPv6", toHost(tcp, hostV6, 443), true},
		{"UDP over IPv6", toHost(udp, hostV6, 53), true},
		{"another port", toHost(tcp, hostV4, 444), false},
		{"another protocol", toHost(udp, hostV4, 443), false},
		{"another address", toHost(tcp, secondV4, 443), false},
		{"first of the block", toHost(tcp, hostV4, 0xf000), true},
		{"last of the block", toHost(tcp, hostV4, 0xf0ff), true},
		{"before the block", toHost(tcp, hostV4, 0xefff), false},
		{"behind the block", toHost(tcp, hostV4, 0xf100), false},
		{"the other protocol's block", toHost(udp, hostV4, 0xf000), false},
		{"last port of all", toHost(udp, hostV6, 0xffff), true},
		{"with a VLAN tag", tagFrame(toHost(tcp, hostV4, 443), 5), false},
		{"with a priority tag", tagFrame(toHost(tcp, hostV4, 443), 0), false},
		{"first fragment", fragment(toHost(udp, hostV4, 53)), false},
		{"ARP", frame(netdevMAC, peerMAC, 0x0806, 60), false},
		{"broadcast", frame(broadcast, peerMAC, 0x0806, 60), false},
		{"ping", toHost(1, hostV4, 0), false},
	} {
		s.goes(t, d, c.name, c.frame, c.ours)
	}
	f := dv.Flow{Proto: tcp, Src: netip.MustParseAddrPort("192.0.2.7:30001"),
		Dst: netip.AddrPortFrom(hostV4, 443)}
	s.wire.send(t, toHost(tcp, hostV4, 443))
	if n := len(poll(d.Rx(d.QueueFor(f)))); n != 1 {
		t.Errorf("%d frames on the queue of QueueFor", n)
	}
	checkCounts(t, d)
	for name, r := range rules {
		for range 2 {
			if err := r.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	s.goes(t, d, "after the rules", toHost(tcp, hostV4, 443), false)
	if left := portRules(d); len(left) != 0 {
		t.Errorf("left are %+v", left)
	}
}

// portRules is the rules of d but those that leave fragments and other VLANs to Linux.
func portRules(d *dv.Device) []dv.RuleInfo {
	return slices.DeleteFunc(d.Rules(), func(r dv.RuleInfo) bool {
		return strings.HasPrefix(r.Match, "fragments") ||
			strings.HasPrefix(r.Match, "frames with a VLAN tag")
	})
}

// checkCounts compares the list of rules with the frames that TestHostMode has sent.
func checkCounts(t *testing.T, d *dv.Device) {
	t.Helper()
	want := map[string]uint64{"TCP port 443 of 192.0.2.1": 2, "UDP port 53 of 192.0.2.1": 1,
		"TCP port 443 of 2001:db8::1": 1, "UDP port 53 of 2001:db8::1": 1,
		"TCP ports 61440 to 61695 of 192.0.2.1": 2, "UDP ports 65280 to 65535 of 2001:db8::1": 1}
	last := uint16(0)
	for _, r := range portRules(d) {
		match, _, _ := strings.Cut(r.Match, ", MAC")
		if n, ok := want[match]; !ok || !r.Counted || r.Packets != n || r.Bytes < 54*n ||
			r.Tag == 0 || r.Priority < last || r.To != "queues" {
			t.Errorf("rule %+v, want %d packets", r, n)
		}
		delete(want, match)
		last = r.Priority
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

// TestHostModeVLAN: the rules of a device in a VLAN are for its frames only.
func TestHostModeVLAN(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{NIC: dv.NIC{VLAN: 5}})
	addRule(t, d, listener(tcp, hostV4, 443))
	f := toHost(tcp, hostV4, 443)
	s.goes(t, d, "its own", tagFrame(f, 5), true)
	s.goes(t, d, "no VLAN", f, false)
	s.goes(t, d, "another VLAN", tagFrame(f, 6), false)
	s.goes(t, d, "fragment", tagFrame(fragment(f), 5), false)
}

// TestPortInUse: a port, or a block, of one process is refused to another in a sentence, and the
// first loses nothing; what the first gives up, the other gets.
func TestPortInUse(t *testing.T) {
	for name, r := range map[string]dv.HostRule{"port": listener(tcp, hostV4, 443),
		"block": block(udp, hostV6, dv.FirstBlock)} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, simnic.Config{}, kernel.Config{})
			first, second := s.openHost(t, dv.Config{}), s.openHost(t, dv.Config{})
			rule := addRule(t, first, r)
			_, err := second.AddRule(r)
			if !errors.Is(err, unix.EADDRINUSE) || !errors.Is(err, unix.EEXIST) ||
				!strings.HasPrefix(err.Error(), r.String()+" is steered by another process (tag") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("second: %v", err)
			}
			f := toHost(r.Proto, r.Addr, r.Port)
			s.goes(t, first, "the first's", f, true)
			r.Port += 256
			addRule(t, second, r) // another port is free
			if r.Port -= 256; rule.Close() != nil {
				t.Error("not closed")
			}
			addRule(t, second, r)
			s.goes(t, second, "the second's", f, true)
		})
	}
}

// TestLeftToLinux: a rule of priority 0 leaves one port of a block to Linux; where the kernel or
// the device has no such rule, AddRule and the log say so, and the rest works.
func TestLeftToLinux(t *testing.T) {
	few := simnic.DefaultCaps()
	few.MultiPathFlows = false
	for _, c := range []struct {
		name  string
		caps  simnic.Caps
		linux kernel.Config
		can   bool
	}{
		{"linux 6.12", simnic.DefaultCaps(), kernel.Config{}, true},
		{"linux 7.2", simnic.DefaultCaps(), kernel.Config{Release: kernel.Linux72}, true},
		{"linux 5.4", simnic.DefaultCaps(), kernel.Config{Release: kernel.Linux54}, false},
		{"device that cannot", few, kernel.Config{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newSim(t, simnic.Config{Caps: c.caps}, c.linux)
			d := s.openHost(t, dv.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			addRule(t, d, block(tcp, hostV4, dv.FirstBlock))
			carve := dv.HostRule{Priority: dv.PriorityLinux, Proto: tcp, Addr: hostV4, Port: 0xf010}
			rule, err := d.AddRule(carve)
			if c.can != (err == nil) || !c.can && !errors.Is(err, dv.ErrNotSupported) {
				t.Fatalf("rule to Linux: %v", err)
			}
			s.goes(t, d, "the port", toHost(tcp, hostV4, 0xf010), !c.can)
			s.goes(t, d, "the port beside it", toHost(tcp, hostV4, 0xf011), true)
			if d.Caps().RulesToLinux != c.can ||
				c.can == strings.Contains(log.String(), "no rule can leave fragments to Linux") {
				t.Errorf("caps %v, log %s", d.Caps().RulesToLinux, log.String())
			}
			if c.can {
				if err := rule.Close(); err != nil {
					t.Error(err)
				}
				s.goes(t, d, "the port, later", toHost(tcp, hostV4, 0xf010), true)
			}
		})
	}
}

// TestCrashRemovesRules: rules go with the open node, however the process ends.
func TestCrashRemovesRules(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	k := &spy{}
	cfg := s.config(dv.Config{HostMode: true, NIC: dv.NIC{MAC: netdevMAC}})
	cfg.Model.Kernel = func() (_ uverbs.Kernel, err error) {
		k.Kernel, err = s.linux.OpenNode()
		return k, err
	}
	d, err := dv.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close() // of a node that is closed already
	addRule(t, d, listener(tcp, hostV4, 443))
	s.goes(t, d, "before", toHost(tcp, hostV4, 443), true)
	if err := k.Kernel.Close(); err != nil {
		t.Fatal(err)
	}
	s.wire.send(t, toHost(tcp, hostV4, 443), fragment(toHost(tcp, hostV4, 443)))
	if n := len(s.netdev.drain()); n != 2 {
		t.Errorf("after the crash %d of 2 frames went to Linux", n)
	}
	addRule(t, s.openHost(t, dv.Config{}), listener(tcp, hostV4, 443)) // nothing is left
}

// TestRulesRefused: what is wrong is said in a sentence, and nothing is installed.
func TestRulesRefused(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{})
	good := listener(tcp, hostV4, 443)
	for name, change := range map[string]func(*dv.HostRule){
		"priority":        func(r *dv.HostRule) { r.Priority = 4 },
		"protocol":        func(r *dv.HostRule) { r.Proto = 132 },
		"no address":      func(r *dv.HostRule) { r.Addr = netip.Addr{} },
		"any address":     func(r *dv.HostRule) { r.Addr = netip.IPv4Unspecified() },
		"group":           func(r *dv.HostRule) { r.Addr = netip.MustParseAddr("224.0.0.1") },
		"zone":            func(r *dv.HostRule) { r.Addr = netip.MustParseAddr("fe80::1%eth0") },
		"mapped":          func(r *dv.HostRule) { r.Addr = netip.MustParseAddr("::ffff:1.2.3.4") },
		"no port":         func(r *dv.HostRule) { r.Port = 0 },
		"no power of two": func(r *dv.HostRule) { r.Port, r.Ports = 768, 3 },
		"not aligned":     func(r *dv.HostRule) { r.Ports = 4 },
		"negative":        func(r *dv.HostRule) { r.Ports = -256 },
		"too many":        func(r *dv.HostRule) { r.Ports = 1 << 16 },
	} {
		r := good
		change(&r)
		if rule, err := d.AddRule(r); !errors.Is(err, dv.ErrConfig) {
			t.Errorf("%s: %v, %v", name, rule, err)
		}
	}
	own := s.open(t, dv.Config{})
	if _, err := own.AddRule(good); !errors.Is(err, dv.ErrConfig) ||
		!strings.Contains(err.Error(), "set HostMode") {
		t.Errorf("with a MAC of its own: %v", err)
	}
	for name, cfg := range map[string]dv.Config{"another MAC": {NIC: dv.NIC{MAC: otherMAC}},
		"promiscuous": {NIC: dv.NIC{MAC: netdevMAC, Steering: dv.Steering{Promiscuous: true}}}} {
		cfg.HostMode = true
		if _, err := dv.Open(t.Context(), s.config(cfg)); !errors.Is(err, dv.ErrMAC) &&
			!errors.Is(err, dv.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	representor := s.config(dv.Config{HostMode: true})
	representor.Model.Facts.Representor = true
	if _, err := dv.Open(t.Context(), representor); !errors.Is(err, dv.ErrNotSupported) ||
		!strings.Contains(err.Error(), "is the representor of a function") {
		t.Errorf("representor: %v", err)
	}
	rule := addRule(t, d, good)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddRule(listener(tcp, hostV4, 80)); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := rule.Close(); err != nil || len(d.Rules()) != 0 {
		t.Errorf("rule of a closed device: %v, %v", err, d.Rules())
	}
}

// TestHostOtherMAC: Linux has given the netdev another MAC. Rules of before and after lead its
// frames here, and those to groups, fragments and frames with a tag stay with Linux.
func TestHostOtherMAC(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.openHost(t, dv.Config{NIC: dv.NIC{RxQueues: 1}})
	addRule(t, d, listener(tcp, hostV4, 443))
	addRule(t, d, listener(udp, hostV4, 53))
	other := net.HardwareAddr{2, 0, 0, 0, 0, 0x99}
	to := func(mac net.HardwareAddr, f []byte) []byte {
		copy(f, mac)
		return f
	}
	s.goes(t, d, "to another MAC, before it is known", to(other, toHost(tcp, hostV4, 443)), true)
	if err := d.SetMAC(other); err != nil || !bytes.Equal(d.MAC(), other) {
		t.Fatalf("%v, %v", d.MAC(), err)
	}
	addRule(t, d, listener(tcp, hostV4, 444))
	for name, f := range map[string][]byte{"rule of before": toHost(tcp, hostV4, 443),
		"rule of after": toHost(tcp, hostV4, 444)} {
		s.goes(t, d, name, to(other, f), true)
	}
	for name, f := range map[string][]byte{
		"fragment": fragment(toHost(udp, hostV4, 53)),
		"tag":      tagFrame(toHost(tcp, hostV4, 443), 5)} {
		s.wire.send(t, to(other, f)) // Linux of the model has the former address
		if n := len(poll(d.Rx(0))); n != 0 {
			t.Errorf("%s: %d frames to us", name, n)
		}
	}
	s.goes(t, d, "group", to(net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, toHost(tcp, hostV4, 443)),
		false)
	if err := d.SetMAC(other); err != nil {
		t.Error("again:", err)
	}
	for _, bad := range []net.HardwareAddr{nil, {1, 0, 0, 0, 0, 1}, make(net.HardwareAddr, 6),
		make(net.HardwareAddr, 8)} {
		if err := d.SetMAC(bad); !errors.Is(err, dv.ErrMAC) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.SetMAC(netdevMAC); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestOtherMAC: the rules of a device without HostMode follow, also after Rebalance; another
// process's address is refused, and nothing has changed then.
func TestOtherMAC(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	mine, other, taken := net.HardwareAddr{2, 0, 0, 0, 1, 1}, net.HardwareAddr{2, 0, 0, 0, 1, 2},
		net.HardwareAddr{2, 0, 0, 0, 1, 3}
	d := s.open(t, dv.Config{NIC: dv.NIC{RxQueues: 2, MAC: mine}})
	s.open(t, dv.Config{NIC: dv.NIC{MAC: taken}})
	frames := func(mac net.HardwareAddr) (n int) {
		f := toHost(tcp, hostV4, 443)
		copy(f, mac)
		s.wire.send(t, f)
		for i := range d.NumRx() {
			n += len(poll(d.Rx(i)))
		}
		return n
	}
	step := func(what string, set net.HardwareAddr, is error, want net.HardwareAddr) {
		t.Helper()
		if err := d.SetMAC(set); !errors.Is(err, is) {
			t.Errorf("%s: %v, want %v", what, err, is)
		}
		for _, mac := range []net.HardwareAddr{mine, other} {
			if n, ours := frames(mac), bytes.Equal(mac, want); n != 0 != ours || n > 1 {
				t.Errorf("%s: %d frames to %v", what, n, mac)
			}
		}
		if !bytes.Equal(d.MAC(), want) {
			t.Errorf("%s: MAC %v", what, d.MAC())
		}
	}
	step("changed", other, nil, other)
	step("another's", taken, dv.ErrMAC, other)
	if err := d.Rebalance([]int{1, 3}); err != nil {
		t.Fatal(err)
	}
	step("after a rebalance", other, nil, other)
	step("back", mine, nil, mine)
	if err := d.Rebalance([]int{1, 1}); err != nil {
		t.Fatal(err)
	}
	step("after another", mine, nil, mine)
}

// TestNetdevMACIsTold: a device says what it was told of its netdev's MAC, to all who asked, once
// for each change, and keeps its own.
func TestNetdevMACIsTold(t *testing.T) {
	d := newSim(t, simnic.Config{}, kernel.Config{}).openHost(t, dv.Config{})
	told, full := make(chan struct{}, 1), make(chan struct{}, 1)
	full <- struct{}{}
	d.NotifyNetdevMAC(told)
	d.NotifyNetdevMAC(full)
	if mac := d.NetdevMAC(); mac != nil {
		t.Errorf("the MAC %v, which nobody has told", mac)
	}
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, news := range []bool{true, false} {
		d.SetNetdevMAC(other)
		if len(told) == 1 != news {
			t.Errorf("a token: %v, want %v", len(told) == 1, news)
		}
		for len(told) > 0 {
			<-told
		}
	}
	if got := d.NetdevMAC(); !bytes.Equal(got, other) || !bytes.Equal(d.MAC(), netdevMAC) {
		t.Errorf("the netdev's MAC %v, the device's %v; want %v and %v", got, d.MAC(), other,
			netdevMAC)
	}
}
