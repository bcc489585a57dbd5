package rdma

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// shape is the numbers of frames in each run, as text: "[0 1] [2]".
func (m *merger) shape() string {
	var out []string
	for _, r := range m.runs {
		var run []int16
		for i := r.first; i != none; i = m.chain[i] {
			run = append(run, i)
		}
		out = append(out, fmt.Sprint(run))
	}
	return fmt.Sprint(out)
}

// TestMergeRules changes one thing in the second of three segments, or in all.
func TestMergeRules(t *testing.T) {
	timestamps := func(v byte) []byte { return []byte{1, 1, 8, 10, 0, 0, 0, v, 0, 0, 0, 9} }
	type edit func(n int, f *tcpFrame)
	second := func(e func(*tcpFrame)) edit {
		return func(n int, f *tcpFrame) {
			if n == 1 {
				e(f)
			}
		}
	}
	every := func(e func(*tcpFrame)) edit { return func(_ int, f *tcpFrame) { e(f) } }
	const joined, split, apart = "[[0 1 2]]", "[[0] [1] [2]]", "[[0] [1 2]]"
	for _, tc := range []struct {
		name   string
		edit   edit
		v4, v6 string
	}{
		{name: "alike", edit: every(func(*tcpFrame) {}), v4: joined, v6: joined},
		{name: "timestamps alike", edit: every(func(f *tcpFrame) { f.Options = timestamps(1) }),
			v4: joined, v6: joined},
		{name: "timestamp moves on", edit: func(n int,
			f *tcpFrame) {
			f.Options = timestamps(byte(min(n, 1)))
		}, v4: apart, v6: apart},
		{name: "timestamp differs", edit: func(n int,
			f *tcpFrame) {
			f.Options = timestamps(byte(n % 2))
		}, v4: split, v6: split},
		{name: "option in one", edit: second(func(f *tcpFrame) { f.Options = timestamps(1) }),
			v4: split, v6: split},
		{name: "ack number", edit: second(func(f *tcpFrame) { f.Ack++ }), v4: split, v6: split},
		{name: "window", edit: second(func(f *tcpFrame) { f.Window++ }), v4: split, v6: split},
		{name: "gap", edit: func(n int, f *tcpFrame) {
			if n > 0 {
				f.Seq++
			}
		}, v4: apart, v6: apart},
		{name: "overlap", edit: func(n int, f *tcpFrame) {
			if n > 0 {
				f.Seq--
			}
		}, v4: apart, v6: apart},
		{name: "source port", edit: second(func(f *tcpFrame) { f.Ports[0]++ }), v4: split,
			v6: split},
		{name: "destination port", edit: second(func(f *tcpFrame) { f.Ports[1]++ }), v4: split,
			v6: split},
		{name: "source address", edit: second(func(f *tcpFrame) { f.From++ }), v4: split,
			v6: split},
		{name: "destination address", edit: second(func(f *tcpFrame) { f.To++ }), v4: split,
			v6: split},
		{name: "source MAC", edit: second(func(f *tcpFrame) { f.Src = "\x02\x00\x00\x00\x00\x03" }),
			v4: split, v6: split},
		{name: "ttl", edit: second(func(f *tcpFrame) { f.TTL-- }), v4: split, v6: split},
		{name: "tos", edit: second(func(f *tcpFrame) { f.TOS = 0x20 }), v4: split, v6: split},
		{name: "congestion experienced", edit: second(func(f *tcpFrame) { f.TOS = 3 }), v4: split,
			v6: split},
		{name: "flow label", edit: second(func(f *tcpFrame) { f.Flow = 5 }), v4: joined, v6: split},
		{name: "psh ends a run", edit: second(func(f *tcpFrame) { f.Flags |= header.TCPFlagPsh }),
			v4: "[[0 1] [2]]", v6: "[[0 1] [2]]"},
		{name: "psh on all", edit: every(func(f *tcpFrame) { f.Flags |= header.TCPFlagPsh }),
			v4: split, v6: split},
		{name: "fin ends a run", edit: second(func(f *tcpFrame) { f.Flags |= header.TCPFlagFin }),
			v4: "[[0 1] [2]]", v6: "[[0 1] [2]]"},
		{name: "syn", edit: second(func(f *tcpFrame) { f.Flags |= header.TCPFlagSyn }), v4: split,
			v6: split},
		{name: "rst", edit: second(func(f *tcpFrame) { f.Flags |= header.TCPFlagRst }), v4: split,
			v6: split},
		{name: "urg",
			edit: second(func(f *tcpFrame) { f.Flags |= header.TCPFlagUrg; f.Urgent = 1 }),
			v4:   split, v6: split},
		{name: "cwr", edit: second(func(f *tcpFrame) { f.Flags |= 0x80 }), v4: split, v6: split},
		{name: "cwr on all", edit: every(func(f *tcpFrame) { f.Flags |= 0x80 }), v4: split,
			v6: split},
		{name: "ece", edit: second(func(f *tcpFrame) { f.Flags |= 0x40 }), v4: split, v6: split},
		{name: "ece on all", edit: every(func(f *tcpFrame) { f.Flags |= 0x40 }), v4: joined,
			v6: joined},
		{name: "no ack flag", edit: every(func(f *tcpFrame) { f.Flags = 0 }), v4: split, v6: split},
		{name: "ip id does not matter with DF", edit: second(func(f *tcpFrame) { f.ID = 9 }),
			v4: joined, v6: joined},
		{name: "ip id counts without DF", edit: every(func(f *tcpFrame) { f.NoDF = true }),
			v4: joined, v6: joined},
		{name: "ip id stands still without DF",
			edit: every(func(f *tcpFrame) { f.NoDF = true; f.ID = 9 }), v4: split, v6: joined},
		{name: "DF in one", edit: second(func(f *tcpFrame) { f.NoDF = true }), v4: split,
			v6: joined},
		{name: "ip options", edit: every(func(f *tcpFrame) {
			f.IPOpts = []byte{1, 1, 1, 0}
			if f.V6 {
				f.IPOpts = []byte{0, 1, 4, 0, 0, 0, 0}
			}
		}), v4: split, v6: split},
		{name: "ip fragments", edit: every(func(f *tcpFrame) { f.Fragment = 8 }), v4: split,
			v6: joined},
		{name: "padding behind the packet", edit: every(func(f *tcpFrame) { f.Pad = 6 }),
			v4: joined, v6: joined},
		{name: "pure acks", edit: every(func(f *tcpFrame) { f.Payload = nil }), v4: split,
			v6: split},
		{name: "pure ack between", edit: second(func(f *tcpFrame) { f.Payload = nil }), v4: split,
			v6: split},
		{name: "last is shorter", edit: func(n int, f *tcpFrame) {
			if n == 2 {
				f.Payload = f.Payload[:1]
			}
		}, v4: joined, v6: joined},
		{name: "first is shorter", edit: func(n int, f *tcpFrame) {
			if n == 0 {
				f.Payload, f.Seq = f.Payload[:1], f.Seq+99
			}
		}, v4: apart, v6: apart},
		{name: "middle is shorter", edit: func(n int, f *tcpFrame) {
			if n == 1 {
				f.Payload = f.Payload[:1]
			}
			if n == 2 {
				f.Seq -= 99
			}
		}, v4: "[[0 1] [2]]", v6: "[[0 1] [2]]"},
		{name: "backwards", edit: func(n int, f *tcpFrame) { f.Seq = segment(2 - n).Seq },
			v4: split, v6: split},
		{name: "same again", edit: func(n int, f *tcpFrame) { f.Seq = segment(0).Seq }, v4: split,
			v6: split},
	} {
		for n := range 4 {
			v6, flags := n%2 == 1, dv.RxFlags(n/2)*vouched
			want := tc.v4
			if v6 {
				want = tc.v6
			}
			var frames [][]byte
			for n := range 3 {
				f := segment(n)
				f.V6 = v6
				tc.edit(n, &f)
				frames = append(frames, f.Bytes())
			}
			w := testWorker()
			w.classifyAndMerge(w.load(flags, frames...))
			if got := w.merge.shape(); got != want {
				t.Errorf("%s (IPv6 %v, flags %b): %s, want %s", tc.name, v6, flags, got, want)
			}
		}
	}
}

