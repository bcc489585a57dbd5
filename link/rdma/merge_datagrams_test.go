package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// joiningSink takes datagrams of one flow as one, and records what they carry.
type joiningSink struct {
	asks, refuse bool
	sizes        []int    // datagrams of each delivery
	got          []string // source port and payload of each datagram; copies
	from         []string // of each, as judge.read has it
	flushes      int
}

func (s *joiningSink) Stamped() bool  { return true }
func (s *joiningSink) Segments() bool { return s.asks }
func (s *joiningSink) Flush() bool {
	s.flushes++
	return false
}

func (s *joiningSink) Deliver(ip, udp []byte, at time.Time) bool {
	return s.DeliverSegments(ip, udp, [][]byte{udp[hdr.UDPLen:]}, at)
}

func (s *joiningSink) DeliverSegments(ip, udp []byte, payloads [][]byte, _ time.Time) bool {
	if s.refuse {
		return false
	}
	s.sizes = append(s.sizes, len(payloads))
	source := net.IP(ip[12:16])
	if len(ip) == hdr.IPv6Len {
		source = ip[8:24]
	}
	for _, b := range payloads {
		s.got = append(s.got, fmt.Sprintf("%x %x", udp[:2], b))
		s.from = append(s.from, fmt.Sprintf("{1 %v %d }", source, binary.BigEndian.Uint16(udp)))
	}
	return true
}

// join gives port 53 to s.
func (j *judge) join(s DatagramSink) { j.worker.e.joinFor(s) }

func (e *Endpoint) joinFor(s DatagramSink) {
	e.JoinDatagrams()
	e.SetDatagramSinks(func(_ int, _ bool, port uint16) DatagramSink {
		if port == 53 {
			return s
		}
		return nil
	})
}

// queryOf is the n'th of a flow to port 53, of 100 bytes.
func queryOf(n int, change func(n int, f *tcpFrame)) []byte {
	f := segment(n)
	f.Ports = [2]uint16{4000, 53}
	change(n, &f)
	return udpFrame(f)
}

// TestJoinRules changes one thing in the second of three datagrams, or in all, as TestMergeRules
// does, and looks at how many the sink gets at once and what they carry.
func TestJoinRules(t *testing.T) {
	type edit = func(n int, f *tcpFrame)
	second := func(e func(*tcpFrame)) edit {
		return func(n int, f *tcpFrame) {
			if n == 1 {
				e(f)
			}
		}
	}
	every := func(e func(*tcpFrame)) edit { return func(_ int, f *tcpFrame) { e(f) } }
	joined, split, apart, front := []int{3}, []int{1, 1, 1}, []int{1, 2}, []int{2, 1}
	for _, tc := range []struct {
		name   string
		edit   edit
		v4, v6 []int
	}{
		{"alike", every(func(*tcpFrame) {}), joined, joined},
		{"source port", second(func(f *tcpFrame) { f.Ports[0]++ }), front, front},
		{"source address", second(func(f *tcpFrame) { f.From++ }), front, front},
		{"source MAC", second(func(f *tcpFrame) { f.Src = "\x02\x00\x00\x00\x00\x03" }), split,
			split},
		{"TTL", second(func(f *tcpFrame) { f.TTL-- }), split, split},
		{"TOS", second(func(f *tcpFrame) { f.TOS = 0x20 }), split, split},
		{"congestion experienced", second(func(f *tcpFrame) { f.TOS = 3 }), split, split},
		{"flow label", second(func(f *tcpFrame) { f.Flow = 5 }), joined, split},
		{"DF in one", second(func(f *tcpFrame) { f.NoDF = true }), split, joined},
		{"identification with DF", second(func(f *tcpFrame) { f.ID = 9 }), joined, joined},
		{"identification counts without DF", every(func(f *tcpFrame) { f.NoDF = true }), joined,
			joined},
		{"identification stands still without DF",
			every(func(f *tcpFrame) { f.NoDF = true; f.ID = 9 }), split, joined},
		{"padding", every(func(f *tcpFrame) { f.Pad = 6 }), joined, joined},
		{"last is shorter", func(n int, f *tcpFrame) { f.Payload = f.Payload[:100-n/2] }, joined,
			joined},
		{"second is shorter", func(n int, f *tcpFrame) { f.Payload = f.Payload[:100-n%2] }, front,
			front},
		{"first is shorter", func(n int, f *tcpFrame) { f.Payload = f.Payload[:99+(n+1)/2] },
			apart, apart},
		{"second is empty", func(n int, f *tcpFrame) { f.Payload = f.Payload[:100-n%2*100] },
			split, split},
		{"all are empty", every(func(f *tcpFrame) { f.Payload = nil }), split, split},
	} {
		for n := range 4 {
			v6, flags := n%2 == 1, dv.RxFlags(n/2)*vouched
			var frames [][]byte
			var want []string
			for n := range 3 {
				frames = append(frames, queryOf(n, func(n int, f *tcpFrame) {
					f.V6 = v6
					tc.edit(n, f)
					want = append(want, fmt.Sprintf("%04x %x", f.Ports[0], f.Payload))
				}))
			}
			j, s := newJudge(t, true), &joiningSink{asks: true}
			j.join(s)
			j.worker.classifyAndMerge(j.worker.load(flags, frames...))
			j.worker.deliverAll(j.worker.buildPackets())
			sizes := tc.v4
			if v6 {
				sizes = tc.v6
			}
			if slices.Equal(sizes, front) && slices.Contains([]string{"source port",
				"source address"}, tc.name) { // the third joins the first
				want[1], want[2] = want[2], want[1]
			}
			if !slices.Equal(s.sizes, sizes) || !slices.Equal(s.got, want) || s.flushes != 1 {
				t.Errorf("%s (IPv6 %v, flags %b): %d at once, %q, %d flushes; want %d, %q",
					tc.name, v6, flags, s.sizes, s.got, s.flushes, sizes, want)
			}
		}
	}
}

