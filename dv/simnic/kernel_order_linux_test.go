package simnic

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// mistake is one thing wrong with a command that is right otherwise.
type mistake struct {
	name  string
	make  func(r *rawNode, w *write)
	errno unix.Errno
}

// set32 is a mistake that is a number at an offset of the command struct.
func set32(name string, at int, v uint32, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode, w *write) { binary.NativeEndian.PutUint32(w.core[at:], v) }, errno}
}

// uhw32 is one at an offset of the driver's part, if that is still there.
func uhw32(name string, at int, v uint32, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode, w *write) {
		if at+4 <= len(w.uhw) {
			binary.NativeEndian.PutUint32(w.uhw[at:], v)
		}
	}, errno}
}

// uhwLen is a driver's part of another length, longer ones ending in ones.
func uhwLen(name string, n int, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode, w *write) {
		for len(w.uhw) < n {
			w.uhw = append(w.uhw, 1)
		}
		w.uhw = w.uhw[:n]
	}, errno}
}

// tail is bytes of ones behind the command struct.
func tail(errno unix.Errno) mistake {
	return mistake{"tail not zero", func(_ *rawNode, w *write) { w.core = append(w.core, 1, 1, 1, 1, 1, 1, 1, 1) }, errno}
}

// machine is a mistake of the machine instead.
func machine(name string, change func(*LinuxConfig), errno unix.Errno) mistake {
	return mistake{name, func(r *rawNode, _ *write) { change(&r.linux.cfg) }, errno}
}

const nobody = 0x7777 // a handle nobody has

