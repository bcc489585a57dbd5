package tcpfix

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestNarrowWindow: the peer has announced segments of 1000 bytes and a scale of 7, and we have
// sent 3000 bytes from sequence number 5000 on. Which windows become which.
func TestNarrowWindow(t *testing.T) {
	syn := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Flags: header.TCPFlagSyn, TTL: 64,
		Options: []byte{2, 4, 1000 >> 8, 1000 & 255, 1, 3, 3, 7}}
	data := tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, Seq: 5000, Flags: header.TCPFlagAck, TTL: 64}
	acks := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, Ack: 6000, Flags: header.TCPFlagAck, Window: 3, TTL: 64}
	for _, tc := range []struct {
		name string
		syn  func(*tcpframe.Frame)
		ack  func(*tcpframe.Frame)
		want uint16 // 0: it stays as it is
	}{
		{name: "less than a segment", want: 8}, // of 128 bytes: 1000 and more
		{name: "of all that was sent", ack: func(f *tcpframe.Frame) { f.Ack = 5000 }, want: 8},
		{name: "with data", ack: func(f *tcpframe.Frame) { f.Payload = []byte("x") }, want: 8},
		{name: "with a FIN", ack: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagFin },
			want: 8},
		{name: "a segment fits", ack: func(f *tcpframe.Frame) { f.Window = 8 }},
		{name: "what is left fits", ack: func(f *tcpframe.Frame) { f.Ack = 7700 }},
		{name: "what is left does not", ack: func(f *tcpframe.Frame) { f.Ack = 7500 }, want: 4},
		{name: "nothing is left", ack: func(f *tcpframe.Frame) { f.Ack = 8000 }},
		{name: "of what was never sent", ack: func(f *tcpframe.Frame) { f.Ack = 8001 }},
		{name: "shut", ack: func(f *tcpframe.Frame) { f.Window = 0 }},
		{name: "reset", ack: func(f *tcpframe.Frame) { f.Flags |= header.TCPFlagRst }},
		{name: "another port", ack: func(f *tcpframe.Frame) { f.Ports[0]++ }},
		{name: "without a scale", syn: func(f *tcpframe.Frame) { f.Options = f.Options[:4] },
			ack: func(f *tcpframe.Frame) { f.Window = 999 }, want: 1000},
		{name: "without options, a segment fits",
			syn: func(f *tcpframe.Frame) { f.Options = nil },
			ack: func(f *tcpframe.Frame) { f.Window = header.TCPDefaultMSS }},
		{name: "without options", syn: func(f *tcpframe.Frame) { f.Options = nil },
			ack:  func(f *tcpframe.Frame) { f.Window = header.TCPDefaultMSS - 1 },
			want: header.TCPDefaultMSS},
		{name: "a scale above 14", syn: func(f *tcpframe.Frame) { f.Options[7] = 200 },
			ack: func(f *tcpframe.Frame) { f.Window = 1 }},
	} {
		for _, v6 := range []bool{false, true} {
			var r resender
			r.open(faketime.NewManualClock(), func(*gstack.PacketBuffer,
				func() *gstack.PacketBuffer) bool {
				return true
			})
			var n narrowWindow
			n.open()
			frame := func(f tcpframe.Frame, e func(*tcpframe.Frame)) []byte {
				f.V6, f.Options = v6, bytes.Clone(f.Options)
				if e != nil {
					e(&f)
				}
				return f.Bytes()
			}
			receive := func(b []byte) bool {
				s := hdr.Received(b, hdrtest.Parse(b), testSeed)
				return n.received(&s, &r)
			}
			receive(frame(syn, tc.syn))
			noteData(noter{&r}, frame(data, nil), 3000)
			got := frame(acks, tc.ack)
			want := bytes.Clone(got)
			if tc.want > 0 {
				binary.BigEndian.PutUint16(want[hdrtest.Parse(want).L4+14:], tc.want)
			}
			if changed := receive(got); changed != (tc.want > 0) || !bytes.Equal(got, want) {
				t.Errorf("%s, IPv6 %v: changed %v\n got %x\nwant %x", tc.name, v6, changed, got,
					want)
			}
		}
	}
}

// noter lets a resender take note of data by its headers alone.
type noter struct{ r *resender }

func (n noter) sent(s *hdr.Segment) { n.r.sent(new(gstack.PacketBuffer), s, false) }

// TestSYNOptions: options that make no sense end the list.
func TestSYNOptions(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options []byte
		mss     uint16
		scale   uint8
	}{
		{"none", nil, header.TCPDefaultMSS, 0},
		{"an MSS of 0", []byte{2, 4, 0, 0, 3, 3, 9, 1}, header.TCPDefaultMSS, 0},
		{"both", []byte{2, 4, 5, 180, 1, 3, 3, 9}, 1460, 9},
		{"behind the end", []byte{0, 3, 3, 9}, header.TCPDefaultMSS, 0},
		{"no length", []byte{1, 1, 1, 3}, header.TCPDefaultMSS, 0},
		{"length 0", []byte{2, 0, 3, 3, 9, 1, 1, 1}, header.TCPDefaultMSS, 0},
		{"longer than the header", []byte{3, 3, 5, 2, 8, 5, 180, 1}, header.TCPDefaultMSS, 5},
		{"another length", []byte{3, 4, 5, 5, 2, 3, 5, 1}, header.TCPDefaultMSS, 0},
	} {
		tcp := append(make([]byte, hdr.TCPLen), tc.options...)
		tcp[12] = byte(len(tcp)/4) << 4
		if mss, scale, _ := hdr.SYNOptions(tcp); mss != tc.mss || scale != tc.scale {
			t.Errorf("%s: MSS %d, scale %d, want %d, %d", tc.name, mss, scale, tc.mss, tc.scale)
		}
	}
}
