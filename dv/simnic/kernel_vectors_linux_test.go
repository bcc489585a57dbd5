package simnic

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// Commands as a C program made them from the uapi headers (linux-libc-dev), with
// addresses that are put right before use.
const (
	vecGetContext = `58000000 03000400 00000000 00000000 01000000 00000000 00000400 01000000
		00001111 11111111 01000800 01000000 08001111 11111111 00102000 01000000
		10001111 11111111 01104800 01000000 30001111 11111111`
	vecUcontext  = `10000000 0f000000 00000000 00000000 01000000 00000000 01000000 00000000`
	vecDeallocPD = `38000000 00000200 00000000 00000000 01000000 00000000 00000400 01000000
		05000000 00000000 02000800 01000000 04000000 00000000`
	vecCQ    = `c1000000 00000000 ff030000 00000000 09000000 00000000 00000000 00000000`
	vecCQUHW = `00000100 007f0000 40000200 007f0000 40000000 00000000`
	vecQP    = `a1000000 00000000 01000000 02000000 02000000 00000000 00020000 00000000
		01000000 00000000 00000000 00080000 00000000 00000000 00000000 00000000`
	vecQPUHW = `00000000 00000000 00000200 007f0000 00040000 00000000 00000000 00000000
		01000000 00000000 00000300 007f0000`
	vecToInit = `03000000 21000000 00000000 00000000 00000000 00000000 00000000 00000000 01000000 00000000 01000000 00000000`
	vecWQ     = `00000000 00000000 b1000000 00000000 01000000 02000000 00020000 01000000 00000000 00000000`
	vecWQUHW  = `00000400 007f0000 80000200 007f0000 00020000 04000000 02000000 00000000 00000000 00000000 00000000 00000000`
	vecWQRdy  = `03000000 04000000 01000000 00000000 00000000 00000000`
	vecRSS    = `a2000000 00000000 01000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 00000000 00080000 01000000 00000000 06000000 00000000`
	vecRSSUHW = `33000000 00000000 01280000 00000000 6d5a56da 255b0ec2 4167253d 43a38fb0
		d0ca2bcb ae7b30b4 77cb2da3 8030f20c 6a42b73b beac01fa 00000000 00000000`
	vecFlow = `00000000 07000000 00000000 58000000 03000001 00000000 20000000 28000000
		02000000 00010000 00000000 08000000 ffffffff ffff0000 00000000 ffff0000
		30000000 20000000 00000000 c0a80102 00000000 00000000 ffffffff 00000000
		40000000 10000000 00500000 ffff0000`
)

// put64 puts an address right.
func put64(b []byte, at int, v uint64) []byte {
	binary.NativeEndian.PutUint64(b[at:], v)
	return b
}

// put32 puts a handle right.
func put32(b []byte, at int, v uint32) []byte {
	binary.NativeEndian.PutUint32(b[at:], v)
	return b
}

func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s is\n%x, want\n%x", what, got, want)
	}
}

