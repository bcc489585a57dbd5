package rdma

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// classifySlow is classifyAndMerge without next.
func (w *worker) classifySlow(frames []dv.Packet) {
	w.merge.begin(frames)
	mac := w.e.mac.Load()
	for i := range frames {
		var l hdr.Packet
		if w.acceptEthernet(&frames[i], mac, &l) && w.verifyChecksums(&frames[i], &l) {
			w.e.flows.Received(frames[i].Data, &l)
			w.merge.add(i, &l)
		}
	}
}

// agree fails the test if the two ways sort frames into different runs.
func agree(t *testing.T, frames []dv.Packet) {
	t.Helper()
	long, short := testWorker(), testWorker()
	for _, w := range []*worker{long, short} {
		for i, p := range frames {
			p.Data = slices.Clone(p.Data)
			w.frames[i] = p
		}
	}
	long.classifySlow(long.frames[:len(frames)])
	short.classifyAndMerge(short.frames[:len(frames)])
	if a, b := long.count, short.count; a.verified.Load() != b.verified.Load() ||
		a.drops[dropBadChecksum].Load() != b.drops[dropBadChecksum].Load() {
		t.Fatalf("the long way verified %d, %d of them bad; the short way %d, %d",
			a.verified.Load(), a.drops[dropBadChecksum].Load(), b.verified.Load(),
			b.drops[dropBadChecksum].Load())
	}
	if !slices.Equal(long.merge.runs, short.merge.runs) ||
		long.merge.shape() != short.merge.shape() {
		t.Fatalf("the long way %s\nthe short way %s\nor something in these runs",
			long.merge.shape(), short.merge.shape())
	}
}

var stamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 9}

const vouched = dv.RxL3OK | dv.RxL4OK

// threeFrames are of one flow, in order.
func threeFrames(v6 bool, options []byte) []dv.Packet {
	var frames []dv.Packet
	for n := range 3 {
		f := segment(n)
		f.V6, f.Options, f.Pad = v6, options, 4 // 100 bytes of data
		frames = append(frames, dv.Packet{Data: f.Bytes(), Flags: vouched | dv.RxTCP})
	}
	return frames
}

// TestNextTakes: the short path is taken where possible.
func TestNextTakes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options []byte
		flags   dv.RxFlags
		want    bool
	}{
		{"no options", nil, vouched, true},
		{"timestamp", stamps, vouched, true},
		{"timestamp, written otherwise", append(slices.Clone(stamps[2:]), 1, 1), vouched, false},
		{"SACK", []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9}, vouched, false},
		{"not vouched for", nil, dv.RxL3OK, false},
	} {
		for _, v6 := range []bool{false, true} {
			w := testWorker()
			frames := threeFrames(v6, tc.options)
			for i := range frames {
				frames[i].Flags = tc.flags
				w.frames[i] = frames[i]
			}
			w.classifyAndMerge(w.frames[:1])
			w.merge.batch = w.frames[:3]
			if got := w.merge.next(1); got != tc.want {
				t.Errorf("%s (IPv6 %v): %v", tc.name, v6, got)
			}
		}
	}
}

// TestNextAgreesOnBits changes one bit of the headers of the second of three segments, and of the
// NIC's metadata for it.
func TestNextAgreesOnBits(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, options := range [][]byte{nil, stamps} {
			headers := len(threeFrames(v6, options)[0].Data) - 104
			for bit := range headers * 8 {
				frames := threeFrames(v6, options)
				frames[1].Data[bit/8] ^= 1 << (bit % 8)
				agree(t, frames)
			}
			for bit := range 16 {
				frames := threeFrames(v6, options)
				frames[1].Flags ^= 1 << bit
				agree(t, frames)
				frames[0].Flags, frames[2].Flags = frames[1].Flags, frames[1].Flags
				frames[1].VLAN = 7
				agree(t, frames)
			}
			for size := hdr.EthLen; size < headers+100; size++ {
				frames := threeFrames(v6, options)
				frames[1].Data = frames[1].Data[:size]
				agree(t, frames)
			}
		}
	}
}

// TestNextAgreesOnFlows mixes flows, some in the same slot of the table of open runs, with odd
// segments in between.
func TestNextAgreesOnFlows(t *testing.T) {
	rng := seed(t)
	for range 300 {
		var frames []dv.Packet
		next := make([]int, 1+rng.IntN(300))
		for flow := 0; len(frames) < batchFrames; {
			if rng.IntN(4) == 0 {
				flow = rng.IntN(len(next))
			}
			f := segment(next[flow])
			f.Ports[0], f.V6, f.NoDF = uint16(flow), flow%2 == 1, flow%3 == 1
			next[flow]++
			switch rng.IntN(30) {
			case 0:
				next[flow]++ // lost
			case 1:
				f.Flags |= header.TCPFlagPsh
			case 2:
				f.Payload = nil
			case 3:
				f.Flags |= header.TCPFlagRst
			case 4:
				f.Payload = f.Payload[:1+rng.IntN(99)]
			case 5:
				f.Options = stamps
			case 6:
				f.Fragment = 8
			case 7:
				f.Dst = peerMAC
			}
			p := dv.Packet{Data: f.Bytes(), Flags: vouched}
			if rng.IntN(30) == 0 {
				p.Data[rng.IntN(len(p.Data))] ^= 1 << rng.IntN(8)
			}
			frames = append(frames, p)
		}
		agree(t, frames)
	}
}