// orders are, for each command, what can be wrong with it in the order in which
// linux 6.12 looks (drivers/infiniband/core/uverbs_cmd.c and hw/mlx5). Where two
// are wrong at once, the earlier one decides.
func orders(r *rawNode, o objects) map[string]order {
	return map[string]order{
		"REG_MR": {func() write { return r.regMR(o) }, []mistake{
			tail(unix.EOPNOTSUPP),
			{"page offsets differ", func(_ *rawNode, w *write) { w.core[24] ^= 8 }, unix.EINVAL},
			set32("access nobody knows", 36, 0x401, unix.EINVAL),
			set32("remote write without local", 36, 2, unix.EINVAL),
			set32("on demand", 36, 0x41, unix.EOPNOTSUPP),
			set32("pd", 32, nobody, unix.ENOENT),
			set32("wraps around", 20, 0xffffffff, unix.EINVAL),
			machine("no memlock at all", func(c *LinuxConfig) { c.Memlock = -1 }, unix.EPERM),
			{"no length", func(_ *rawNode, w *write) { clear(w.core[16:24]) }, unix.EINVAL},
			machine("memlock too low", func(c *LinuxConfig) { c.Memlock = 4096 }, unix.ENOMEM),
			{"not mapped", func(_ *rawNode, w *write) {
				copy(w.core[8:], bytesOf(uint64(0x10000)))
				copy(w.core[24:], bytesOf(uint64(0x10000)))
			}, unix.EFAULT},
		}},
		"EX_CREATE_CQ": {r.createCQ, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("comp_mask", 20, 1, unix.EINVAL),
			set32("reserved", 28, 1, unix.EINVAL),
			set32("vector", 12, 8, unix.EINVAL),
			set32("channel is no descriptor", 16, nobody, unix.EBADF),
			set32("channel is another file", 16, 0, unix.EBADF),
			set32("too many", 8, 1<<22+1, unix.EINVAL),
			set32("too many, signed", 8, 1<<31, unix.EINVAL),
			set32("flags", 24, 4, unix.EOPNOTSUPP),
			set32("too many when rounded", 8, 1<<22, unix.EINVAL),
			uhwLen("driver's part short", 21, unix.EINVAL),
			uhw32("driver's flags", 20, 0x80000, unix.EINVAL),
			uhw32("entry size", 16, 96, unix.EINVAL),
			{"buffer not mapped", func(_ *rawNode, w *write) { copy(w.uhw, bytesOf(uint64(0x10000))) }, unix.EFAULT},
			{"record not mapped", func(_ *rawNode, w *write) { copy(w.uhw[8:], bytesOf(uint64(0x10000))) }, unix.EFAULT},
			{"mini format", func(_ *rawNode, w *write) { w.uhw[20], w.uhw[21] = 1, 3 }, unix.EINVAL},
			uhw32("padding", 20, 0x10000, unix.EOPNOTSUPP),
		}},
		"EX_MODIFY_CQ": {func() write {
			return write{cmd: uverbs.ExCmdModifyCQ, out: -1, uhwOut: -1, core: bytesOf(uverbs.ExModifyCQReq{CQHandle: o.cq, AttrMask: 1, CQCount: 1, CQPeriod: 1})}
		}, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("no mask", 4, 0, unix.EINVAL),
			set32("reserved", 12, 1, unix.EINVAL),
			set32("mask", 4, 2, unix.EOPNOTSUPP),
			set32("cq", 0, nobody, unix.ENOENT),
			{"period", func(_ *rawNode, w *write) { w.core[11] = 0x10 }, unix.EINVAL},
		}},
		"EX_CREATE_QP": {func() write { return r.createQP(o) }, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("comp_mask", 48, 2, unix.EINVAL),
			{"reserved", func(_ *rawNode, w *write) { w.core[47] = 1 }, unix.EINVAL},
			machine("CAP_NET_RAW", func(c *LinuxConfig) { c.NoNetRaw = true }, unix.EPERM),
			set32("receive cq", 16, nobody, unix.ENOENT),
			set32("send cq", 12, nobody, unix.ENOENT),
			set32("pd", 8, nobody, unix.ENOENT),
			set32("create_flags nobody knows", 52, 1<<20, unix.EINVAL),
			machine("InfiniBand", func(c *LinuxConfig) { c.InfiniBand = true }, unix.EINVAL),
			uhwLen("driver's part short", 47, unix.EINVAL),
			uhwLen("driver's tail", 60, unix.EINVAL),
			uhw32("driver's flags", 28, 1<<31, unix.EINVAL),
			uhw32("uidx", 32, 1<<24, unix.EINVAL),
			set32("create_flags not served", 52, 2, unix.EOPNOTSUPP),
			set32("max_recv_wr", 28, 1<<15+1, unix.EINVAL),
			uhw32("rq_wqe_count without receive queue", 20, 1, unix.EINVAL),
			uhw32("sq_wqe_count too large", 16, 1<<16, unix.EINVAL),
			uhw32("sq_wqe_count", 16, 63, unix.EINVAL),
			uhw32("no queue at all", 16, 0, unix.EINVAL),
			{"record not mapped", func(_ *rawNode, w *write) {
				if len(w.uhw) >= 48 {
					copy(w.uhw[8:], bytesOf(uint64(0x10000)))
				}
			}, unix.EFAULT},
			{"ring not mapped", func(_ *rawNode, w *write) {
				if len(w.uhw) >= 48 {
					copy(w.uhw[40:], bytesOf(uint64(0x10000)))
				}
			}, unix.EFAULT},
		}},
		"EX_CREATE_QP RSS": {func() write { return r.createRSS(o) }, []mistake{
			machine("CAP_NET_RAW", func(c *LinuxConfig) { c.NoNetRaw = true }, unix.EPERM),
			set32("table", 56, nobody, unix.ENOENT),
			set32("receive fields", 36, 1, unix.EINVAL),
			set32("pd", 8, nobody, unix.ENOENT),
			set32("create_flags nobody knows", 52, 1<<20, unix.EINVAL),
			uhwLen("driver's part short", 151, unix.EINVAL),
			{"driver's answer short", func(_ *rawNode, w *write) { w.uhwOut = 3 }, unix.EINVAL},
			uhwLen("driver's tail", 160, unix.EINVAL),
			uhw32("driver's flags", 148, 1, unix.EINVAL),
			set32("create_flags", 52, 0x100, unix.EINVAL),
			uhw32("driver's comp_mask", 144, 1, unix.EOPNOTSUPP),
			{"inner without tunnel", func(_ *rawNode, w *write) { w.uhw[3] = 0x80 }, unix.EOPNOTSUPP},
			{"function", func(_ *rawNode, w *write) { w.uhw[8] = 2 }, unix.EOPNOTSUPP},
			{"key length", func(_ *rawNode, w *write) { w.uhw[9] = 41 }, unix.EINVAL},
			uhw32("no fields with a table of two", 0, 0, unix.EINVAL),
			uhw32("both versions", 0, 0x5, unix.EINVAL),
			uhw32("two kinds of L4", 0, 0x53, unix.EINVAL),
		}},
		"MODIFY_QP": {func() write {
			return write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1, core: bytesOf(uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: 0x21, QPState: 0, CurQPState: 0, PortNum: 1})}
		}, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("mask nobody knows", 68, 0x2000021, unix.EOPNOTSUPP),
			set32("qp", 64, nobody, unix.ENOENT),
			{"port", func(_ *rawNode, w *write) { w.core[104] = 2 }, unix.EINVAL},
			{"state", func(_ *rawNode, w *write) { w.core[96] = 7 }, unix.EINVAL},
			set32("rss", 64, o.rss, unix.ENOSYS),
			{"driver's part short", func(_ *rawNode, w *write) { w.uhw = make([]byte, 15) }, unix.EINVAL},
			{"driver's comp_mask", func(_ *rawNode, w *write) {
				if len(w.uhw) == 0 {
					w.uhw = bytesOf(uverbs.Mlx5ModifyQPReq{CompMask: 1})
				}
			}, unix.EOPNOTSUPP},
			{"reset needs no port", func(_ *rawNode, w *write) {}, unix.EINVAL},
		}},
		"EX_CREATE_WQ": {func() write { return r.createWQ(o) }, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("comp_mask", 0, 1, unix.EOPNOTSUPP),
			set32("pd", 16, nobody, unix.ENOENT),
			set32("cq", 20, nobody, unix.ENOENT),
			{"driver's answer short", func(_ *rawNode, w *write) { w.uhwOut = 7 }, unix.EINVAL},
			{"delay drop", func(r *rawNode, w *write) { w.core[32] |= 4; r.linux.cfg.NoRawIO = true }, unix.EPERM},
			set32("type", 4, 1, unix.EINVAL),
			uhwLen("driver's part short", 39, unix.EINVAL),
			uhwLen("driver's tail", 52, unix.EOPNOTSUPP),
			uhw32("driver's comp_mask", 32, 2, unix.EOPNOTSUPP),
			{"stride", func(_ *rawNode, w *write) {
				if len(w.uhw) >= 48 {
					w.uhw[32] |= 1
					w.uhw[36] = 20
				}
			}, unix.EINVAL},
			set32("max_wr", 24, 1<<15+1, unix.EINVAL),
			uhw32("count", 16, 0, unix.EINVAL),
			{"no buffer", func(_ *rawNode, w *write) { clear(w.uhw[:8]) }, unix.EINVAL},
			{"buffer not mapped", func(_ *rawNode, w *write) { copy(w.uhw, bytesOf(uint64(0x10000))) }, unix.EFAULT},
			{"record not mapped", func(_ *rawNode, w *write) { copy(w.uhw[8:], bytesOf(uint64(0x10000))) }, unix.EFAULT},
		}},
		"EX_MODIFY_WQ": {func() write {
			return write{cmd: uverbs.ExCmdModifyWQ, out: -1, uhwOut: -1, uhw: make([]byte, 8), core: bytesOf(uverbs.ExModifyWQReq{AttrMask: 1, WQHandle: o.wq})}
		}, []mistake{
			tail(unix.EOPNOTSUPP),
			set32("no mask", 0, 0, unix.EINVAL),
			set32("mask", 0, 8, unix.EINVAL),
			set32("wq", 4, nobody, unix.ENOENT),
			set32("state", 8, 3, unix.EINVAL),
			uhwLen("driver's part short", 7, unix.EINVAL),
			{"driver's part not zero", func(_ *rawNode, w *write) { w.uhw[0] = 1 }, unix.EOPNOTSUPP},
			{"padding", func(_ *rawNode, w *write) { w.core[0] |= 4; w.core[20] = 8 }, unix.EOPNOTSUPP},
			{"wrong current state", func(_ *rawNode, w *write) { w.core[0] |= 2; w.core[12] = 1 }, unix.EINVAL},
		}},
		"IND_TBL": {func() write { return r.createTable(o) }, []mistake{
			set32("comp_mask", 0, 1, unix.EOPNOTSUPP),
			set32("log too large for anybody", 4, 14, unix.EINVAL),
			set32("more entries than given", 4, 3, unix.ENOSPC),
			tail(unix.EOPNOTSUPP),
			set32("wq", 12, nobody, unix.ENOENT),
			{"driver's part", func(_ *rawNode, w *write) { w.uhw = []byte{1, 0, 0, 0, 0, 0, 0, 0} }, unix.EOPNOTSUPP},
		}},
		"EX_CREATE_FLOW": {func() write { return r.createFlow(o) }, []mistake{
			set32("comp_mask", 0, 1, unix.EINVAL),
			machine("CAP_NET_RAW", func(c *LinuxConfig) { c.NoNetRaw = true }, unix.EPERM),
			set32("flags", 20, 8, unix.EINVAL),
			{"copy of leftovers", func(_ *rawNode, w *write) { w.core[8], w.core[20] = 1, w.core[20]|2 }, unix.EINVAL},
			{"too many specs", func(_ *rawNode, w *write) { w.core[16] = 11 }, unix.EINVAL},
			{"reserved", func(_ *rawNode, w *write) { w.core[17] = 1 }, unix.EINVAL},
			tail(unix.EOPNOTSUPP),
			{"port", func(_ *rawNode, w *write) { w.core[19] = 2 }, unix.EINVAL},
			set32("qp", 4, nobody, unix.ENOENT),
			set32("spec nobody knows", flowIPv4At, 0x38, unix.EINVAL),
			{"driver's part short", func(_ *rawNode, w *write) { w.uhw = make([]byte, 7) }, unix.EOPNOTSUPP},
			{"priority", func(_ *rawNode, w *write) { w.core[14] = 16 }, unix.ENOMEM},
			{"sniffer", func(_ *rawNode, w *write) {
				if w.core[8] == 0 {
					w.core[8] = 3
				}
			}, unix.EOPNOTSUPP},
			{"type and IP differ", func(_ *rawNode, w *write) { w.core[flowEthAt+8+13] = 6 }, unix.EINVAL},
			{"TTL", func(_ *rawNode, w *write) { w.core[flowIPv4At+20+10] = 0xff }, unix.EOPNOTSUPP},
			{"value outside mask", func(_ *rawNode, w *write) { w.core[flowEthAt+8+6] = 1 }, unix.EINVAL},
		}},
	}
}

