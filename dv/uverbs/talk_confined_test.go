package uverbs_test

import (
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// confinedSteps are the recorded steps of a process without CAP_NET_RAW and CAP_IPC_LOCK, which may
// lock 16 pages.
func confinedSteps() []step {
	page := func(n uint64) func(*talker) error {
		return regMR(func(_ *talker, r *uverbs.RegMRReq) { r.Length = n * 4096 })
	}
	return []step{
		{"open", open, 0, 0},
		{"protection domain", allocPD, 0, 0},
		{"region beyond the limit", page(17), unix.ENOMEM, 0},
		{"region of eight pages", page(8), 0, 0},
		{"region of the rest, and one more", page(9), unix.ENOMEM, 0},
		{"completion queue", createCQ(txCQ, txCQAt, 0, nil), 0, 0},
		{"other completion queue", createCQ(rxCQ, rxCQAt, 1, nil), 0, 0},
		{"queue pair", createQP(nil), unix.EPERM, 0},
		{"queue pair on nothing", createQP(func(_ *talker, r *uverbs.ExCreateQPReq,
			_ *uverbs.Mlx5CreateQPReq) {
			r.PDHandle, r.SendCQHandle = nowhere, nowhere
		}), unix.EPERM, 0},
		{"receive queue", createWQ(wq, rqAt, 3, nil), 0, 0},
		{"table", createTable(table, 0, func(c *talker) []uint32 { return []uint32{c.wq} }), 0, 0},
		{"RSS queue pair", createRSS(rss, nil), unix.EPERM, 0},
		{"rule", createFlow(flow, nil, ours), unix.EPERM, 0},
		{"rule with an unknown mask", createFlow(flow,
			func(_ *talker, r *uverbs.CreateFlowReq) { r.CompMask = 1 }, ours), unix.EINVAL, 0},
		{"rule with an unknown flag",
			createFlow(flow, func(_ *talker, r *uverbs.CreateFlowReq) { r.FlowAttr.Flags = 8 },
				ours), unix.EPERM, 0},
		{"receive queue with delayed drops", createWQ(nil, rq2At, 4,
			func(_ *talker, r *uverbs.ExCreateWQReq, _ *uverbs.Mlx5CreateWQReq) {
				r.CreateFlags = uverbs.WQFlagDelayDrop
			}), unix.EPERM, 0},
		{"region of the pages that are left, and one more", page(6), unix.ENOMEM, 0},
		{"table, destroyed", destroyTable(table), 0, 0},
		{"receive queue, destroyed", destroyWQ(wq), 0, 0},
		{"first region, destroyed", deregMR, 0, 0},
		{"region of twelve pages", page(12), 0, 0},
	}
}

// locklessSteps are the recorded steps of a process that may not lock memory.
func locklessSteps() []step {
	return []step{
		{"open", open, 0, 0},
		{"protection domain", allocPD, 0, 0},
		{"region", regMR(nil), unix.EPERM, 0},
		{"region over nothing", regMR(func(_ *talker, r *uverbs.RegMRReq) {
			r.Start,
				r.HCAVA = unmapped, unmapped
		}), unix.EPERM, 0},
		{"region in no domain", regMR(func(_ *talker, r *uverbs.RegMRReq) { r.PDHandle = nowhere }),
			unix.ENOENT, 0},
		{"completion queue", createCQ(txCQ, txCQAt, 0, nil), unix.EPERM, 0},
		{"receive queue on nothing", createWQ(nil, rqAt, 3, func(_ *talker, r *uverbs.ExCreateWQReq,
			_ *uverbs.Mlx5CreateWQReq) {
			r.CQHandle = nowhere
		}), unix.ENOENT, 0},
		{"domain", deallocPD, 0, 0},
	}
}
