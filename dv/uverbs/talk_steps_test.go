package uverbs_test

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Handles in the recordings.
func txCQ(c *talker) *uint32 { return &c.txCQ }

func rxCQ(c *talker) *uint32 { return &c.rxCQ }

func txQP(c *talker) *uint32 { return &c.txQP }

func wq(c *talker) *uint32 { return &c.wq }

func wq2(c *talker) *uint32 { return &c.wq2 }

func table(c *talker) *uint32 { return &c.table }

func one(c *talker) *uint32 { return &c.one }

func rss(c *talker) *uint32 { return &c.rss }

func anyQP(c *talker) *uint32 { return &c.any }

func flow(c *talker) *uint32 { return &c.flow }

func tagged(c *talker) *uint32 { return &c.tagged }

func dropped(c *talker) *uint32 { return &c.dropped }

func copied(c *talker) *uint32 { return &c.copied }

func sniffer(c *talker) *uint32 { return &c.sniffer }

func sniffer2(c *talker) *uint32 { return &c.sniffer2 }

func stampedCQ(c *talker) *uint32 { return &c.stampedCQ }

func stampedWQ(c *talker) *uint32 { return &c.stampedWQ }

// nowhere is a handle without an object.
const nowhere = 999

// allSteps are the recorded steps of a process with all capabilities.
func allSteps() []step {
	return slices.Concat(openSteps(), memorySteps(), cqSteps(), qpSteps(), wqSteps(), rssSteps(),
		flowSteps(), surplusSteps(), lengthSteps(), mutatedSteps(), destroySteps())
}

func openSteps() []step {
	var ucontext uverbs.Mlx5AllocUcontextResp
	request := uverbs.Mlx5AllocUcontextReqV2{TotalNumBfregs: 16, NumLowLatencyBfregs: 15,
		MaxCQEVersion: 1, LibCaps: 1}
	with := func(driver uint32, change func(r *uverbs.Mlx5AllocUcontextReqV2)) func(*talker) error {
		return func(c *talker) error {
			r := request
			if change != nil {
				change(&r)
			}
			return uverbs.AskContext(c.k, c.mem, driver, r, &ucontext)
		}
	}
	mapped := func(off int64, n int, writable bool) func(*talker) error {
		return func(c *talker) error {
			p, err := c.k.Mmap(off, n, writable)
			return errors.Join(err, p.Close())
		}
	}
	return []step{
		{"a command before there is a context", allocPD, unix.EINVAL, 0},
		{"another driver's context", with(uverbs.DriverRXE, nil), unix.EINVAL, 0},
		{"no registers",
			with(uverbs.DriverMLX5,
				func(r *uverbs.Mlx5AllocUcontextReqV2) {
					r.TotalNumBfregs, r.NumLowLatencyBfregs = 0, 0
				}), unix.EINVAL, 0},
		{"too many registers",
			with(uverbs.DriverMLX5,
				func(r *uverbs.Mlx5AllocUcontextReqV2) { r.TotalNumBfregs = 513 }), unix.ENOMEM, 0},
		{"more fast registers than registers",
			with(uverbs.DriverMLX5,
				func(r *uverbs.Mlx5AllocUcontextReqV2) { r.NumLowLatencyBfregs = 16 }), unix.EINVAL,
			0},
		{"unknown flag of a context",
			with(uverbs.DriverMLX5, func(r *uverbs.Mlx5AllocUcontextReqV2) { r.Flags = 2 }),
			unix.EOPNOTSUPP, 0},
		{"open", open, 0, 0},
		{"a second context", with(uverbs.DriverMLX5, nil), unix.EINVAL, 0},
		{"port 0", func(c *talker) error {
			return c.ask(uverbs.CmdQueryPort, uverbs.QueryPortReq{}, &uverbs.QueryPortResp{}, nil,
				nil)
		}, unix.EINVAL, 0},
		{"port 1", func(c *talker) error {
			return c.ask(uverbs.CmdQueryPort, uverbs.QueryPortReq{PortNum: 1},
				&uverbs.QueryPortResp{}, nil, nil)
		}, 0, 0},
		{"port 2", func(c *talker) error {
			return c.ask(uverbs.CmdQueryPort, uverbs.QueryPortReq{PortNum: 2},
				&uverbs.QueryPortResp{}, nil, nil)
		}, unix.EINVAL, 0},
		{"a command nobody knows",
			func(c *talker) error { return c.ask(77, uverbs.AllocPDReq{}, nil, nil, nil) },
			unix.EOPNOTSUPP, 0},
		{"a command struct too short",
			func(c *talker) error {
				return c.ask(uverbs.CmdRegMR, make([]byte, 16), nil, nil, nil)
			}, unix.ENOSPC, 0},
		{"register page 0 again", mapped(0x300000, recordedPages, true), 0, 0},
		{"register page beyond the last", mapped(0x308000, recordedPages, true), unix.EINVAL, 0},
		{"two register pages at once", mapped(0x300000, 2*recordedPages, true), unix.EINVAL, 0},
		{"clock page", mapped(0x500000, recordedPages, false), 0, 0},
		{"clock page, for writing", mapped(0x500000, recordedPages, true), unix.EPERM, 0},
		{"page of no kind", mapped(0x900000, recordedPages, true), unix.EINVAL, 0},
	}
}

