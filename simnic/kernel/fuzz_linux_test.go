package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// fuzzPlaces are the addresses for a hostile caller's pointers: its own memory, and unmapped
// addresses. (Other addresses in this process belong to the test itself.)
const fuzzPlaces = 8

// place picks an address for v.
func (r *rawNode) place(v uint64) uint64 {
	switch v % fuzzPlaces {
	case 0:
		return 0
	case 1:
		return 0x10000
	case 2:
		return ^uint64(0) - 7
	case 3:
		return r.mem.Addr() + uint64(r.mem.Len()) - 4 // the block ends in the middle
	}
	return r.mem.Addr() + 4096 + v/fuzzPlaces%uint64(r.mem.Len()-8192)
}

// pointers lists, by write command, where addresses of memory are in the
// command struct and in the driver's part.
var pointers = map[uint32]struct{ core, uhw []int }{
	uverbs.CmdRegMR:        {core: []int{8}},
	uverbs.CmdCreateCQ:     {uhw: []int{0, 8}},
	uverbs.ExCmdCreateCQ:   {uhw: []int{0, 8}},
	uverbs.CmdCreateQP:     {uhw: []int{0, 8, 40}},
	uverbs.ExCmdCreateQP:   {uhw: []int{0, 8, 40}},
	uverbs.ExCmdCreateWQ:   {uhw: []int{0, 8}},
	uverbs.ExCmdCreateFlow: {uhw: []int{8}},
}

// tame replaces the addresses in a block with those of fuzzPlaces.
func (r *rawNode) tame(b []byte, at []int) {
	for _, i := range at {
		if i+8 <= len(b) {
			binary.NativeEndian.PutUint64(b[i:], r.place(binary.NativeEndian.Uint64(b[i:])))
		}
	}
}

// FuzzWriteCommands sends sequences of commands with hostile content. Each is
// {command index, lengths of core and driver input, of core and driver output,
// content}. Nothing may panic, hang, or leak.
func FuzzWriteCommands(f *testing.F) {
	seed := func(cmds ...write) {
		var b []byte
		for _, w := range cmds {
			b = append(b, byte(commandIndex(w.cmd)), byte(len(w.core)), byte(len(w.uhw)),
				byte(w.out+1), byte(w.uhwOut+1))
			b = append(append(b, w.core...), w.uhw...)
		}
		f.Add(b)
	}
	zero := make([]byte, 8)
	pd := write{cmd: uverbs.CmdAllocPD, core: zero, out: 4, uhwOut: 4}
	cq := write{cmd: uverbs.ExCmdCreateCQ, out: 16, uhwOut: 8,
		core: bytesOf(uverbs.ExCreateCQReq{CQE: 7, CompChannel: -1}),
		uhw:  bytesOf(uverbs.Mlx5CreateCQReq{BufAddr: 4, DBAddr: 4, CQESize: 64})}
	wq := write{cmd: uverbs.ExCmdCreateWQ, out: 24, uhwOut: -1,
		core: bytesOf(uverbs.ExCreateWQReq{CQHandle: 1, MaxWR: 8, MaxSGE: 1}),
		uhw:  bytesOf(uverbs.Mlx5CreateWQReq{BufAddr: 4, DBAddr: 4, RQWQECount: 8, RQWQEShift: 4})}
	table := write{cmd: uverbs.ExCmdCreateRWQIndTbl, out: 16, uhwOut: -1,
		core: bytesOf(uverbs.ExCreateRWQIndTblReq{}, uint32(2))}
	rss := write{cmd: uverbs.ExCmdCreateQP, out: 40, uhwOut: 40,
		core: bytesOf(uverbs.ExCreateQPReq{QPType: 8, CompMask: 1, RWQIndTblHandle: 3}),
		uhw:  bytesOf(uverbs.Mlx5CreateQPRSSReq{RxHashFunction: 1, RxKeyLen: 40})}
	flow := write{cmd: uverbs.ExCmdCreateFlow, out: 8, uhwOut: -1,
		core: append(bytesOf(uverbs.CreateFlowReq{QPHandle: 4,
			FlowAttr: uverbs.FlowAttrHdr{Size: 40, NumOfSpecs: 1, Port: 1}}),
			hexBytes(vecFlow)[24:64]...)}
	qp := write{cmd: uverbs.ExCmdCreateQP, out: 40, uhwOut: 40,
		core: bytesOf(uverbs.ExCreateQPReq{SendCQHandle: 1, RecvCQHandle: 1, QPType: 8}),
		uhw:  bytesOf(uverbs.Mlx5CreateQPReq{DBAddr: 4, SQWQECount: 64, SQBufAddr: 4})}
	modify := write{cmd: uverbs.CmdModifyQP, core: bytesOf(uverbs.ModifyQPReq{QPHandle: 2,
		AttrMask: 0x21, QPState: 1, PortNum: 1}), out: -1, uhwOut: -1}
	seed(pd, cq, wq, table, rss, flow, destroyCommand(uverbs.ExCmdDestroyFlow, 5),
		destroyCommand(uverbs.CmdDestroyQP, 4))
	seed(pd, cq, qp, modify, destroyCommand(uverbs.CmdDestroyQP, 2),
		destroyCommand(uverbs.CmdDestroyCQ, 1))
	seed(pd, write{cmd: uverbs.CmdRegMR, core: bytesOf(uverbs.RegMRReq{Start: 4, Length: 4096,
		AccessFlags: 1}), out: 12, uhwOut: -1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
		r.open()
		for len(b) >= 5 {
			w := write{cmd: commands[int(b[0])%len(commands)],
				out: int(b[3]) - 1, uhwOut: int(b[4]) - 1}
			core, uhw := int(b[1]), int(b[2])
			b = b[5:]
			w.core = append([]byte{}, b[:min(core, len(b))]...)
			b = b[min(core, len(b)):]
			w.uhw = append([]byte{}, b[:min(uhw, len(b))]...)
			b = b[min(uhw, len(b)):]
			p := pointers[w.cmd]
			r.tame(w.core, p.core)
			r.tame(w.uhw, p.uhw)
			if w.cmd == uverbs.CmdRegMR && len(w.core) >= 32 {
				copy(w.core[24:32], w.core[8:16]) // the address in descriptors is the address
			}
			if w.cmd == uverbs.CmdCreateCompChannel || w.cmd == uverbs.CmdGetContext {
				continue // real descriptors, which the test does not close
			}
			r.do(&w)
		}
		if err := r.node.Close(); err != nil {
			t.Error(err)
		}
		if p := r.linux.pinned.Load(); p != 0 {
			t.Errorf("%d pages stay pinned", p)
		}
		if n := r.linux.nic.Objects().Numbers; n != 0 {
			t.Errorf("%d objects stay in the device", n)
		}
	})
}