// TestJoinIsOff: nothing is joined unless the sink asks, can, and some sink has been said to; nor
// where merging is off.
func TestJoinIsOff(t *testing.T) {
	frames := [][]byte{queryOf(0, func(int, *tcpFrame) {}), queryOf(1, func(int, *tcpFrame) {})}
	for name, off := range map[string]func(*judge, *joiningSink){
		"nobody may ask":  func(j *judge, _ *joiningSink) { j.worker.e.joining.Store(false) },
		"it does not ask": func(_ *judge, s *joiningSink) { s.asks = false },
		"merging is off":  func(j *judge, _ *joiningSink) { j.worker.merge.off = true },
	} {
		j, s := newJudge(t, true), &joiningSink{asks: true}
		j.join(s)
		off(j, s)
		j.hear(frames...)
		if !slices.Equal(s.sizes, []int{1, 1}) {
			t.Errorf("%s: %d at once", name, s.sizes)
		}
	}
	j, plain := newJudge(t, true), &recordingSink{}
	j.join(plain)
	if j.hear(frames...); len(plain.heard) != 3 {
		t.Errorf("a sink that cannot: %q", plain.heard)
	}
}

// TestJoinLimits: a delivery has 64 datagrams and 64 KiB at most, headers included.
func TestJoinLimits(t *testing.T) {
	for _, tc := range []struct {
		size, n int
		want    []int
	}{{1, 130, []int{64, 64, 2}}, {1472, 64, []int{44, 20}}, {9000, 8, []int{7, 1}}} {
		j, s := newJudge(t, true), &joiningSink{asks: true}
		j.join(s)
		var frames [][]byte
		for n := range tc.n {
			frames = append(frames, queryOf(n, func(_ int, f *tcpFrame) {
				f.Payload = bytes.Repeat([]byte{byte(n)}, tc.size)
			}))
		}
		for batch := range slices.Chunk(frames, batchFrames) {
			j.hear(batch...)
		}
		want := tc.want
		if tc.n > batchFrames {
			want = nil
			for left := tc.n; left > 0; left -= batchFrames {
				for n := min(left, batchFrames); n > 0; n -= maxDatagrams {
					want = append(want, min(n, maxDatagrams))
				}
			}
		}
		if !slices.Equal(s.sizes, want) {
			t.Errorf("%d datagrams of %d bytes: %d at once, want %d", tc.n, tc.size, s.sizes, want)
		}
	}
}

// TestJoinedIsRefused: what a sink refuses reaches netstack's socket one by one and in order, with
// what else the batch has; the counters are those of a sink that does not ask.
func TestJoinedIsRefused(t *testing.T) {
	var frames [][]byte
	for n := range 9 {
		frames = append(frames, queryOf(n, func(n int, f *tcpFrame) {
			f.Ports[0], f.NoDF = uint16(4000+n%2), true
			f.ID = uint16(n / 2)
			if n == 8 {
				f.Payload = f.Payload[:7]
			}
		}))
	}
	plain, joined := newJudge(t, true), newJudge(t, true)
	plain.join(&joiningSink{refuse: true})
	joined.join(&joiningSink{asks: true, refuse: true})
	plain.hear(frames...)
	joined.hear(frames...)
	if got := joined.worker.merge.shape(); got != "[[0] [2] [4] [6] [8] [1] [3] [5] [7]]" {
		t.Errorf("runs %s", got)
	}
	got, want := joined.read(t), plain.read(t)
	slices.SortStableFunc(want, func(a, b string) int { // by sender: the order within each counts
		return bytes.Compare([]byte(a)[:bytes.IndexByte([]byte(a), '}')],
			[]byte(b)[:bytes.IndexByte([]byte(b), '}')])
	})
	if !slices.Equal(got, want) || len(got) != len(frames) {
		t.Errorf("read %q\nwant %q", got, want)
	}
}