// order is a command that succeeds, and its mistakes in order.
type order struct {
	make     func() write
	mistakes []mistake
}

func TestOrderOfChecks(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	o := r.objects()
	cfg := r.linux.cfg
	for name, order := range orders(r, o) {
		for i, first := range order.mistakes {
			t.Run(name+"/"+first.name, func(t *testing.T) {
				for _, second := range append([]mistake{{"nothing else", func(*rawNode, *write) {}, 0}}, order.mistakes[i+1:]...) {
					r.at = 1 << 19
					r.linux.cfg = cfg
					w := order.make()
					second.make(r, &w)
					first.make(r, &w)
					pinned, handles := r.linux.pinned.Load(), len(r.node.handles)
					if errno := r.do(&w); errno != first.errno {
						t.Errorf("with %s: %v, want %v", second.name, errno, first.errno)
					}
					if now := r.linux.pinned.Load(); now != pinned || len(r.node.handles) != handles {
						t.Fatalf("with %s: %d pages stay pinned, %d handles", second.name, now-pinned, len(r.node.handles)-handles)
					}
				}
			})
		}
	}
	r.linux.cfg = cfg
}

// Every command that the order test breaks works when nothing is wrong.
func TestCommandsWork(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	o := r.objects()
	for name, order := range orders(r, o) {
		if name == "MODIFY_QP" {
			continue // its base is a wrong transition, to be changed by nothing
		}
		r.at = 1 << 19
		w := order.make()
		if errno := r.do(&w); errno != 0 {
			t.Errorf("%s: %v", name, errno)
		}
	}
}

