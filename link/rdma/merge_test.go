package rdma

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
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
	w := ackWorker(false, 1000, 100000)
	for n := range uint32(32) {
		frames = append(frames, ackOf(false, 2000+n).Bytes())
	}
	if n := testing.AllocsPerRun(100, func() {
		w.classifyAndMerge(w.load(0, frames...))
		for _, pkt := range w.buildPackets() {
			pkt.DecRef()
		}
	}); n != 0 && !racing.Detector {
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

// noteSent has the worker's endpoint know that it has sent the data up to end to the flow of
// segment.
func (w *worker) noteSent(v6 bool, end uint32) { w.noteSentAt(v6, end-100, nil) }

// noteSentAt tells it that it sent 100 bytes from seq on, with TCP options.
func (w *worker) noteSentAt(v6 bool, seq uint32, options []byte) {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
		Payload: buffer.MakeWithData(tcpFrame{
			Src: ourMAC, Dst: peerMAC, From: 1, To: 2, Ports: [2]uint16{80, 4000}, V6: v6,
			Seq: seq, Flags: header.TCPFlagAck, TTL: 64, Payload: make([]byte, 100),
			Options: options,
		}.Bytes()),
	})
	defer pkt.DecRef()
	s := hdr.ParseSent(pkt, w.e.flows.Key())
	s.Payload = 100
	w.e.flows.Sent(pkt, &s)
}

// ackOf is a pure ACK of that flow.
func ackOf(v6 bool, n uint32) tcpFrame {
	f := segment(0)
	f.V6, f.Payload, f.Ack = v6, nil, n
	return f
}

// ackWorker is a worker whose endpoint has sent the data up to end, and long since had an ACK of
// what comes before acked.
func ackWorker(v6 bool, acked, end uint32) *worker {
	w := testWorker()
	w.noteSent(v6, end)
	for _, n := range []uint32{acked - 200000, acked} {
		w.classifyAndMerge(w.load(0, ackOf(v6, n).Bytes()))
	}
	return w
}

