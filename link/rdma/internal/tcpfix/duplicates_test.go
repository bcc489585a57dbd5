package tcpfix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/internal/random"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// copyRig holds a connection that a peer sends data on, and the ACKs that netstack would send.
type copyRig struct {
	t     testing.TB
	flows *Flows
	clock *virtualClock
	v6    bool
	stamp bool
}

// newCopyRig begins a connection whose peer's first byte has the number first. Both SYNs permit
// SACK unless one of ours or theirs is without.
func newCopyRig(t testing.TB, v6, stamp bool, first uint32, ours, theirs []byte) *copyRig {
	c := &virtualClock{}
	r := &copyRig{t: t, clock: c, v6: v6, stamp: stamp, flows: New(c, random.Source{}, nil, nil)}
	r.send(tcpframe.Frame{Flags: header.TCPFlagSyn, Seq: 1, Options: ours})
	answer := r.frame(tcpframe.Frame{Flags: header.TCPFlagSyn | header.TCPFlagAck, Seq: first - 1,
		Ack: 2, Options: theirs}, true)
	b := answer.Bytes()
	r.flows.Received(b, hdrtest.Parse(b))
	r.send(tcpframe.Frame{Flags: header.TCPFlagAck, Seq: 2, Ack: first})
	return r
}

var sackPermitted = []byte{optSACKPermitted, 2, 1, 1}

// frame completes a frame of ours, or of the peer's.
func (r *copyRig) frame(f tcpframe.Frame, peer bool) tcpframe.Frame {
	f.V6, f.Src, f.Dst, f.From, f.To = r.v6, tcpframe.OurMAC, tcpframe.PeerMAC, 1, 2
	f.Ports, f.TTL = [2]uint16{80, 4000}, 64
	if peer {
		f.Src, f.Dst, f.From, f.To, f.Ports = f.Dst, f.Src, 2, 1, [2]uint16{4000, 80}
	}
	if f.Window == 0 {
		f.Window = 500
	}
	return f
}

// arrive gives netstack n bytes of the peer's.
func (r *copyRig) arrive(seq uint32, n int, flags header.TCPFlags) {
	b := r.frame(tcpframe.Frame{Flags: header.TCPFlagAck | flags, Seq: seq, Ack: 2,
		Payload: make([]byte, n)}, true).Bytes()
	r.flows.Arrives(b, hdrtest.Parse(b), n, b[hdrtest.Parse(b).L4+13])
}

// send sends a segment and returns the frame, whose lengths and checksums must be right.
func (r *copyRig) send(f tcpframe.Frame) []byte {
	r.t.Helper()
	if r.stamp && f.Flags&header.TCPFlagSyn == 0 {
		f.Options = append(tcpframe.Stamped(1, 2), f.Options...)
	}
	pkt := r.frame(f, false).Packet()
	defer pkt.DecRef()
	s := hdr.ParseSent(pkt, r.flows.Key())
	size := pkt.Size()
	grown, drop := r.flows.Sent(pkt, &s)
	if drop {
		r.t.Fatal("the segment is dropped")
	}
	if now := pkt.Size(); now != size {
		r.t.Fatalf("netstack's packet of %d bytes, which it may be reading, has %d", size, now)
	}
	if grown != nil {
		defer grown.DecRef()
		pkt = grown
	}
	view := pkt.ToView()
	defer view.Release()
	frame := bytes.Clone(view.AsSlice())
	p := hdrtest.Parse(frame)
	if !p.HeaderOK(frame) || !p.TransportOK(frame) || p.End != len(frame) ||
		int(frame[p.L4+12]>>4)*4 != len(frame)-p.L4-len(f.Payload) {
		r.t.Fatalf("lengths or checksums are wrong: %x", frame)
	}
	return frame
}

// ack sends a pure ACK with SACK blocks, and returns those in the frame.
func (r *copyRig) ack(ack uint32, blocks ...span) []span {
	r.t.Helper()
	return r.ackWindow(ack, 500, blocks...)
}

// ackWindow does what ack does, with a window; -1: none.
func (r *copyRig) ackWindow(ack uint32, window int, blocks ...span) []span {
	r.t.Helper()
	f := tcpframe.Frame{Flags: header.TCPFlagAck, Seq: 2, Ack: ack, Window: uint16(window)}
	if len(blocks) > 0 {
		f.Options = []byte{1, 1, hdr.OptSACK, byte(2 + 8*len(blocks))}
		for _, b := range blocks {
			f.Options = binary.BigEndian.AppendUint32(f.Options, b.seq)
			f.Options = binary.BigEndian.AppendUint32(f.Options, b.end)
		}
	}
	return blocksIn(r.send(f))
}

