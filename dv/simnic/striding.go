package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// deliverStriding puts the packet into the next free strides of the current WQE.
// A packet never crosses into another WQE: what is left of one that is too
// small is skipped by a filler completion.
func (rq *RQ) deliverStriding(b *rxBurst, stripped bool) counter {
	s := rq.attr.Striding
	shift := 0
	if s.TwoByteShift {
		shift = 2
	}
	all := 1 << s.LogStrides
	need := (b.packet.length + shift + 1<<s.LogStrideBytes - 1) >> s.LogStrideBytes
	if need > all {
		return ctrTooLong
	}
	if !rq.available() {
		return ctrOutOfBuffer
	}
	if rq.stride+need > all {
		if !rq.fill(b, all-rq.stride) {
			return ctrCQError
		}
		if !rq.available() {
			return ctrOutOfBuffer
		}
	}
	w := rq.load()
	list, skip := rq.list(w), rq.stride<<s.LogStrideBytes+shift
	if capacity(list, skip+b.packet.length) < skip+b.packet.length {
		rq.fail(faultRxLength, b.packet.length)
		rq.stride = 0
		return ctrLengthError
	}
	if f := rq.scatter(b, list, skip); f.syndrome != 0 {
		rq.fail(f, 0)
		return ctrProtection
	}
	c := rq.cqe(b, stripped)
	c.WQEID, c.Counter = rq.index(), uint16(rq.stride)
	c.ByteCount = uint32(need)<<16 | uint32(b.packet.length)
	if rq.stride += need; rq.stride == all {
		rq.stride = 0
		rq.consume(w)
	}
	return rq.complete(b, &c)
}

// fill completes the rest of the current WQE without a packet.
func (rq *RQ) fill(b *rxBurst, strides int) bool {
	c := mlx5.RxCQE{UIdx: rq.attr.UserIndex, Timestamp: b.now, WQEID: rq.index(), Counter: uint16(rq.stride),
		ByteCount: 1<<31 | uint32(strides)<<16, OpOwn: mlx5.OpOwn(mlx5.CQERecv, 0, 0, 0)}
	rq.stride = 0
	rq.consume(rq.load())
	return rq.complete(b, &c) == delivered
}
