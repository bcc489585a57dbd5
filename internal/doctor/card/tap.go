package card

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// tap is between the driver and the kernel. It notes which objects exist, where the rings of the
// newest queues are, and what the receive queue's doorbell record said when the queue became ready.
type tap struct {
	uverbs.Kernel

	mu         sync.Mutex
	alive      map[string]int // objects, by kind
	closed     bool
	cqs        map[uint32]ring // by handle
	send, recv queue
}

// ring describes a ring in this process' memory.
type ring struct {
	addr          uint64
	entries, size int // size of an entry in bytes
}

// queue is a send or receive queue with its completion queue.
type queue struct {
	ring, cq ring
	record   uint64 // address of its doorbell record
	atReady  uint16 // what the record said when the queue became ready
}

func (t *tap) Ioctl(buf []byte) error {
	c, ok := parseCall(buf)
	if ok {
		t.beforeCall(c)
	}
	err := t.Kernel.Ioctl(buf)
	if ok && err == nil {
		t.afterCall(c)
	}
	return err
}

func (t *tap) Close() error {
	err := t.Kernel.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = err == nil
	return err
}

// beforeCall looks at the doorbell record of a receive queue that is about to become ready.
func (t *tap) beforeCall(c call) {
	var req uverbs.ExModifyWQReq
	if c.readAttr(uverbs.AttrCoreIn, &req); c.command != uverbs.ExCmdModifyWQ ||
		req.WQState != uint32(uverbs.WQReady) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.recv.readCounter(mlx5.DBRRecv); err == nil {
		t.recv.atReady = n
	}
}

// objects maps commands to what they make or destroy.
var objects = map[uint32]struct {
	kind  string
	delta int
}{
	uverbs.CmdAllocPD: {"protection domain", 1}, uverbs.CmdDeallocPD: {"protection domain", -1},
	uverbs.CmdRegMR: {"memory region", 1}, uverbs.CmdDeregMR: {"memory region", -1},
	uverbs.ExCmdCreateCQ: {"completion queue", 1}, uverbs.CmdDestroyCQ: {"completion queue", -1},
	uverbs.ExCmdCreateQP: {"queue pair", 1}, uverbs.CmdDestroyQP: {"queue pair", -1},
	uverbs.ExCmdCreateWQ: {"work queue", 1}, uverbs.ExCmdDestroyWQ: {"work queue", -1},
	uverbs.ExCmdCreateRWQIndTbl:  {"indirection table", 1},
	uverbs.ExCmdDestroyRWQIndTbl: {"indirection table", -1},
	uverbs.ExCmdCreateFlow:       {"flow rule", 1}, uverbs.ExCmdDestroyFlow: {"flow rule", -1},
}

// afterCall notes what a command made or destroyed.
func (t *tap) afterCall(c call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o, ok := objects[c.command]; ok {
		t.alive[o.kind] += o.delta
	}
	switch c.command {
	case uverbs.ExCmdCreateCQ:
		t.madeCQ(c)
	case uverbs.ExCmdCreateQP:
		t.madeQP(c)
	case uverbs.ExCmdCreateWQ:
		t.madeWQ(c)
	}
}

func (t *tap) madeCQ(c call) {
	var resp uverbs.ExCreateCQResp
	var hw uverbs.Mlx5CreateCQReq
	c.readAttr(uverbs.AttrCoreOut, &resp)
	c.readAttr(uverbs.AttrUHWIn, &hw)
	t.cqs[resp.Base.CQHandle] = ring{hw.BufAddr, int(resp.Base.CQE) + 1, int(hw.CQESize)}
}

func (t *tap) madeQP(c call) {
	var req uverbs.ExCreateQPReq
	var hw uverbs.Mlx5CreateQPReq
	if c.readAttr(uverbs.AttrCoreIn, &req); req.CompMask&uverbs.CreateQPMaskIndTable != 0 {
		return // a target of flow rules, without rings
	}
	c.readAttr(uverbs.AttrUHWIn, &hw)
	t.send = queue{ring: ring{hw.SQBufAddr, int(hw.SQWQECount), mlx5.BB},
		cq: t.cqs[req.SendCQHandle], record: hw.DBAddr}
}

func (t *tap) madeWQ(c call) {
	var req uverbs.ExCreateWQReq
	var hw uverbs.Mlx5CreateWQReq
	c.readAttr(uverbs.AttrCoreIn, &req)
	c.readAttr(uverbs.AttrUHWIn, &hw)
	t.recv = queue{ring: ring{hw.BufAddr, int(hw.RQWQECount), 1 << hw.RQWQEShift},
		cq: t.cqs[req.CQHandle], record: hw.DBAddr}
}

// newestQueues returns the newest send and receive queue.
func (t *tap) newestQueues() (send, recv queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.send, t.recv
}

// leftObjects says which objects exist, "" if there are none and the node is closed.
func (t *tap) leftObjects() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []string
	for kind, n := range t.alive {
		if n != 0 {
			list = append(list, fmt.Sprintf("%d %s", n, kind))
		}
	}
	slices.Sort(list)
	if !t.closed {
		list = append(list, "the open device node")
	}
	return strings.Join(list, ", ")
}

// readCounter reads one counter of the queue's doorbell record.
func (q queue) readCounter(f mlx5.Field) (uint16, error) {
	b, err := readMemory(q.record, uverbs.DoorbellRecordLen)
	if err != nil {
		return 0, err
	}
	return uint16(f.Get(b)), nil
}

// copyRing copies the whole ring.
func (r ring) copyRing() ([]byte, error) { return readMemory(r.addr, r.entries*r.size) }

// changedEntries lists the entries in which two copies of the ring differ.
func (r ring) changedEntries(before, after []byte) (at []int) {
	for i := range r.entries {
		if string(before[i*r.size:(i+1)*r.size]) != string(after[i*r.size:(i+1)*r.size]) {
			at = append(at, i)
		}
	}
	return at
}

// completed returns the first entry of a completion ring that became the software's between two
// copies,
// -1 if there is none. The NIC writes the byte with the owner bit last, and it differs from one
// pass of the ring to the next: an entry with other bytes new is half written.
func (r ring) completed(before, after []byte) int {
	for i := range r.entries {
		if last := (i+1)*r.size - 1; before[last] != after[last] {
			return i
		}
	}
	return -1
}
