package uverbs_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A recording is made from a list of steps: correct and wrong commands in order, each with the
// errno that an unmodified kernel returns. The steps run on the software NIC, on recordings of
// unmodified kernels, and, on a machine with a device for tests, on that.

// talker runs the steps of one recording.
type talker struct {
	t      testing.TB
	k      uverbs.Kernel
	mem    *mmio.Region // for commands
	queues *mmio.Region // for rings and records
	ctx    *uverbs.Context
	fds    []int

	pd, mr, txCQ, rxCQ, txQP, wq, wq2, table, one, rss, any, flow, tagged,
	dropped, copied, sniffer, sniffer2, stampedCQ, stampedWQ, channel uint32
}

// step is one command.
type step struct {
	name string
	ask  func(c *talker) error
	want unix.Errno // 0: success

	older unix.Errno // errno of linux 6.1, or of older cards, if different
}

// hold runs all steps in order.
func hold(t testing.TB, k uverbs.Kernel, steps []step) {
	t.Helper()
	c := &talker{t: t, k: k, mem: alloc(t, 1<<16), queues: alloc(t, queuesLen)}
	for i := range 1 << 12 { // no completion looks valid
		c.queues.Bytes()[i*64+63] = 0xf1
	}
	clear(c.queues.Bytes()[recordsAt:])
	defer c.close()
	for _, s := range steps {
		err := s.ask(c)
		if !s.answered(err) {
			t.Errorf("%s: %v, want errno %v", s.name, err, s.want)
		}
		if errors.Is(err, uverbs.ErrReplay) {
			return
		}
	}
}

// answered reports whether err is the expected result.
func (s *step) answered(err error) bool {
	switch s.want {
	case 0:
		return err == nil || s.older != 0 && errors.Is(err, s.older)
	case anything:
		var errno unix.Errno
		return err == nil || errors.As(err, &errno)
	}
	return errors.Is(err, s.want) || s.older != 0 && errors.Is(err, s.older)
}