// TestJoinCounts: the counters of IP and of the interface count datagrams, not deliveries.
func TestJoinCounts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		var frames [][]byte
		for n := range 5 {
			frames = append(frames, queryOf(n, func(_ int, f *tcpFrame) { f.V6 = v6 }))
		}
		plain, joined := newJudge(t, true), newJudge(t, true)
		plain.join(&joiningSink{})
		joined.join(&joiningSink{asks: true})
		plain.hear(frames...)
		joined.hear(frames...)
		want := plain.counts(t)
		for name, n := range joined.counts(t) {
			if n != want[name] {
				t.Errorf("IPv6 %v: %s is %d, want %d", v6, name, n, want[name])
			}
		}
		if n := joined.worker.count.merged.Load(); n != 5 {
			t.Errorf("%d frames counted as merged", n)
		}
	}
}

// TestJoinOvertakesNothing: what netstack must put together or look at ends all runs, so that
// nothing behind it joins what is before it.
func TestJoinOvertakesNothing(t *testing.T) {
	for name, odd := range map[string]func(int, *tcpFrame){
		"a fragment": func(_ int, f *tcpFrame) { f.Fragment = 8 },
		"options":    func(_ int, f *tcpFrame) { f.IPOpts = []byte{1, 1, 1, 0} },
	} {
		j, s := newJudge(t, true), &joiningSink{asks: true}
		j.join(s)
		same := func(int, *tcpFrame) {}
		j.hear(queryOf(0, same), queryOf(1, same), queryOf(2, odd), queryOf(3, same),
			queryOf(4, same))
		if !slices.Equal(s.sizes, []int{2}) {
			t.Errorf("%s: %d at once", name, s.sizes)
		}
		if got := j.worker.merge.shape(); got != "[[0 1] [2] [3] [4]]" {
			t.Errorf("%s: runs %s", name, got)
		}
	}
}

// TestJoinDoesNotAllocate: not for what is taken, and what is refused costs its packets only.
func TestJoinDoesNotAllocate(t *testing.T) {
	var frames [][]byte
	for n := range 32 {
		frames = append(frames, queryOf(n, func(int, *tcpFrame) {}))
	}
	j, hole := newJudge(t, true), new(joiningHole)
	j.join(hole)
	j.hear(frames...)
	if n := testing.AllocsPerRun(100, func() { j.hear(frames...) }); n != 0 {
		t.Errorf("%v allocations for %d datagrams", n, len(frames))
	}
	if hole.joined == 0 {
		t.Error("nothing was joined")
	}
}

// joiningHole forgets what it takes.
type joiningHole struct {
	discardSink
	joined int
}

func (h *joiningHole) Segments() bool { return true }

func (h *joiningHole) DeliverSegments(_, _ []byte, payloads [][]byte, _ time.Time) bool {
	h.joined += len(payloads)
	return true
}

// FuzzJoinDatagrams: whatever comes, in one batch, a sink that asks gets of each sender what one
// that does not ask gets, in the same order, and netstack's socket the rest.
func FuzzJoinDatagrams(f *testing.F) {
	f.Add([]byte{0, 0, 100, 0, 0, 100, 0, 0, 50, 1, 0, 100, 0, 0, 100}, false)
	f.Add([]byte{0, 1, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 2, 0, 9}, true)
	f.Add(bytes.Repeat([]byte{0, 0, 1}, 70), true)
	f.Add([]byte{4, 0, 100, 4, 0, 100, 0, 0, 100, 4, 3, 100, 4, 7, 100, 5, 0, 9, 4, 0, 50}, false)
	f.Add(bytes.Repeat([]byte{4, 0, 200}, 40), true)
	f.Fuzz(func(t *testing.T, script []byte, refuse bool) {
		var frames [][]byte
		for n := 0; n+2 < len(script) && len(frames) < batchFrames; n += 3 {
			frames = append(frames, fuzzedDatagram(len(frames), [3]byte(script[n:])))
		}
		for _, flags := range []dv.RxFlags{0, vouched} {
			joinAlike(t, flags, refuse, frames)
		}
	})
}

