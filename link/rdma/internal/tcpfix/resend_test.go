package tcpfix

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// resending is a resender on virtual time, with what it has sent and when.
type resending struct {
	resender
	seed   random.HashKey
	clock  virtualClock
	frames [][]byte
	times  []time.Duration
	pkts   []*gstack.PacketBuffer // all that netstack sent, a reference each
	origin uint32                 // of our sequence numbers
	v6     bool
	gone   bool // netstack has given the connection up
	owner  *telling
}

func newResending() *resending {
	r := &resending{seed: random.Source{}.HashKey()}
	r.open(&r.clock, func(_ *gstack.PacketBuffer, build func() *gstack.PacketBuffer) bool {
		if r.gone {
			return false
		}
		if pkt := build(); pkt != nil {
			defer pkt.DecRef()
			r.pass(pkt)
			r.frames = append(r.frames, bytes.Clone(pkt.ToView().AsSlice()))
			r.times = append(r.times, r.clock.now)
		}
		return true
	})
	return r
}

// pass shows the resender an outgoing packet.
func (r *resending) pass(pkt *gstack.PacketBuffer) {
	if s := hdr.ParseSent(pkt, r.seed); s.IsTCP() {
		r.sent(pkt, &s, false)
	}
}

// ours is a segment of size bytes with a timestamp.
func ours(seq uint32, size int) tcpframe.Frame {
	return tcpframe.Frame{
		Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
		Ports: [2]uint16{80, 4000}, TTL: 64,
		Seq: seq, Ack: 7, Flags: header.TCPFlagAck | header.TCPFlagPsh, Window: 512,
		Options: tcpframe.Stamped(5000, 1), Payload: tcpframe.Data(size, uint64(seq)),
	}
}

// packetOf is f as netstack passes it to the link.
func packetOf(f tcpframe.Frame) *gstack.PacketBuffer {
	frame := f.Bytes()
	n := len(frame) - len(f.Payload)
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: n,
		Payload: buffer.MakeWithData(f.Payload)})
	copy(pkt.LinkHeader().Push(n), frame)
	pkt.NetworkProtocolNumber = tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:]))
	return pkt
}

// kept is the number of references to packets that the resender holds.
func (r *resending) kept() (n int64) {
	for _, pkt := range r.pkts {
		n += pkt.ReadRefs() - 1
	}
	return n
}

// write has netstack send a segment, cut by the NIC at mss unless that is 0.
func (r *resending) write(f tcpframe.Frame, mss uint16) {
	f.V6 = r.v6
	f.Seq += r.origin
	pkt := packetOf(f)
	if mss > 0 {
		pkt.GSOOptions = gstack.GSO{Type: gstack.GSOTCPv4, NeedsCsum: true, MSS: mss}
	}
	if r.owner != nil {
		pkt.Owner = r.owner
	}
	r.pass(pkt)
	r.pkts = append(r.pkts, pkt)
}

// telling represents a connection that tells up to where it has sent data, unless it does not know,
// and notes what is sent again and what is said of flights.
type telling struct {
	end            uint32
	unknown        bool
	again          []uint32
	lost, needless int
	limit          time.Duration
	silent         []time.Duration
}

func (*telling) KUID() uint32 { return 0 }
func (*telling) KGID() uint32 { return 0 }

func (o *telling) SentBefore() (end uint32, known bool) { return o.end, !o.unknown }
func (o *telling) CountResend(end uint32)               { o.again = append(o.again, end) }
func (o *telling) Unread(int) int                       { return 0 }
func (o *telling) NoteLost()                            { o.lost++ }
func (o *telling) NoteNeedless()                        { o.needless++ }
func (o *telling) TimeOut(silent time.Duration) time.Duration {
	o.silent = append(o.silent, silent)
	return cmp.Or(o.limit, math.MaxInt64)
}

// TestSentByAnotherDevice: what a connection has sent by another device counts as sent, if it tells
// of that.
func TestSentByAnotherDevice(t *testing.T) {
	for _, origin := range []uint32{0, 1<<32 - 5000} {
		r := newResending()
		r.origin, r.owner = origin, &telling{end: origin + 9000}
		for seq := uint32(0); seq < 11000; seq += 1000 {
			r.write(ours(seq, 1000), 0)
		}
		var want []uint32
		for end := uint32(1000); end <= 9000; end += 1000 {
			want = append(want, origin+end)
		}
		if !slices.Equal(r.owner.again, want) {
			t.Errorf("from %d: sent again are %d, want %d", origin, r.owner.again, want)
		}
		if end, known := r.sentUpTo(); end != origin+11000 || !known {
			t.Errorf("from %d: sent up to %d, %v", origin, end, known)
		}
		r.close()
	}
	silent := newResending()
	defer silent.close()
	silent.owner = &telling{end: 9000, unknown: true}
	for seq := uint32(0); seq < 3000; seq += 1000 {
		silent.write(ours(seq, 1000), 0)
	}
	silent.write(ours(1000, 1000), 0)
	if !slices.Equal(silent.owner.again, []uint32{2000}) {
		t.Errorf("by a connection that does not know: sent again are %d", silent.owner.again)
	}
}

