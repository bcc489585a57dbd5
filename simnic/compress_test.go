package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// flowFrame is flow i of the golden session: 10.0.0.(1+i):(1000+i) to
// 10.0.0.200:2000, n bytes long.
func flowFrame(i, n int) []byte {
	f := append([]byte(nil), frame60...)
	f = append(f, make([]byte, n-len(f))...)
	binary.BigEndian.PutUint16(f[16:], uint16(n-14))
	f[29], f[33] = byte(1+i), 200
	binary.BigEndian.PutUint16(f[34:], uint16(1000+i))
	binary.BigEndian.PutUint16(f[38:], uint16(n-34))
	fixChecksums(f)
	return f
}

func compressRig(t *testing.T, f MiniFormat, logCQ int, start uint32,
	rqStart uint16, now *uint64) *recvRig {
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(now)},
		tir: hashTIR(false, true), logCQ: logCQ,
		cq: func(a *CQAttr) { a.Compress, a.MiniFormat, a.StartIndex = true, f, start },
		rq: func(a *RQAttr) { a.StartIndex = rqStart }})
	for range 32 {
		r.rq.post(seg(2048, r.key.Key(), r.addr))
	}
	return r
}

func TestGoldenCompression(t *testing.T) {
	now := uint64(0x1122334488)
	r := compressRig(t, MiniHash, 4, 5, 0x10, &now)
	stale := append([]byte(nil), r.cq.ring.Bytes()...)
	var batch [][]byte
	for i := range 8 {
		batch = append(batch, flowFrame(i, 60+i))
	}
	r.give(batch...)
	expect(t, "title", r.cq.entry(5), dump(`
0000: 00000000 00000000 00000000 00000000
0010: a5000000 00000000 00000000 07280000
0020: 00000009 00000000 00000000 00000008
0030: 00000011 22334488 00000000 0010002c`))
	expect(t, "minis", r.cq.entry(6), dump(`
0000: 8648d97b 0000003c 8f2d3c7b 0000003d
0010: c6514a23 0000003e 8b9fcefb 0000003f
0020: 264410d7 00000040 2f21f5d7 00000041
0030: 665d838f 00000042 89c6b7bb 00000043`))
	expect(t, "untouched entries", r.cq.ring.Bytes()[7*64:13*64], stale[7*64:13*64])

	for i := uint32(6); i < 13; i++ { // as drivers do once they have expanded it
		r.cq.entry(i)[63] = 0xf0
	}
	r.cq.ci = 13
	r.cq.rec.StoreBE32(0, 13)
	r.give(frame60)
	if e := r.cq.mustPoll(t); be16(e[0x3c:]) != 0x18 || e[0x3f]>>2&3 != 0 {
		t.Errorf("a single completion is compressed: %x", e)
	}
	clean(t, r.nic)
}

// expand reads a session the way drivers do and returns (hash or sum, counter,
// length) of each packet.
func expand(t *testing.T, c *testCQ) (firsts []uint32, lengths []uint32) {
	t.Helper()
	title := c.mustPoll(t)
	if title[0x3f]>>2&3 != 3 {
		t.Fatalf("no title: %x", title)
	}
	c.ci--
	n := binary.BigEndian.Uint32(title[0x2c:])
	array, next := c.ci+1, c.ci+8
	for i := range n {
		if i > 0 && i%8 == 0 {
			array, next = next, next+8
		}
		m := c.entry(array)[i%8*8:]
		firsts = append(firsts, binary.BigEndian.Uint32(m))
		lengths = append(lengths, binary.BigEndian.Uint32(m[4:]))
	}
	for i := c.ci + 1; i != c.ci+n; i++ {
		c.entry(i)[63] = 0xf0
	}
	c.ci += n
	c.rec.StoreBE32(0, c.ci&0xffffff)
	return firsts, lengths
}

// TestCompressionIndexes: a session ends with the ring, as DPDK's vectorized receive has it, and
// what is left is another.
func TestCompressionIndexes(t *testing.T) {
	tests := []struct {
		name       string
		log        int
		start      uint32
		first, all int // completions at the start and in all
	}{
		{"10 at 12 of 16", 4, 12, 4, 10},
		{"17 at 60 of 64", 6, 60, 4, 17},
		{"2 at the end", 4, 15, 1, 2},
		{"3 up to the end", 4, 13, 3, 3},
		{"8", 4, 5, 8, 8},
		{"24-bit wrap", 4, 0xfffffc, 4, 9},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			now := uint64(0)
			r := compressRig(t, MiniHash, tc.log, tc.start, 0, &now)
			var batch [][]byte
			for i := range tc.all {
				batch = append(batch, flowFrame(i, 60+i))
			}
			for pass := range 3 { // stale minis of one pass meet the owner bit of the next
				r.give(batch...)
				start, got := r.cq.ci, 0
				for got < tc.all {
					at := r.cq.ci
					lengths := []uint32{0}
					if e := r.cq.entry(at); e[0x3f]>>2&3 == 3 {
						_, lengths = expand(t, r.cq)
					} else {
						lengths[0] = binary.BigEndian.Uint32(r.cq.mustPoll(t)[0x2c:])
					}
					if pass == 0 && got == 0 && len(lengths) != tc.first {
						t.Errorf("%d packets in the first session", len(lengths))
					}
					if size := uint32(1) << tc.log; at/size != (r.cq.ci-1)/size {
						t.Errorf("%d packets at entry %d of %d", len(lengths), at%size, size)
					}
					for i, n := range lengths {
						if n != uint32(60+got+i) {
							t.Errorf("packet %d is %d bytes", got+i, n)
						}
					}
					got += len(lengths)
				}
				if got != tc.all || r.cq.ci != start+uint32(tc.all) {
					t.Fatalf("%d packets, consumer %d", got, r.cq.ci)
				}
				if e := r.cq.poll(); e != nil {
					t.Fatalf("completion behind the session: %x", e)
				}
				for range tc.all {
					r.rq.post(seg(2048, r.key.Key(), r.addr))
				}
			}
			clean(t, r.nic)
		})
	}
}