// joinAlike requires that a sink that asks for datagrams as one gets what one gets that does not,
// and netstack's socket the rest, of each sender in order.
func joinAlike(t *testing.T, flags dv.RxFlags, refuse bool, frames [][]byte) {
	t.Helper()
	var results [2]map[string][]string
	for i := range results {
		j, s := newJudge(t, true), &joiningSink{asks: i == 1, refuse: refuse}
		j.join(s)
		socket6 := j.listen6(t)
		var batch [][]byte
		for _, b := range frames {
			batch = append(batch, bytes.Clone(b))
		}
		j.worker.classifyAndMerge(j.worker.load(flags, batch...))
		j.worker.deliverAll(j.worker.buildPackets())
		results[i] = map[string][]string{}
		for n, from := range s.from {
			results[i][from] = append(results[i][from], s.got[n][5:])
		}
		// behind what the sink took
		for _, d := range append(j.read(t), readAll(t, socket6)...) {
			n := strings.Index(d, "}") + 1
			results[i][d[:n]] = append(results[i][d[:n]], d[n+1:])
		}
	}
	if fmt.Sprint(results[0]) != fmt.Sprint(results[1]) {
		t.Fatalf("flags %b: joined %q\nwant %q", flags, results[1], results[0])
	}
}

// listen6 opens a socket of IPv6 on the port of the judge's.
func (j *judge) listen6(t *testing.T) tcpip.Endpoint {
	t.Helper()
	ep, err := j.stack.NewEndpoint(udp.ProtocolNumber, ipv6.ProtocolNumber, new(waiter.Queue))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ep.Close)
	ep.SocketOptions().SetV6Only(true)
	if err := ep.Bind(tcpip.FullAddress{Port: 53}); err != nil {
		t.Fatal(err)
	}
	return ep
}

// TestJoinAgreesOnBits changes one bit of the headers of the second of three datagrams: the short
// way that adds a datagram to a run finds what the long one does.
func TestJoinAgreesOnBits(t *testing.T) {
	long, short := testWorker(), testWorker()
	long.e.joinFor(&joiningSink{asks: true})
	short.e.joinFor(&joiningSink{asks: true})
	for _, v6 := range []bool{false, true} {
		frames := make([][]byte, 3)
		for n := range frames {
			frames[n] = queryOf(n, func(_ int, f *tcpFrame) { f.V6, f.Pad = v6, 4 })
		}
		headers := parsed(frames[0]).L4 + hdr.UDPLen
		for bit := -1; bit < headers*8; bit++ {
			changed := slices.Clone(frames)
			changed[1] = bytes.Clone(frames[1])
			if bit >= 0 {
				changed[1][bit/8] ^= 1 << (bit % 8)
			} else {
				copy(changed[1][headers-2:], "\x00\x00") // no checksum
			}
			long.merge.sinks = long.joiningSinks()
			long.classifySlow(long.load(vouched, changed...))
			short.classifyAndMerge(short.load(vouched, changed...))
			if a, b := long.merge, short.merge; a.shape() != b.shape() ||
				!slices.Equal(a.runs, b.runs) {
				t.Fatalf("IPv6 %v, bit %d of byte %d: the long way %s, the short way %s", v6,
					bit%8, bit/8, a.shape(), b.shape())
			}
		}
	}
}

// fuzzedDatagram makes a frame as three bytes say: its sender and IP version, what is odd about it,
// its size.
func fuzzedDatagram(n int, b [3]byte) []byte {
	frame := queryOf(n, func(_ int, f *tcpFrame) {
		f.Ports[0], f.Payload = uint16(4000+int(b[0]%4)), bytes.Repeat([]byte{byte(n)}, int(b[2]))
		f.V6 = b[0]&4 != 0
		switch b[1] % 8 {
		case 1:
			f.TOS = b[1]
		case 2:
			f.TTL = b[1]
		case 3:
			f.NoDF, f.Flow = true, uint32(b[1]>>3)
		case 4:
			f.Ports[1] = 54
		case 5:
			f.Pad = int(b[1])
		}
	})
	switch at := parsed(frame).L4; b[1] % 8 {
	case 6: // a length of UDP's own
		binary.BigEndian.PutUint16(frame[at+4:], uint16(b[1]))
	case 7: // no checksum, or a wrong one
		binary.BigEndian.PutUint16(frame[at+6:], uint16(b[1]>>3))
	}
	return frame
}

// BenchmarkJoin classifies and delivers a batch of 32 datagrams of 1,200 bytes, as a stream has
// them, to a sink that wants each and to one that asks for them as one.
func BenchmarkJoin(b *testing.B) {
	for name, asks := range map[string]bool{"each": false, "joined": true} {
		b.Run(name, func(b *testing.B) {
			var frames [][]byte
			for n := range 32 {
				frames = append(frames, queryOf(n, func(_ int, f *tcpFrame) {
					f.Payload = make([]byte, 1200)
				}))
			}
			j, hole := newJudge(b, true), new(joiningHole)
			if asks {
				j.join(hole)
			} else {
				j.worker.e.SetDatagramSinks(func(int, bool, uint16) DatagramSink {
					return &hole.discardSink
				})
			}
			for b.Loop() {
				j.hear(frames...)
			}
		})
	}
}