// TestSupersededACKs has three pure ACKs of a flow in a batch, each of 1000 bytes more, and changes
// one thing in the second of them or in all. 1000 is acknowledged before, 4000 has been sent.
func TestSupersededACKs(t *testing.T) {
	stamped := func(value, echo uint32) []byte { return tcpframe.Stamped(value, echo) }
	type edit func(n int, f *tcpFrame)
	second := func(e func(*tcpFrame)) edit {
		return func(n int, f *tcpFrame) {
			if n == 1 {
				e(f)
			}
		}
	}
	acks := func(numbers ...uint32) edit { return func(n int, f *tcpFrame) { f.Ack = numbers[n] } }
	values := func(values ...uint32) edit {
		return func(n int, f *tcpFrame) { f.Options = stamped(values[n], 9) }
	}
	echoes := func(echoes ...uint32) edit {
		return func(n int, f *tcpFrame) { f.Options = stamped(9, echoes[n]) }
	}
	const one, all, apart = "[[2]]", "[[0] [1] [2]]", "[[2] [1]]"
	for _, tc := range []struct {
		name   string
		edit   edit
		v4, v6 string
	}{
		{"alike", func(int, *tcpFrame) {}, one, one},
		{"timestamps", values(0, 1, 1), one, one},
		{"timestamp over the end", values(0xffffffff, 0, 1), one, one},
		{"timestamp goes back", values(5, 4, 6), "[[0] [2]]", "[[0] [2]]"},
		{"timestamp of a stranger", values(5, 1<<30, 6), all, all},
		{"all timestamps of a second", values(0, 1e6, 1e6), one, one},
		{"echo goes on", echoes(5, 6, 7), one, one},
		{"echo goes back", echoes(5, 4, 6), "[[0] [2]]", "[[0] [2]]"},
		{"echo of a stranger", echoes(5, 1<<30, 6), all, all},
		{"option in one", second(func(f *tcpFrame) { f.Options = stamped(1, 9) }), all, all},
		{"other option", func(_ int, f *tcpFrame) { f.Options = []byte{254, 4, 0, 0} }, all, all},
		{"SACK in one", second(func(f *tcpFrame) { f.Options = tcpframe.Sacked(9, 10) }), all, all},
		{"window", second(func(f *tcpFrame) { f.Window = 3 }), one, one},
		{"IP ID", second(func(f *tcpFrame) { f.ID = 3 }), one, one},
		{"same number", acks(2000, 2000, 2000), all, all},
		{"number of the batch before", acks(1000, 2000, 3000), "[[0] [2]]", "[[0] [2]]"},
		{"same number twice", acks(2000, 2000, 3000), all, all},
		{"same number at the end", acks(2000, 3000, 3000), "[[1] [2]]", "[[1] [2]]"},
		{"number goes back", acks(3000, 2000, 1500), all, all},
		{"second is overtaken", acks(2000, 7, 3000), all, all},
		{"all that was sent", acks(2000, 3000, 4000), one, one},
		{"number beyond what was sent", acks(2000, 4001, 3000), all, all},
		{"number beyond at the end", acks(2000, 3000, 4001), "[[1] [2]]", "[[1] [2]]"},
		{"number far beyond", acks(2000, 1<<31+1999, 3000), all, all},
		{"sequence number", second(func(f *tcpFrame) { f.Seq++ }), all, all},
		{"keep-alive", func(n int, f *tcpFrame) {
			if n == 1 {
				f.Seq, f.Ack = f.Seq-1, 2000
			}
		}, all, all},
		{"payload in one", second(func(f *tcpFrame) { f.Payload = make([]byte, 9) }), all, all},
		{"payload first", func(n int, f *tcpFrame) {
			if n == 0 {
				f.Payload = make([]byte, 9)
			}
		}, "[[0] [2]]", "[[0] [2]]"},
		{"psh", second(func(f *tcpFrame) { f.Flags |= header.TCPFlagPsh }), all, all},
		{"fin", second(func(f *tcpFrame) { f.Flags |= header.TCPFlagFin }), all, all},
		{"rst", second(func(f *tcpFrame) { f.Flags |= header.TCPFlagRst }), all, all},
		{"ece", second(func(f *tcpFrame) { f.Flags |= 0x40 }), all, all},
		{"ece on all", func(_ int, f *tcpFrame) { f.Flags |= 0x40 }, all, all},
		{"cwr", second(func(f *tcpFrame) { f.Flags |= 0x80 }), all, all},
		{"source port", second(func(f *tcpFrame) { f.Ports[0]++ }), apart, apart},
		{"source address", second(func(f *tcpFrame) { f.From++ }), apart, apart},
		{"ttl", second(func(f *tcpFrame) { f.TTL-- }), all, all},
		{"congestion experienced", second(func(f *tcpFrame) { f.TOS = 3 }), all, all},
		{"flow label", second(func(f *tcpFrame) { f.Flow = 5 }), one, all},
		{"source MAC", second(func(f *tcpFrame) { f.Src = "\x02\x00\x00\x00\x00\x03" }), all, all},
		{"IP fragments", func(_ int, f *tcpFrame) { f.Fragment = 8 }, all, one},
		{"padding", func(n int, f *tcpFrame) { f.Pad = 6 * n }, one, one},
	} {
		for n := range 4 {
			v6, flags := n%2 == 1, dv.RxFlags(n/2)*vouched
			want := tc.v4
			if v6 {
				want = tc.v6
			}
			w := ackWorker(v6, 1000, 4000)
			var frames [][]byte
			for n := range 3 {
				f := ackOf(v6, 1000*uint32(n+2))
				f.ID = uint16(n)
				tc.edit(n, &f)
				frames = append(frames, f.Bytes())
			}
			w.classifyAndMerge(w.load(flags, frames...))
			got := w.merge.shape()
			if got != want {
				t.Errorf("%s (IPv6 %v, flags %b): %s, want %s", tc.name, v6, flags, got, want)
			}
			packets := w.buildPackets()
			if n := len(packets) + int(w.merge.superseded); n != 3 {
				t.Errorf("%s: %d packets and ACKs left out, want 3", tc.name, n)
			}
			for _, p := range packets {
				if p.Size() == 0 {
					t.Errorf("%s: an empty packet", tc.name)
				}
				p.DecRef()
			}
		}
	}
}

