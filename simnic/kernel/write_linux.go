package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// writeCommand describes a command of the older write() interface, which INVOKE_WRITE
// runs: the minimum bytes of its request and of the room for its reply. The extended commands have
// neither: missing bytes of a request read as zero, and a reply is cut to the room.
type writeCommand struct {
	request, response int
	run               func(*call) unix.Errno
}

// writeTable holds all commands that the driver supports (drivers/infiniband/core/uverbs_cmd.c,
// uverbs_def_write_intf).
func writeTable() map[uint32]writeCommand {
	return map[uint32]writeCommand{
		uverbs.CmdGetContext:         {8, 8, getContextWrite},
		uverbs.CmdQueryDevice:        {8, 176, queryDevice},
		uverbs.ExCmdQueryDevice:      {0, 0, exQueryDevice},
		uverbs.CmdQueryPort:          {16, 40, queryPort},
		uverbs.CmdAllocPD:            {8, 4, allocPD},
		uverbs.CmdDeallocPD:          {4, 0, deallocPD},
		uverbs.CmdRegMR:              {40, 12, regMR},
		uverbs.CmdDeregMR:            {4, 0, deregMR},
		uverbs.CmdCreateCompChannel:  {8, 4, createCompChannel},
		uverbs.CmdCreateCQ:           {32, 8, createCQ},
		uverbs.ExCmdCreateCQ:         {0, 0, exCreateCQ},
		uverbs.ExCmdModifyCQ:         {0, 0, exModifyCQ},
		uverbs.CmdDestroyCQ:          {16, 8, destroyCQ},
		uverbs.CmdCreateQP:           {56, 32, createQP},
		uverbs.ExCmdCreateQP:         {0, 0, exCreateQP},
		uverbs.CmdModifyQP:           {112, 0, modifyQP},
		uverbs.ExCmdModifyQP:         {0, 0, exModifyQP},
		uverbs.CmdQueryQP:            {16, 128, queryQP},
		uverbs.CmdDestroyQP:          {16, 4, destroyQP},
		uverbs.ExCmdCreateWQ:         {0, 0, exCreateWQ},
		uverbs.ExCmdModifyWQ:         {0, 0, exModifyWQ},
		uverbs.ExCmdDestroyWQ:        {0, 0, exDestroyWQ},
		uverbs.ExCmdCreateRWQIndTbl:  {0, 0, exCreateIndTable},
		uverbs.ExCmdDestroyRWQIndTbl: {0, 0, exDestroyIndTable},
		uverbs.ExCmdCreateFlow:       {0, 0, exCreateFlow},
		uverbs.ExCmdDestroyFlow:      {0, 0, exDestroyFlow},
	}
}

// invokeWrite runs a write command.
func invokeWrite(c *call) unix.Errno {
	number := c.inputAttr(uverbs.AttrWriteCmd).addr
	if number>>32 != 0 || uint32(number)&^(uverbs.CmdExtended|0xff) != 0 {
		return unix.EINVAL
	}
	w, known := c.node.linux.writes[uint32(number)]
	if !known {
		return unix.EOPNOTSUPP
	}
	c.core.in, c.core.out = c.inputAttr(uverbs.AttrCoreIn), c.outputAttr(uverbs.AttrCoreOut)
	if c.core.in.n < w.request || c.core.out.n < w.response {
		return unix.ENOSPC
	}
	return w.run(c)
}

// finishCreate returns the last step of every creating command: it gives o a handle, which respond
// then returns to the client. If that fails, create destroys the object.
func (c *call) finishCreate(o *uobject, respond func() unix.Errno) unix.Errno {
	c.node.addObject(o)
	errno := respond()
	if errno != 0 {
		if err := o.release(); err != nil {
			c.node.nic.Config().Logger.Error("simnic: undo a creation",
				"kind", o.kind, "error", err)
		}
		c.node.forgetObject(o)
	}
	return errno
}

// runDestroy runs a destroying command whose request is a handle and whose reply is empty.
func (c *call) runDestroy(kind uint16, handle uint32) unix.Errno {
	_, errno := c.node.destroyObject(kind, handle)
	return errno
}

// host32 is v in host byte order.
func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