// The whole conversation of bringing a queue of each kind up, in the bytes of
// the headers' structs, and its answers.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the vectors are little-endian")
	}
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	base := r.mem.Addr()

	copy(r.mem.Slice(atUHW, 32), hexBytes(vecUcontext))
	clear(r.mem.Slice(atOut, 16))
	ioctl := hexBytes(vecGetContext)
	for i, at := range []int{atOut, atOut + 8, atUHW, atUHWOut} {
		put64(ioctl, 24+16*i+8, base+uint64(at))
	}
	if errno := r.ioctl(ioctl); errno != 0 {
		t.Fatalf("GET_CONTEXT: %v", errno)
	}
	wantBytes(t, "core's answer", r.mem.Slice(atOut, 16), hexBytes("08000000 00000000 01000000 00000000"))
	wantBytes(t, "driver's answer", r.mem.Slice(atUHWOut, 72), hexBytes(`00000400 00020000 10000000 40000000 00040002 00800000 00800000 00800000
		01000000 00000000 48000000 01030100 00000000 00000000 0c000000 01000000 00040000 00000000`))
	for i, at := range []int{28, 44, 76} {
		if flags := r.mem.Bytes()[at]; flags != 3 {
			t.Errorf("output %d has flags %d, want valid and mandatory", i, flags)
		}
	}

	if errno := r.ioctl(hexBytes(vecDeallocPD)); errno != unix.ENOENT {
		t.Errorf("DEALLOC_PD of nobody: %v", errno)
	}
	for i := range 6 {
		w := r.must(write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8), out: 8, uhwOut: 4})
		wantBytes(t, "ALLOC_PD's answer", w.gotOut, bytesOf(uint32(i), uint32(0)))
	}
	if errno := r.ioctl(hexBytes(vecDeallocPD)); errno != 0 {
		t.Errorf("DEALLOC_PD: %v", errno)
	}
	for _, pd := range []uint32{0, 2, 3, 4} {
		r.must(destroyCommand(uverbs.CmdDeallocPD, pd))
	}
	// PD 1 is left. The vectors want CQ 2, QP 3, WQ 4, table 6, RSS QP 7: handles
	// are the lowest free ones, so 0 is filled first.
	filler := put32(bytesOf(uverbs.RegMRReq{}), 32, 1)
	addr := r.alloc(4096)
	put64(put64(put64(filler, 8, addr), 16, 4096), 24, addr)
	mr := r.must(write{cmd: uverbs.CmdRegMR, core: filler, out: 12, uhwOut: -1})
	if h := u32(mr.gotOut, 0); h != 0 {
		t.Errorf("the lowest free handle is given as %d", h)
	}

	channel := r.must(write{cmd: uverbs.CmdCreateCompChannel, core: make([]byte, 8), out: 4, uhwOut: -1})
	fd := u32(channel.gotOut, 0)
	defer unix.Close(int(fd))
	records := r.alloc(4096)
	core, uhw := put32(hexBytes(vecCQ), 16, fd), hexBytes(vecCQUHW)
	put64(put64(uhw, 0, r.alloc(64<<10)), 8, records+0x40)
	cq := r.must(write{cmd: uverbs.ExCmdCreateCQ, core: core, out: 16, uhw: uhw, uhwOut: 8})
	wantBytes(t, "CREATE_CQ's answer", cq.gotOut, hexBytes("02000000 ff030000 00000000 10000000"))
	if cqn := u32(cq.gotUH, 0); cqn == 0 || cqn >= 1<<24 {
		t.Errorf("CQN is %#x", cqn)
	}

	uhw = hexBytes(vecQPUHW)
	put64(put64(uhw, 8, records), 40, r.alloc(64<<10))
	qp := r.must(write{cmd: uverbs.ExCmdCreateQP, core: hexBytes(vecQP), out: 40, uhw: uhw, uhwOut: 40})
	sqn := u32(qp.gotOut, 4)
	wantBytes(t, "CREATE_QP's answer", qp.gotOut, bytesOf(uint32(3), sqn, uint32(512), uint32(0), uint32(1), uint32(0), uint32(0), uint32(0), uint32(0), uint32(40)))
	wantBytes(t, "CREATE_QP's driver answer", qp.gotUH, append([]byte{1}, make([]byte, 39)...))
	if _, known := r.linux.nic.SQ(sqn); !known {
		t.Errorf("QPN %#x is no send queue's number", sqn)
	}
	r.must(write{cmd: uverbs.CmdModifyQP, core: append(make([]byte, 64), hexBytes(vecToInit)...), out: -1, uhwOut: -1})

	uhw = hexBytes(vecWQUHW)
	put64(put64(uhw, 0, r.alloc(8192)), 8, records+0x80)
	wq := r.must(write{cmd: uverbs.ExCmdCreateWQ, core: hexBytes(vecWQ), out: 24, uhw: uhw, uhwOut: 8})
	rqn := u32(wq.gotOut, 20)
	wantBytes(t, "CREATE_WQ's answer", wq.gotOut, bytesOf(uint32(0), uint32(24), uint32(4), uint32(512), uint32(1), rqn))
	wantBytes(t, "CREATE_WQ's driver answer", wq.gotUH, bytesOf(uint32(8), uint32(0)))
	r.must(write{cmd: uverbs.ExCmdModifyWQ, core: hexBytes(vecWQRdy), uhw: make([]byte, 8), out: -1, uhwOut: -1})
	if rq, known := r.linux.nic.RQ(rqn); !known || rq.State() != StateReady {
		t.Errorf("receive queue %#x: %v", rqn, known)
	}

	one := put32(hexBytes("00000000 00000000 04000000 00000000"), 8, 4)
	for want := uint32(5); want <= 6; want++ {
		table := r.must(write{cmd: uverbs.ExCmdCreateRWQIndTbl, core: one, out: 16, uhwOut: -1})
		wantBytes(t, "IND_TBL's answer", table.gotOut[:12], bytesOf(uint32(0), uint32(16), want))
	}
	rss := r.must(write{cmd: uverbs.ExCmdCreateQP, core: hexBytes(vecRSS), out: 40, uhw: append(hexBytes(vecRSSUHW), make([]byte, 88)...), uhwOut: 40})
	wantBytes(t, "RSS QP's answer", rss.gotOut, append([]byte{7}, append(make([]byte, 35), 40, 0, 0, 0)...))
	flow := r.must(write{cmd: uverbs.ExCmdCreateFlow, core: hexBytes(vecFlow), out: 8, uhwOut: -1})
	wantBytes(t, "CREATE_FLOW's answer", flow.gotOut, bytesOf(uint32(0), uint32(8)))
	if n := len(r.linux.nic.steering.flows); n != 1 {
		t.Errorf("%d rules in force", n)
	}
}

