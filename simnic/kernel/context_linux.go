package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// ucontext represents the object that GET_CONTEXT creates (struct mlx5_ib_ucontext).
type ucontext struct {
	td      uint32 // transport domain
	bfregs  bfregs
	resp    uverbs.Mlx5AllocUcontextResp
	version uint8                  // of completions
	records map[uint64]*recordPage // pages with doorbell records, by address
}

// freeResources frees the context's resources.
func (u *ucontext) freeResources(n *node) {
	for _, uar := range u.bfregs.uars {
		n.nic.FreeNumber(uar)
	}
	n.nic.FreeNumber(u.td)
	n.nic.UseLoopback(-1, 0)
}

// getContextNative implements UVERBS_METHOD_GET_CONTEXT. Its outputs are optional.
func getContextNative(c *call) unix.Errno {
	if errno := c.tellCore(); errno != 0 {
		return errno
	}
	return c.openContext()
}

// tellCore writes the core's part of the replies of GET_CONTEXT and QUERY_CONTEXT.
func (c *call) tellCore() unix.Errno {
	support := uint64(uverbs.CoreSupportOptionalMRAccess)
	for _, o := range []struct {
		id uint16
		b  []byte
	}{{uverbs.AttrNumCompVectors, host32(c.node.linux.cfg.Vectors)},
		{uverbs.AttrCoreSupport, binary.NativeEndian.AppendUint64(nil, support)}} {
		out := c.outputAttr(o.id)
		if !out.given {
			continue
		}
		if errno := c.answerStruct(out, o.b); errno != 0 {
			return errno
		}
	}
	return 0
}

// getContextWrite returns the write command, whose reply contains the asynchronous event
// descriptor.
func getContextWrite(c *call) unix.Errno {
	if errno := c.readRequest(&uverbs.GetContextReq{}); errno != 0 {
		return errno
	}
	async, errno := c.node.newEventFile("asynchronous events")
	if errno != 0 {
		return errno
	}
	errno = c.writeReply(uverbs.GetContextResp{AsyncFD: uint32(async.fd),
		NumCompVectors: c.node.linux.cfg.Vectors})
	if errno == 0 {
		errno = c.openContext()
	}
	if errno != 0 {
		async.closeBothEnds()
		return errno
	}
	c.node.events.addAsync(async)
	return 0
}

// openContext creates the context (ib_init_ucontext, mlx5_ib_alloc_ucontext).
func (c *call) openContext() unix.Errno {
	n := c.node
	if errno := n.checkAlive(); errno != 0 {
		return errno
	}
	if n.ctx != nil {
		return unix.EINVAL
	}
	if errno := c.capabilityFDs(); errno != 0 {
		return errno
	}
	u := &ucontext{records: map[uint64]*recordPage{}}
	req, errno := c.contextRequest()
	if errno != 0 {
		return errno
	}
	if errno := u.bfregs.allocRequested(n, req); errno != 0 {
		return errno
	}
	u.td = n.nic.AllocNumber(u, 24)
	n.nic.UseLoopback(1, 0)
	u.version = min(req.MaxCQEVersion, 1)
	u.resp = n.contextReply(u)
	b := make([]byte, uverbs.SizeOf(u.resp))
	room := min(len(b), c.uhw.out.n)
	u.resp.ResponseLength = uint32(room)
	uverbs.PutStruct(b, u.resp)
	if errno := c.uhw.out.putAll(b[:room]); errno != 0 {
		u.freeResources(n)
		return errno
	}
	n.ctx = u
	n.events.subscribeAll(n.nic)
	return 0
}

// capabilityFDs returns the check that makes INVOKE_WRITE(GET_CONTEXT) fail since about 6.15:
// attribute 2 is read as an array of descriptors, all of a kind that does not exist here.
func (c *call) capabilityFDs() unix.Errno {
	if c.node.linux.isRelease(Linux72) && c.inputAttr(attrGetContextFDs).given {
		return unix.EBADF
	}
	return 0
}

// contextRequest reads the driver's part of the request. Older libraries send a shorter one; the
// first version has 8 bytes.
func (c *call) contextRequest() (req uverbs.Mlx5AllocUcontextReqV2, errno unix.Errno) {
	if n := c.uhw.in.n; n != 8 && n < 16 {
		return req, unix.EINVAL
	}
	if errno := c.uhw.in.copyStruct(&req); errno != 0 {
		return req, errno
	}
	switch {
	case req.Flags&^uverbs.Mlx5AllocUctxDEVX != 0,
		req.CompMask != 0 || req.Reserved0 != 0 || req.Reserved1 != 0 || req.Reserved2 != 0,
		c.node.linux.isRelease(Linux72) && !c.uhw.in.zeroFrom(uverbs.SizeOf(req)):
		return req, unix.EOPNOTSUPP
	case req.NumLowLatencyBfregs > roundUp(req.TotalNumBfregs, uverbs.BfregsPerUAR)-1:
		return req, unix.EINVAL
	case req.Flags&uverbs.Mlx5AllocUctxDEVX != 0:
		return req, unix.EINVAL // the firmware has no user contexts
	}
	return req, 0
}

// contextReply fills in the reply (mlx5_ib set_ucontext_resp).
func (n *node) contextReply(u *ucontext) uverbs.Mlx5AllocUcontextResp {
	caps := n.nic.Caps()
	r := uverbs.Mlx5AllocUcontextResp{
		QPTabSize:      1 << 18,
		BFRegSize:      512,
		TotBfregs:      u.bfregs.total,
		CacheLineSize:  64,
		MaxSQDescSz:    uint16(caps.MaxSendWQE),
		MaxRQDescSz:    uint16(caps.MaxRecvWQE),
		MaxSendWQEBB:   1 << caps.LogMaxQueue,
		MaxRecvWR:      1 << caps.LogMaxQueue,
		MaxSRQRecvWR:   1 << 15,
		NumPorts:       1,
		CompMask:       updatesTags,
		CQEVersion:     u.version,
		CmdsSuppUHW:    3,
		EthMinInline:   uint8(caps.MinInline) + 1,
		LogUARSize:     12,
		NumUARsPerPage: u.bfregs.uarsPerPage,
		NumDynBfregs:   1024,
	}
	if n.linux.cfg.NoWriteCombining {
		r.BFRegSize = 0
	}
	return r
}

// updatesTags names MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG, set by every
// driver since 5.19. There is no clock page, so the reply does not describe one.
const updatesTags = 0x20

// queryContext implements UVERBS_METHOD_QUERY_CONTEXT.
func queryContext(c *call) unix.Errno {
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	if errno := c.tellCore(); errno != 0 {
		return errno
	}
	return c.answerStruct(c.outputAttr(attrQueryContextOut), c.node.ctx.resp)
}

// allocAsyncEvents implements UVERBS_METHOD_ASYNC_EVENT_ALLOC: objects created after the first call
// report to the first descriptor.
func allocAsyncEvents(c *call) unix.Errno {
	async, errno := c.node.newEventFile("asynchronous events")
	if errno != 0 {
		return errno
	}
	c.returnHandle(uverbs.AttrAsyncEventFD, uint64(async.fd))
	c.node.events.addAsync(async)
	return 0
}