// The header and the attributes are checked before anything else, in this order.
func TestOrderOfHeader(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	base := func() []byte {
		return r.command(uverbs.ObjectDevice, uverbs.MethodInvokeWrite,
			uverbs.IoctlAttr{AttrID: uverbs.AttrWriteCmd, Len: 8, Flags: 1, Data: uint64(uverbs.CmdAllocPD)},
			r.input(uverbs.AttrCoreIn, atCore, make([]byte, 8)), r.output(uverbs.AttrCoreOut, atOut, 4), r.output(uverbs.AttrUHWOut, atUHWOut, 4))
	}
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.NativeEndian.PutUint16(b[at:], v); return b }
	}
	const attr0, attr1, attr2 = 24, 40, 56
	steps := []struct {
		name  string
		spoil func([]byte) []byte
		errno unix.Errno
	}{
		{"length", put16(0, 100), unix.EINVAL},
		{"reserved1", put16(8, 1), unix.EPROTONOSUPPORT},
		{"reserved2", put16(20, 1), unix.EPROTONOSUPPORT},
		{"driver", put16(16, 2), unix.EINVAL},
		{"object", put16(2, 99), unix.EPROTONOSUPPORT},
		{"attribute nobody knows", put16(attr0, 9), unix.EPROTONOSUPPORT},
		{"attribute data", put16(attr0+6, 1), unix.EINVAL},
		{"attribute length", put16(attr0+2, 4), unix.EINVAL},
		{"attribute twice", put16(attr1, uverbs.AttrWriteCmd), unix.EINVAL},
		{"command", put16(attr0+8, 250), unix.EOPNOTSUPP},
		{"core out short", put16(attr2+2, 3), unix.ENOSPC},
	}
	for i, first := range steps {
		for j := i; j < len(steps); j++ {
			b := base()
			if j > i {
				b = steps[j].spoil(b)
			}
			b = first.spoil(b)
			if errno := r.ioctl(b); errno != first.errno {
				t.Errorf("%s with %s: %v, want %v", first.name, steps[j].name, errno, first.errno)
			}
		}
	}
	if errno := r.ioctl(base()); errno != 0 {
		t.Errorf("the command itself: %v", errno)
	}
	if errno := r.ioctl(base()[:20]); errno != unix.EFAULT {
		t.Errorf("a header cut short: %v", errno)
	}
	if errno := r.ioctl(base()[:60]); errno != unix.EFAULT {
		t.Errorf("attributes cut short: %v", errno)
	}
	optional := append(base(), bytesOf(uverbs.IoctlAttr{AttrID: 77})...)
	put16(0, uint16(len(optional)))(optional)
	put16(6, 5)(optional)
	if errno := r.ioctl(optional); errno != 0 {
		t.Errorf("with an unknown attribute that is optional: %v", errno)
	}
}

