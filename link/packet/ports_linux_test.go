package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"golang.org/x/sys/unix"
)

// TestHostPorts sends every kind of frame to a port on the host's MAC, and requires those that are
// ours, in order: with a filter in the kernel that knows the ports, and with one that has too many.
func TestHostPorts(t *testing.T) {
	w := newWorld(t)
	p := openIn(t, w.ours, Config{Device: ifname, Host: true})
	if !bytes.Equal(p.MAC(), netdev) {
		t.Fatalf("MAC %v, want %v", p.MAC(), netdev)
	}
	must(t, p.SetGroups([]net.HardwareAddr{{1, 0, 0x5e, 0, 0, 1}}))
	raw := w.rawSocket(t, 0)
	v4, v6 := ourIP.Addr(), ourIPv6.Addr()
	ports := []Ports{
		{Addr: v4, First: 8080, Last: 8080}, {Addr: v6, First: 8080, Last: 8080},
		{UDP: true, Addr: v4, First: 53, Last: 53},
		{Addr: v4, First: 0xf000, Last: 0xf0ff}, {UDP: true, Addr: v6, First: 0xf000, Last: 0xf0ff},
	}
	many := ports
	for port := range uint16(filterPorts) {
		many = append(many, Ports{Addr: v4, First: 20000 + port, Last: 20000 + port},
			Ports{UDP: true, Addr: v6, First: 20000 + port, Last: 20000 + port})
	}
	single, blocks, more := ports[:3], ports[3:], many[len(ports):]
	for _, c := range []struct {
		name string
		set  func() error
	}{
		{"in the kernel", func() error { return p.SetPorts(ports) }},
		{"here", func() error { return p.SetPorts(many) }},
		{"removed until the kernel knows all", func() error { return p.ChangePorts(nil, more) }},
		{"added", func() error {
			return errors.Join(p.SetPorts(blocks), p.ChangePorts(single, nil))
		}},
		{"added until the kernel passes all", func() error { return p.ChangePorts(more, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, c.set())
			var want []string
			frames := hostFrames()
			for _, f := range frames {
				if _, err := unix.Write(raw, f.bytes); err != nil {
					t.Fatalf("%s: %v", f.name, err)
				}
				if f.ours {
					want = append(want, f.name)
				}
			}
			got := receive(t, p.Rx(0), len(want))
			for i, g := range got {
				for _, f := range frames {
					if f.name == want[i] && !bytes.HasPrefix(g.Data, f.bytes) {
						t.Fatalf("frame %d is % x, not %q", i, g.Data[:min(60, len(g.Data))],
							f.name)
					}
				}
			}
		})
	}
	if s := p.Stats().Rx[0]; s.Unclaimed == 0 {
		t.Errorf("nothing unclaimed came past the kernel's filter: %+v", s)
	}
}

type hostFrame struct {
	name  string
	ours  bool
	bytes []byte
}