func memorySteps() []step {
	return []step{
		{"protection domain", allocPD, 0, 0},
		{"region", regMR(nil), 0, 0},
		{"region over nothing",
			regMR(func(_ *talker, r *uverbs.RegMRReq) { r.Start, r.HCAVA = unmapped, unmapped }),
			unix.EFAULT, 0},
		{"region of nothing", regMR(func(_ *talker, r *uverbs.RegMRReq) { r.Length = 0 }),
			unix.EINVAL, 0},
		{"region around the end",
			regMR(func(_ *talker, r *uverbs.RegMRReq) { r.Length = ^uint64(0) }), unix.EINVAL, 0},
		{"region at two offsets", regMR(func(_ *talker, r *uverbs.RegMRReq) { r.HCAVA++ }),
			unix.EINVAL, 0},
		{"region with unknown rights",
			regMR(func(_ *talker, r *uverbs.RegMRReq) { r.AccessFlags |= 1 << 30 }), unix.EINVAL,
			0},
		{"remote write without local write",
			regMR(func(_ *talker, r *uverbs.RegMRReq) { r.AccessFlags = 2 }), unix.EINVAL, 0},
		{"region on demand",
			regMR(func(_ *talker, r *uverbs.RegMRReq) { r.AccessFlags |= uverbs.AccessOnDemand }),
			unix.EOPNOTSUPP, unix.EINVAL},
		{"region in no domain", regMR(func(_ *talker, r *uverbs.RegMRReq) { r.PDHandle = nowhere }),
			unix.ENOENT, 0},
		{"region in what is no domain",
			regMR(func(c *talker, r *uverbs.RegMRReq) { r.PDHandle = c.mr }), unix.EINVAL, 0},
		{"domain in use", deallocPD, unix.EBUSY, 0},
	}
}

func cqSteps() []step {
	wrong := func(change cqChange) func(*talker) error { return createCQ(nil, rxCQAt, 1, change) }
	type core = *uverbs.ExCreateCQReq
	type drv = *uverbs.Mlx5CreateCQReq
	return []step{
		{"completion channel", createChannel, 0, 0},
		{"completion queue", createCQ(txCQ, txCQAt, 0, nil), 0, 0},
		{"completion queue with a channel",
			createCQ(rxCQ, rxCQAt, 1,
				func(c *talker, r core, _ drv) {
					r.CompChannel, r.CompVector = int32(c.channel),
						1
				}), 0, 0},
		{"too many entries", wrong(func(_ *talker, r core, _ drv) { r.CQE = 1 << 23 }), unix.EINVAL,
			0},
		{"vector beyond the last", wrong(func(_ *talker, r core, _ drv) { r.CompVector = 1000 }),
			unix.EINVAL, 0},
		{"channel that is none", wrong(func(_ *talker, r core, _ drv) { r.CompChannel = 0 }),
			unix.EBADF, 0},
		{"channel that is not open",
			wrong(func(_ *talker, r core, _ drv) { r.CompChannel = nowhere }), unix.EBADF, 0},
		{"unknown mask", wrong(func(_ *talker, r core, _ drv) { r.CompMask = 1 }), unix.EINVAL, 0},
		{"reserved field", wrong(func(_ *talker, r core, _ drv) { r.Reserved = 1 }), unix.EINVAL,
			0},
		{"unknown flag", wrong(func(_ *talker, r core, _ drv) { r.Flags = 4 }), unix.EOPNOTSUPP, 0},
		{"entries of 32 bytes", wrong(func(_ *talker, _ core, d drv) { d.CQESize = 32 }),
			unix.EINVAL, 0},
		{"unknown driver flag", wrong(func(_ *talker, _ core, d drv) { d.Flags = 1 << 8 }),
			unix.EINVAL, 0},
		{"ring over nothing", wrong(func(_ *talker, _ core, d drv) { d.BufAddr = unmapped }),
			unix.EFAULT, 0},
		{"record over nothing", wrong(func(_ *talker, _ core, d drv) { d.DBAddr = unmapped }),
			unix.EFAULT, 0},
		{"two compressions at once",
			wrong(func(_ *talker, _ core, d drv) { d.CQECompEn, d.CQECompResFormat = 1, 3 }),
			unix.EINVAL, 0},
		{"real-time stamps", createCQ(stampedCQ, stampedCQAt, 5, func(_ *talker, _ core, d drv) {
			d.Flags = uverbs.Mlx5CreateCQRealTimeTS
		}), 0, 0},
		{"moderation", moderate(txCQ, uverbs.CQAttrModerate, 32, 8), 0, 0},
		{"moderation for too long", moderate(txCQ, uverbs.CQAttrModerate, 32, 4096), unix.EINVAL,
			0},
		{"moderation of nothing", moderate(txCQ, 0, 32, 8), unix.EINVAL, 0},
	}
}

