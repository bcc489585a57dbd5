package rdma

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// judge is a stack that receives frames from a worker and whose answers the test reads.
type judge struct {
	*channel.Endpoint
	dispatcher gstack.NetworkDispatcher
	stack      *gstack.Stack
	worker     *worker
	socket     tcpip.Endpoint // UDP, on port 53, IPv4
}

func (j *judge) Attach(d gstack.NetworkDispatcher) {
	j.dispatcher = d
	j.Endpoint.Attach(d)
}

// newJudge makes a stack with the addresses 10.0.0.1/24 and fd00::1/64. The fast path is open or
// closed.
func newJudge(t testing.TB, fast bool) *judge {
	j := &judge{Endpoint: channel.New(64, 1500, ourMAC), worker: testWorker()}
	j.LinkEPCapabilities = gstack.CapabilityRXChecksumOffload
	j.stack = gstack.New(gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol,
			ipv6.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol,
			icmp.NewProtocol4, icmp.NewProtocol6},
		HandleLocal: true,
	})
	t.Cleanup(func() { j.stack.Destroy() })
	if err := j.stack.CreateNIC(1, j); err != nil {
		t.Fatal(err)
	}
	addresses := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"),
		netip.MustParsePrefix("fd00::1/64")}
	for _, p := range addresses {
		protocol := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber}
		if p.Addr().Is6() {
			protocol.Protocol = ipv6.ProtocolNumber
		}
		protocol.AddressWithPrefix = tcpip.AddressWithPrefix{
			Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}
		if err := j.stack.AddProtocolAddress(1, protocol, gstack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		j.stack.AddRoute(tcpip.Route{Destination: protocol.AddressWithPrefix.Subnet(), NIC: 1})
	}
	var terr tcpip.Error
	if j.socket, terr = j.stack.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber,
		new(waiter.Queue)); terr != nil {
		t.Fatal(terr)
	}
	t.Cleanup(j.socket.Close)
	if err := j.socket.Bind(tcpip.FullAddress{Port: 53}); err != nil {
		t.Fatal(err)
	}
	w := j.worker
	w.attachment.dispatcher = j.dispatcher
	w.attachment.networks.Store(&networks{fastPath: newFastPath(j.dispatcher, j.stack, 1)})
	if fast {
		w.e.SetLocalAddresses(addresses)
	}
	return j
}

// hear delivers frames as one batch.
func (j *judge) hear(frames ...[]byte) {
	j.worker.classifyAndMerge(j.worker.load(dv.RxL3OK|dv.RxL4OK, frames...))
	j.worker.deliverAll(j.worker.buildPackets())
}

// said is the answers: for each packet its protocol and the fields that distinguish answers.
func (j *judge) said() (out []string) {
	for pkt := j.Read(); pkt != nil; pkt = j.Read() {
		s := fmt.Sprintf("%d to %s", pkt.NetworkProtocolNumber, pkt.Network().DestinationAddress())
		switch b := pkt.TransportHeader().Slice(); pkt.Network().TransportProtocol() {
		case header.TCPProtocolNumber:
			s += fmt.Sprintf(" TCP %s ack %d", header.TCP(b).Flags(), header.TCP(b).AckNumber())
		case header.ICMPv4ProtocolNumber, header.ICMPv6ProtocolNumber:
			s += fmt.Sprintf(" ICMP %x", b[:2])
		default:
			s += fmt.Sprintf(" %x", b)
		}
		out = append(out, s)
		pkt.DecRef()
	}
	return out
}

// counts are all counters of the stack and the interface.
func (j *judge) counts(t *testing.T) map[string]uint64 {
	out := map[string]uint64{}
	info, ok := j.stack.SingleNICInfo(1)
	if !ok {
		t.Fatal("no interface")
	}
	collect("all", reflect.ValueOf(j.stack.Stats()), out)
	collect("interface", reflect.ValueOf(info.Stats), out)
	for proto, stats := range info.NetworkStats {
		if ip, ok := stats.(gstack.IPNetworkEndpointStats); ok {
			collect(fmt.Sprint(proto), reflect.ValueOf(*ip.IPStats()), out)
		}
	}
	return out
}