// blocksIn returns the SACK blocks of a frame.
func blocksIn(frame []byte) (blocks []span) {
	for o := hdr.OptionsOf(frame[hdrtest.Parse(frame).L4:]).SACK; len(o) >= 10; o = o[8:] {
		blocks = append(blocks,
			span{binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:])})
	}
	return blocks
}

// TestDuplicates: what an ACK says of data that has come twice. A script is what happens to a peer
// whose first byte is 0: "<100+50" arrives, "<F100+50" with a FIN, ">150" is an ACK, ">150 20-30"
// one with SACK blocks, ">w150" one without a window, "~300" ms pass, ">d150" is data. Behind a =
// are the blocks that leave.
func TestDuplicates(t *testing.T) {
	for _, tc := range []struct{ name, script string }{
		{"nothing twice", "<0+10 >10= <10+10 >20="},
		{"twice", "<0+10 >10= <0+10 >10=0-10 >10="},
		{"in the middle", "<0+100 >100= <30+10 >100=30-40"},
		{"partly", "<0+10 >10= <5+10 >15=5-10"},
		{"before the answer to the first", "<0+10 <0+10 >10=0-10 >10="},
		{"three at once, one at a time", "<0+10 <10+10 <0+10 <10+10 <0+5 >20=0-10 >20=10-20 " +
			">20=0-5 >20="},
		{"a FIN counts", "<F0+10 >11= <F0+10 >11=0-11 <F10+0 >11=10-11"},
		{"nothing in it", "<0+10 >10= <9+0 >10="},
		{"a byte in it", "<0+10 >10= <9+1 >10=9-10"},
		{"behind a gap", "<20+10 >0,20-30=20-30 <20+10 >0,20-30=20-30,20-30 >0,20-30=20-30"},
		{"part of a block", "<20+10 >0,20-30=20-30 <25+15 >0,20-40=25-30,20-40"},
		{"the block is not the first", "<20+10 >0,20-30=20-30 <20+10 >0,40-50,20-30=40-50,20-30 " +
			">0,20-30,40-50=20-30,20-30,40-50"},
		{"two blocks: the lower", "<20+10 >0,20-30=20-30 <50+10 >0,50-60,20-30=50-60,20-30 " +
			"<25+30 >0,20-60=25-30,20-60"},
		{"below, beside a gap", "<0+10 >10= <20+10 >10,20-30=20-30 <0+10 >10,20-30=0-10,20-30"},
		{"overlaps a block from below", "<0+10 >10= <20+10 >10,20-30=20-30 <10+15 >30=20-25"},
		{"a full option", "<0+10 >10= <0+10 >10,20-21,30-31,40-41,50-51=0-10,20-21,30-31,40-41"},
		{"data takes nothing along", "<0+10 >10= <0+10 >d10= >10=0-10"},
		{"no ACK for long", "<0+10 >10= <0+10 ~201 >10="},
		{"an ACK in time", "<0+10 >10= <0+10 ~200 >10=0-10"},
		{"probes of a closed window", ">w0= <0+1 >w0= <0+1 >w0= <0+1 >1= <0+1 >1=0-1"},
		{"refused as the window closes", "<0+10 >w0= <0+10 >0= >10="},
		{"refused, says an ACK again", "<0+10 >0= <0+10 >10= <0+10 >10=0-10"},
		{"what waits and is refused", "<0+10 <0+10 >0= >10= <0+10 >10=0-10"},
		{"what waits is further on", "<0+10 >10= <10+10 <20+10 <20+10 >20= >30=20-30"},
		{"too many", "<0+90 >90= <0+9 <9+9 <18+9 <27+9 <36+9 <45+9 <54+9 <63+9 <72+9 >90=0-9 " +
			">90=9-18 >90=18-27 >90=27-36 >90=36-45 >90=45-54 >90=54-63 >90=63-72 >90="},
	} {
		for _, kind := range []struct{ v6, stamp bool }{{false, false}, {true, true}} {
			if tc.name == "a full option" && kind.stamp {
				continue // there is no room for four blocks
			}
			t.Run(fmt.Sprint(tc.name, kind), func(t *testing.T) {
				const first = 0xfffffff0 // it wraps
				r := newCopyRig(t, kind.v6, kind.stamp, first, sackPermitted, sackPermitted)
				if got := r.play(tc.script, first); got != tc.script {
					t.Errorf("got  %s\nwant %s", got, tc.script)
				}
			})
		}
	}
}