func moderate(h func(*talker) *uint32, mask uint32, count, period uint16) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.ExCmdModifyCQ,
			uverbs.ExModifyCQReq{CQHandle: *h(c), AttrMask: mask, CQCount: count, CQPeriod: period},
			nil, nil, nil)
	}
}

func qpSteps() []step {
	type core = *uverbs.ExCreateQPReq
	type drv = *uverbs.Mlx5CreateQPReq
	return []step{
		{"queue pair on no completion queue",
			createQP(func(_ *talker, r core, _ drv) {
				r.SendCQHandle, r.RecvCQHandle = nowhere,
					nowhere
			}), unix.ENOENT, 0},
		{"queue pair in no domain",
			createQP(func(_ *talker, r core, _ drv) { r.PDHandle = nowhere }), unix.ENOENT, 0},
		{"queue pair of no type", createQP(func(_ *talker, r core, _ drv) { r.QPType = 77 }),
			unix.EINVAL, 0},
		{"unknown mask", createQP(func(_ *talker, r core, _ drv) { r.CompMask = 2 }), unix.EINVAL,
			0},
		{"unknown flag of creation",
			createQP(func(_ *talker, r core, _ drv) { r.CreateFlags = 1 << 20 }), unix.EINVAL, 0},
		{"unknown driver flag", createQP(func(_ *talker, _ core, d drv) { d.Flags = 1 << 20 }),
			unix.EINVAL, 0},
		{"user index too large", createQP(func(_ *talker, _ core, d drv) { d.UIDX = 1 << 24 }),
			unix.EINVAL, 0},
		{"ring of no power of two", createQP(func(_ *talker, _ core, d drv) { d.SQWQECount = 65 }),
			unix.EINVAL, 0},
		{"ring too large", createQP(func(_ *talker, _ core, d drv) { d.SQWQECount = 1 << 16 }),
			unix.EINVAL, 0},
		{"no ring at all",
			createQP(func(_ *talker, r core, d drv) { r.MaxSendWR, d.SQWQECount = 0, 0 }),
			unix.EINVAL, 0},
		{"more to receive than a ring holds, and no ring",
			createQP(func(_ *talker, r core, _ drv) { r.MaxRecvWR = 1<<15 + 1 }), unix.EINVAL, 0},
		{"more to receive than a ring holds", createQP(func(c *talker, r core, d drv) {
			r.MaxRecvWR, d.RQWQECount, d.RQWQEShift, d.BufAddr = 1<<15+1, 64, 4, c.at(rqAt)
		}), unix.EINVAL, 0},
		{"nothing to receive, and a ring",
			createQP(func(c *talker, r core, d drv) {
				d.RQWQECount, d.RQWQEShift, d.BufAddr = 64, 4,
					c.at(rqAt)
			}), unix.EINVAL, 0},
		{"send ring over nothing",
			createQP(func(_ *talker, _ core, d drv) { d.SQBufAddr = unmapped }), unix.EFAULT, 0},
		{"record over nothing", createQP(func(_ *talker, _ core, d drv) { d.DBAddr = unmapped }),
			unix.EFAULT, 0},
		{"queue pair that sends", createQP(nil), 0, 0},
		{"completion queue in use", destroyCQ(txCQ), unix.EBUSY, 0},
		{"RESET to RTR", modifyQP(qpRTR, nil), unix.EINVAL, 0},
		{"RESET to RTS", modifyQP(qpRTS, nil), unix.EINVAL, 0},
		{"RESET to INIT without a port",
			modifyQP(qpInit, func(r *uverbs.ModifyQPReq) { r.AttrMask = uverbs.QPAttrState }),
			unix.EINVAL, 0},
		{"RESET to INIT on port 2", modifyQP(qpInit, func(r *uverbs.ModifyQPReq) { r.PortNum = 2 }),
			unix.EINVAL, 0},
		{"state 7", modifyQP(7, nil), unix.EINVAL, 0},
		{"no such queue pair",
			modifyQP(qpInit, func(r *uverbs.ModifyQPReq) { r.QPHandle = nowhere }), unix.ENOENT, 0},
		{"RESET to RESET", modifyQP(qpReset, nil), 0, 0},
		{"RESET to INIT", modifyQP(qpInit, nil), 0, 0},
		{"INIT to RTS", modifyQP(qpRTS, nil), unix.EINVAL, 0},
		{"INIT to RTR", modifyQP(qpRTR, nil), 0, 0},
		{"RTR to RTS", modifyQP(qpRTS, nil), 0, 0},
		{"state RTS", queryQP(qpRTS), 0, 0},
		{"RTS to INIT", modifyQP(qpInit, nil), unix.EINVAL, 0},
		{"RTS to ERR", modifyQP(qpError, nil), 0, 0},
		{"ERR to RTS", modifyQP(qpRTS, nil), unix.EINVAL, 0},
		{"ERR to RESET", modifyQP(qpReset, nil), 0, 0},
		{"INIT again", modifyQP(qpInit, nil), 0, 0},
		{"RTR again", modifyQP(qpRTR, nil), 0, 0},
		{"RTS again", modifyQP(qpRTS, nil), 0, 0},
	}
}