// sentUpTo returns where the flow's data ends.
func (r *resending) sentUpTo() (end uint32, known bool) {
	f := ours(0, 1)
	f.V6 = r.v6
	pkt := packetOf(f)
	defer pkt.DecRef()
	s := hdr.ParseSent(pkt, r.seed)
	_, hash := s.Flow()
	return r.end(hash)
}

// answer has the peer acknowledge what came before ack; echo is the timestamp it echoes, 0 for
// none.
func (r *resending) answer(ack, echo uint32, flags header.TCPFlags) {
	f := tcpframe.Frame{V6: r.v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, TTL: 64, Ack: ack + r.origin, Flags: flags}
	if echo > 0 {
		f.Options = tcpframe.Stamped(9, echo)
	}
	frame := f.Bytes()
	s := hdr.Received(frame, hdrtest.Parse(frame), r.seed)
	r.received(&s)
}

// wait advances the time.
func (r *resending) wait(d time.Duration) {
	end := r.clock.now + d
	for len(r.clock.timers) > 0 && r.clock.timers[0].at <= end {
		r.clock.step()
	}
	r.clock.now = end
}

// repeated has netstack send bytes 0 to 3000 and the last 1000 again.
func (r *resending) repeated() {
	r.write(ours(0, 1000), 0)
	r.write(ours(1000, 2000), 1000)
	r.write(ours(2000, 1000), 0)
}

// TestResend: netstack repeats something and then sends nothing, for 10 s. The table has what the
// link sends, and when.
func TestResend(t *testing.T) {
	const ack = header.TCPFlagAck
	type segment struct {
		at   time.Duration
		seq  uint32
		size int
		push bool
	}
	ms := time.Millisecond
	for _, tc := range []struct {
		name string
		do   func(*resending)
		want []segment
	}{
		{"nothing is repeated", func(r *resending) {
			r.write(ours(0, 1000),
				0)
			r.write(ours(1000, 1000), 0)
		}, nil},
		{"of what was sent before only what is repeated", (*resending).repeated, []segment{
			{1000 * ms, 2000, 1000, true}, {3000 * ms, 2000, 1000, true},
			{7000 * ms, 2000, 1000, true},
		}},
		{"and what comes after", func(r *resending) {
			r.repeated()
			r.write(ours(3000, 500), 0)
			r.answer(3000, 0, ack)
		}, []segment{{1000 * ms, 3000, 500, true}, {3000 * ms, 3000, 500, true},
			{7000 * ms, 3000, 500, true}}},
		{"a round trip of 100 ms", func(r *resending) {
			r.repeated()
			r.wait(100 * ms)
			r.answer(2500, 5000, ack)
		}, []segment{{550 * ms, 2500, 500, true}, {1450 * ms, 2500, 500, true},
			{3250 * ms, 2500, 500, true}, {6850 * ms, 2500, 500, true}}},
		{"a packet that the NIC cut", func(r *resending) {
			r.repeated()
			r.write(ours(3000, 2500), 1000)
			r.answer(3000, 5000, ack)
			r.wait(300 * ms)
			r.answer(4000, 0, ack)
			r.wait(300 * ms)
			r.answer(5000, 0, ack)
		}, []segment{{300 * ms, 3000, 1000, false}, {350 * ms, 4000, 1000, false}, // a round
			{350 * ms, 5000, 500, true}, {900 * ms, 5000, 500, true},
			{1450 * ms, 5000, 500, true}, {2500 * ms, 5000, 500, true},
			{4550 * ms, 5000, 500, true}, {8600 * ms, 5000, 500, true}}},
		{"a FIN", func(r *resending) {
			r.repeated()
			r.write(tcpframe.Frame{Src: tcpframe.OurMAC, Dst: tcpframe.PeerMAC, From: 1, To: 2,
				Ports: [2]uint16{80, 4000}, TTL: 64, Seq: 3000, Ack: 7,
				Flags: ack | header.TCPFlagFin}, 0)
			r.answer(3000, 5000, ack)
		}, []segment{{finWait, 3000, 0, false}, {551 * ms, 3000, 0, false},
			{1601 * ms, 3000, 0, false}, {3651 * ms, 3000, 0, false}, {7701 * ms, 3000, 0, false}}},
		{"more is acknowledged than is kept", func(r *resending) {
			r.write(ours(0, 1000), 0)
			r.write(ours(1000, 2000), 1000)
			r.write(ours(0, 1000), 0)
			r.answer(3000, 5000, ack)
		}, nil},
		{"the link is back", func(r *resending) {
			r.repeated()
			r.wait(2000 * ms)
			r.repeat()
		}, []segment{{1000 * ms, 2000, 1000, true}, {2000 * ms, 2000, 1000, true},
			{4000 * ms, 2000, 1000, true}, {8000 * ms, 2000, 1000, true}}},
		{"the link is back, and nothing is missing", func(r *resending) {
			r.repeated()
			r.answer(3000, 5000, ack)
			r.repeat()
		}, nil},
		{"all is acknowledged", func(r *resending) { r.repeated(); r.answer(3000, 5000, ack) },
			nil},
		{"forgotten a second after all was acknowledged", func(r *resending) {
			r.repeated()
			r.answer(3000, 5000, ack)
			r.wait(1100 * ms)
			r.write(ours(3000, 500), 0)
		}, nil},
		{"netstack goes on", func(r *resending) {
			r.repeated()
			for range 20 {
				r.wait(500 * ms)
				r.write(ours(2000, 1000), 0)
			}
			r.answer(3000, 5000, ack)
		}, nil},
		{"an ACK of what was never sent",
			func(r *resending) { r.repeated(); r.answer(3001, 5000, ack) }, []segment{
				{1000 * ms, 2000, 1000, true}, {3000 * ms, 2000, 1000, true},
				{7000 * ms, 2000, 1000, true},
			}},
		{"the peer resets", func(r *resending) { r.repeated(); r.answer(0, 0, header.TCPFlagRst) },
			nil},
		{"netstack resets", func(r *resending) {
			r.repeated()
			f := ours(3000, 0)
			f.Flags = header.TCPFlagRst
			r.write(f, 0)
		}, nil},
		{"a new connection on the same ports", func(r *resending) {
			r.repeated()
			f := ours(1000, 0)
			f.Flags = header.TCPFlagSyn
			r.write(f, 0)
			r.write(ours(1001, 500), 0)
		}, nil},
		{"closed", func(r *resending) { r.repeated(); r.close(); r.repeated(); r.close() }, nil},
	} {
		for _, origin := range []uint32{0, 1<<32 - 2800} { // sequence numbers wrap
			for _, v6 := range []bool{false, true} {
				r := newResending()
				r.origin, r.v6 = origin, v6
				tc.do(r)
				r.wait(10*time.Second - r.clock.now)
				var got []segment
				for i, f := range r.frames {
					l := hdrtest.Parse(f)
					if !l.HeaderOK(f) || !l.TransportOK(f) || l.End != len(f) {
						t.Errorf("%s: bad length or checksum: %x", tc.name, f)
					}
					seq, _ := hdr.Numbers(f[l.L4:])
					size := l.End - l.L4 - int(f[l.L4+12]>>4)*4
					got = append(got, segment{r.times[i], seq - origin, size,
						f[l.L4+13]&hdr.FlagPSH != 0})
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("%s (origin %#x, IPv6 %v)\n got %v\nwant %v",
						tc.name, origin, v6, got, tc.want)
				}
			}
		}
	}
}