// hostFrames are frames with and without what makes them ours. The last one is.
func hostFrames() []hostFrame {
	v4, v6, peer4, peer6 := ourIP.Addr(), ourIPv6.Addr(), peerIP.Addr(), peerIPv6.Addr()
	other4 := netip.MustParseAddr("192.0.2.11")
	to := func(dst net.HardwareAddr, etherType uint16, payload []byte) []byte {
		return eth.Ethernet(dst, peerMAC, etherType, payload)
	}
	four := func(p []byte) []byte { return to(netdev, typeIPv4, p) }
	six := func(p []byte) []byte { return to(netdev, typeIPv6, p) }
	seg := func(port uint16) []byte { return eth.TCP(999, port, 2, []byte("x")) }
	dgram := func(port uint16) []byte { return eth.UDP(999, port, []byte("x")) }
	arp := func(op byte) []byte {
		b := make([]byte, 46)
		copy(b, []byte{0, 1, 8, 0, 6, 4, 0, op})
		return b
	}
	fragment := eth.IP(peer4, v4, protoUDP, dgram(53))
	fragment[6] = 0x20 // more follow
	binary.BigEndian.PutUint16(fragment[10:], 0)
	binary.BigEndian.PutUint16(fragment[10:], ^eth.Sum(fragment[:ipv4Len]))
	options := eth.IP(peer4, v4, protoTCP, append(make([]byte, 4), seg(8080)...))
	options[0] = 0x46
	icmp := func(kind byte, body []byte) []byte {
		return append([]byte{kind, 4, 0, 0, 0, 0, 2, 88}, body...)
	}
	sent4 := func(from netip.Addr, proto byte, port uint16) []byte {
		return eth.IP(from, peer4, proto, eth.TCP(port, 999, 16, nil))
	}
	sent6 := func(port uint16) []byte {
		return eth.IP(v6, peer6, protoTCP, eth.TCP(port, 999, 16, nil))
	}
	return []hostFrame{
		{"TCP to a listener", true, four(eth.IP(peer4, v4, protoTCP, seg(8080)))},
		{"TCP to another port", false, four(eth.IP(peer4, v4, protoTCP, seg(8081)))},
		{"TCP to another address", false, four(eth.IP(peer4, other4, protoTCP, seg(8080)))},
		{"UDP to TCP's port", false, four(eth.IP(peer4, v4, protoUDP, dgram(8080)))},
		{"UDP", true, four(eth.IP(peer4, v4, protoUDP, dgram(53)))},
		{"TCP to UDP's port", false, four(eth.IP(peer4, v4, protoTCP, seg(53)))},
		{"TCP behind options", true, four(options)},
		{"a fragment", false, four(fragment)},
		{"below the block", false, four(eth.IP(peer4, v4, protoTCP, seg(0xefff)))},
		{"first of the block", true, four(eth.IP(peer4, v4, protoTCP, seg(0xf000)))},
		{"last of the block", true, four(eth.IP(peer4, v4, protoTCP, seg(0xf0ff)))},
		{"above the block", false, four(eth.IP(peer4, v4, protoTCP, seg(0xf100)))},
		{"TCP over IPv6", true, six(eth.IP(peer6, v6, protoTCP, seg(8080)))},
		{"UDP over IPv6, of the block", true, six(eth.IP(peer6, v6, protoUDP, dgram(0xf012)))},
		{"UDP over IPv6 to a port of IPv4's", false, six(eth.IP(peer6, v6, protoUDP, dgram(53)))},
		{"to another MAC", false, to(ourMAC, typeIPv4, eth.IP(peer4, v4, protoTCP, seg(8080)))},
		{"UDP to all", true, to(net.HardwareAddr{255, 255, 255, 255, 255, 255}, typeIPv4,
			eth.IP(peer4, v4, protoUDP, dgram(53)))},
		{"UDP to all, to another port", false, to(net.HardwareAddr{255, 255, 255, 255, 255, 255},
			typeIPv4, eth.IP(peer4, v4, protoUDP, dgram(54)))},
		{"TCP to all", false, to(net.HardwareAddr{255, 255, 255, 255, 255, 255}, typeIPv4,
			eth.IP(peer4, v4, protoTCP, seg(8080)))},
		{"a VLAN's", false, to(netdev, typeVLAN, append([]byte{0, 5, 8, 0},
			eth.IP(peer4, v4, protoTCP, seg(8080))...))},
		{"ARP request", true, to(netdev, typeARP, arp(1))},
		{"ARP reply", true, to(netdev, typeARP, arp(2))},
		{"ARP request to all", true, to(net.HardwareAddr{255, 255, 255, 255, 255, 255}, typeARP,
			arp(1))},
		{"ARP to another MAC", false, to(ourMAC, typeARP, arp(2))},
		{"echo request", false, four(eth.IP(peer4, v4, protoICMP, icmp(8, sent4(v4, protoTCP,
			8080))))},
		{"fragmentation needed", true, four(eth.IP(peer4, v4, protoICMP,
			icmp(icmpUnreachable, sent4(v4, protoTCP, 8080))))},
		{"fragmentation needed for the kernel", false, four(eth.IP(peer4, v4, protoICMP,
			icmp(icmpUnreachable, sent4(v4, protoTCP, 22))))},
		{"time exceeded, UDP", true, four(eth.IP(peer4, v4, protoICMP,
			icmp(icmpTimeExceeded, sent4(v4, protoUDP, 53))))},
		{"an error about another protocol", false, four(eth.IP(peer4, v4, protoICMP,
			icmp(icmpUnreachable, sent4(v4, protoICMP, 8080))))},
		{"an error that is cut off", false, four(eth.IP(peer4, v4, protoICMP,
			icmp(icmpUnreachable, sent4(v4, protoTCP, 8080)[:ipv4Len+3])))},
		{"packet too big", true, six(eth.IP(peer6, v6, protoICMPv6, icmp(2, sent6(8080))))},
		{"packet too big for the kernel", false, six(eth.IP(peer6, v6, protoICMPv6,
			icmp(2, sent6(22))))},
		{"an ICMPv6 error that nobody knows", true, six(eth.IP(peer6, v6, protoICMPv6,
			icmp(100, sent6(8080))))},
		{"an error about a fragment", true, six(eth.IP(peer6, v6, protoICMPv6, icmp(2,
			fragmentOf6(8080)[ethLen:])))},
		{"an error about a fragment of the kernel's", false, six(eth.IP(peer6, v6, protoICMPv6,
			icmp(2,
				fragmentOf6(22)[ethLen:])))},
		{"neighbour solicitation", true,
			six(eth.IP(peer6, v6, protoICMPv6, icmp(neighborSolicitation, make([]byte, 16))))},
		{"neighbour advertisement to all", true, to(allNodes, typeIPv6, eth.IP(peer6,
			netip.MustParseAddr("ff02::1"), protoICMPv6, icmp(neighborAdvertisement,
				make([]byte, 16))))},
		{"router advertisement", false, to(allNodes, typeIPv6, eth.IP(peer6,
			netip.MustParseAddr("ff02::1"), protoICMPv6, icmp(134, make([]byte, 16))))},
		{"UDP over IPv6 to all", false, to(allNodes, typeIPv6, eth.IP(peer6,
			netip.MustParseAddr("ff02::1"), protoUDP, dgram(0xf012)))},
		{"TCP over IPv6 behind options", true, six(eth.IP(peer6, v6, extDestination,
			append([]byte{protoTCP, 0, 1, 4, 0, 0, 0, 0}, seg(8080)...)))},
		{"neighbour advertisement", true, six(eth.IP(peer6, v6, protoICMPv6,
			icmp(neighborAdvertisement, make([]byte, 16))))},
		{"ICMPv6 echo", false, six(eth.IP(peer6, v6, protoICMPv6, icmp(128, sent6(8080))))},
		{"the last", true, four(eth.IP(peer4, v4, protoTCP, seg(0xf001)))},
	}
}