func wqSteps() []step {
	type core = *uverbs.ExCreateWQReq
	type drv = *uverbs.Mlx5CreateWQReq
	wrong := func(change wqChange) func(*talker) error { return createWQ(nil, rq2At, 4, change) }
	modify := func(mask, state, cur uint32) func(*talker) error {
		return modifyWQ(uverbs.ExModifyWQReq{AttrMask: mask, WQState: state, CurrWQState: cur},
			uverbs.Mlx5ModifyWQReq{})
	}
	return []step{
		{"receive queue", createWQ(wq, rqAt, 3, nil), 0, 0},
		{"second receive queue",
			createWQ(wq2, rq2At, 4, func(_ *talker, _ core, d drv) { d.UserIndex = 8 }), 0, 0},
		{"receive queue with real-time stamps", createWQ(stampedWQ, stampedRQAt, 6,
			func(c *talker, r core, d drv) { r.CQHandle, d.UserIndex = c.stampedCQ, 9 }), 0,
			unix.EOPNOTSUPP},
		{"receive queue of no type", wrong(func(_ *talker, r core, _ drv) { r.WQType = 1 }),
			unix.EINVAL, 0},
		{"in no domain", wrong(func(_ *talker, r core, _ drv) { r.PDHandle = nowhere }),
			unix.ENOENT, 0},
		{"on no completion queue", wrong(func(_ *talker, r core, _ drv) { r.CQHandle = nowhere }),
			unix.ENOENT, 0},
		{"unknown mask", wrong(func(_ *talker, r core, _ drv) { r.CompMask = 1 }), unix.EOPNOTSUPP,
			0},
		{"unknown driver mask", wrong(func(_ *talker, _ core, d drv) { d.CompMask = 2 }),
			unix.EOPNOTSUPP, 0},
		{"no entries", wrong(func(_ *talker, _ core, d drv) { d.RQWQECount = 0 }), unix.EINVAL, 0},
		{"too many entries", wrong(func(_ *talker, r core, _ drv) { r.MaxWR = 1 << 16 }),
			unix.EINVAL, 0},
		{"no ring", wrong(func(_ *talker, _ core, d drv) { d.BufAddr = 0 }), unix.EINVAL, 0},
		{"ring over nothing", wrong(func(_ *talker, _ core, d drv) { d.BufAddr = unmapped }),
			unix.EFAULT, 0},
		{"record over nothing", wrong(func(_ *talker, _ core, d drv) { d.DBAddr = unmapped }),
			unix.EFAULT, 0},
		{"change of nothing", modify(0, wqReady, 0), unix.EINVAL, 0},
		{"unknown change", modify(8, wqReady, 0), unix.EINVAL, 0},
		{"no such receive queue",
			modifyWQ(uverbs.ExModifyWQReq{WQHandle: nowhere, AttrMask: uverbs.WQAttrState,
				WQState: wqReady}, uverbs.Mlx5ModifyWQReq{}), unix.ENOENT, 0},
		{"without the driver's part",
			modifyWQ(uverbs.ExModifyWQReq{AttrMask: uverbs.WQAttrState, WQState: wqReady}, nil),
			unix.EINVAL, 0},
		{"RDY to RESET, which it is in", wqStep(wqReady, wqReset), unix.EINVAL, 0},
		{"RESET to RDY", wqStep(wqReset, wqReady), 0, 0},
		{"RESET to RDY, which it is in", wqStep(wqReset, wqReady), unix.EINVAL, 0},
		{"RDY to ERR", wqStep(wqReady, wqError), 0, 0},
		{"ERR to RDY", wqStep(wqError, wqReady), unix.EINVAL, 0},
		{"ERR to RESET", wqStep(wqError, wqReset), 0, 0},
		{"RDY again", wqStep(wqReset, wqReady), 0, 0},
		{"driver's part that is not zero",
			modifyWQ(uverbs.ExModifyWQReq{AttrMask: uverbs.WQAttrState, WQState: wqReady},
				uverbs.Mlx5ModifyWQReq{CompMask: 1}), unix.EOPNOTSUPP, 0},
		{"tags kept", modifyWQ(
			uverbs.ExModifyWQReq{AttrMask: uverbs.WQAttrFlags,
				FlagsMask: uverbs.WQFlagCVLANStripping}, uverbs.Mlx5ModifyWQReq{}), 0, 0},
		{"tags taken out",
			modifyWQ(uverbs.ExModifyWQReq{AttrMask: uverbs.WQAttrFlags,
				FlagsMask: uverbs.WQFlagCVLANStripping, Flags: uverbs.WQFlagCVLANStripping},
				uverbs.Mlx5ModifyWQReq{}), 0, 0},
	}
}