func collect(name string, v reflect.Value, out map[string]uint64) {
	if !v.CanInterface() {
		return
	}
	switch c := v.Interface().(type) {
	case *tcpip.StatCounter:
		out[name] = c.Value()
	case *tcpip.IntegralStatCounterMap:
		for _, key := range c.Keys() {
			if n, ok := c.Get(key); ok {
				out[fmt.Sprint(name, key)] = n.Value()
			}
		}
	default:
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				collect(name+"."+v.Type().Field(i).Name, v.Field(i), out)
			}
		}
	}
}

// changed is a frame with some bytes of its IP packet replaced and no checksum corrected: the NIC
// reports it as verified.
func changed(frame []byte, at int, to ...byte) []byte {
	copy(frame[hdr.EthLen+at:], to)
	return frame
}

// TestFastPath compares the fast path with the ordinary path: the answers, the counters, and the
// data read.
func TestFastPath(t *testing.T) {
	syn := segment(0)
	syn.Flags, syn.Payload = header.TCPFlagSyn, nil
	dgram := segment(0)
	dgram.Ports = [2]uint16{4000, 53}
	unknown := segment(0)
	with := func(f tcpFrame, change func(*tcpFrame)) tcpFrame { change(&f); return f }
	v6 := func(f tcpFrame) tcpFrame { f.V6 = true; return f }
	for _, tt := range []struct {
		name  string
		frame func() []byte
		fast  bool
	}{
		{"SYN to a closed port", func() []byte { return syn.Bytes() }, true},
		{"segment of no connection", func() []byte { return segment(0).Bytes() }, true},
		{"the same, IPv6", func() []byte { return v6(segment(0)).Bytes() }, true},
		{"datagram", func() []byte { return udpFrame(dgram) }, true},
		{"datagram with bytes behind it",
			func() []byte { return changed(udpFrame(dgram), 24, 0, 50) }, true},
		{"datagram, padded frame",
			func() []byte {
				return udpFrame(
					with(dgram, func(f *tcpFrame) { f.Payload, f.Pad = nil, 20 }))
			}, true},
		{"datagram longer than its packet",
			func() []byte { return changed(udpFrame(dgram), 24, 1, 0) }, false},
		{"datagram shorter than its header",
			func() []byte { return changed(udpFrame(dgram), 24, 0, 7) }, false},
		{"datagram nobody wants", func() []byte { return udpFrame(unknown) }, true},
		{"the same, IPv6", func() []byte { return udpFrame(v6(unknown)) }, true},
		{"TCP header longer than the segment",
			func() []byte { return changed(syn.Bytes(), 32, 0xf0) }, false},
		{"TCP header of 16 bytes", func() []byte { return changed(syn.Bytes(), 32, 0x40) }, false},
		{"from ourselves",
			func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.From = 1 })) },
			false},
		{"from ourselves, IPv6",
			func() []byte { return udpFrame(with(v6(dgram), func(f *tcpFrame) { f.From = 1 })) },
			false},
		{"from the subnet's broadcast address",
			func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.From = 255 })) },
			false},
		{"from broadcast",
			func() []byte { return changed(udpFrame(dgram), 12, 255, 255, 255, 255) }, false},
		{"from a group", func() []byte { return changed(udpFrame(dgram), 12, 224, 0, 0, 1) },
			false},
		{"from loopback", func() []byte { return changed(udpFrame(dgram), 12, 127, 0, 0, 1) },
			false},
		{"from nobody", func() []byte { return changed(udpFrame(dgram), 12, 0, 0, 0, 0) }, false},
		{"from a group, IPv6", func() []byte { return changed(udpFrame(v6(dgram)), 8, 0xff, 2) },
			false},
		{"from loopback, IPv6",
			func() []byte {
				return changed(udpFrame(v6(dgram)), 8,
					append(make([]byte, 15), 1)...)
			}, false},
		{"from nobody, IPv6",
			func() []byte { return changed(udpFrame(v6(dgram)), 8, make([]byte, 16)...) }, false},
		{"to another host",
			func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.To = 9 })) }, false},
		{"to another host, IPv6",
			func() []byte { return udpFrame(with(v6(dgram), func(f *tcpFrame) { f.To = 9 })) },
			false},
		{"to the subnet",
			func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.To = 255 })) },
			false},
		{"in a broadcast frame", func() []byte {
			return udpFrame(
				with(dgram, func(f *tcpFrame) { f.Dst = header.EthernetBroadcastAddress }))
		}, false},
		{"options", func() []byte {
			return udpFrame(with(dgram, func(f *tcpFrame) { f.IPOpts = []byte{1, 1, 1, 0} }))
		}, false},
		{"extension header", func() []byte {
			return udpFrame(
				with(v6(dgram), func(f *tcpFrame) { f.IPOpts = []byte{0, 1, 4, 0, 0, 0, 0} }))
		}, false},
		{"fragment", func() []byte {
			return udpFrame(with(dgram, func(f *tcpFrame) { f.Fragment = 8 }))
		}, false},
		{"another protocol", func() []byte { return changed(udpFrame(dgram), 9, 132) }, false},
		{"cut short", func() []byte { return udpFrame(dgram)[:hdr.EthLen+25] }, false},
		{"TTL 0", func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.TTL = 0 })) },
			true},
		{"hop limit 0", func() []byte {
			return udpFrame(with(v6(unknown), func(f *tcpFrame) { f.TTL = 0 }))
		}, true},
		{"congestion experienced",
			func() []byte { return udpFrame(with(dgram, func(f *tcpFrame) { f.TOS = 3 })) }, true},
		{"reserved flag", func() []byte { return changed(udpFrame(dgram), 6, 0x80) }, true},
		{"total length beyond the frame",
			func() []byte { return changed(udpFrame(dgram), 2, 5, 0) }, false},
		{"total length short of the header",
			func() []byte { return changed(udpFrame(dgram), 2, 0, 19) }, false},
		{"total length short of the datagram",
			func() []byte { return changed(udpFrame(dgram), 2, 0, 40) }, false},
		{"header of 16 bytes", func() []byte { return changed(udpFrame(dgram), 0, 0x44) }, false},
		{"version 5", func() []byte { return changed(udpFrame(dgram), 0, 0x55) }, false},
		{"version 4 in an IPv6 frame",
			func() []byte { return changed(udpFrame(v6(dgram)), 0, 0x40) }, false},
		{"payload beyond the frame, IPv6",
			func() []byte { return changed(udpFrame(v6(dgram)), 4, 5, 0) }, false},
		{"payload short of the datagram, IPv6",
			func() []byte { return changed(udpFrame(v6(dgram)), 4, 0, 40) }, false},
		{"fragment header, IPv6",
			func() []byte { return changed(udpFrame(v6(dgram)), 6, hdr.ExtFragment) }, false},
		{"hop-by-hop header, IPv6",
			func() []byte { return changed(udpFrame(v6(dgram)), 6, hdr.ExtHopByHop) }, false},
		{"last fragment", func() []byte { return changed(udpFrame(dgram), 6, 0, 8) }, false},
		{"from a reserved address",
			func() []byte { return changed(udpFrame(dgram), 12, 240, 0, 0, 1) }, false},
		{"from another loopback address",
			func() []byte { return changed(udpFrame(dgram), 12, 127, 255, 0, 9) }, false},
		{"from an IPv4 address in IPv6", func() []byte {
			return changed(udpFrame(v6(dgram)), 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0,
				2)
		}, true},
		{"to a group, IPv6", func() []byte { return changed(udpFrame(v6(dgram)), 24, 0xff, 2) },
			false},
		{"from port 0", func() []byte {
			return udpFrame(with(dgram, func(f *tcpFrame) { f.Ports[0] = 0 }))
		}, true},
		{"to port 0", func() []byte {
			return udpFrame(with(dgram, func(f *tcpFrame) { f.Ports[1] = 0 }))
		}, true},
		{"SYN and FIN", func() []byte {
			return with(syn, func(f *tcpFrame) { f.Flags |= header.TCPFlagFin }).Bytes()
		}, true},
		{"SYN from a group", func() []byte { return changed(syn.Bytes(), 12, 224, 0, 0, 1) },
			false},
		{"no flags", func() []byte { return with(syn, func(f *tcpFrame) { f.Flags = 0 }).Bytes() },
			true},
		{"reset", func() []byte {
			return with(syn, func(f *tcpFrame) { f.Flags = header.TCPFlagRst }).Bytes()
		}, true},
		{"cut options", func() []byte {
			return with(syn, func(f *tcpFrame) { f.Options = []byte{2, 40, 1, 1} }).Bytes()
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fast, ordinary := newJudge(t, true), newJudge(t, false)
			fast.hear(tt.frame(), tt.frame())
			ordinary.hear(tt.frame(), tt.frame())
			compare(t, fast, ordinary)
			if got := fast.worker.count.fastPath.Load() > 0 ||
				fast.worker.merge.runs[0].fastPath; got != tt.fast {
				t.Errorf("took the fast path: %v", got)
			}
			if ordinary.worker.count.fastPath.Load() != 0 {
				t.Error("took a fast path that is closed")
			}
		})
	}
}

