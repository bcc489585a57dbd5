package uverbs_test

import (
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// surplusSteps send longer requests than a kernel knows, as future programs will, and shorter ones
// than it needs.
func surplusSteps() []step {
	raw := func(cmd uint32, core func(c *talker) any, uhw func(c *talker) any) func(*talker) error {
		return func(c *talker) error {
			var driver any
			if uhw != nil {
				driver = uhw(c)
			}
			return c.ask(cmd, core(c), make([]byte, 64), driver, make([]byte, 64))
		}
	}
	cqCore := func(c *talker) any { return uverbs.ExCreateCQReq{CQE: 63, CompChannel: -1} }
	cqDriver := func(tail ...byte) func(c *talker) any {
		return func(c *talker) any {
			return append(uverbs.Bytes(uverbs.Mlx5CreateCQReq{BufAddr: c.at(rxCQAt),
				DBAddr: c.record(1), CQESize: 64}), tail...)
		}
	}
	qpCore := func(c *talker) any {
		return uverbs.ExCreateQPReq{PDHandle: c.pd, SendCQHandle: c.txCQ, RecvCQHandle: c.txCQ,
			MaxSendWR: 64, MaxSendSGE: 1, QPType: uverbs.QPTypeRawPacket}
	}
	qpDriver := func(tail ...byte) func(c *talker) any {
		return func(c *talker) any {
			d := uverbs.Mlx5CreateQPReq{DBAddr: c.record(2), SQWQECount: 64,
				UIDX: 1, SQBufAddr: c.at(sqAt)}
			return append(uverbs.Bytes(d), tail...)
		}
	}
	wqCore := func(c *talker) any {
		return uverbs.ExCreateWQReq{PDHandle: c.pd, CQHandle: c.rxCQ, MaxWR: 64, MaxSGE: 1}
	}
	wqDriver := func(tail ...byte) func(c *talker) any {
		return func(c *talker) any {
			d := uverbs.Mlx5CreateWQReq{BufAddr: c.at(rqAt), DBAddr: c.record(3),
				RQWQECount: 64, RQWQEShift: 4}
			return append(uverbs.Bytes(d), tail...)
		}
	}
	nonZero := func(n int) []byte { return append(make([]byte, n-1), 1) }
	return []step{
		{"core's part of a completion queue too long",
			raw(uverbs.ExCmdCreateCQ, func(c *talker) any {
				return append(uverbs.Bytes(cqCore(c)), nonZero(8)...)
			}, cqDriver()), unix.EOPNOTSUPP, 0},
		{"core's part of a completion queue without flags",
			raw(uverbs.ExCmdCreateCQ, func(*talker) any {
				return uverbs.Bytes(uverbs.ExCreateCQReq{CQE: 63, CompChannel: nowhere})[:24]
			}, cqDriver()), unix.EBADF, 0},
		{"driver's part of a completion queue too short", raw(uverbs.ExCmdCreateCQ, cqCore,
			func(c *talker) any { return make([]byte, 16) }), unix.EINVAL, 0},
		{"no driver's part of a completion queue",
			raw(uverbs.ExCmdCreateCQ, cqCore, nil), unix.EINVAL, 0},
		{"driver's part of a queue pair too long",
			raw(uverbs.ExCmdCreateQP, qpCore, qpDriver(nonZero(16)...)), unix.EINVAL, 0},
		{"driver's part of a queue pair too short", raw(uverbs.ExCmdCreateQP, qpCore,
			func(c *talker) any { return make([]byte, 40) }), unix.EINVAL, 0},
		{"driver's part of a receive queue too long",
			raw(uverbs.ExCmdCreateWQ, wqCore, wqDriver(nonZero(8)...)), unix.EOPNOTSUPP, 0},
		{"driver's part of a receive queue too short", raw(uverbs.ExCmdCreateWQ, wqCore,
			func(c *talker) any { return make([]byte, 32) }), unix.EINVAL, 0},
		{"driver's part of a region", raw(uverbs.CmdRegMR, func(c *talker) any {
			return uverbs.RegMRReq{Start: unmapped, HCAVA: unmapped, Length: 4096,
				PDHandle: c.pd, AccessFlags: 1}
		}, func(*talker) any { return nonZero(8) }), unix.EFAULT, 0},
	}
}

// lengthSteps send the beginning of correct requests, with room in the reply for the handle only.
func lengthSteps() (steps []step) {
	for _, tm := range templates() {
		for _, cut := range []int{1, 4, 8, 16, 24} {
			steps = append(steps, step{tm.name + " cut short", func(c *talker) error {
				core := tm.core(c)
				return tm.send(c, core[:max(9, len(core)-cut)], tm.coreLen, tm.uhwLen)
			}, anything, 0})
		}
		if room := tm.handle + 4; tm.handle >= 0 && room < tm.coreLen {
			steps = append(steps, step{tm.name + " with little room for the answer",
				func(c *talker) error {
					return tm.send(c, tm.core(c), room, tm.uhwLen)
				}, anything, 0})
		}
	}
	return steps
}