func alloc(t testing.TB, n int) *mmio.Region {
	t.Helper()
	r, err := mmio.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func (c *talker) close() {
	for _, fd := range c.fds {
		unix.Close(fd)
	}
	if c.ctx != nil {
		if err := c.ctx.Close(); err != nil {
			c.t.Errorf("close: %v", err)
		}
	}
}

// Offsets in the memory for queues: pages of 4 KiB, doorbell records at the end.
const (
	txCQAt, rxCQAt, sqAt, rqAt, rq2At, dataAt = 0x0000, 0x2000, 0x4000, 0x8000, 0x9000, 0xa000

	stampedCQAt, stampedRQAt = 0x20000, 0x22000

	recordsAt = 0x40000
	queuesLen = 0x41000

	// recordedPages is the page size of the kernels that were recorded.
	recordedPages = 4096

	// unmapped is below the lowest address that Linux maps.
	unmapped = 0x7000
)

func (c *talker) at(off uint64) uint64   { return c.queues.Addr() + off }
func (c *talker) record(i uint64) uint64 { return c.at(recordsAt + 64*i) }

func (c *talker) ask(cmd uint32, in, out, uhwIn, uhwOut any) error {
	return uverbs.Ask(c.k, c.mem, cmd, in, out, uhwIn, uhwOut)
}

// open opens the context as this package does.
func open(c *talker) (err error) {
	c.ctx, err = uverbs.Open(c.k, uverbs.Options{TxQPs: 2}.WithPages(recordedPages))
	return err
}

func allocPD(c *talker) error {
	var r uverbs.AllocPDResp
	err := c.ask(uverbs.CmdAllocPD, uverbs.AllocPDReq{}, &r, nil, &uverbs.Mlx5AllocPDResp{})
	c.pd = r.PDHandle
	return err
}

// regMR registers memory; change modifies the request for the step.
func regMR(change func(c *talker, r *uverbs.RegMRReq)) func(*talker) error {
	return func(c *talker) error {
		req := uverbs.RegMRReq{Start: c.at(dataAt), HCAVA: c.at(dataAt), Length: 0x10000,
			PDHandle: c.pd, AccessFlags: uverbs.AccessLocalWrite}
		if change != nil {
			change(c, &req)
		}
		var r uverbs.RegMRResp
		err := c.ask(uverbs.CmdRegMR, req, &r, nil, nil)
		if err == nil {
			c.mr = r.MRHandle
		}
		return err
	}
}

func createChannel(c *talker) error {
	var r uverbs.CreateCompChannelResp
	err := c.ask(uverbs.CmdCreateCompChannel, uverbs.CreateCompChannelReq{}, &r, nil, nil)
	if err == nil {
		c.channel, c.fds = r.FD, append(c.fds, int(r.FD))
	}
	return err
}

type cqChange func(c *talker, core *uverbs.ExCreateCQReq, drv *uverbs.Mlx5CreateCQReq)

// createCQ creates a completion queue of 64 entries and stores its handle in keep, if that is not
// nil.
func createCQ(keep func(*talker) *uint32, at, record uint64, change cqChange) func(*talker) error {
	return func(c *talker) error {
		core := uverbs.ExCreateCQReq{UserHandle: 0xc1, CQE: 63, CompChannel: -1}
		drv := uverbs.Mlx5CreateCQReq{BufAddr: c.at(at), DBAddr: c.record(record), CQESize: 64}
		if change != nil {
			change(c, &core, &drv)
		}
		var r uverbs.ExCreateCQResp
		err := c.ask(uverbs.ExCmdCreateCQ, core, &r, drv, &uverbs.Mlx5CreateCQResp{})
		if err == nil {
			note(c, keep, r.Base.CQHandle)
		}
		return err
	}
}

type qpChange func(c *talker, core *uverbs.ExCreateQPReq, drv *uverbs.Mlx5CreateQPReq)

// createQP creates a raw packet queue pair that sends.
func createQP(change qpChange) func(*talker) error {
	return func(c *talker) error {
		core := uverbs.ExCreateQPReq{UserHandle: 0xa1, PDHandle: c.pd,
			SendCQHandle: c.txCQ, RecvCQHandle: c.txCQ,
			MaxSendWR: 64, MaxSendSGE: 1, QPType: uverbs.QPTypeRawPacket}
		drv := uverbs.Mlx5CreateQPReq{DBAddr: c.record(2), SQWQECount: 64,
			UIDX: 1, SQBufAddr: c.at(sqAt)}
		if change != nil {
			change(c, &core, &drv)
		}
		var r uverbs.ExCreateQPResp
		err := c.ask(uverbs.ExCmdCreateQP, core, &r, drv, &uverbs.Mlx5CreateQPResp{})
		if err == nil {
			c.txQP = r.Base.QPHandle
		}
		return err
	}
}

// modifyQP changes the state of the sending queue pair.
func modifyQP(state uint8, change func(r *uverbs.ModifyQPReq)) func(*talker) error {
	return func(c *talker) error {
		req := uverbs.ModifyQPReq{QPHandle: c.txQP, AttrMask: uverbs.QPAttrState, QPState: state}
		if state == qpInit {
			req.AttrMask, req.PortNum = req.AttrMask|uverbs.QPAttrPort, 1
		}
		if change != nil {
			change(&req)
		}
		return c.ask(uverbs.CmdModifyQP, req, nil, nil, nil)
	}
}

// States of a queue pair (enum ib_qp_state).
const qpReset, qpInit, qpRTR, qpRTS, qpError = 0, 1, 2, 3, 6

// queryQP expects the queue pair in a state.
func queryQP(state uint8) func(*talker) error {
	return func(c *talker) error {
		var r uverbs.QueryQPResp
		err := c.ask(uverbs.CmdQueryQP,
			uverbs.QueryQPReq{QPHandle: c.txQP, AttrMask: uverbs.QPAttrState}, &r, nil, nil)
		if err == nil && r.QPState != state {
			c.t.Errorf("queue pair is in state %d, want %d", r.QPState, state)
		}
		return err
	}
}

type wqChange func(c *talker, core *uverbs.ExCreateWQReq, drv *uverbs.Mlx5CreateWQReq)

// createWQ creates a receive queue of 64 entries of one segment.
func createWQ(keep func(*talker) *uint32, at, record uint64, change wqChange) func(*talker) error {
	return func(c *talker) error {
		core := uverbs.ExCreateWQReq{UserHandle: 0xb1, PDHandle: c.pd,
			CQHandle: c.rxCQ, MaxWR: 64, MaxSGE: 1}
		drv := uverbs.Mlx5CreateWQReq{BufAddr: c.at(at), DBAddr: c.record(record), RQWQECount: 64,
			RQWQEShift: 4, UserIndex: 7}
		if change != nil {
			change(c, &core, &drv)
		}
		var r uverbs.ExCreateWQResp
		err := c.ask(uverbs.ExCmdCreateWQ, core, &r, drv, nil)
		if err == nil {
			note(c, keep, r.WQHandle)
		}
		return err
	}
}

// modifyWQ changes the receive queue.
func modifyWQ(req uverbs.ExModifyWQReq, uhw any) func(*talker) error {
	return func(c *talker) error {
		if req.WQHandle == 0 {
			r := req
			r.WQHandle = c.wq
			return c.ask(uverbs.ExCmdModifyWQ, r, nil, uhw, nil)
		}
		return c.ask(uverbs.ExCmdModifyWQ, req, nil, uhw, nil)
	}
}

// wqStep takes the receive queue from one state to another.
func wqStep(from, to uint32) func(*talker) error {
	mask := uverbs.WQAttrState | uverbs.WQAttrCurState
	return modifyWQ(uverbs.ExModifyWQReq{AttrMask: mask, CurrWQState: from, WQState: to},
		uverbs.Mlx5ModifyWQReq{})
}

// States of a receive queue.
const wqReset, wqReady, wqError = 0, 1, 2

// createTable creates an indirection table of 1<<log entries that name wqs in turn.
func createTable(keep func(*talker) *uint32, log uint32,
	wqs func(c *talker) []uint32) func(*talker) error {
	return func(c *talker) error {
		b := uverbs.Bytes(uverbs.ExCreateRWQIndTblReq{LogIndTblSize: log})
		for i := range min(1<<log, 1<<9) {
			h := wqs(c)
			b = binary.NativeEndian.AppendUint32(b, h[i%len(h)])
		}
		if len(b)%8 != 0 {
			b = append(b, 0, 0, 0, 0)
		}
		var r uverbs.ExCreateRWQIndTblResp
		err := c.ask(uverbs.ExCmdCreateRWQIndTbl, b, &r, nil, nil)
		if err == nil {
			note(c, keep, r.IndTblHandle)
		}
		return err
	}
}

type rssChange func(c *talker, core *uverbs.ExCreateQPReq, drv *uverbs.Mlx5CreateQPRSSReq)

// createRSS creates an RSS queue pair for TCP over IPv4.
func createRSS(keep func(*talker) *uint32, change rssChange) func(*talker) error {
	return func(c *talker) error {
		core := uverbs.ExCreateQPReq{UserHandle: 0xa2, PDHandle: c.pd,
			QPType:   uverbs.QPTypeRawPacket,
			CompMask: uverbs.CreateQPMaskIndTable, RWQIndTblHandle: c.table}
		drv := uverbs.Mlx5CreateQPRSSReq{RxHashFieldsMask: uverbs.HashFieldsTCPv4,
			RxHashFunction: 1, RxKeyLen: uverbs.Mlx5QPRSSKeyLen}
		for i := range drv.RxKeyLen {
			drv.RxHashKey[i] = i * 7
		}
		if change != nil {
			change(c, &core, &drv)
		}
		var r uverbs.ExCreateQPResp
		err := c.ask(uverbs.ExCmdCreateQP, core, &r, drv, &uverbs.Mlx5CreateQPResp{})
		if err == nil {
			note(c, keep, r.Base.QPHandle)
		}
		return err
	}
}

// createFlow creates a rule with these conditions for the RSS queue pair.
func createFlow(keep func(*talker) *uint32, change func(c *talker, r *uverbs.CreateFlowReq),
	specs ...[]byte) func(*talker) error {
	return func(c *talker) error {
		req := uverbs.CreateFlowReq{QPHandle: c.rss,
			FlowAttr: uverbs.FlowAttrHdr{NumOfSpecs: uint8(len(specs)), Port: 1}}
		var tail []byte
		for _, s := range specs {
			tail = append(tail, s...)
		}
		req.FlowAttr.Size = uint16(len(tail))
		if change != nil {
			change(c, &req)
		}
		var r uverbs.CreateFlowResp
		err := c.ask(uverbs.ExCmdCreateFlow, append(uverbs.Bytes(req), tail...), &r, nil, nil)
		if err == nil {
			note(c, keep, r.FlowHandle)
		}
		return err
	}
}

// Commands that destroy the object with the stored handle.

func destroyFlow(h func(*talker) *uint32) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.ExCmdDestroyFlow, uverbs.DestroyFlowReq{FlowHandle: *h(c)}, nil, nil,
			nil)
	}
}