func TestMergeOff(t *testing.T) {
	w := testWorker()
	w.merge.off = true
	w.classifyAndMerge(w.load(0, segment(0).Bytes(), segment(1).Bytes()))
	if got := w.merge.shape(); got != "[[0] [1]]" {
		t.Error(got)
	}
}

// TestMergedPacket checks every byte of a merged packet.
func TestMergedPacket(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		var frames [][]byte
		var payload []byte
		var one tcpFrame
		for n := range 5 {
			f := segment(n)
			f.V6, f.Options, f.Pad = v6, []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8}, n
			if n == 4 {
				f.Flags |= header.TCPFlagPsh | header.TCPFlagFin
				f.Payload = f.Payload[:33]
			}
			payload = append(payload, f.Payload...)
			if frames = append(frames, f.Bytes()); n == 0 {
				one = f
			}
		}
		one.Payload, one.Flags, one.Pad = payload, one.Flags|header.TCPFlagPsh|header.TCPFlagFin, 0
		want := one.Bytes()
		w := testWorker()
		w.classifyAndMerge(w.load(vouched, frames...))
		pkts := w.buildPackets()
		if len(pkts) != 1 {
			t.Fatalf("IPv6 %v: %s", v6, w.merge.shape())
		}
		got := pkts[0].ToView().AsSlice()
		sum := 14 + 20 + 16
		if v6 {
			sum += 20
		}
		copy(want[sum:], frames[0][sum:sum+2]) // the TCP checksum is that of the first
		if !bytes.Equal(got, want) {
			t.Errorf("IPv6 %v\n got %x\nwant %x", v6, got, want)
		}
		pkts[0].DecRef()
		if m := w.count.merged.Load(); m != 5 {
			t.Errorf("%d frames counted as merged", m)
		}
	}
}