// play runs a script of TestDuplicates, and returns it with the blocks that left.
func (r *copyRig) play(script string, first uint32) string {
	r.t.Helper()
	var out []byte
	for _, word := range bytes.Fields([]byte(script)) {
		step, _, _ := bytes.Cut(word, []byte("="))
		if len(out) > 0 {
			out = append(out, ' ')
		}
		out = append(out, step...)
		args := string(step[1:])
		var flags header.TCPFlags
		window, data := 500, false
		switch args[0] {
		case 'F':
			flags, args = header.TCPFlagFin, args[1:]
		case 'w':
			window, args = -1, args[1:]
		case 'd':
			data, args = true, args[1:]
		}
		var at uint32
		var n int
		switch step[0] {
		case '~':
			fmt.Sscan(args, &n)
			r.clock.now += time.Duration(n) * time.Millisecond
			continue
		case '<':
			fmt.Sscanf(args, "%d+%d", &at, &n)
			r.arrive(first+at, n, flags)
			continue
		}
		fmt.Sscanf(args, "%d", &at)
		var blocks, got []span
		for i, b := range bytes.Split([]byte(args), []byte(",")) {
			var x span
			if i > 0 {
				fmt.Sscanf(string(b), "%d-%d", &x.seq, &x.end)
				blocks = append(blocks, span{first + x.seq, first + x.end})
			}
		}
		if data {
			got = blocksIn(r.send(tcpframe.Frame{Flags: header.TCPFlagAck, Seq: 2,
				Ack: first + at, Payload: []byte("data")}))
		} else {
			got = r.ackWindow(first+at, window, blocks...)
		}
		out = append(out, '=')
		for i, x := range got {
			if i > 0 {
				out = append(out, ',')
			}
			out = fmt.Appendf(out, "%d-%d", x.seq-first, x.end-first)
		}
	}
	return string(out)
}

// TestDuplicatesNotAgreed: nothing is told a peer that has not agreed on SACK, and nothing of a
// connection before.
func TestDuplicatesNotAgreed(t *testing.T) {
	for _, tc := range []struct {
		name         string
		ours, theirs []byte
	}{{"not ours", nil, sackPermitted}, {"not theirs", sackPermitted, nil}} {
		r := newCopyRig(t, false, false, 0, tc.ours, tc.theirs)
		if got := r.play("<0+10 >10= <0+10 >10=", 0); got != "<0+10 >10= <0+10 >10=" {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
	r := newCopyRig(t, false, false, 0, sackPermitted, sackPermitted)
	r.play("<0+10 >10= <0+10", 0)
	r.send(tcpframe.Frame{Flags: header.TCPFlagSyn, Seq: 1, Options: sackPermitted})
	if got := r.ack(5000); got != nil {
		t.Errorf("%v of a connection before", got)
	}
}

// receiverModel describes a receiver with all of what has come, byte by byte: the reference.
type receiverModel struct {
	next   uint32
	have   map[uint32]bool // above next
	blocks []span          // the latest first
}

// take takes a segment, and returns the range that has come before, as Linux does it: what lies
// below what is expected, else the first range that it has already and that an ACK has told of.
// The range is empty if there is none.
func (m *receiverModel) take(x span, told []span) (before span) {
	if x.seq < m.next {
		before = span{x.seq, min(x.end, m.next)}
	} else {
		for at := x.seq; at < x.end; at++ {
			has := m.have[at] && covered(told, at, at+1)
			if has && before.seq == before.end {
				before = span{at, at + 1}
			} else if has && before.end == at {
				before.end++
			}
		}
	}
	for at := max(x.seq, m.next); at < x.end; at++ {
		m.have[at] = true
	}
	for m.have[m.next] {
		delete(m.have, m.next)
		m.next++
	}
	m.note(x)
	return before
}

// note keeps the blocks as a receiver does (RFC 2018 section 4).
func (m *receiverModel) note(x span) {
	var others []span
	for _, b := range m.blocks {
		if b.end <= m.next {
			continue
		}
		if x.seq <= b.end && b.seq <= x.end {
			x = span{min(x.seq, b.seq), max(x.end, b.end)}
		} else {
			others = append(others, b)
		}
	}
	if x.seq > m.next {
		others = append([]span{x}, others...)
	}
	m.blocks = others
}

// TestDuplicatesLikeReference gives a receiver segments at random, some of them late, some more
// than once: the first block of each ACK is the range that had come before.
func TestDuplicatesLikeReference(t *testing.T) {
	for seed := range uint64(300) {
		draw := rand.New(rand.NewPCG(seed, 7))
		stamp := seed%2 == 0
		const first = 1 << 20
		r := newCopyRig(t, seed%3 == 0, stamp, first, sackPermitted, sackPermitted)
		m := receiverModel{next: first, have: map[uint32]bool{}}
		most := maxBlocks
		if stamp {
			most--
		}
		told := 0
		for step := range 200 {
			at := m.next + uint32(draw.IntN(60))
			if draw.IntN(3) > 0 {
				at = m.next
			} else if draw.IntN(3) == 0 {
				at = max(m.next-uint32(draw.IntN(60)), first)
			}
			x := span{at, at + 1 + uint32(draw.IntN(20))}
			known := slices.Clone(m.blocks[:min(len(m.blocks), most)]) // sent, so that it counts
			before := m.take(x, known)
			r.arrive(x.seq, int(x.end-x.seq), 0)
			blocks := m.blocks[:min(len(m.blocks), most)]
			want := slices.Clone(blocks)
			if before.seq != before.end {
				want = append([]span{before}, want...)
				want = want[:min(len(want), most)]
				told++
			}
			if got := r.ack(m.next, blocks...); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: %v has come, ACK %d: %v, want %v", seed, step, x,
					m.next, got, want)
			}
		}
		if uint64(told) != r.flows.Counts().DuplicatesTold || told < 10 {
			t.Errorf("seed %d: %d ranges told, %d counted", seed, told,
				r.flows.Counts().DuplicatesTold)
		}
	}
}