// Registers of the doorbells: numbers of queue pairs, offsets of pages.
func TestDoorbellRegisters(t *testing.T) {
	if os.Getpagesize() != 4096 {
		t.Skip("the numbers are for pages of 4 KiB")
	}
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	o := r.objects() // has taken register 1
	var got []uint32
	var qps []uint32
	for range 16 {
		w := r.must(r.createQP(o))
		got = append(got, u32(w.gotUH, 0))
		qps = append(qps, u32(w.gotOut, 0))
	}
	want := []uint32{4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29, 0, 0} // then all share register 0
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("registers %v, want %v", got, want)
			break
		}
	}
	r.must(destroyCommand(uverbs.CmdDestroyQP, qps[3]))
	if w := r.must(r.createQP(o)); u32(w.gotUH, 0) != 9 {
		t.Errorf("register %d is given again as %d", 9, u32(w.gotUH, 0))
	}
	for _, tt := range []struct {
		name   string
		offset int64
		length int
		write  bool
		errno  error
	}{
		{"first page", 0x300000, 4096, true, nil},
		{"last page", 0x307000, 4096, true, nil},
		{"one too far", 0x308000, 4096, true, unix.EINVAL},
		{"page 256 and on", 0x1300000 << 4, 4096, true, unix.EINVAL},
		{"write-combining", 0x200000, 4096, true, nil},
		{"either", 0, 4096, true, nil},
		{"two pages", 0x300000, 8192, true, unix.EINVAL},
		{"inside a page", 0x300001, 4096, true, unix.EINVAL},
		{"contiguous", 0x100000, 4096, true, unix.ENOSYS},
		{"clock", 0x500000, 4096, true, unix.EPERM},
		{"clock, to read", 0x500000, 4096, false, unix.EOPNOTSUPP},
		{"nothing", 0x900000, 4096, true, unix.EINVAL},
		{"negative", -4096, 4096, true, unix.EINVAL},
	} {
		p, err := r.node.Mmap(tt.offset, tt.length, tt.write)
		if err != tt.errno || (p == nil) != (err != nil) {
			t.Errorf("mmap %s: %v, %v, want %v", tt.name, p, err, tt.errno)
		}
	}
	r.linux.cfg.NoWriteCombining = true
	if _, err := r.node.Mmap(0x200000, 4096, true); err != unix.EPERM {
		t.Errorf("write-combining on a machine without: %v", err)
	}
}

