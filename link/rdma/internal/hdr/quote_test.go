package hdr_test

import (
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// report is a router's message about a segment of ours with sequence number 77, of whose packet it
// quotes n bytes.
func report(v6 bool, kind byte, n int) []byte {
	sent := tcpframe.Frame{V6: v6, Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, TTL: 64, Seq: 77, Payload: make([]byte, 64)}
	message := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, sent.Bytes()[hdr.EthLen:][:n]...)
	f := tcpframe.Frame{V6: v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 9, To: 1,
		TTL: 64}
	proto := tcpip.TransportProtocolNumber(hdr.ProtoICMP)
	if v6 {
		proto = hdr.ProtoICMPv6
	}
	return f.Encode(proto, message, 2)
}

// TestQuoted finds flow and sequence number of what a message quotes, and nothing where it quotes
// less, or reports no error.
func TestQuoted(t *testing.T) {
	seed := random.Source{}.HashKey()
	for _, tc := range []struct {
		name string
		v6   bool
		kind byte
		n    int
		ok   bool
	}{
		{"unreachable", false, 3, 28, true}, {"time exceeded", false, 11, 60, true},
		{"parameter problem", false, 12, 28, true}, {"short", false, 3, 27, false},
		{"nothing", false, 3, 0, false}, {"echo", false, 8, 60, false},
		{"redirect", false, 5, 60, false},
		{"IPv6 too big", true, 2, 48, true}, {"IPv6 unreachable", true, 1, 100, true},
		{"IPv6 short", true, 2, 47, false}, {"IPv6 echo", true, 128, 100, false},
	} {
		frame := report(tc.v6, tc.kind, tc.n)
		s, ok := hdr.Quoted(frame, hdrtest.Parse(frame), seed)
		if ok != tc.ok {
			t.Errorf("%s: %v", tc.name, ok)
		}
		if !ok {
			continue
		}
		flow, _ := s.Flow()
		from, to := flow.Ports()
		if seq := binary.BigEndian.Uint32(s.TCP()[4:]); seq != 77 || from != 80 || to != 4000 ||
			flow.Source()[0] == 0 || flow.Source()[3]+flow.Source()[15] != 1 {
			t.Errorf("%s: sequence number %d, flow %x", tc.name, seq, *flow)
		}
	}
}

// FuzzQuoted gives any frame; what is found must lie in it.
func FuzzQuoted(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		for _, kind := range []byte{1, 2, 3, 8, 11} {
			f.Add(report(v6, kind, 48))
		}
	}
	seed := random.Source{}.HashKey()
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < hdr.EthLen {
			return
		}
		s, ok := hdr.Quoted(frame, hdrtest.Parse(frame), seed)
		if !ok {
			return
		}
		if len(s.TCP()) < 8 || s.L4 < s.L3+hdr.IPv4Len {
			t.Errorf("%+v of %x", s.Packet, frame)
		}
		s.Flow()
	})
}