// TestMergeLimit: no merged packet exceeds the length field of IP.
func TestMergeLimit(t *testing.T) {
	for n := range 4 {
		v6, flags := n%2 == 1, dv.RxFlags(n/2)*vouched
		var frames [][]byte
		f := segment(0)
		f.V6 = v6
		for range 60 {
			f.Payload = make([]byte, 1440)
			frames = append(frames, f.Bytes())
			f.Seq += 1440
		}
		w := testWorker()
		w.classifyAndMerge(w.load(flags, frames...))
		total := 0
		for i, pkt := range w.buildPackets() {
			size := pkt.Size() - hdr.EthLen
			if size > maxPacket || i == 0 && size < maxPacket-1440 {
				t.Errorf("IPv6 %v: packet of %d bytes", v6, size)
			}
			total += w.merge.runs[i].payload
			pkt.DecRef()
		}
		if total != 60*1440 {
			t.Errorf("IPv6 %v: %d bytes of payload", v6, total)
		}
	}
}

// delivered is one segment as the stack receives it.
type delivered struct {
	flow    uint16
	seq     uint32
	payload []byte
}

func segmentsOf(t *testing.T, w *worker, pkts []*gstack.PacketBuffer) []delivered {
	t.Helper()
	var out []delivered
	for i, pkt := range pkts {
		b := pkt.ToView().AsSlice()
		l := w.merge.runs[i].Packet
		if l.EtherType == hdr.TypeIPv4 && checksum.Checksum(b[14:34], 0) != 0xffff {
			t.Fatalf("IP checksum of packet %d is wrong", i)
		}
		h := header.TCP(b[l.L4:])
		out = append(out, delivered{h.SourcePort(), h.SequenceNumber(), slices.Clone(h.Payload())})
		pkt.DecRef()
	}
	return out
}