// Before there is a context nearly everything is EINVAL; unknown handles are
// looked up first.
func TestNoContext(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	o := objects{}
	probe := write{cmd: uverbs.CmdQueryDevice, out: -1, uhwOut: -1}
	if errno := r.do(&probe); errno != unix.ENOSPC {
		t.Errorf("the probe: %v, want %v", errno, unix.ENOSPC)
	}
	for name, w := range map[string]write{
		"QUERY_DEVICE": {cmd: uverbs.CmdQueryDevice, core: make([]byte, 8), out: 176, uhwOut: -1},
		"QUERY_PORT":   {cmd: uverbs.CmdQueryPort, core: make([]byte, 16), out: 40, uhwOut: -1},
		"ALLOC_PD":     {cmd: uverbs.CmdAllocPD, core: make([]byte, 8), out: 4, uhwOut: 4},
		"COMP_CHANNEL": {cmd: uverbs.CmdCreateCompChannel, core: make([]byte, 8), out: 4, uhwOut: -1},
		"CREATE_CQ":    r.createCQ(),
		"CREATE_QP":    r.createQP(o),
		"CREATE_WQ":    r.createWQ(o),
		"REG_MR":       r.regMR(o),
	} {
		if errno := r.do(&w); errno != unix.EINVAL {
			t.Errorf("%s: %v, want %v", name, errno, unix.EINVAL)
		}
	}
	for _, cmd := range []uint32{uverbs.CmdDeallocPD, uverbs.CmdDeregMR, uverbs.CmdDestroyCQ, uverbs.CmdDestroyQP, uverbs.ExCmdDestroyWQ, uverbs.ExCmdDestroyRWQIndTbl, uverbs.ExCmdDestroyFlow} {
		w := destroyCommand(cmd, 0)
		if errno := r.do(&w); errno != unix.ENOENT {
			t.Errorf("destroy %#x: %v, want %v", cmd, errno, unix.ENOENT)
		}
	}
	if _, err := r.node.Mmap(0x300000, 4096, true); err != unix.EINVAL {
		t.Errorf("mmap: %v", err)
	}
}