// TestAgedACKsAreNotSuperseded: ACKs whose echo tcpfix makes older after a timeout, each by what it
// acknowledges, are all delivered. Without the timeout the last of them is.
func TestAgedACKsAreNotSuperseded(t *testing.T) {
	for _, tc := range []struct {
		timeout bool
		want    string
	}{{false, "[[2]]"}, {true, "[[0] [1] [2]]"}} {
		for _, v6 := range []bool{false, true} {
			w := ackWorker(v6, 1000, 8000)
			if tc.timeout {
				w.noteSentAt(v6, 1000, tcpframe.Stamped(5000, 1))
			}
			var frames [][]byte
			for ack := uint32(2000); ack <= 4000; ack += 1000 {
				f := ackOf(v6, ack)
				f.Options = tcpframe.Stamped(9, 5000)
				frames = append(frames, f.Bytes())
			}
			w.classifyAndMerge(w.load(0, frames...))
			if got := w.merge.shape(); got != tc.want {
				t.Errorf("timeout %v, IPv6 %v: %s, want %s", tc.timeout, v6, got, tc.want)
			}
		}
	}
}

// TestSupersededACKsOfStrangers has ACKs of what is not known to have been sent: all are delivered.
func TestSupersededACKsOfStrangers(t *testing.T) {
	w := testWorker()
	for range 2 {
		var frames [][]byte
		for n := range 3 {
			frames = append(frames, ackOf(false, uint32(n+1)).Bytes())
		}
		w.classifyAndMerge(w.load(0, frames...))
		if got := w.merge.shape(); got != "[[0] [1] [2]]" {
			t.Error(got)
		}
	}
}

// TestSupersededACKsInSlowStart counts the ACKs of each window that are delivered, all of which
// come in one batch: enough for HyStart as long as the windows double, and one later on or where a
// round trip is too short for it.
func TestSupersededACKsInSlowStart(t *testing.T) {
	const acks, nRTTSample, doubling = 64, 8, 6
	for _, rtt := range []time.Duration{100 * time.Microsecond, 40 * time.Millisecond} {
		w, c := testWorker(), clocktest.New()
		w.merge = newMerger(batchFrames, w.e.flows, c.Clock())
		acked, window := uint32(0), uint32(64000)
		for round := range 2 * doubling {
			w.noteSent(false, acked+window)
			c.Advance(rtt)
			var frames [][]byte
			for range acks {
				acked += window / acks
				frames = append(frames, ackOf(false, acked).Bytes())
			}
			w.classifyAndMerge(w.load(0, frames...))
			least, most := 1, acks
			switch {
			case round > 0 && rtt < time.Millisecond || round == 2*doubling-1:
				most = 1
			case round < doubling:
				least, most = nRTTSample, acks-nRTTSample
			}
			if n := len(w.merge.runs); n < least || n > most {
				t.Errorf("%v, round %d: %d of %d ACKs are delivered, want %d to %d", rtt, round,
					n, acks, least, most)
			}
			if round < doubling {
				window *= 2
			}
		}
	}
}

// TestSupersededACKsOfNewFlow has a connection between the same addresses and ports as one before,
// of which much had been acknowledged: it begins in slow start.
func TestSupersededACKsOfNewFlow(t *testing.T) {
	for _, syn := range []bool{false, true} {
		w := ackWorker(false, 0, 0)
		f := ackOf(false, 0)
		if syn {
			f.Flags, f.Ack = header.TCPFlagSyn, 0
			w.classifyAndMerge(w.load(0, f.Bytes()))
		}
		w.noteSent(false, 16000)
		var frames [][]byte
		for n := range 16 {
			frames = append(frames, ackOf(false, uint32(n+1)*1000).Bytes())
		}
		w.classifyAndMerge(w.load(0, frames...))
		if n := len(w.merge.runs); (n == 1) == syn {
			t.Errorf("a SYN before: %v: %d ACKs are delivered", syn, n)
		}
	}
}

func TestSupersededACKsOff(t *testing.T) {
	w := ackWorker(false, 1000, 4000)
	w.merge.off = true
	w.classifyAndMerge(w.load(0, ackOf(false, 2000).Bytes(), ackOf(false, 3000).Bytes()))
	if got := w.merge.shape(); got != "[[0] [1]]" {
		t.Error(got)
	}
}