// TestMergeKeepsStreams sends flows with loss, duplicates, reordering and odd segments through
// batches of all sizes: what each flow's segments are, in which order, must not depend on merging.
func TestMergeKeepsStreams(t *testing.T) {
	rng := seed(t)
	for range 50 {
		var frames [][]byte
		flows := 1 + rng.IntN(20)
		next := make([]int, flows)
		for range 1 + rng.IntN(batchFrames) {
			flow := rng.IntN(flows)
			f := segment(next[flow])
			f.Ports[0], f.V6 = uint16(flow), flow%2 == 1
			next[flow]++
			switch rng.IntN(20) {
			case 0:
				next[flow]++ // lost
			case 1:
				next[flow]-- // duplicated
			case 2:
				f.Flags |= header.TCPFlagPsh
			case 3:
				f.Payload = nil
			case 4:
				f.Ack++
			case 5:
				f.Payload = f.Payload[:50]
			}
			frames = append(frames, f.Bytes())
		}
		for range rng.IntN(20) { // some are reordered
			if i := rng.IntN(len(frames)); i > 0 {
				frames[i], frames[i-1] = frames[i-1], frames[i]
			}
		}
		want, got := map[uint16][]delivered{}, map[uint16][]delivered{}
		plain, merging := testWorker(), testWorker()
		plain.merge.off = true
		for _, w := range []*worker{plain, merging} {
			into := want
			if w == merging {
				into = got
			}
			w.classifyAndMerge(w.load(0, frames...))
			for _, d := range segmentsOf(t, w, w.buildPackets()) {
				list := into[d.flow]
				if n := len(list); n > 0 && len(d.payload) > 0 && len(list[n-1].payload) > 0 &&
					list[n-1].seq+uint32(len(list[n-1].payload)) == d.seq {
					list[n-1].payload = append(list[n-1].payload, d.payload...)
					continue
				}
				into[d.flow] = append(list, d)
			}
		}
		for flow := range want {
			if fmt.Sprint(want[flow]) != fmt.Sprint(got[flow]) {
				t.Fatalf("flow %d\n got %v\nwant %v", flow, got[flow], want[flow])
			}
		}
	}
}

// TestMergeAllocs: classifying, merging and copying a batch allocates nothing.
func TestMergeAllocs(t *testing.T) {
	var frames [][]byte
	for n := range 64 {
		f := segment(n / 2)
		f.Ports[0] += uint16(n % 2)
		frames = append(frames, f.Bytes())
	}
	w := testWorker()
	if n := testing.AllocsPerRun(100, func() {
		w.classifyAndMerge(w.load(0, frames...))
		for _, pkt := range w.buildPackets() {
			pkt.DecRef()
		}
	}); n != 0 && !raceDetector {
		t.Errorf("%v allocations per batch", n)
	}
}

func BenchmarkBatch(b *testing.B) {
	for _, tc := range []struct {
		name  string
		size  int
		flows int
		off   bool
		flags dv.RxFlags
	}{
		{"1448B/1flow/merged", 1448, 1, false, dv.RxL3OK | dv.RxL4OK},
		{"1448B/16flows/merged", 1448, 16, false, dv.RxL3OK | dv.RxL4OK},
		{"1448B/1flow/apart", 1448, 1, true, dv.RxL3OK | dv.RxL4OK},
		{"1448B/1flow/apart/verified", 1448, 1, true, 0},
		{"64B/16flows/apart", 10, 16, true, dv.RxL3OK | dv.RxL4OK},
		{"64B/16flows/unmergeable", 0, 16, false, dv.RxL3OK | dv.RxL4OK},
	} {
		b.Run(tc.name, func(b *testing.B) {
			var frames [][]byte
			for n := range 64 {
				f := segment(0)
				f.Ports[0] += uint16(n % tc.flows)
				f.Payload = make([]byte, tc.size)
				f.Seq = uint32(n / tc.flows * tc.size)
				frames = append(frames, f.Bytes())
			}
			w := testWorker()
			w.merge.off = tc.off
			b.ReportAllocs()
			for b.Loop() {
				w.classifyAndMerge(w.load(tc.flags, frames...))
				for _, pkt := range w.buildPackets() {
					pkt.DecRef()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64), "ns/frame")
		})
	}
}