func destroySteps() []step {
	return []step{
		{"a table as a receive queue", destroyWQ(table), unix.EINVAL, 0},
		{"RSS queue pair in use", destroyQP(rss), unix.EBUSY, 0},
		{"rules", destroyFlow(flow), 0, 0},
		{"rule with a tag", destroyFlow(tagged), 0, 0},
		{"rule that drops", destroyFlow(dropped), 0, 0},
		{"rule that copies", destroyFlow(copied), 0, 0},
		{"sniffer", destroyFlow(sniffer), 0, 0},
		{"second sniffer", destroyFlow(sniffer2), anything, 0},
		{"rule that is gone", destroyFlow(flow), unix.ENOENT, 0},
		{"RSS queue pair", destroyQP(rss), 0, 0},
		{"other RSS queue pair", destroyQP(anyQP), 0, 0},
		{"table", destroyTable(table), 0, 0},
		{"table of one", destroyTable(one), 0, 0},
		{"receive queue", destroyWQ(wq), 0, 0},
		{"second receive queue", destroyWQ(wq2), 0, 0},
		{"receive queue with real-time stamps", func(c *talker) error {
			if c.stampedWQ == 0 { // the card has no such clock
				c.stampedWQ = nowhere
			}
			return destroyWQ(stampedWQ)(c)
		}, 0, unix.ENOENT},
		{"its completion queue", destroyCQ(stampedCQ), 0, 0},
		{"queue pair", destroyQP(txQP), 0, 0},
		{"completion queue", destroyCQ(txCQ), 0, 0},
		{"other completion queue", destroyCQ(rxCQ), 0, 0},
		{"region", deregMR, 0, 0},
		{"region that is gone", deregMR, unix.ENOENT, 0},
		{"domain", deallocPD, 0, 0},
	}
}