var allNodes = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}

// fragmentOf6 is the first fragment of a datagram that was sent from a port of ours.
func fragmentOf6(port uint16) []byte {
	h := append([]byte{protoTCP, 0, 0, 1, 0, 0, 0, 1}, eth.TCP(port, 999, 16, nil)...)
	return eth.Ethernet(peerMAC, netdev, typeIPv6, eth.IP(ourIPv6.Addr(), peerIPv6.Addr(),
		extFragment, h))
}

// TestHostFragments sends a port on the host's MAC datagrams in fragments, backwards: those for a
// port of ours come once they are whole, and nothing else does.
func TestHostFragments(t *testing.T) {
	w := newWorld(t)
	p := openIn(t, w.ours, Config{Device: ifname, Host: true})
	must(t, p.SetPorts([]Ports{{UDP: true, Addr: ourIP.Addr(), First: 53, Last: 53},
		{UDP: true, Addr: ourIPv6.Addr(), First: 53, Last: 53}}))
	raw := w.rawSocket(t, 0)
	var want [][]byte
	for i := range 40 {
		port := uint16(53 + i%2)
		frames := fragmentsOf(i%4 < 2, protoUDP, eth.UDP(7, port, eth.Payload(100+100*i)),
			uint32(i), 480)
		for j := range frames {
			_, err := unix.Write(raw, frames[len(frames)-1-j])
			must(t, err)
		}
		if port == 53 {
			want = append(want, frames...)
		}
	}
	for i, f := range receive(t, p.Rx(0), len(want)) {
		if !bytes.Equal(f.Data, want[i]) {
			t.Fatalf("frame %d of %d is % x, want % x", i, len(want), f.Data[:60], want[i][:60])
		}
	}
	if s := p.Stats(); s.Rx[0].Unclaimed == 0 || s.FragmentsDropped != 0 ||
		s.Rx[0].Frames != uint64(len(want)) {
		t.Errorf("%+v", s)
	}
}

