package tcpfix

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestSYNEcho: the peer has sent a SYN with timestamp 100, and again with 1100; what our SYN-ACK,
// which echoes 100, echoes when it leaves. Its checksum stays right.
func TestSYNEcho(t *testing.T) {
	syn := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Seq: 7, Flags: header.TCPFlagSyn, TTL: 64,
		Options: tcpframe.Stamped(1100, 0)}
	ours := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 99, Ack: 8, Flags: header.TCPFlagSyn | header.TCPFlagAck,
		TTL: 64, Options: tcpframe.Stamped(5000, 100)}
	for _, tc := range []struct {
		name string
		copy func(*tcpframe.Frame) // the second SYN
		ours func(*tcpframe.Frame)
		echo uint32
	}{
		{name: "copy", echo: 1100},
		{name: "over the end of the count", echo: 1100,
			ours: func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(5000, 0xffffff00) }},
		{name: "options at an odd offset", echo: 1100, ours: func(f *tcpframe.Frame) {
			f.Options = append([]byte{hdr.OptNop}, append(tcpframe.Stamped(5000, 100), 1, 1, 1)...)
		}},
		{name: "copy that came late", echo: 100,
			copy: func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(90, 0) }},
		{name: "another SYN", echo: 100, copy: func(f *tcpframe.Frame) { f.Seq++ }},
		{name: "another port's", echo: 100, copy: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "not a SYN", echo: 100,
			copy: func(f *tcpframe.Frame) { f.Flags = header.TCPFlagAck }},
		{name: "reset", echo: 100,
			copy: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
		{name: "our ACK", echo: 100,
			ours: func(f *tcpframe.Frame) { f.Flags = header.TCPFlagAck }},
	} {
		for _, v6 := range []bool{false, true} {
			x := newSYNEchoFix()
			apply := func(f tcpframe.Frame, change func(*tcpframe.Frame)) []byte {
				f.V6 = v6
				if change != nil {
					change(&f)
				}
				return f.Bytes()
			}
			for _, change := range []func(*tcpframe.Frame){
				func(f *tcpframe.Frame) { f.Options = tcpframe.Stamped(100, 0) }, tc.copy} {
				b := apply(syn, change)
				s := hdr.Received(b, hdrtest.Parse(b), testSeed)
				x.received(&s)
			}
			frame := apply(ours, tc.ours)
			pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
				ReserveHeaderBytes: len(frame)})
			copy(pkt.LinkHeader().Push(len(frame)), frame)
			s := hdr.ParseSent(pkt, testSeed)
			x.sent(&s)
			echo := binary.BigEndian.Uint32(s.Options().Timestamp[6:])
			if tc.echo == 1100 && echo != 1100 || tc.echo != 1100 && !bytes.Equal(s.Frame, frame) {
				t.Errorf("%s (IPv6 %v): echoes %d, want %d", tc.name, v6, echo, tc.echo)
			}
			if !hdrtest.Parse(s.Frame).TransportOK(s.Frame) {
				t.Errorf("%s (IPv6 %v): the checksum is wrong", tc.name, v6)
			}
			pkt.DecRef()
		}
	}
}

// TestSYNEchoOfNetstack: netstack by itself echoes the first SYN's timestamp although a copy with a
// later one has come.
func TestSYNEchoOfNetstack(t *testing.T) {
	clock := faketime.NewManualClock()
	s := gstack.New(gstack.Options{
		NetworkProtocols:   []gstack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []gstack.TransportProtocolFactory{tcp.NewProtocol}, Clock: clock,
	})
	defer s.Destroy()
	link := channel.New(16, 1500, "")
	if err := s.CreateNIC(1, link); err != nil {
		t.Fatal(err)
	}
	local := tcpip.AddrFrom4([4]byte{10, 0, 0, 1})
	if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: local.WithPrefix()}, gstack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	ln, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Port: 80}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, stamp := range []uint32{100, 1100} {
		syn := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
			Ports: [2]uint16{4000, 80}, Seq: 7, Flags: header.TCPFlagSyn, TTL: 64, Window: 1000,
			Options: tcpframe.Stamped(stamp, 0)}
		pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
			Payload: buffer.MakeWithData(syn.Bytes()[hdr.EthLen:])})
		link.InjectInbound(header.IPv4ProtocolNumber, pkt)
		pkt.DecRef()
		for {
			clock.Advance(100 * time.Millisecond)
			out := link.Read()
			if out == nil {
				if ctx.Err() != nil {
					t.Fatal("no SYN-ACK")
				}
				runtime.Gosched()
				continue
			}
			frame := append(make([]byte, hdr.EthLen), out.ToView().AsSlice()...)
			out.DecRef()
			binary.BigEndian.PutUint16(frame[12:], hdr.TypeIPv4)
			p := hdrtest.Parse(frame)
			if frame[p.L4+13] != hdr.FlagSYN|hdr.FlagACK {
				continue
			}
			echo := binary.BigEndian.Uint32(hdr.OptionsOf(frame[p.L4:p.End]).Timestamp[6:])
			if echo != 100 {
				t.Errorf("after the SYN of %d: echoes %d, want 100", stamp, echo)
			}
			break
		}
	}
}
