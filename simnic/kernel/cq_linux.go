package kernel

import (
	"math/bits"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// createCompChannel implements CREATE_COMP_CHANNEL. Channels are descriptors, not handles.
func createCompChannel(c *call) unix.Errno {
	if errno := c.readRequest(&uverbs.CreateCompChannelReq{}); errno != 0 {
		return errno
	}
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	e, errno := c.node.newEventFile("completion channel")
	if errno != 0 {
		return errno
	}
	if errno := c.writeReply(uverbs.CreateCompChannelResp{FD: uint32(e.fd)}); errno != 0 {
		e.closeBothEnds()
		return errno
	}
	c.node.events.addChannel(e)
	return 0
}

// cq represents a completion queue of the client.
type cq struct {
	hw      *simnic.CQ
	channel *eventFile
	user    uint64
	stamps  stamps
	events  atomic.Uint32 // completion events sent
	async   reports
}

// reports holds the descriptor of an object's asynchronous events, and how many were sent.
type reports struct {
	file *eventFile
	sent atomic.Uint32
}

func (r *reports) reportEvent(t uverbs.EventType, element uint64) {
	r.sent.Add(1)
	r.file.postAsync(t, element)
}

// createCQReq mirrors struct ib_uverbs_create_cq.
type createCQReq struct {
	Response        uint64
	UserHandle      uint64
	CQE, CompVector uint32
	CompChannel     int32
	Reserved        uint32
}

// createCQ implements CREATE_CQ.
func createCQ(c *call) unix.Errno {
	var old createCQReq
	if errno := c.readRequest(&old); errno != 0 {
		return errno
	}
	req := uverbs.ExCreateCQReq{UserHandle: old.UserHandle, CQE: old.CQE,
		CompVector: old.CompVector, CompChannel: old.CompChannel}
	return c.createCQ(req)
}

// exCreateCQ returns the extended CREATE_CQ.
func exCreateCQ(c *call) unix.Errno {
	var req uverbs.ExCreateCQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 || req.Reserved != 0 {
		return unix.EINVAL
	}
	return c.createCQ(req)
}

// createCQ executes both: the older reply is the first part of the newer one.
func (c *call) createCQ(req uverbs.ExCreateCQReq) unix.Errno {
	n := c.node
	if req.CompVector >= n.linux.cfg.Vectors {
		return unix.EINVAL
	}
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	q := &cq{user: req.UserHandle}
	if req.CompChannel >= 0 {
		if q.channel = n.events.channelOf(int(req.CompChannel)); q.channel == nil {
			return unix.EBADF
		}
	}
	q.async.file = n.events.asyncFile()
	entries, errno := n.cqEntries(req)
	if errno != 0 {
		return errno
	}
	o, errno := c.makeCQ(q, req, entries)
	if errno != 0 {
		return errno
	}
	return c.finishCreate(o, func() unix.Errno {
		resp := uverbs.ExCreateCQResp{Base: uverbs.CreateCQResp{CQHandle: o.handle,
			CQE: entries - 1}}
		resp.ResponseLength = c.responseLength(resp)
		return c.writeReply(resp)
	})
}

// cqEntries returns the number of entries of the queue (mlx5_ib_create_cq in
// drivers/infiniband/hw/mlx5/cq.c).
func (n *node) cqEntries(req uverbs.ExCreateCQReq) (uint32, unix.Errno) {
	limit := uint32(1) << n.nic.Caps().LogMaxCQ
	if int32(req.CQE) < 0 || req.CQE > limit {
		return 0, unix.EINVAL
	}
	if req.Flags&^(uverbs.CQFlagTimestampCompletion|uverbs.CQFlagIgnoreOverrun) != 0 {
		return 0, unix.EOPNOTSUPP
	}
	entries := uint32(1) << bits.Len32(req.CQE)
	if entries > limit {
		return 0, unix.EINVAL
	}
	return entries, 0
}

// cqDriverReq holds the whole of struct mlx5_ib_create_cq; clients may omit the bytes after the
// first cqDriverMin.
type cqDriverReq struct {
	uverbs.Mlx5CreateCQReq
	UARPageIndex, Reserved0 uint16
	Reserved1               uint32
}

const cqDriverMin = 22

// cqDriver reads and checks the driver's part of the request (create_cq_user in cq.c).
func (c *call) cqDriver() (req cqDriverReq, errno unix.Errno) {
	if c.uhw.in.n < cqDriverMin {
		return req, unix.EINVAL
	}
	if errno := c.uhw.in.copyStruct(&req); errno != 0 {
		return req, errno
	}
	known := uverbs.Mlx5CreateCQ128BPad
	if !c.node.linux.isRelease(Linux54) {
		known |= uverbs.Mlx5CreateCQUARPageIndex | uverbs.Mlx5CreateCQRealTimeTS
	}
	switch {
	case req.Flags&^known != 0,
		req.CQESize != 64 && req.CQESize != 128,
		req.Reserved0 != 0 || req.Reserved1 != 0,
		req.Flags&uverbs.Mlx5CreateCQUARPageIndex != 0: // no UAR objects, so none can be named
		return req, unix.EINVAL
	case c.node.linux.isRelease(Linux72) && !c.uhw.in.zeroFrom(uverbs.SizeOf(req)):
		return req, unix.EOPNOTSUPP
	}
	return req, 0
}

// makeCQ creates the queue and returns its number in the driver's part of the reply.
func (c *call) makeCQ(q *cq, req uverbs.ExCreateCQReq, entries uint32) (*uobject, unix.Errno) {
	drv, errno := c.cqDriver()
	if errno != 0 {
		return nil, errno
	}
	n := c.node
	r := &ring{node: n}
	attr, errno := q.pinAndDescribe(r, drv, entries)
	if errno == 0 {
		attr.IgnoreOverrun = req.Flags&uverbs.CQFlagIgnoreOverrun != 0
		q.stamps = stamps{real: drv.Flags&uverbs.Mlx5CreateCQRealTimeTS != 0,
			freeRunning: req.Flags&uverbs.CQFlagTimestampCompletion != 0}
		errno = n.compression(&attr, drv)
	}
	if errno == 0 {
		var err error
		q.hw, err = n.nic.CreateCQ(attr)
		errno = errnoOf(err)
	}
	if errno == 0 {
		if errno = c.uhw.out.putAll(host32(q.hw.Number())); errno != 0 {
			_ = q.hw.Destroy()
		}
	}
	if errno != 0 {
		r.unpinAll()
		return nil, errno
	}
	return &uobject{kind: uverbs.ObjectCQ, impl: q, user: q.user,
		release: r.freeAfter(q.hw.Destroy)}, 0
}

// pinAndDescribe pins the queue's memory and sets the destination of its events.
func (q *cq) pinAndDescribe(r *ring, drv cqDriverReq, entries uint32) (a simnic.CQAttr,
	errno unix.Errno) {
	n := r.node
	if n.linux.isRelease(Linux54) {
		drv.BufAddr &^= n.linux.page - 1 // linux 5.4 drops an offset in the page
	}
	a = simnic.CQAttr{LogSize: bits.Len32(entries) - 1, EntrySize: int(drv.CQESize),
		UAR: n.ctx.bfregs.uars[0]}
	if a.Ring, errno = r.pinBuffer(drv.BufAddr,
		uint64(entries)*uint64(drv.CQESize), true); errno != 0 {
		return a, errno
	}
	if a.Record, errno = r.mapDoorbell(drv.DBAddr); errno != 0 {
		return a, errno
	}
	a.Events = func(simnic.Event) { q.async.reportEvent(uverbs.EventCQError, q.user) }
	if q.channel != nil {
		a.Completion = func(*simnic.CQ) {
			q.events.Add(1)
			q.channel.completion(q.user)
		}
	}
	return a, 0
}

// miniFormats gives the formats of compressed completions by their bit in the
// driver's request (mini_cqe_res_format_to_hw in cq.c).
var miniFormats = map[uint8]simnic.MiniFormat{
	uverbs.Mlx5CQEFormatHash:       simnic.MiniHash,
	uverbs.Mlx5CQEFormatCsum:       simnic.MiniChecksum,
	uverbs.Mlx5CQEFormatCsumStrIdx: simnic.MiniChecksumStride,
}

// compression enables compression and padding, if requested and supported.
func (n *node) compression(a *simnic.CQAttr, drv cqDriverReq) unix.Errno {
	caps := n.nic.Caps()
	if drv.CQECompEn == 1 {
		if !caps.Compression || drv.CQESize != 64 {
			return unix.EOPNOTSUPP
		}
		format, known := miniFormats[drv.CQECompResFormat]
		if !known {
			return unix.EINVAL
		}
		if caps.MiniFormats&(1<<format) == 0 {
			return unix.EOPNOTSUPP
		}
		a.Compress, a.MiniFormat = true, format
	}
	if drv.Flags&uverbs.Mlx5CreateCQ128BPad != 0 {
		return unix.EOPNOTSUPP
	}
	return 0
}

// exModifyCQ returns the extended MODIFY_CQ: moderation of events.
func exModifyCQ(c *call) unix.Errno {
	var req uverbs.ExModifyCQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.AttrMask == 0 || req.Reserved != 0 {
		return unix.EINVAL
	}
	if req.AttrMask > uverbs.CQAttrModerate {
		return unix.EOPNOTSUPP
	}
	_, q, errno := findObject[*cq](c.node, uverbs.ObjectCQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	if !c.node.nic.Caps().CQModeration {
		return unix.EOPNOTSUPP
	}
	if req.CQPeriod > maxModerationPeriod {
		return unix.EINVAL
	}
	return errnoOf(q.hw.Moderate(req.CQCount, req.CQPeriod))
}

// destroyCQ implements DESTROY_CQ. The reply has the number of events sent; linux returns that of
// events read.
func destroyCQ(c *call) unix.Errno {
	var req uverbs.DestroyCQReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	o, errno := c.node.destroyObject(uverbs.ObjectCQ, req.CQHandle)
	if errno != 0 {
		return errno
	}
	q := o.impl.(*cq)
	return c.writeReply(uverbs.DestroyCQResp{CompEventsReported: q.events.Load(),
		AsyncEventsReported: q.async.sent.Load()})
}
