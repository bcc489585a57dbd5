package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// shift returns the number of free bytes before each packet.
func (s *Striding) shift() int {
	if s.TwoByteShift {
		return 2
	}
	return 0
}

// strides returns how many strides a packet of n bytes takes.
func (s *Striding) strides(n int) int {
	return (n + s.shift() + 1<<s.LogStrideBytes - 1) >> s.LogStrideBytes
}

// makeRoom skips the rest of the current WQE when n bytes do not fit there. It
// reports whether the completion queue took the filler. Queues without strides
// have nothing to skip.
func (rq *RQ) makeRoom(b *rxBurst, n int) bool {
	s := rq.attr.Striding
	if s == nil || rq.stride == 0 || rq.stride+s.strides(n) <= 1<<s.LogStrides {
		return true
	}
	return rq.fill(b, 1<<s.LogStrides-rq.stride)
}

// deliverStriding puts the packet into the next free strides of the current WQE.
// A packet never crosses into another WQE: if the rest of a WQE is too small, a filler completion
// skips it.
func (rq *RQ) deliverStriding(b *rxBurst, stripped bool) counter {
	s, n := rq.attr.Striding, b.packet.length
	if s.strides(n) > 1<<s.LogStrides {
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
	list, skip := rq.list(rq.load()), rq.strideAt()
	if capacity(list, skip+n) < skip+n {
		rq.fail(faultRxLength, n)
		rq.stride = 0
		return ctrLengthError
	}
	if f := rq.scatter(b, list, skip); f.syndrome != 0 {
		rq.fail(f, 0)
		return ctrProtection
	}
	var c mlx5.RxCQE
	rq.describe(&c, b, stripped)
	rq.takeStrides(&c, n)
	return rq.complete(b, &c)
}

// strideAt returns the offset of the next packet in the current WQE's list, in bytes.
func (rq *RQ) strideAt() int {
	s := rq.attr.Striding
	return rq.stride<<s.LogStrideBytes + s.shift()
}

// takeStrides assigns the strides of n bytes to the completion c. The WQE copied last is the
// current one.
func (rq *RQ) takeStrides(c *mlx5.RxCQE, n int) {
	s := rq.attr.Striding
	need := s.strides(n)
	c.WQEID, c.Counter, c.ByteCount = rq.index(), uint16(rq.stride), uint32(need)<<16|uint32(n)
	if rq.stride += need; rq.stride == 1<<s.LogStrides {
		rq.stride = 0
		rq.consume(rq.wqe[:])
	}
}

// fill completes the rest of the current WQE without a packet.
func (rq *RQ) fill(b *rxBurst, strides int) bool {
	c := mlx5.RxCQE{UIdx: rq.attr.UserIndex, Timestamp: rq.stamp(b), WQEID: rq.index(),
		Counter:   uint16(rq.stride),
		ByteCount: 1<<31 | uint32(strides)<<16, OpOwn: mlx5.OpOwn(mlx5.CQERecv, 0, 0, 0)}
	rq.stride = 0
	rq.consume(rq.load())
	return rq.complete(b, &c) == delivered
}
