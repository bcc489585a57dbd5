package uverbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// object is the common part of all kernel objects. A handle is an index into the table of the
// opened node; 0 is a valid one.
type object struct {
	c      *Context
	noun   string // for messages: "completion queue of 1024 entries"
	handle uint32
	pinned uint64 // bytes of the caller's memory the kernel holds for it

	gone bool // guarded by c.mu
}

// Handle returns the kernel's handle of the object, unique among the existing objects of the
// context.
func (o *object) Handle() uint32 { return o.handle }

// destroyOnce runs the destroying command once. The object stays, and may be closed again, if the
// kernel still has it.
func (o *object) destroyOnce(w write) error {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	if o.gone || o.c.kernel == nil {
		return nil
	}
	w.noun = o.noun
	err := o.c.writeLocked(w)
	o.settleDestroy(err)
	return err
}

// settleDestroy records the outcome err of a destroying command; c.mu is held.
func (o *object) settleDestroy(err error) {
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EIO) {
		o.gone = true
		o.c.pinned -= o.pinned
	}
}

// checkUsable returns nil if commands on the object are possible; c.mu is held.
func (o *object) checkUsable() error {
	if o.gone || o.c.kernel == nil {
		return fmt.Errorf("use %s: %w", o.noun, ErrClosed)
	}
	return nil
}

// completeNew completes a new object after its creating command; c.mu is held.
func (o *object) completeNew(c *Context, w write, handle uint32) {
	o.c, o.noun, o.handle, o.pinned = c, w.noun, handle, w.needs
	c.pinned += w.needs
}

// op describes one operation of the kernel: its name in messages and its command.
type op struct {
	name string // the kernel's name, which also selects the hints
	verb string
	cmd  uint32 // value of AttrWriteCmd, if it is sent by MethodInvokeWrite
}

var (
	opOpenNode       = &op{"open", "open", 0}
	opGetContext     = &op{"GET_CONTEXT", "open", CmdGetContext}
	opAsyncEvents    = &op{"ASYNC_EVENT_ALLOC", "open", 0}
	opReadEvent      = &op{"read", "read", 0}
	opQueryDevice    = &op{"QUERY_DEVICE", "query", ExCmdQueryDevice}
	opQueryPort      = &op{"QUERY_PORT", "query", CmdQueryPort}
	opMapUAR         = &op{"mmap", "map", 0}
	opAllocPD        = &op{"ALLOC_PD", "allocate", CmdAllocPD}
	opDeallocPD      = &op{"DEALLOC_PD", "destroy", CmdDeallocPD}
	opRegMR          = &op{"REG_MR", "register", CmdRegMR}
	opDeregMR        = &op{"DEREG_MR", "destroy", CmdDeregMR}
	opCreateChannel  = &op{"CREATE_COMP_CHANNEL", "create", CmdCreateCompChannel}
	opCreateCQ       = &op{"CREATE_CQ", "create", ExCmdCreateCQ}
	opModifyCQ       = &op{"MODIFY_CQ", "moderate", ExCmdModifyCQ}
	opDestroyCQ      = &op{"DESTROY_CQ", "destroy", CmdDestroyCQ}
	opCreateQP       = &op{"CREATE_QP", "create", ExCmdCreateQP}
	opCreateRSSQP    = &op{"CREATE_RSS_QP", "create", ExCmdCreateQP}
	opModifyQP       = &op{"MODIFY_QP", "modify", CmdModifyQP}
	opPaceQP         = &op{"EX_MODIFY_QP", "limit", ExCmdModifyQP}
	opQueryQP        = &op{"QUERY_QP", "query", CmdQueryQP}
	opDestroyQP      = &op{"DESTROY_QP", "destroy", CmdDestroyQP}
	opCreateWQ       = &op{"CREATE_WQ", "create", ExCmdCreateWQ}
	opModifyWQ       = &op{"MODIFY_WQ", "modify", ExCmdModifyWQ}
	opDestroyWQ      = &op{"DESTROY_WQ", "destroy", ExCmdDestroyWQ}
	opCreateIndTable = &op{"CREATE_RWQ_IND_TBL", "create", ExCmdCreateRWQIndTbl}
	opDestroyIndTbl  = &op{"DESTROY_RWQ_IND_TBL", "destroy", ExCmdDestroyRWQIndTbl}
	opCreateFlow     = &op{"CREATE_FLOW", "create", ExCmdCreateFlow}
	opDestroyFlow    = &op{"DESTROY_FLOW", "destroy", ExCmdDestroyFlow}
	opCreateMatcher  = &op{"FLOW_MATCHER_CREATE", "create", 0}
	opDestroyMatcher = &op{"FLOW_MATCHER_DESTROY", "destroy", 0}
	opCreateMiss     = &op{"CREATE_RAW_FLOW", "create", 0}
	opCreateCounters = &op{"COUNTERS_CREATE", "create", 0}
	opReadCounters   = &op{"COUNTERS_READ", "read", 0}
	opDestroyCount   = &op{"COUNTERS_DESTROY", "destroy", 0}
)
