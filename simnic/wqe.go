package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// fault says why a WQE failed; the zero fault means it did not.
type fault struct {
	syndrome mlx5.Syndrome
	vendor   uint8
	hw       uint8
}

// Faults of send WQEs. The vendor part is this model's choice if captures of hardware do not show
// one. faultNoKey is what a card reported to DPDK (github.com/Juniper/warp17/issues/81); that its
// cause was a key of no memory is taken from how DPDK sends memory it has not registered.
var (
	faultFormat   = fault{mlx5.SynLocalQPOp, mlx5.VendorWQEFormat, 0}
	faultOpcode   = fault{mlx5.SynLocalQPOp, mlx5.VendorOpcode, 0}
	faultSize     = fault{mlx5.SynLocalQPOp, mlx5.VendorDSTooSmall, 0}
	faultInline   = fault{mlx5.SynLocalQPOp, mlx5.VendorInlineTooLong, 0}
	faultLength   = fault{mlx5.SynLocalLength, mlx5.VendorMsgTooLong, 0}
	faultKey      = fault{mlx5.SynLocalProtection, mlx5.VendorGatherPD, 0x93}
	faultNoKey    = fault{mlx5.SynLocalProtection, mlx5.VendorGatherAccess, 0x9d}
	faultBounds   = fault{mlx5.SynLocalProtection, mlx5.VendorGatherLength, 0x93}
	faultBus      = fault{mlx5.SynLocalProtection, mlx5.VendorGatherPCIe, 0x93}
	faultFlush    = fault{mlx5.SynFlushed, mlx5.VendorFlushed, 0}
	faultRxKey    = fault{mlx5.SynLocalProtection, mlx5.VendorRxData, 0x92}
	faultRxAccess = fault{mlx5.SynLocalProtection, mlx5.VendorRxData + 1, 0}
	faultRxBounds = fault{mlx5.SynLocalProtection, mlx5.VendorRxData + 2, 0}
	faultRxBus    = fault{mlx5.SynLocalProtection, mlx5.VendorRxData - 1, 0}
	faultRxLength = fault{mlx5.SynLocalLength, 0, 0}
)

// wqe is one send WQE, copied out of the ring before it is decoded: the driver may overwrite it,
// and hardware also fetches it once.
type wqe struct {
	raw    []byte // ds*16 bytes of the queue's scratch
	op     mlx5.Opcode
	opmod  uint8
	index  uint16
	sqn    uint32
	ds     int
	ce, se uint8
	blocks uint16 // basic blocks, as ds says; at least 1
}

// decodeControl reads the control segment.
func (w *wqe) decodeControl(b []byte) {
	w.opmod, w.op = b[0], mlx5.Opcode(b[3])
	w.index = binary.BigEndian.Uint16(b[1:])
	w.sqn = binary.BigEndian.Uint32(b[4:]) >> 8
	w.ds = int(b[7] & 0x3f)
	w.ce, w.se = b[11]>>2&3, b[11]>>1&1
	w.blocks = max(1, uint16(mlx5.BBs(w.ds)))
}

func (w *wqe) immediate() uint32 { return binary.BigEndian.Uint32(w.raw[12:]) }

// eth is the Ethernet segment of a WQE that has one.
type eth struct {
	csum    uint8
	mss     int
	insert  uint16 // insert bits; 0 without
	tci     uint16
	header  []byte // inlined
	dataAt  int    // offset of the data segments in the WQE
	trailer bool
}

// ethSegment reads the Ethernet segment. If ok, the inline header is inside the WQE.
func (w *wqe) ethSegment() (e eth, ok bool) {
	b := w.raw[mlx5.CtrlSegSize:]
	e.csum, e.mss = b[4], int(binary.BigEndian.Uint16(b[6:]))
	word := binary.BigEndian.Uint16(b[12:])
	e.trailer = word&0x4000 != 0
	e.dataAt = mlx5.CtrlSegSize + mlx5.EthSegSize
	if word&mlx5.InsertCTag != 0 {
		e.insert, e.tci = word&mlx5.InsertSTag, binary.BigEndian.Uint16(b[14:])
		return e, true
	}
	n := int(word & mlx5.MaxInlineHeader)
	e.dataAt = mlx5.CtrlSegSize + mlx5.EthDS(n)*mlx5.DSSize
	if e.dataAt > len(w.raw) {
		return e, false
	}
	e.header = b[mlx5.InlineOffset : mlx5.InlineOffset+n]
	return e, true
}

// piece of a packet: bytes in the WQE, or n bytes in memory.
type dataSeg struct {
	inline []byte
	n      int
	lkey   uint32
	addr   uint64
}

// dataSegmentAt reads the data segment at offset at and returns the offset of the next one.
func (w *wqe) dataSegmentAt(at int) (s dataSeg, next int, f fault) {
	b := w.raw[at:]
	count := binary.BigEndian.Uint32(b)
	if count&(1<<31) != 0 {
		n := int(count & mlx5.MaxInlineHeader)
		next = at + mlx5.InlineDS(n)*mlx5.DSSize
		if next > len(w.raw) {
			return s, next, faultInline
		}
		s.inline, s.n = b[mlx5.InlineHeaderSize:mlx5.InlineHeaderSize+n], n
		return s, next, f
	}
	if count == 0 { // 2 GiB by the rules of InfiniBand, more than any frame
		return s, at, faultLength
	}
	s.n, s.lkey, s.addr = int(count), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
	return s, at + mlx5.DataSegSize, f
}

// segmentBytes returns the sum of the lengths of the data segments from at on.
func (w *wqe) segmentBytes(at int) (total int, f fault) {
	for at < len(w.raw) {
		s, next, f := w.dataSegmentAt(at)
		if f.syndrome != 0 {
			return 0, f
		}
		total, at = total+s.n, next
	}
	return total, f
}
