package card

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// bareQueue is a receive queue made without package dv, in the order that package dv avoids: its
// doorbell record is written before it becomes ready. It takes copies of broadcasts.
type bareQueue struct {
	cq, ring, record, frames region
	mr                       *uverbs.MR
	wq                       *uverbs.WQ
	posted                   int            // WQEs written
	undo                     []func() error // what was made, in order
}

// region is memory that the card reaches, as far as it is used here.
type region interface {
	Slice(off, n int) []byte
	StoreBE32(off int, v uint32)
	LoadBE32(off int) uint32
	Addr() uint64
}

// Sizes of a bare queue: entries of both rings, those posted at first, bytes of a frame's buffer.
const (
	bareEntries = 64
	barePosted  = 32
	bareFrame   = 2048
)

// newBareQueue makes one in a context of its own. destroyAll is for what there is of it, also after
// an error.
func newBareQueue(open func() (uverbs.Kernel, error)) (q *bareQueue, err error) {
	q = &bareQueue{}
	k, err := open()
	if err != nil {
		return q, err
	}
	c, err := uverbs.Open(k, uverbs.Options{})
	if err != nil {
		return q, err
	}
	q.undo = append(q.undo, c.Close)
	pd, err := c.AllocPD()
	if err != nil {
		return q, err
	}
	q.undo = append(q.undo, pd.Close)
	if err := q.makeQueues(c, pd); err != nil {
		return q, err
	}
	q.postBuffers(barePosted)
	if err := q.wq.Ready(); err != nil {
		return q, err
	}
	return q, q.steerBroadcasts(c, pd)
}

// makeQueues maps memory, registers the frames' part of it and makes both queues.
func (q *bareQueue) makeQueues(c *uverbs.Context, pd *uverbs.PD) error {
	const page = 64 << 10 // the largest there is
	mem, err := uverbs.AllocMemory(4 * page)
	if err != nil {
		return err
	}
	// returned when the kernel knows of it no more: after the context
	q.undo = append([]func() error{mem.Close}, q.undo...)
	ring, cqRing, records := mem.Sub(0, page), mem.Sub(page, page), mem.Sub(2*page, page)
	frames := mem.Sub(3*page, bareFrame)
	for i := range bareEntries {
		cqRing.Slice((i+1)*mlx5.CQESize-1, 1)[0] = mlx5.OpOwn(mlx5.CQEInvalid, 0, 0, 1)
	}
	q.ring, q.cq, q.frames = ring, cqRing, frames
	record, cqRecord := records.Sub(0, 8), records.Sub(64, 8)
	q.record = record
	if q.mr, err = pd.RegMR(frames, uverbs.AccessLocalWrite); err != nil {
		return err
	}
	q.undo = append(q.undo, q.mr.Close)
	cq, err := c.CreateCQ(uverbs.CQAttr{Entries: bareEntries, Buf: cqRing, DBR: cqRecord})
	if err != nil {
		return err
	}
	q.undo = append(q.undo, cq.Close)
	q.wq, err = pd.CreateWQ(uverbs.WQAttr{CQ: cq, Entries: bareEntries, Buf: ring, DBR: record})
	if err != nil {
		return err
	}
	q.undo = append(q.undo, q.wq.Close)
	return nil
}

// postBuffers hands n more buffers to the card, all of them the same one, and writes the record.
func (q *bareQueue) postBuffers(n int) {
	for range n {
		at := q.posted % bareEntries * mlx5.DataSegSize
		mlx5.PutData(q.ring.Slice(at, mlx5.DataSegSize), bareFrame, q.mr.LKey, q.frames.Addr())
		q.posted++
	}
	q.record.StoreBE32(mlx5.RecordRecv, uint32(q.posted))
}

// completions returns how many there are: none is ever consumed, and none comes without a WQE.
func (q *bareQueue) completions() (n int) {
	for i := range bareEntries {
		tail := q.cq.LoadBE32(i*mlx5.CQESize + mlx5.CQEOwnWord)
		if mlx5.CQEOpcode(tail>>4&0xf) != mlx5.CQEInvalid {
			n++
		}
	}
	return n
}

// steerBroadcasts directs copies of broadcasts to the queue.
func (q *bareQueue) steerBroadcasts(c *uverbs.Context, pd *uverbs.PD) error {
	table, err := c.CreateIndirectionTable([]*uverbs.WQ{q.wq}, 0)
	if err != nil {
		return err
	}
	q.undo = append(q.undo, table.Close)
	qp, err := pd.CreateRSSQP(uverbs.RSSAttr{Table: table})
	if err != nil {
		return err
	}
	q.undo = append(q.undo, qp.Close)
	flow, err := qp.CreateFlow(uverbs.FlowAttr{DontTrap: true, Specs: []uverbs.FlowSpec{
		uverbs.EthMatch{Dst: [6]byte(probe.Broadcast), DstMask: uverbs.ExactMAC}.Spec()}})
	if err != nil {
		return err
	}
	q.undo = append(q.undo, flow.Close)
	return nil
}

// destroyAll destroys what there is, the newest first.
func (q *bareQueue) destroyAll() error {
	var errs []error
	for i := len(q.undo) - 1; i >= 0; i-- {
		errs = append(errs, q.undo[i]())
	}
	q.undo = nil
	return errors.Join(errs...)
}