// A medium class of registers is shared evenly.
func TestSharedDoorbellRegisters(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	if errno := r.getContext(contextRequest(4, 1), 72); errno != 0 {
		t.Fatal(errno)
	}
	o := r.objects() // has the only private one, register 3
	var got []uint32
	for range 4 {
		got = append(got, u32(r.must(r.createQP(o)).gotUH, 0))
	}
	if got[0] != 1 || got[1] != 4 || got[2] != 1 || got[3] != 4 {
		t.Errorf("registers %v, want 1 4 1 4", got)
	}
}

// Steps of a queue pair that has both queues, and of one that only sends.
func TestQueuePairStates(t *testing.T) {
	type step struct {
		mask    uint32
		state   uint8
		errno   unix.Errno
		rq, sq  State
		verbs   uint8
		comment string
	}
	steps := []step{
		{1, 1, unix.EINVAL, StateReset, StateReset, 0, "INIT without a port"},
		{0x21, 2, unix.EINVAL, StateReset, StateReset, 0, "RTR from RESET"},
		{1, 6, unix.EINVAL, StateReset, StateReset, 0, "ERR from RESET"},
		{1, 0, 0, StateReset, StateReset, 0, "RESET from RESET"},
		{0x21, 1, 0, StateReady, StateReset, 1, "INIT: receiving starts"},
		{0x21, 2, unix.EINVAL, StateReady, StateReset, 1, "RTR with a port"},
		{1, 3, unix.EINVAL, StateReady, StateReset, 1, "RTS from INIT"},
		{1, 2, 0, StateReady, StateReset, 2, "RTR"},
		{1, 3, 0, StateReady, StateReady, 3, "RTS: sending starts"},
		{1, 3, 0, StateReady, StateReady, 3, "RTS again"},
		{1, 4, unix.EINVAL, StateReady, StateReady, 3, "SQD"},
		{1, 6, 0, StateError, StateError, 6, "ERR"},
		{1, 3, unix.EINVAL, StateError, StateError, 6, "RTS from ERR"},
		{1, 0, 0, StateReset, StateReset, 0, "RESET"},
	}
	for _, both := range []bool{true, false} {
		r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
		r.open()
		o := r.objects()
		w := r.createQP(o)
		if both {
			put32(put32(w.core, 28, 64), 36, 1)
			put64(put32(put32(w.uhw, 20, 64), 24, 4), 0, r.alloc(1024))
		}
		h := u32(r.must(w).gotOut, 0)
		_, q, _ := find[*qp](r.node, uverbs.ObjectQP, h)
		for _, s := range steps {
			m := write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1, core: bytesOf(uverbs.ModifyQPReq{QPHandle: h, AttrMask: s.mask, QPState: s.state, PortNum: 1})}
			if errno := r.do(&m); errno != s.errno {
				t.Errorf("%s: %v, want %v", s.comment, errno, s.errno)
			}
			if got := q.sq.State(); got != s.sq {
				t.Errorf("%s: send queue %v, want %v", s.comment, got, s.sq)
			}
			if both {
				if got := q.rq.State(); got != s.rq {
					t.Errorf("%s: receive queue %v, want %v", s.comment, got, s.rq)
				}
			}
			ask := r.must(write{cmd: uverbs.CmdQueryQP, out: 128, uhwOut: -1, core: bytesOf(uverbs.QueryQPReq{QPHandle: h, AttrMask: 1})})
			if got := ask.gotOut[108]; got != s.verbs || ask.gotOut[109] != s.verbs || ask.gotOut[116] != 1 {
				t.Errorf("%s: QUERY_QP says state %d, want %d", s.comment, got, s.verbs)
			}
		}
	}
}