// compare requires the same results of two stacks.
func compare(t *testing.T, fast, ordinary *judge) {
	t.Helper()
	if a, b := fast.said(), ordinary.said(); !slices.Equal(a, b) {
		t.Errorf("answers %q, want %q", a, b)
	}
	want := ordinary.counts(t)
	for name, n := range fast.counts(t) {
		if n != want[name] {
			t.Errorf("%s is %d, want %d", name, n, want[name])
		}
	}
	if a, b := fast.read(t), ordinary.read(t); !slices.Equal(a, b) {
		t.Errorf("read %q, want %q", a, b)
	}
}

// read reads all datagrams that wait in the socket.
func (j *judge) read(t *testing.T) (out []string) {
	t.Helper()
	return readAll(t, j.socket)
}

// readAll returns the datagrams that a socket of netstack's has.
func readAll(t *testing.T, socket tcpip.Endpoint) (out []string) {
	t.Helper()
	for {
		var b bytes.Buffer
		r, err := socket.Read(&b, tcpip.ReadOptions{NeedRemoteAddr: true})
		if _, empty := err.(*tcpip.ErrWouldBlock); empty {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%v %x", r.RemoteAddr, b.Bytes()))
	}
}

// TestFastPathFollowsAddresses changes the addresses that the fast path serves.
func TestFastPathFollowsAddresses(t *testing.T) {
	j := newJudge(t, true)
	f := segment(0)
	f.Ports = [2]uint16{4000, 53}
	took := func() uint64 {
		before := j.worker.count.fastPath.Load()
		j.hear(udpFrame(f))
		return j.worker.count.fastPath.Load() - before
	}
	if took() != 1 {
		t.Error("not taken")
	}
	j.worker.e.SetLocalAddresses([]netip.Prefix{netip.MustParsePrefix("10.0.0.7/24")})
	if took() != 0 {
		t.Error("taken for an address that is not served any more")
	}
	j.worker.e.SetLocalAddresses(nil)
	if took() != 0 {
		t.Error("taken with the fast path closed")
	}
	if got := j.read(t); len(got) != 3 {
		t.Errorf("%d datagrams arrived", len(got))
	}
}

// TestFastPathDoesNotAllocate counts the allocations of the fast path alone, without the transport
// layer.
func TestFastPathDoesNotAllocate(t *testing.T) {
	h := newLocalAddrs(
		[]netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::1/64")},
		nil)
	for _, v6 := range []bool{false, true} {
		f := segment(0)
		f.V6 = v6
		frame, l := f.Bytes(), hdr.Packet{EtherType: hdr.TypeIPv4, L3: hdr.EthLen}
		if v6 {
			l.EtherType = hdr.TypeIPv6
		}
		l.Parse(frame)
		if n := testing.AllocsPerRun(100, func() {
			if !h.accepts(frame, &l) {
				t.Fatal("not taken")
			}
		}); n != 0 {
			t.Errorf("IPv6 %v: %v allocations", v6, n)
		}
	}
}

// BenchmarkAccepts decides about packets to an address of ours, and to 16,384 of a prefix.
func BenchmarkAccepts(b *testing.B) {
	own := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}
	for name, whole := range map[string][]netip.Prefix{
		"one": nil, "prefix": {netip.MustParsePrefix("198.51.64.0/18")}} {
		b.Run(name, func(b *testing.B) {
			h, n, bad := newLocalAddrs(own, whole), uint32(0), 0
			for b.Loop() {
				dst := uint32(10<<24 | 1)
				if whole != nil {
					dst = 198<<24 | 51<<16 | 64<<8 | n&0x3fff
				}
				if n++; !h.accepts4(10<<24|2, dst) {
					bad++
				}
			}
			if bad > 0 {
				b.Errorf("%d are not ours", bad)
			}
		})
	}
}