func destroyQP(h func(*talker) *uint32) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.CmdDestroyQP, uverbs.DestroyQPReq{QPHandle: *h(c)},
			&uverbs.DestroyQPResp{}, nil, nil)
	}
}

func destroyTable(h func(*talker) *uint32) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.ExCmdDestroyRWQIndTbl,
			uverbs.ExDestroyRWQIndTblReq{IndTblHandle: *h(c)}, nil, nil, nil)
	}
}

func destroyWQ(h func(*talker) *uint32) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.ExCmdDestroyWQ, uverbs.ExDestroyWQReq{WQHandle: *h(c)},
			&uverbs.ExDestroyWQResp{}, nil, nil)
	}
}

func destroyCQ(h func(*talker) *uint32) func(*talker) error {
	return func(c *talker) error {
		return c.ask(uverbs.CmdDestroyCQ, uverbs.DestroyCQReq{CQHandle: *h(c)},
			&uverbs.DestroyCQResp{}, nil, nil)
	}
}

func deregMR(c *talker) error {
	return c.ask(uverbs.CmdDeregMR, uverbs.DeregMRReq{MRHandle: c.mr}, nil, nil, nil)
}

func deallocPD(c *talker) error {
	return c.ask(uverbs.CmdDeallocPD, uverbs.DeallocPDReq{PDHandle: c.pd}, nil, nil, nil)
}

// note stores a handle in keep; nil is for objects that should not have been created.
func note(c *talker, keep func(*talker) *uint32, handle uint32) {
	if keep != nil {
		*keep(c) = handle
	}
}