// A send queue that failed by itself: the kernel presents a stale state until
// QUERY_QP has told it better.
func TestQueuePairRecovery(t *testing.T) {
	r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
	r.open()
	o := r.objects()
	move := func(mask uint32, state uint8) unix.Errno {
		w := write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1, core: bytesOf(uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: mask, QPState: state, PortNum: 1})}
		return r.do(&w)
	}
	for _, s := range [][2]uint32{{0x21, 1}, {1, 2}, {1, 3}} {
		if errno := move(s[0], uint8(s[1])); errno != 0 {
			t.Fatal(errno)
		}
	}
	sq, _ := r.linux.nic.SQ(o.qpn)
	if err := sq.Modify(StateReady, StateError); err != nil {
		t.Fatal(err)
	}
	if errno := move(1, 0); errno != unix.EINVAL {
		t.Errorf("RESET with a stale state: %v, want %v", errno, unix.EINVAL)
	}
	ask := r.must(write{cmd: uverbs.CmdQueryQP, out: 128, uhwOut: -1, core: bytesOf(uverbs.QueryQPReq{QPHandle: o.qp, AttrMask: 1})})
	if ask.gotOut[108] != 3 {
		t.Errorf("QUERY_QP says state %d, want RTS", ask.gotOut[108])
	}
	for _, s := range [][2]uint32{{1, 0}, {0x21, 1}, {1, 2}, {1, 3}} {
		if errno := move(s[0], uint8(s[1])); errno != 0 {
			t.Errorf("to state %d: %v", s[1], errno)
		}
	}
	if sq.State() != StateReady {
		t.Errorf("send queue is %v", sq.State())
	}
	if errno := move(0x2000001, 3); errno != unix.EOPNOTSUPP {
		t.Errorf("a rate by the older command: %v", errno)
	}
	rate := write{cmd: uverbs.ExCmdModifyQP, out: 8, uhwOut: -1, core: bytesOf(uverbs.ExModifyQPReq{Base: uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: 0x2000001, QPState: 3}, RateLimit: 1000})}
	if errno := r.do(&rate); errno != unix.EOPNOTSUPP {
		t.Errorf("a rate: %v", errno)
	}
	rate.core[112], rate.core[113] = 0, 0
	rate.core[114] = 0
	if errno := r.do(&rate); errno != 0 {
		t.Errorf("no rate: %v", errno)
	}
}