// TestResendTellsTheLatest waits for a segment to be sent again after an ACK with a later number,
// window and time, to another next hop and from another MAC of ours: it tells the same.
func TestResendTellsTheLatest(t *testing.T) {
	r := newResending()
	r.write(ours(0, 100), 0)
	r.write(ours(0, 100), 0)
	r.wait(30 * time.Millisecond)
	pure := ours(100, 0)
	pure.Ack, pure.Window, pure.Flags, pure.Options = 99, 3,
		header.TCPFlagAck, tcpframe.Stamped(5030, 77)
	pure.Src, pure.Dst = pure.Dst, "\x02\x09\x09\x09\x09\x09"
	r.write(pure, 0)
	r.wait(time.Second)
	if len(r.frames) != 1 {
		t.Fatalf("%d sent", len(r.frames))
	}
	want := ours(0, 100)
	want.Ack, want.Window, want.Options = 99, 3, tcpframe.Stamped(6000, 77)
	want.Src, want.Dst = pure.Src, pure.Dst
	if got, want := r.frames[0], want.Bytes(); !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
}

// TestResendOfADeadConnection: when netstack has given a connection up, nothing of it is sent
// again, and nothing is kept.
func TestResendOfADeadConnection(t *testing.T) {
	r := newResending()
	r.write(ours(0, 100), 0)
	r.write(ours(0, 100), 0)
	r.wait(1100 * time.Millisecond)
	r.gone = true
	r.wait(10 * time.Second)
	if n := len(r.times); n != 1 || r.count.Load() != 1 {
		t.Errorf("%d sent, %d counted", n, r.count.Load())
	}
	if kept, timers := r.kept(), len(r.clock.timers); kept != 0 ||
		r.number.Load() != 0 || timers != 0 {
		t.Errorf("%d references, %d flows, %d timers left", kept, r.number.Load(), timers)
	}
}