// commands are all write commands, and some invalid ones.
var commands = []uint32{
	uverbs.CmdGetContext, uverbs.CmdQueryDevice, uverbs.ExCmdQueryDevice,
	uverbs.CmdQueryPort, uverbs.CmdAllocPD,
	uverbs.CmdDeallocPD, uverbs.CmdRegMR, uverbs.CmdDeregMR,
	uverbs.CmdCreateCompChannel, uverbs.CmdCreateCQ,
	uverbs.ExCmdCreateCQ, uverbs.ExCmdModifyCQ, uverbs.CmdDestroyCQ,
	uverbs.CmdCreateQP, uverbs.ExCmdCreateQP,
	uverbs.CmdModifyQP, uverbs.ExCmdModifyQP, uverbs.CmdQueryQP,
	uverbs.CmdDestroyQP, uverbs.ExCmdCreateWQ,
	uverbs.ExCmdModifyWQ, uverbs.ExCmdDestroyWQ, uverbs.ExCmdCreateRWQIndTbl,
	uverbs.ExCmdDestroyRWQIndTbl,
	uverbs.ExCmdCreateFlow, uverbs.ExCmdDestroyFlow, uverbs.CmdResizeCQ, 0x12345, 0x800000ff,
}

func commandIndex(cmd uint32) int {
	for i, c := range commands {
		if c == cmd {
			return i
		}
	}
	panic("no such command")
}

// FuzzIoctlHeader sends buffers whose attributes are hostile: kinds, lengths and
// places of pointers, in any order and number.
func FuzzIoctlHeader(f *testing.F) {
	for _, s := range []string{vecGetContext, vecDeallocPD} {
		f.Add(hexBytes(s))
	}
	f.Add(hexBytes("38000000 01000200 00000000 00000000 01000000 00000000 00000400 01000000 " +
		"00000000 00000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			b = b[:4096]
		}
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
		for i := range 2 { // without and with a context
			buf := append([]byte{}, b...)
			for at := 24; at+16 <= len(buf); at += 16 {
				id := binary.NativeEndian.Uint16(buf[at:])
				data := binary.NativeEndian.Uint64(buf[at+8:])
				small := binary.NativeEndian.Uint16(buf[at+2:]) <= 8
				output := len(buf) > 6 && outputAttr(buf, id)
				if output || !small {
					binary.NativeEndian.PutUint64(buf[at+8:], r.place(data))
				}
			}
			if len(buf) >= 8 && binary.NativeEndian.Uint16(buf[2:]) == uverbs.ObjectAsyncEvent ||
				commandOf(buf) {
				return // real descriptors, which the test does not close
			}
			if len(buf) > 0 {
				r.ioctl(buf)
			}
			if i == 0 && r.node.ctx == nil {
				r.open()
			}
		}
	})
}

// outputAttr reports whether the attribute is an address whatever its length.
func outputAttr(buf []byte, id uint16) bool {
	if id == uverbs.AttrUHWOut || id == attrQueryContextOut {
		return true
	}
	object, method := binary.NativeEndian.Uint16(buf[2:]), binary.NativeEndian.Uint16(buf[4:])
	for _, s := range methodTable(Linux612)[methodKey{object, method}].specs() {
		if s.id == id {
			return s.kind == attrOut
		}
	}
	return false
}

// specs returns the attributes of a method, nil for an unknown method.
func (m *method) specs() []attrSpec {
	if m == nil {
		return nil
	}
	return m.attrs
}

// commandOf reports whether the buffer invokes a command that creates descriptors.
func commandOf(buf []byte) bool {
	for at := 24; at+16 <= len(buf); at += 16 {
		if binary.NativeEndian.Uint16(buf[at:]) == uverbs.AttrWriteCmd {
			cmd := uint32(binary.NativeEndian.Uint64(buf[at+8:]))
			if cmd == uverbs.CmdGetContext || cmd == uverbs.CmdCreateCompChannel {
				return true
			}
		}
	}
	return false
}