// What the releases differ in.
func TestReleases(t *testing.T) {
	native := func(r *rawNode, object, method uint16) unix.Errno {
		return r.ioctl(r.command(object, method, uverbs.IoctlAttr{AttrID: 0, Flags: 1}))
	}
	t.Run("5.4", func(t *testing.T) {
		r := newRawNode(t, Config{Seed: 1}, LinuxConfig{Release: Linux54})
		if errno := r.getContext(contextRequest(16, 15), 72); errno != unix.EPROTONOSUPPORT {
			t.Errorf("native GET_CONTEXT: %v", errno)
		}
		r.open()
		if errno := native(r, uverbs.ObjectAsyncEvent, 0); errno != unix.EPROTONOSUPPORT {
			t.Errorf("ASYNC_EVENT_ALLOC: %v", errno)
		}
		o := r.objects()
		w := r.regMR(o)
		put32(w.core, 36, 1|uverbs.AccessRelaxedOrdering)
		if errno := r.do(&w); errno != unix.EINVAL {
			t.Errorf("relaxed ordering: %v", errno)
		}
		w = r.createFlow(o)
		w.core[19] = 9
		if errno := r.do(&w); errno != 0 {
			t.Errorf("a port nobody has: %v", errno)
		}
		w = r.createFlow(o)
		w.core[flowIPv4At+20+10] = 0xff
		if errno := r.do(&w); errno != 524 {
			t.Errorf("TTL: %v, want ENOTSUPP", errno)
		}
		_, q, _ := find[*wq](r.node, uverbs.ObjectWQ, o.wq)
		if q.user != 0 {
			t.Errorf("user handle %#x is kept", q.user)
		}
	})
	t.Run("6.12", func(t *testing.T) {
		r := newRawNode(t, Config{Seed: 1}, LinuxConfig{})
		w := write{cmd: uverbs.CmdGetContext, core: make([]byte, 8), out: 8, uhw: contextRequest(16, 15), uhwOut: 72}
		if errno := r.do(&w); errno != 0 {
			t.Fatalf("GET_CONTEXT by INVOKE_WRITE: %v", errno)
		}
		if fd := int(u32(w.gotOut, 0)); unix.Close(fd) != nil {
			t.Errorf("its event descriptor is %d", fd)
		}
		pd := write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8), out: 4, uhwOut: -1}
		if errno := r.do(&pd); errno != unix.EFAULT {
			t.Errorf("ALLOC_PD without room for the driver: %v", errno)
		}
	})
	t.Run("7.2", func(t *testing.T) {
		r := newRawNode(t, Config{Seed: 1}, LinuxConfig{Release: Linux72})
		w := write{cmd: uverbs.CmdGetContext, core: make([]byte, 8), out: 8, uhw: contextRequest(16, 15), uhwOut: 72}
		before := openFDs(t)
		if errno := r.do(&w); errno != unix.EBADF {
			t.Errorf("GET_CONTEXT by INVOKE_WRITE: %v", errno)
		}
		if after := openFDs(t); after != before {
			t.Errorf("%d descriptors are left behind", after-before)
		}
		r.open()
		if support := u32(r.mem.Slice(atOut+64, 8), 0); support != 3 {
			t.Errorf("core support is %#x", support)
		}
		cq := r.createCQ()
		cq.uhw = append(cq.uhw, append(make([]byte, 8), 1, 0, 0, 0)...)
		if errno := r.do(&cq); errno != unix.EOPNOTSUPP {
			t.Errorf("driver data nobody knows: %v", errno)
		}
	})
}

// Features the device or the machine lacks.
func TestMissingFeatures(t *testing.T) {
	caps := DefaultCaps()
	caps.MultiPathFlows, caps.StridingRQ, caps.Compression, caps.VLANStrip, caps.CQModeration, caps.DelayDrop = false, false, false, false, false, false
	r := newRawNode(t, Config{Seed: 1, Caps: caps}, LinuxConfig{})
	r.open()
	o := r.objects()
	flow := r.createFlow(o)
	flow.core[20] = 2
	striding := r.createWQ(o)
	put32(put32(put32(striding.uhw, 32, 1), 36, 11), 40, 9)
	compressed := r.createCQ()
	compressed.uhw[20], compressed.uhw[21] = 1, 1
	strip, drop := r.createWQ(o), r.createWQ(o)
	strip.core[32], drop.core[32] = 1, 4
	for name, w := range map[string]write{
		"DONT_TRAP": flow, "striding": striding, "compression": compressed, "VLAN strip": strip, "delay drop": drop,
		"moderation": {cmd: uverbs.ExCmdModifyCQ, out: -1, uhwOut: -1, core: bytesOf(uverbs.ExModifyCQReq{CQHandle: o.cq, AttrMask: 1, CQCount: 1})},
	} {
		if errno := r.do(&w); errno != unix.EOPNOTSUPP {
			t.Errorf("%s: %v, want %v", name, errno, unix.EOPNOTSUPP)
		}
	}
	for name, cfg := range map[string]LinuxConfig{"other driver": {DriverID: uverbs.DriverRXE}} {
		r := newRawNode(t, Config{Seed: 1}, cfg)
		b := r.command(uverbs.ObjectDevice, uverbs.MethodGetContext)
		put32(b, 16, uverbs.DriverMLX5)
		if errno := r.ioctl(b); errno != unix.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
}