// FuzzDuplicates: no ACK says that something has come twice which has not, whatever netstack
// refuses and however late it answers. A segment of the script is an arrival of up to 16 bytes, an
// answer to the oldest arrival, or one without an answer.
func FuzzDuplicates(f *testing.F) {
	f.Add([]byte{0x01, 0x80, 0x01, 0x80, 0x11, 0x80})
	f.Add([]byte{0x01, 0x01, 0x01, 0xc0, 0x80, 0x80})
	f.Add([]byte{0x21, 0x80, 0x21, 0x80, 0x01, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, script []byte) {
		const first = 1000
		r := newCopyRig(t, false, false, first, sackPermitted, sackPermitted)
		m := receiverModel{next: first, have: map[uint32]bool{}}
		var queue []span
		times := map[uint32]int{} // how often a byte was given to netstack
		for _, op := range script[:min(len(script), 200)] {
			switch {
			case op < 0x80:
				x := span{first + uint32(op>>4)*16, 0}
				x.end = x.seq + 1 + uint32(op&15)
				queue = append(queue, x)
				for at := x.seq; at < x.end; at++ {
					times[at]++
				}
				r.arrive(x.seq, int(x.end-x.seq), 0)
				continue
			case len(queue) > 0 && op < 0xc0:
				m.take(queue[0], nil)
				fallthrough
			case len(queue) > 0: // refused in silence
				queue = queue[1:]
			}
			blocks := m.blocks[:min(len(m.blocks), maxBlocks)]
			got := r.ack(m.next, blocks...)
			if len(got) == 0 || slices.Equal(got, blocks) {
				continue
			}
			for at := got[0].seq; at < got[0].end; at++ {
				if times[at] < 2 {
					t.Fatalf("byte %d has come %d times: %v", at, times[at], got)
				}
			}
		}
	})
}

// BenchmarkDuplicates gives what a segment with data and its ACK cost where nothing comes twice,
// and what they cost where each does.
func BenchmarkDuplicates(b *testing.B) {
	for _, twice := range []bool{false, true} {
		b.Run(map[bool]string{false: "once", true: "twice"}[twice], func(b *testing.B) {
			r := newCopyRig(b, false, true, 0, sackPermitted, sackPermitted)
			ack := r.frame(tcpframe.Frame{Flags: header.TCPFlagAck, Seq: 2,
				Options: tcpframe.Stamped(1, 2)}, false)
			data := r.frame(tcpframe.Frame{Flags: header.TCPFlagAck, Ack: 2,
				Payload: make([]byte, 100)}, true).Bytes()
			p := hdrtest.Parse(data)
			pkt, seq := ack.Packet(), uint32(0)
			defer func() { pkt.DecRef() }()
			b.ReportAllocs()
			for b.Loop() {
				binary.BigEndian.PutUint32(data[p.L4+4:], seq)
				r.flows.Arrives(data, p, 100, hdr.FlagACK)
				if !twice {
					seq += 100
				}
				s := hdr.ParseSent(pkt, r.flows.Key())
				binary.BigEndian.PutUint32(s.TCP()[8:], max(seq, 100))
				r.flows.duplicates.sent(pkt, &s)
				if size := pkt.Data().Size(); size > 0 {
					pkt.Data().CapLength(0)
					s.TCP()[12] -= byte(size / 4 << 4)
				}
			}
			told := r.flows.Counts().DuplicatesTold
			b.ReportMetric(float64(told)/float64(b.N), "told/op")
		})
	}
}