func TestGetContextChecks(t *testing.T) {
	req := func(change func(*uverbs.Mlx5AllocUcontextReqV2)) []byte {
		v := uverbs.Mlx5AllocUcontextReqV2{TotalNumBfregs: 16, NumLowLatencyBfregs: 15, MaxCQEVersion: 1, LibCaps: 1}
		change(&v)
		return bytesOf(v)
	}
	type ask = uverbs.Mlx5AllocUcontextReqV2
	for _, tt := range []struct {
		name  string
		uhw   []byte
		errno unix.Errno
	}{
		{"as it should be", req(func(*ask) {}), 0},
		{"first version", bytesOf(uint32(16), uint32(0)), 0},
		{"16 bytes", req(func(*ask) {})[:16], 0},
		{"12 bytes", req(func(*ask) {})[:12], unix.EINVAL},
		{"flags", req(func(v *ask) { v.Flags = 2 }), unix.EOPNOTSUPP},
		{"flags before registers", req(func(v *ask) { v.Flags, v.NumLowLatencyBfregs = 2, 99 }), unix.EOPNOTSUPP},
		{"DEVX", req(func(v *ask) { v.Flags = 1 }), unix.EINVAL},
		{"comp_mask", req(func(v *ask) { v.CompMask = 1 }), unix.EOPNOTSUPP},
		{"reserved", req(func(v *ask) { v.Reserved2 = 1 }), unix.EOPNOTSUPP},
		{"all low latency", req(func(v *ask) { v.NumLowLatencyBfregs = 16 }), unix.EINVAL},
		{"none", req(func(v *ask) { v.TotalNumBfregs, v.NumLowLatencyBfregs = 0, 0 }), unix.EINVAL},
		{"too many", req(func(v *ask) { v.TotalNumBfregs = 513 }), unix.ENOMEM},
		{"as many as can be", req(func(v *ask) { v.TotalNumBfregs, v.NumLowLatencyBfregs = 512, 511 }), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
			if errno := r.getContext(tt.uhw, 72); errno != tt.errno {
				t.Errorf("%v, want %v", errno, tt.errno)
			}
			again := unix.EINVAL
			if tt.errno != 0 {
				again = 0 // nothing is left of the failed one
			}
			if errno := r.getContext(contextRequest(16, 15), 72); errno != again {
				t.Errorf("once more: %v, want %v", errno, again)
			}
		})
	}
}

// Each object in use refuses to go, and goes once its users have.
func TestHandlesDestroyOrder(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	o := r.objects()
	all := []struct {
		name        string
		cmd, handle uint32
	}{
		{"flow", uverbs.ExCmdDestroyFlow, o.flow},
		{"rss", uverbs.CmdDestroyQP, o.rss},
		{"table", uverbs.ExCmdDestroyRWQIndTbl, o.table},
		{"wq", uverbs.ExCmdDestroyWQ, o.wq},
		{"qp", uverbs.CmdDestroyQP, o.qp},
		{"cq", uverbs.CmdDestroyCQ, o.cq},
		{"mr", uverbs.CmdDeregMR, o.mr},
		{"pd", uverbs.CmdDeallocPD, o.pd},
	}
	free := map[string]bool{"flow": true, "qp": true, "mr": true}
	for i, x := range all {
		for _, later := range all[i:] {
			if later.name == x.name || free[later.name] {
				continue
			}
			w := destroyCommand(later.cmd, later.handle)
			if errno := r.do(&w); errno != unix.EBUSY {
				t.Errorf("destroy %s before %s: %v, want %v", later.name, x.name, errno, unix.EBUSY)
			}
		}
		for _, want := range []unix.Errno{0, unix.ENOENT} {
			w := destroyCommand(x.cmd, x.handle)
			if errno := r.do(&w); errno != want {
				t.Errorf("destroy %s: %v, want %v", x.name, errno, want)
			}
		}
	}
	if got := r.linux.pinned.Load(); got != 0 {
		t.Errorf("%d pages stay pinned", got)
	}
}

// A handle of another kind is EINVAL, one nobody has ENOENT; 5.4 does not tell
// them apart except when destroying.
func TestHandlesOfOtherKinds(t *testing.T) {
	for release, want := range map[Release][2]unix.Errno{Linux612: {unix.EINVAL, unix.ENOENT}, Linux54: {unix.EINVAL, unix.EINVAL}, Linux72: {unix.EINVAL, unix.ENOENT}} {
		t.Run(fmt.Sprint(release), func(t *testing.T) {
			r := newRawNode(t, Config{Seed: 1}, LinuxConfig{Release: release})
			r.open()
			o := r.objects()
			for i, handle := range []uint32{o.cq, nobody} {
				bad := o
				bad.pd = handle
				for name, w := range map[string]write{"REG_MR": r.regMR(bad), "CREATE_WQ": r.createWQ(bad), "CREATE_QP": r.createQP(bad)} {
					if errno := r.do(&w); errno != want[i] {
						t.Errorf("%s with pd %#x: %v, want %v", name, handle, errno, want[i])
					}
				}
			}
			w := destroyCommand(uverbs.CmdDeallocPD, nobody)
			if errno := r.do(&w); errno != unix.ENOENT {
				t.Errorf("destroy nobody: %v", errno)
			}
		})
	}
}
