package kernel

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// The header and the attributes are checked before anything else, in this order.
func TestOrderOfHeader(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	base := func() []byte {
		return r.command(uverbs.ObjectDevice, uverbs.MethodInvokeWrite,
			uverbs.IoctlAttr{AttrID: uverbs.AttrWriteCmd, Len: 8, Flags: 1,
				Data: uint64(uverbs.CmdAllocPD)},
			r.input(uverbs.AttrCoreIn, atCore, make([]byte, 8)),
			r.output(uverbs.AttrCoreOut, atOut, 4), r.output(uverbs.AttrUHWOut, atUHWOut, 4))
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
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	o := objects{}
	probe := write{cmd: uverbs.CmdQueryDevice, out: -1, uhwOut: -1}
	if errno := r.do(&probe); errno != unix.ENOSPC {
		t.Errorf("the probe: %v, want %v", errno, unix.ENOSPC)
	}
	for name, w := range map[string]write{
		"QUERY_DEVICE": {cmd: uverbs.CmdQueryDevice, core: make([]byte, 8), out: 176, uhwOut: -1},
		"QUERY_PORT":   {cmd: uverbs.CmdQueryPort, core: make([]byte, 16), out: 40, uhwOut: -1},
		"ALLOC_PD":     {cmd: uverbs.CmdAllocPD, core: make([]byte, 8), out: 4, uhwOut: 4},
		"COMP_CHANNEL": {cmd: uverbs.CmdCreateCompChannel,
			core: make([]byte, 8), out: 4, uhwOut: -1},
		"CREATE_CQ": r.createCQ(),
		"CREATE_QP": r.createQP(o),
		"CREATE_WQ": r.createWQ(o),
		"REG_MR":    r.regMR(o),
	} {
		if errno := r.do(&w); errno != unix.EINVAL {
			t.Errorf("%s: %v, want %v", name, errno, unix.EINVAL)
		}
	}
	for _, cmd := range []uint32{uverbs.CmdDeallocPD, uverbs.CmdDeregMR, uverbs.CmdDestroyCQ,
		uverbs.CmdDestroyQP, uverbs.ExCmdDestroyWQ, uverbs.ExCmdDestroyRWQIndTbl,
		uverbs.ExCmdDestroyFlow} {
		w := destroyCommand(cmd, 0)
		if errno := r.do(&w); errno != unix.ENOENT {
			t.Errorf("destroy %#x: %v, want %v", cmd, errno, unix.ENOENT)
		}
	}
	if _, err := r.node.Mmap(0x300*int64(os.Getpagesize()), os.Getpagesize(),
		true); err != unix.EINVAL {
		t.Errorf("mmap: %v", err)
	}
}

func TestGetContextChecks(t *testing.T) {
	req := func(change func(*uverbs.Mlx5AllocUcontextReqV2)) []byte {
		v := uverbs.Mlx5AllocUcontextReqV2{TotalNumBfregs: 16, NumLowLatencyBfregs: 15,
			MaxCQEVersion: 1, LibCaps: 1}
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
		{"flags before registers", req(func(v *ask) { v.Flags, v.NumLowLatencyBfregs = 2, 99 }),
			unix.EOPNOTSUPP},
		{"DEVX", req(func(v *ask) { v.Flags = 1 }), unix.EINVAL},
		{"comp_mask", req(func(v *ask) { v.CompMask = 1 }), unix.EOPNOTSUPP},
		{"reserved", req(func(v *ask) { v.Reserved2 = 1 }), unix.EOPNOTSUPP},
		{"all low latency", req(func(v *ask) { v.NumLowLatencyBfregs = 16 }), unix.EINVAL},
		{"none", req(func(v *ask) { v.TotalNumBfregs, v.NumLowLatencyBfregs = 0, 0 }), unix.EINVAL},
		{"too many", req(func(v *ask) { v.TotalNumBfregs = 513 }), unix.ENOMEM},
		{"as many as can be", req(func(v *ask) {
			v.TotalNumBfregs,
				v.NumLowLatencyBfregs = 512, 511
		}), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
			if errno := r.getContext(tt.uhw, 72); errno != tt.errno {
				t.Errorf("%v, want %v", errno, tt.errno)
			}
			again := unix.EINVAL
			if tt.errno != 0 {
				again = 0 // the failed command left nothing
			}
			if errno := r.getContext(contextRequest(16, 15), 72); errno != again {
				t.Errorf("once more: %v, want %v", errno, again)
			}
		})
	}
}

// Destroying an object in use fails, and succeeds once its users are destroyed.
func TestHandlesDestroyOrder(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
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

// A handle of another kind is EINVAL, a free one ENOENT; 5.4 does not tell them apart except when
// destroying.
func TestHandlesOfOtherKinds(t *testing.T) {
	for release, want := range map[Release][2]unix.Errno{Linux612: {unix.EINVAL, unix.ENOENT},
		Linux54: {unix.EINVAL, unix.EINVAL}, Linux72: {unix.EINVAL, unix.ENOENT}} {
		t.Run(fmt.Sprint(release), func(t *testing.T) {
			r := newRawNode(t, simnic.Config{Seed: 1}, Config{Release: release})
			r.open()
			o := r.objects()
			for i, handle := range []uint32{o.cq, nobody} {
				bad := o
				bad.pd = handle
				for name, w := range map[string]write{"REG_MR": r.regMR(bad),
					"CREATE_WQ": r.createWQ(bad), "CREATE_QP": r.createQP(bad)} {
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