// TestHostRefusals requires one sentence that says what to do.
func TestHostRefusals(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"a MAC", "MAC 02:00:00:00:00:0a: the host's is that of eth0; leave it unset",
			Config{MAC: ourMAC}},
		{"a VLAN", "VLAN 5: the host's addresses are on a netdev of the VLAN; name that",
			Config{VLAN: 5}},
	} {
		c.cfg.Device, c.cfg.Host = ifname, true
		must(t, w.ours.Do(func() error {
			if _, err := Open(c.cfg); err == nil || err.Error() != c.want {
				t.Errorf("%s: %v, want %s", c.name, err, c.want)
			}
			return nil
		}))
	}
	p := w.open(t, Config{})
	if err := p.SetPorts(nil); err == nil ||
		err.Error() != "eth0 has a MAC of its own, whose ports are all ours" {
		t.Error(err)
	}
	h := openIn(t, w.ours, Config{Device: ifname, Host: true})
	must(t, h.Close())
	must(t, h.SetPorts(nil)) // nothing, as it is closed
	must(t, h.ChangePorts(nil, nil))
	if err := h.ChangePorts([]Ports{{Addr: ourIP.Addr(), First: 1, Last: 2}}, nil); err == nil ||
		err.Error() != "change ports of eth0: use SetPorts for a block of them" {
		t.Error(err)
	}
}

// TestPortsChange adds and removes ports in random order, and compares with a table that is told
// all of them at once: what is ours, and the kernel's filter.
func TestPortsChange(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	addrs := []netip.Addr{ourIP.Addr(), ourIPv6.Addr(), netip.MustParseAddr("192.0.2.77")}
	block := Ports{Addr: addrs[0], First: 0xf000, Last: 0xf0ff}
	held, table := map[Ports]bool{}, newPortTable([]Ports{block})
	some := func(most int) (list []Ports) {
		for range random.IntN(most) {
			port := uint16(random.IntN(600) * 101)
			list = append(list, Ports{UDP: random.IntN(2) == 0, First: port, Last: port,
				Addr: addrs[random.IntN(len(addrs))]})
		}
		return list
	}
	for step := range 400 {
		added, removed := some(12), some(12)
		if step%100 > 80 {
			removed = slices.Concat(removed, some(200))
		}
		table.drop(removed)
		table = table.with(added)
		for _, p := range removed {
			delete(held, p)
		}
		for _, p := range added {
			held[p] = true
		}
		want := newPortTable(append(slices.Collect(maps.Keys(held)), block))
		if !slices.Equal(table.classicFilter(), want.classicFilter()) {
			t.Fatalf("step %d: the filter of %d ports is another", step, len(held))
		}
		for _, p := range slices.Concat(added, removed, some(50)) {
			k := portKey{p.Addr, p.First, p.UDP}
			if table.hasPort(k) != want.hasPort(k) || held[p] && !table.hasPort(k) {
				t.Fatalf("step %d: %+v is ours: %v, want %v", step, p, table.hasPort(k),
					want.hasPort(k))
			}
		}
	}
}

// TestPortsChangeCost: a port more or less costs the same whatever there is.
func TestPortsChangeCost(t *testing.T) {
	w := newWorld(t)
	p := openIn(t, w.ours, Config{Device: ifname, Host: true})
	var last float64
	for _, n := range []int{1000, 32000} {
		list := []Ports{{Addr: ourIP.Addr(), First: 0xf000, Last: 0xf0ff}}
		for port := range uint16(n) {
			list = append(list, Ports{Addr: ourIP.Addr(), First: port + 1, Last: port + 1})
		}
		must(t, p.SetPorts(list))
		one := []Ports{{Addr: ourIP.Addr(), First: 40000, Last: 40000}}
		allocs := testing.AllocsPerRun(100, func() {
			must(t, p.ChangePorts(one, nil))
			must(t, p.ChangePorts(nil, one))
		})
		if last != 0 && allocs > last+1 {
			t.Errorf("%v allocations with %d ports, %v with fewer", allocs, n, last)
		}
		last = allocs
	}
}

// FuzzOurs looks at any frame; seeds are those of TestHostPorts.
func FuzzOurs(f *testing.F) {
	for _, frame := range hostFrames() {
		f.Add(frame.bytes)
	}
	table := newPortTable([]Ports{{Addr: ourIP.Addr(), First: 8080, Last: 8080},
		{Addr: ourIPv6.Addr(), First: 0xf000, Last: 0xf0ff}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if table.isOurs(frame) && len(frame) < ethLen+ipv4Len {
			t.Errorf("ours: % x", frame)
		}
	})
}
