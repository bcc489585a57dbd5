package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// shiftBytes returns the number of free bytes before each packet.
func (s *Striding) shiftBytes() int {
	if s.TwoByteShift {
		return 2
	}
	return 0
}

// stridesOf returns how many strides a packet of n bytes takes.
func (s *Striding) stridesOf(n int) int {
	return (n + s.shiftBytes() + 1<<s.LogStrideBytes - 1) >> s.LogStrideBytes
}

// makeRoom skips the rest of the current WQE when n bytes do not fit there. It reports whether the
// completion queue took the filler. Queues without strides have nothing to skip.
func (rq *RQ) makeRoom(b *rxBurst, n int) bool {
	s := rq.attr.Striding
	if s == nil || rq.stride == 0 || rq.stride+s.stridesOf(n) <= 1<<s.LogStrides {
		return true
	}
	return rq.fillCurrentWQE(b, 1<<s.LogStrides-rq.stride)
}

// deliverStriding puts the packet into the next free strides of the current WQE. A packet never
// crosses into another WQE: if the rest of a WQE is too small, a filler completion skips it.
func (rq *RQ) deliverStriding(b *rxBurst, stripped bool) counter {
	s, n := rq.attr.Striding, b.packet.length
	if s.stridesOf(n) > 1<<s.LogStrides {
		return ctrTooLong
	}
	if !rq.available(b) {
		return ctrOutOfBuffer
	}
	if !rq.makeRoom(b, n) {
		return ctrCQError
	}
	if !rq.available(b) {
		return ctrOutOfBuffer
	}
	list, skip := rq.scatterList(rq.loadWQE()), rq.strideAt()
	if listCapacity(list, skip+n) < skip+n {
		rq.failWQE(faultRxLength, n)
		rq.stride = 0
		return ctrLengthError
	}
	if f := rq.scatterPacket(b, list, skip); f.syndrome != 0 {
		rq.failWQE(f, 0)
		return ctrProtection
	}
	var c mlx5.RxCQE
	rq.describePacket(&c, b, stripped)
	rq.takeStrides(&c, n)
	return rq.writeCompletion(b, &c)
}

// strideAt returns the offset of the next packet in the current WQE's list, in bytes.
func (rq *RQ) strideAt() int {
	s := rq.attr.Striding
	return rq.stride<<s.LogStrideBytes + s.shiftBytes()
}

// takeStrides assigns the strides of n bytes to the completion c. The WQE copied last is the
// current one.
func (rq *RQ) takeStrides(c *mlx5.RxCQE, n int) {
	s := rq.attr.Striding
	need := s.stridesOf(n)
	c.WQEID, c.Counter, c.ByteCount = rq.completionIndex(), uint16(rq.stride),
		uint32(need)<<16|uint32(n)
	if rq.stride += need; rq.stride == 1<<s.LogStrides {
		rq.stride = 0
		rq.consumeWQE(rq.wqe[:])
	}
}

// fillCurrentWQE completes the rest of the current WQE without a packet.
func (rq *RQ) fillCurrentWQE(b *rxBurst, strides int) bool {
	c := mlx5.RxCQE{UIdx: rq.attr.UserIndex, Timestamp: rq.burstStamp(b),
		WQEID:     rq.completionIndex(),
		Counter:   uint16(rq.stride),
		ByteCount: 1<<31 | uint32(strides)<<16, OpOwn: mlx5.OpOwn(mlx5.CQERecv, 0, 0, 0)}
	rq.stride = 0
	rq.consumeWQE(rq.loadWQE())
	return rq.writeCompletion(b, &c) == delivered
}