// TestResendGivesUp: a peer that does not answer gets 15 copies in 11 minutes; then the flow is
// deleted.
func TestResendGivesUp(t *testing.T) {
	r := newResending()
	r.write(ours(0, 100), 0)
	r.write(ours(0, 100), 0)
	if n := r.kept(); n != 1 {
		t.Fatalf("%d references while it waits", n)
	}
	r.wait(time.Hour)
	if n, last := len(r.times), r.times[len(r.times)-1]; n != maxResends ||
		last < 5*time.Minute || last > 15*time.Minute {
		t.Errorf("%d sent, the last after %v", n, last)
	}
	if kept, timers := r.kept(), len(r.clock.timers); kept != 0 ||
		r.number.Load() != 0 || timers != 0 {
		t.Errorf("%d references, %d flows, %d timers left", kept, r.number.Load(), timers)
	}
}

// TestResendTimesOut: a connection with a limit ends when its peer has been silent for as long, by
// a reset that netstack takes for the peer's; its segment is sent again until then.
func TestResendTimesOut(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, limit := range []time.Duration{100 * time.Second, 20 * time.Minute} {
			r := newResending()
			r.v6, r.owner = v6, &telling{end: 1100, limit: limit}
			var resets [][]byte
			r.deliver = func(frame []byte) { resets = append(resets, frame) }
			r.write(ours(1000, 100), 0)
			r.wait(10 * time.Second)
			r.answer(1000, 0, header.TCPFlagAck) // nothing new
			began := r.clock.now
			r.wait(limit - time.Second)
			if n := len(resets); n > 0 || r.times[len(r.times)-1] < r.clock.now-maxResendWait {
				t.Fatalf("%v: %d resets, and sent again at %v", limit, n, r.times)
			}
			r.wait(2 * time.Second)
			if len(resets) != 1 || r.silent.Load() != 1 {
				t.Fatalf("%v: %d resets, %d counted", limit, len(resets), r.silent.Load())
			}
			want := tcpframe.Frame{V6: v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2,
				To: 1, Ports: [2]uint16{4000, 80}, TTL: 64, Seq: 7, Ack: 1000,
				Flags: header.TCPFlagRst | header.TCPFlagAck, Window: 512}
			if !bytes.Equal(resets[0], want.Bytes()) {
				t.Errorf("%v: a reset %x, want %x", limit, resets[0], want.Bytes())
			}
			if p := hdrtest.Parse(resets[0]); !p.TransportOK(resets[0]) || !p.HeaderOK(resets[0]) {
				t.Errorf("%v: a wrong checksum: %x", limit, resets[0])
			}
			last := r.owner.silent[len(r.owner.silent)-1]
			if last < limit || last > r.clock.now-began || r.kept() != 0 ||
				len(r.clock.timers) != 0 {
				t.Errorf("%v: told of %v; %d references, %d timers left", limit, last, r.kept(),
					len(r.clock.timers))
			}
		}
	}
}

// TestResendIsBounded: flows and packets beyond the bounds are not kept, and all references are
// released.
func TestResendIsBounded(t *testing.T) {
	r := newResending()
	for i := range 2 * resendShards * maxResendFlows {
		f := ours(0, 8)
		f.To, f.Ports = byte(i>>16), [2]uint16{80, uint16(i)}
		r.write(f, 0)
		r.write(f, 0)
	}
	if n := int(r.number.Load()); n < maxResendFlows || n > resendShards*maxResendFlows {
		t.Errorf("%d flows", n)
	}
	r.clear()
	r.write(ours(0, 8), 0)
	for i := range uint32(maxResendParts + 10) {
		r.write(ours(8*i, 8), 0)
	}
	if n := r.kept(); n != maxResendParts {
		t.Errorf("%d packets kept", n)
	}
	r.close()
	if n := r.kept(); n != 0 {
		t.Errorf("%d references after close", n)
	}
}

// TestResendConcurrently: netstack, the receive workers, the timer and the end at the same time,
// for the race detector.
func TestResendConcurrently(t *testing.T) {
	r := newResending()
	var wg sync.WaitGroup
	for flow := range uint16(4) {
		wg.Go(func() {
			for i := range uint32(500) {
				f := ours(i/2*100, 100)
				f.Ports[1] = 4000 + flow
				pkt := packetOf(f)
				r.pass(pkt)
				pkt.DecRef()
			}
		})
		wg.Go(func() {
			for i := range uint32(500) {
				r.answer(i*100, 5000, header.TCPFlagAck)
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			r.due(&r.shards[0])
		}
	})
	wg.Wait()
	r.close()
	if n := r.number.Load(); n != 0 {
		t.Errorf("%d flows left", n)
	}
}
