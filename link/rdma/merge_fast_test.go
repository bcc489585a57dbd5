package rdma

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
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

// plainDatagram returns a frame with four bytes in a UDP datagram to us, or with padding if short.
func plainDatagram(v6, short bool) []byte {
	f := tcpframe.Frame{Dst: ourMAC, Src: peerMAC, V6: v6}
	b := f.Bytes()[:hdr.EthLen]
	udp := []byte{0x10, 0, 0, 53, 0, 12, 0, 2, 'd', 'a', 't', 'a'}
	if short {
		udp[5], udp = hdr.UDPLen, udp[:hdr.UDPLen]
	}
	if v6 {
		ip := [hdr.IPv6Len]byte{0x60, 5: byte(len(udp)), 6: hdr.ProtoUDP, 7: 64, 8: 0x20, 24: 0x20}
		b = append(b, ip[:]...)
	} else {
		ip := []byte{0x45, 3: byte(hdr.IPv4Len + len(udp)), 8: 64, 9: hdr.ProtoUDP,
			12: 192, 0, 2, 2, 192, 0, 2, 1}
		b = append(b, ip...)
	}
	return append(append(b, udp...), make([]byte, 4)...)
}

// TestDatagramsAgree changes one bit of the headers of a datagram, and of the NIC's metadata for
// it, cuts it, and has it come from ourselves: the short way sorts it as the long one.
func TestDatagramsAgree(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, short := range []bool{false, true} {
			some := func(change func(p *dv.Packet)) []dv.Packet {
				frames := threeFrames(v6, nil)
				for range 3 {
					frames = append(frames,
						dv.Packet{Data: plainDatagram(v6, short), Flags: vouched})
				}
				change(&frames[4])
				return frames
			}
			for bit := range 8 * len(plainDatagram(v6, short)) {
				agree(t, some(func(p *dv.Packet) { p.Data[bit/8] ^= 1 << (bit % 8) }))
			}
			for bit := range 16 {
				agree(t, some(func(p *dv.Packet) { p.Flags ^= 1 << bit }))
				agree(t, some(func(p *dv.Packet) { p.Flags, p.VLAN = p.Flags^1<<bit, 7 }))
			}
			for size := hdr.EthLen; size < len(plainDatagram(v6, short)); size++ {
				agree(t, some(func(p *dv.Packet) { p.Data = p.Data[:size] }))
			}
			agree(t, some(func(p *dv.Packet) { copy(p.Data[6:], ourMAC) }))
			agree(t, some(func(p *dv.Packet) {
				copy(p.Data[hdr.EthLen-2:], []byte{0x81, 0, 0, 0})
			}))
		}
	}
}

// TestAcceptDatagram: the short way of datagrams is taken where possible, and only there.
func TestAcceptDatagram(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for name, c := range map[string]struct {
			change func(p *dv.Packet)
			want   bool
		}{
			"plain":             {func(*dv.Packet) {}, true},
			"not vouched for":   {func(p *dv.Packet) { p.Flags = dv.RxL3OK }, false},
			"in a VLAN":         {func(p *dv.Packet) { p.Flags |= dv.RxVLAN }, false},
			"to others":         {func(p *dv.Packet) { p.Data[5]++ }, false},
			"our own":           {func(p *dv.Packet) { copy(p.Data[6:], ourMAC) }, false},
			"of another length": {func(p *dv.Packet) { p.Data[len(p.Data)-11]-- }, false},
		} {
			w := testWorker()
			w.frames[0] = dv.Packet{Data: plainDatagram(v6, false), Flags: vouched}
			c.change(&w.frames[0])
			w.merge.begin(w.frames[:1])
			got := w.acceptDatagram(0, w.e.mac.Load())
			if got != c.want || (len(w.merge.runs) == 1) != got {
				t.Errorf("%s (IPv6 %v): %v, %d runs", name, v6, got, len(w.merge.runs))
			}
		}
	}
}

// TestAcceptDatagramGivesWay: datagrams do not take the short way where a filter or another process
// looks at each frame, or where each frame needs a tag.
func TestAcceptDatagramGivesWay(t *testing.T) {
	for name, change := range map[string]func(w *worker){
		"filter": func(w *worker) {
			w.e.opts.Filter = newFilter(t, "chain input { policy drop; }")
		},
		"steering": func(w *worker) { w.e.Steer(&Steering{Share: ShareWatch}) },
		"VLAN":     func(w *worker) { w.vlan = 100 },
	} {
		for _, v6 := range []bool{false, true} {
			w := testWorker()
			change(w)
			w.classifyAndMerge(w.load(vouched, plainDatagram(v6, false)))
			if len(w.merge.runs) != 0 {
				t.Errorf("%s (IPv6 %v): a datagram is let in", name, v6)
			}
		}
	}
}
