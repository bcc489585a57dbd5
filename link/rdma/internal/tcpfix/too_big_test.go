package tcpfix

import (
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// refuse makes a router say that a segment with size bytes from seq on was too big for mtu.
func (r *resending) refuse(seq uint32, size, mtu int) {
	quoted := ours(seq+r.origin, size)
	quoted.V6 = r.v6
	message := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)},
		quoted.Bytes()[hdr.EthLen:]...)
	f := tcpframe.Frame{V6: r.v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 9, To: 1,
		TTL: 64}
	frame := f.Encode(hdr.ProtoICMP, message, 2)
	if r.v6 {
		message[0], message[1] = 2, 0
		frame = f.Encode(hdr.ProtoICMPv6, message, 2)
	}
	p := hdrtest.Parse(frame)
	if s, ok := hdr.Quoted(frame, p, r.seed); ok {
		noteTooBig(&r.resender, &s, frame, p)
	}
}

// TestRefused: of a flight that was refused as too big echoes are older until all of it is
// acknowledged, where netstack sends it again because of that.
func TestRefused(t *testing.T) {
	const size, small = 1400, 1000
	again := func(r *resending, at uint32) { // netstack sends again from at on
		f := ours(at, small-60)
		f.Options = tcpframe.Stamped(6000, 1)
		r.write(f, 0)
	}
	for _, tc := range []struct {
		name     string
		segments uint32
		path     time.Duration
		do       func(*resending)
		aged     bool
	}{
		{"at once", 10, 0, func(r *resending) { r.refuse(0, size, small); again(r, 0) }, true},
		{"a message for each", 10, 0, func(r *resending) {
			r.refuse(0, size, small)
			again(r, 0)
			for seq := range uint32(9) {
				r.refuse((seq+1)*size, size, small)
			}
		}, true},
		{"the second segment", 10, 0, func(r *resending) {
			r.refuse(size, size, small)
			again(r, size)
		}, true},
		{"no message", 10, 0, func(r *resending) { again(r, 0) }, false},
		{"it was not too big", 10, 0, func(r *resending) {
			r.refuse(0, size, size+80) // with all headers
			again(r, 0)
		}, false},
		{"netstack does not answer", 10, 0, func(r *resending) {
			r.refuse(0, size, small)
			r.wait(answerGap)
			again(r, 0)
		}, false},
		{"40 segments, 1 ms", 40, time.Millisecond, func(r *resending) {
			r.refuse(0, size, small)
			again(r, 0)
		}, true},
		{"40 segments, 50 ms", 40, 50 * time.Millisecond, func(r *resending) {
			r.refuse(0, size, small)
			again(r, 0)
		}, false},
		{"10 segments, 50 ms", 10, 50 * time.Millisecond, func(r *resending) {
			r.refuse(0, size, small)
			again(r, 0)
		}, true},
	} {
		for _, v6 := range []bool{false, true} {
			r := newResending()
			r.v6 = v6
			r.path = func(uint64) time.Duration { return tc.path }
			for i := range tc.segments {
				r.write(ours(i*size, size), 0)
			}
			tc.do(r)
			end := tc.segments * size
			for _, x := range []struct {
				ack  uint32
				aged bool
			}{{100, tc.aged}, {3000, tc.aged}, {end - 1, tc.aged}, {end, false}} {
				const echo = 7000
				got := r.echoed(x.ack, echo)
				if (got != echo) != x.aged {
					t.Errorf("%s, IPv6 %v: an ACK of %d echoes %d, netstack gets %d", tc.name,
						v6, x.ack, echo, got)
				}
			}
			r.close()
		}
	}
}

// TestRefusedCut: what is sent again from here is no larger than what the path takes.
func TestRefusedCut(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newResending()
		r.v6 = v6
		r.path = func(uint64) time.Duration { return 10 * time.Millisecond }
		r.write(ours(0, 14000), 1400)
		r.refuse(2800, 1400, 1280)
		r.repeat() // does nothing: netstack's timer runs
		r.write(ours(0, 1180), 0)
		r.wait(3 * time.Second)
		if len(r.frames) == 0 {
			t.Fatal("nothing was sent again")
		}
		for _, f := range r.frames {
			p := hdrtest.Parse(f)
			if got := p.End - p.L3; got != 1280 {
				t.Errorf("IPv6 %v: a packet of %d bytes", v6, got)
			}
			if seq := binary.BigEndian.Uint32(f[p.L4+4:]); seq != 0 {
				t.Errorf("IPv6 %v: from %d on", v6, seq)
			}
		}
		r.close()
	}
}

// TestResendFitsLink: what is sent again from here is no longer than what the link takes by then,
// be it the first data after a timeout or what SACK shows to be missing. All of it is sent.
func TestResendFitsLink(t *testing.T) {
	const size, mtu = 8000, 1280
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct {
			name string
			do   func(r *resending)
			from uint32
			end  uint32 // of what is sent again, at least
		}{
			{"after a timeout", func(r *resending) {
				r.write(ours(0, size), 0)
				r.wait(3 * time.Second)
			}, 0, mtu / 2},
			{"missing", func(r *resending) {
				r.blocks(0, 2*size, 10*size)
				r.wait(time.Second)
			}, 0, 2 * size},
		} {
			r := newResending()
			r.v6 = v6
			most := 9000
			r.longest = func(p tcpip.NetworkProtocolNumber) int {
				if (p == header.IPv6ProtocolNumber) != v6 {
					return 68
				}
				return most
			}
			r.path = func(uint64) time.Duration { return 40 * time.Millisecond }
			r.write(ours(0, 10*size), size)
			r.wait(40 * time.Millisecond)
			most = mtu
			tc.do(r)
			next := tc.from
			for _, f := range r.frames {
				p := hdrtest.Parse(f)
				if got := p.End - p.L3; got > mtu {
					t.Errorf("%s, IPv6 %v: a packet of %d bytes", tc.name, v6, got)
				}
				if seq, _ := hdr.Numbers(f[p.L4:]); seq == next {
					next += uint32(p.End - p.L4 - int(f[p.L4+12]>>4)*4)
				}
			}
			if next < tc.end {
				t.Errorf("%s, IPv6 %v: sent from %d to %d, want %d and more", tc.name, v6, tc.from,
					next, tc.end)
			}
			r.close()
		}
	}
}