func TestCompressionBreaks(t *testing.T) {
	arp := append(append([]byte(nil), frame60[:12]...), 0x08, 0x06)
	arp = append(arp, make([]byte, 46)...)
	bad := flowFrame(1, 60)
	bad[40] ^= 1
	now := uint64(0)
	r := compressRig(t, MiniHash, 6, 0, 0, &now)
	r.give(flowFrame(0, 60), flowFrame(1, 61), arp, bad, flowFrame(2, 62),
		flowFrame(3, 63), flowFrame(4, 64))
	if _, l := expand(t, r.cq); len(l) != 2 {
		t.Errorf("first session of %d", len(l))
	}
	if e := r.cq.mustPoll(t); e[0x1d] != 0 || be16(e[0x3c:]) != 2 {
		t.Errorf("ARP: %x", e)
	}
	if e := r.cq.mustPoll(t); e[0x1c] != 3 || be16(e[0x3c:]) != 3 {
		t.Errorf("bad checksum: %x", e)
	}
	if _, l := expand(t, r.cq); len(l) != 3 {
		t.Errorf("last session of %d", len(l))
	}
	if c := r.nic.Counters(); c.CompressedCQEs != 5 || c.CQEs != 7 {
		t.Errorf("counters %+v", c)
	}
}

func TestCompressionFormats(t *testing.T) {
	frames := [][]byte{flowFrame(0, 60), flowFrame(1, 64), flowFrame(2, 68)}
	var sums []uint16
	for _, f := range frames {
		sums = append(sums, frame.Sum(f[14:]))
	}
	tests := []struct {
		format MiniFormat
		first  func(i int) uint32
		length func(i int) uint32
	}{
		{MiniChecksum, func(i int) uint32 { return uint32(sums[i]) << 16 },
			func(i int) uint32 { return 1<<16 | uint32(60+4*i) }},
		{MiniChecksumStride, func(i int) uint32 { return uint32(sums[i])<<16 | uint32(i) },
			func(i int) uint32 { return 1<<16 | uint32(60+4*i) }},
		{MiniFlowTagStride, func(i int) uint32 { return 0x3456<<16 | uint32(i) },
			func(i int) uint32 { return 0x12<<24 | 1<<16 | uint32(60+4*i) }},
		{MiniL34Stride, func(i int) uint32 { return 0x28<<16 | uint32(i) },
			func(i int) uint32 { return 1<<16 | uint32(60+4*i) }},
	}
	for _, tc := range tests {
		now := uint64(0)
		r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(&now)}, logStride: 5,
			cq: func(a *CQAttr) { a.Compress, a.MiniFormat = true, tc.format },
			rq: func(a *RQAttr) { a.Striding = &Striding{LogStrideBytes: 8, LogStrides: 3} }})
		if tc.format == MiniFlowTagStride {
			a := FlowAttr{TIR: r.tir, HasTag: true, Tag: 0x123456}
			a.Match.SetDstMAC(macTwo, [6]byte{255, 255, 255, 255, 255, 255})
			a.Match.SetEtherType(0x0800, 0xffff)
			if _, err := r.nic.CreateFlow(a); err != nil {
				t.Fatal(err)
			}
			entry := r.nic.steering.now.Load().before[0].groups[0].root.entry // the rig's untagged
			if err := entry.flows[0].Destroy(); err != nil {
				t.Fatal(err)
			}
		}
		r.rq.post(append(make([]byte, 16), seg(8*256, r.key.Key(), r.addr)...))
		r.give(frames...)
		firsts, lengths := expand(t, r.cq)
		for i := range frames {
			if firsts[i] != tc.first(i) || lengths[i] != tc.length(i) {
				t.Errorf("format %d packet %d: mini %#08x %#08x, want %#08x %#08x", tc.format, i,
					firsts[i], lengths[i], tc.first(i), tc.length(i))
			}
		}
	}
}

// TestCompressionOrder checks that neither an error nor a merge overtakes a session.
func TestCompressionOrder(t *testing.T) {
	now := uint64(0)
	a := hashTIR(false, true)
	a.LRO = LROAttr{IPv4: true, MaxPayload: 8192}
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(&now)}, tir: a,
		cq: func(a *CQAttr) { a.Compress = true }})
	for i := range 5 {
		r.rq.post(seg(4096, r.key.Key(), r.addr+uint64(i)*4096))
	}
	r.rq.post(seg(4096, 0x1200, r.addr))
	r.give(flowFrame(0, 60), flowFrame(1, 60), tcpSegment(0, 1400, 0x10),
		tcpSegment(1400, 1400, 0x10), flowFrame(2, 60), flowFrame(3, 60), frame60)
	if _, l := expand(t, r.cq); len(l) != 2 {
		t.Errorf("session of %d", len(l))
	}
	if e := r.cq.mustPoll(t); e[0x20] != 2 || be16(e[0x3c:]) != 2 {
		t.Errorf("merge: %x", e)
	}
	if _, l := expand(t, r.cq); len(l) != 2 {
		t.Errorf("session of %d", len(l))
	}
	if e := r.cq.mustPoll(t); e[0x37] != 4 || be16(e[0x3c:]) != 5 {
		t.Errorf("error: %x", e)
	}
}
