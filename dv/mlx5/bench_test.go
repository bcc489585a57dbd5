package mlx5

import "testing"

// ring is a send or completion ring for benchmarks: small enough for a cache.
const ringMask = 63

// escaped makes the compiler keep stores to what it points at.
var escaped []byte

func newRing(entry int) []byte {
	escaped = make([]byte, (ringMask+1)*entry)
	return escaped
}

func BenchmarkSendWQE(b *testing.B) {
	ring := newRing(BB)
	frame := make([]byte, 64)
	b.Run("pointer", func(b *testing.B) {
		i := uint16(0)
		for range b.N {
			w := ring[int(i&ringMask)*BB:][:BB]
			PutCtrl(w, OpSend, 0, i, 0x123, 3, CEAlways)
			PutEth(w[16:], Eth{CsumFlags: CsumL3 | CsumL4})
			PutData(w[32:], 1514, 0x12a4, 0x7f0012345000+uint64(i))
			i++
		}
	})
	b.Run("inline18", func(b *testing.B) {
		i := uint16(0)
		for range b.N {
			w := ring[int(i&ringMask)*BB:][:BB]
			PutCtrl(w, OpSend, 0, i, 0x123, 4, CEAlways)
			PutEth(w[16:], Eth{CsumFlags: CsumL3 | CsumL4, InlineLen: 18})
			PutInlineHeader(w[16:], frame[:18])
			PutData(w[48:], 1496, 0x12a4, 0x7f0012345000+uint64(i))
			i++
		}
	})
}

func BenchmarkRecvWQE(b *testing.B) {
	ring := newRing(DataSegSize)
	i := 0
	for range b.N {
		PutData(ring[i&ringMask*DataSegSize:], 2048, 0x12a4, 0x7f0012345000+uint64(i))
		i++
	}
}

var sink uint64

func BenchmarkReadCQE(b *testing.B) {
	ring := newRing(CQESize)
	for i := range ringMask + 1 {
		(&RxCQE{ByteCount: 60, OpOwn: OpOwn(CQERecv, 0, 0, 0), Status: HdrL3OK |
			HdrL4OK}).Put(ring[i*CQESize:])
	}
	i, sum := 0, uint64(0)
	for range b.N {
		c := (*CQE)(ring[i&ringMask*CQESize:][:CQESize])
		if c.Opcode() == CQERecv {
			sum += uint64(c.ByteCount()) + uint64(c.HeaderStatus()) +
				uint64(c.Hash()) + uint64(c.WQECounter())
		}
		i++
	}
	sink = sum
}

func BenchmarkPutCQE(b *testing.B) {
	ring := newRing(CQESize)
	i := 0
	for range b.N {
		c := RxCQE{ByteCount: 60, Counter: uint16(i), OpOwn: OpOwn(CQERecv, 0, 0, 0),
			Status: HdrL3OK | HdrL4OK}
		c.Put(ring[i&ringMask*CQESize:])
		i++
	}
}

func TestNothingAllocates(t *testing.T) {
	w, c := make([]byte, 2*BB), make([]byte, CQESize)
	hdr := make([]byte, 54)
	if n := testing.AllocsPerRun(100, func() {
		PutCtrl(w, OpLSO, 0, 1, 2, 6, CEAlways)
		PutEth(w[16:], Eth{MSS: 1460})
		PutInlineHeader(w[16:], hdr)
		PutData(w[96:], 1, 2, 3)
		putInlineData(w[112:], hdr[:12])
		(&RxCQE{ByteCount: 1}).Put(c)
		sink += uint64((*CQE)(c).ByteCount()) + Doorbell(w) + CQEByteCount.Get(c)
		CQEByteCount.Put(c, 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// putInlineData writes an inline data segment that holds data, pads it with
// zeros to the next DS and returns how many DS it takes. b must have that many.
func putInlineData(b, data []byte) int {
	ds := InlineDS(len(data))
	PutInlineDataHeader(b, len(data))
	clear(b[InlineHeaderSize+copy(b[InlineHeaderSize:], data) : ds*DSSize])
	return ds
}
