package kernel

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// Steps of a queue pair that has both queues, and of one that only sends.
func TestQueuePairStates(t *testing.T) {
	type step struct {
		mask    uint32
		state   uint8
		errno   unix.Errno
		rq, sq  simnic.State
		verbs   uint8
		comment string
	}
	steps := []step{
		{1, 1, unix.EINVAL, simnic.StateReset, simnic.StateReset, 0, "INIT without a port"},
		{0x21, 2, unix.EINVAL, simnic.StateReset, simnic.StateReset, 0, "RTR from RESET"},
		{1, 6, unix.EINVAL, simnic.StateReset, simnic.StateReset, 0, "ERR from RESET"},
		{1, 0, 0, simnic.StateReset, simnic.StateReset, 0, "RESET from RESET"},
		{0x21, 1, 0, simnic.StateReady, simnic.StateReset, 1, "INIT: receiving starts"},
		{0x21, 2, unix.EINVAL, simnic.StateReady, simnic.StateReset, 1, "RTR with a port"},
		{1, 3, unix.EINVAL, simnic.StateReady, simnic.StateReset, 1, "RTS from INIT"},
		{1, 2, 0, simnic.StateReady, simnic.StateReset, 2, "RTR"},
		{1, 3, 0, simnic.StateReady, simnic.StateReady, 3, "RTS: sending starts"},
		{1, 3, 0, simnic.StateReady, simnic.StateReady, 3, "RTS again"},
		{1, 4, unix.EINVAL, simnic.StateReady, simnic.StateReady, 3, "SQD"},
		{1, 6, 0, simnic.StateError, simnic.StateError, 6, "ERR"},
		{1, 3, unix.EINVAL, simnic.StateError, simnic.StateError, 6, "RTS from ERR"},
		{1, 0, 0, simnic.StateReset, simnic.StateReset, 0, "RESET"},
	}
	for _, both := range []bool{true, false} {
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
		r.open()
		o := r.objects()
		w := r.createQP(o)
		if both {
			put32(put32(w.core, 28, 64), 36, 1)
			put64(put32(put32(w.uhw, 20, 64), 24, 4), 0, r.alloc(1024))
		}
		h := u32(r.must(w).gotOut, 0)
		_, q, _ := findObject[*qp](r.node, uverbs.ObjectQP, h)
		for _, s := range steps {
			m := write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1,
				core: bytesOf(uverbs.ModifyQPReq{QPHandle: h, AttrMask: s.mask,
					QPState: s.state, PortNum: 1})}
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
			ask := r.must(write{cmd: uverbs.CmdQueryQP, out: 128, uhwOut: -1,
				core: bytesOf(uverbs.QueryQPReq{QPHandle: h, AttrMask: 1})})
			if got := ask.gotOut[108]; got != s.verbs ||
				ask.gotOut[109] != s.verbs || ask.gotOut[116] != 1 {
				t.Errorf("%s: QUERY_QP says state %d, want %d", s.comment, got, s.verbs)
			}
		}
	}
}

// A send queue that failed by itself: the kernel returns a stale state until QUERY_QP updates it.
func TestQueuePairRecovery(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	o := r.objects()
	move := func(mask uint32, state uint8) unix.Errno {
		w := write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1,
			core: bytesOf(uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: mask,
				QPState: state, PortNum: 1})}
		return r.do(&w)
	}
	for _, s := range [][2]uint32{{0x21, 1}, {1, 2}, {1, 3}} {
		if errno := move(s[0], uint8(s[1])); errno != 0 {
			t.Fatal(errno)
		}
	}
	sq, _ := r.linux.nic.SQ(o.qpn)
	if err := sq.Modify(simnic.StateReady, simnic.StateError); err != nil {
		t.Fatal(err)
	}
	if errno := move(1, 0); errno != unix.EINVAL {
		t.Errorf("RESET with a stale state: %v, want %v", errno, unix.EINVAL)
	}
	ask := r.must(write{cmd: uverbs.CmdQueryQP, out: 128, uhwOut: -1,
		core: bytesOf(uverbs.QueryQPReq{QPHandle: o.qp, AttrMask: 1})})
	if ask.gotOut[108] != 3 {
		t.Errorf("QUERY_QP says state %d, want RTS", ask.gotOut[108])
	}
	for _, s := range [][2]uint32{{1, 0}, {0x21, 1}, {1, 2}, {1, 3}} {
		if errno := move(s[0], uint8(s[1])); errno != 0 {
			t.Errorf("to state %d: %v", s[1], errno)
		}
	}
	if sq.State() != simnic.StateReady {
		t.Errorf("send queue is %v", sq.State())
	}
	if errno := move(0x2000001, 3); errno != unix.EOPNOTSUPP {
		t.Errorf("a rate by the older command: %v", errno)
	}
	rate := write{cmd: uverbs.ExCmdModifyQP, out: 8, uhwOut: -1,
		core: bytesOf(uverbs.ExModifyQPReq{Base: uverbs.ModifyQPReq{QPHandle: o.qp,
			AttrMask: 0x2000001, QPState: 3}, RateLimit: 1000})}
	if errno := r.do(&rate); errno != 0 {
		t.Errorf("a rate: %v", errno)
	}
	rate.core[112], rate.core[113] = 0, 0
	rate.core[114] = 0
	if errno := r.do(&rate); errno != 0 {
		t.Errorf("no rate: %v", errno)
	}
}

// Differences between the releases.
func TestReleases(t *testing.T) {
	native := func(r *rawNode, object, method uint16) unix.Errno {
		return r.ioctl(r.command(object, method, uverbs.IoctlAttr{AttrID: 0, Flags: 1}))
	}
	t.Run("5.4", func(t *testing.T) {
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{Release: Linux54})
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
		_, q, _ := findObject[*wq](r.node, uverbs.ObjectWQ, o.wq)
		if q.user != 0 {
			t.Errorf("user handle %#x is kept", q.user)
		}
	})
	t.Run("6.12", func(t *testing.T) {
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
		w := write{cmd: uverbs.CmdGetContext, core: make([]byte, 8), out: 8,
			uhw: contextRequest(16, 15), uhwOut: 72}
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
		r := newRawNode(t, simnic.Config{Seed: 1}, Config{Release: Linux72})
		w := write{cmd: uverbs.CmdGetContext, core: make([]byte, 8), out: 8,
			uhw: contextRequest(16, 15), uhwOut: 72}
		before := openFDs(t)
		if errno := r.do(&w); errno != unix.EBADF {
			t.Errorf("GET_CONTEXT by INVOKE_WRITE: %v", errno)
		}
		if after := openFDs(t); after != before {
			t.Errorf("%d descriptors are left behind", after-before)
		}
		r.open()
		if support := u32(r.mem.Slice(atOut+64, 8), 0); support != 1 {
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
	caps := simnic.DefaultCaps()
	caps.MultiPathFlows, caps.StridingRQ, caps.Compression, caps.VLANStrip, caps.CQModeration,
		caps.DelayDrop = false, false, false, false, false, false
	r := newRawNode(t, simnic.Config{Seed: 1, Caps: caps}, Config{})
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
		"DONT_TRAP": flow, "striding": striding, "compression": compressed,
		"VLAN strip": strip, "delay drop": drop,
		"moderation": {cmd: uverbs.ExCmdModifyCQ, out: -1, uhwOut: -1,
			core: bytesOf(uverbs.ExModifyCQReq{CQHandle: o.cq, AttrMask: 1, CQCount: 1})},
	} {
		if errno := r.do(&w); errno != unix.EOPNOTSUPP {
			t.Errorf("%s: %v, want %v", name, errno, unix.EOPNOTSUPP)
		}
	}
	for name, cfg := range map[string]Config{"other driver": {DriverID: uverbs.DriverRXE}} {
		r := newRawNode(t, simnic.Config{Seed: 1}, cfg)
		b := r.command(uverbs.ObjectDevice, uverbs.MethodGetContext)
		put32(b, 16, uverbs.DriverMLX5)
		if errno := r.ioctl(b); errno != unix.EINVAL {
			t.Errorf("%s: %v", name, errno)
		}
	}
}

// An InfiniBand port: no raw packet capabilities and no raw packet queue pairs.
func TestInfiniBandPort(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{InfiniBand: true})
	r.open()
	port := r.must(write{cmd: uverbs.CmdQueryPort, core: append(make([]byte, 8), 1, 0, 0, 0, 0, 0,
		0, 0), out: 40, uhwOut: -1})
	if port.gotOut[37] != uverbs.LinkLayerInfiniBand {
		t.Errorf("link layer %d", port.gotOut[37])
	}
	var core uverbs.ExQueryDeviceResp
	uverbs.GetStruct(r.must(write{cmd: uverbs.ExCmdQueryDevice, core: make([]byte, 8), out: 304,
		uhwOut: 112}).gotOut, &core)
	if core.RSSCaps.SupportedQPTs != 0 || core.RawPacketCaps != 0 || core.MaxWQTypeRQ != 0 {
		t.Errorf("raw packets are told of: %+v", core)
	}
	o := objects{pd: u32(r.must(write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8),
		out: 4, uhwOut: 4}).gotOut, 0)}
	o.cq = u32(r.must(r.createCQ()).gotOut, 0)
	w := r.createQP(o)
	if errno := r.do(&w); errno != unix.EINVAL {
		t.Errorf("a raw packet queue pair: %v", errno)
	}
}

// The driver's part of QUERY_DEVICE has the parts that fit, and a length that is their sum: too
// short when a part in the middle is left out.
func TestQueryDeviceLengths(t *testing.T) {
	noTSO := simnic.DefaultCaps()
	noTSO.MaxLSO = 0
	for _, tt := range []struct {
		name       string
		caps       simnic.Caps
		release    Release
		room, want int
		errno      unix.Errno
	}{
		{"nothing", simnic.Caps{}, Linux612, -1, 0, 0},
		{"too little", simnic.Caps{}, Linux612, 7, 0, unix.EINVAL},
		{"the head", simnic.Caps{}, Linux612, 8, 8, 0},
		{"TSO", simnic.Caps{}, Linux612, 16, 16, 0},
		{"half of RSS", simnic.Caps{}, Linux612, 24, 16, 0},
		{"all of 6.12", simnic.Caps{}, Linux612, 112, 112, 0},
		{"all of 6.1", simnic.Caps{}, Linux612, 102, 102, 0},
		{"all of 5.4", simnic.Caps{}, Linux54, 112, 100, 0},
		{"all of 7.2", simnic.Caps{}, Linux72, 112, 112, 0},
		{"without TSO", noTSO, Linux612, 112, 104, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRawNode(t, simnic.Config{Seed: 1, Caps: tt.caps}, Config{Release: tt.release})
			r.open()
			w := write{cmd: uverbs.ExCmdQueryDevice, core: make([]byte, 8),
				out: 304, uhwOut: tt.room}
			if errno := r.do(&w); errno != tt.errno {
				t.Fatalf("%v, want %v", errno, tt.errno)
			}
			if tt.want == 0 {
				return
			}
			if got := int(u32(w.gotUH, 4)); got != tt.want {
				t.Errorf("length %d, want %d", got, tt.want)
			}
			for i, b := range w.gotUH[tt.want:] {
				if b != 0xa5 {
					t.Errorf("byte %d behind the answer was written", tt.want+i)
				}
			}
			if legacy := r.must(write{cmd: uverbs.CmdQueryDevice, core: make([]byte, 8), out: 176,
				uhwOut: -1}); string(legacy.gotOut) != string(w.gotOut[:176]) {
				t.Error("the older command answers otherwise")
			}
		})
	}
}

// A reply with less room is cut, one with more room is filled with zeroes.
func TestAnswerLengths(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.linux.page = fourKiB
	r.open()
	w := r.must(write{cmd: uverbs.ExCmdQueryDevice, core: make([]byte, 8), out: 184, uhwOut: -1})
	if got := u32(w.gotOut, 180); got != 184 {
		t.Errorf("response length %d, want 184", got)
	}
	w = r.must(write{cmd: uverbs.ExCmdQueryDevice, core: make([]byte, 8), out: 320, uhwOut: -1})
	if got := u32(w.gotOut, 180); got != 304 {
		t.Errorf("response length %d, want 304", got)
	}
	wantBytes(t, "what follows the answer", w.gotOut[304:], make([]byte, 16))
	over := r.mem.Slice(atOut+320, 16)
	if string(over) != string(hexBytes("a5a5a5a5 a5a5a5a5 a5a5a5a5 a5a5a5a5")) {
		t.Errorf("bytes behind the room were written: %x", over)
	}
	native := r.ioctl(r.command(uverbs.ObjectDevice, uverbs.MethodQueryPort,
		uverbs.IoctlAttr{AttrID: 0, Len: 8, Flags: 1, Data: 1}, r.output(1, atOut, 48)))
	port := r.must(write{cmd: uverbs.CmdQueryPort, core: append(make([]byte, 8), 1, 0, 0, 0, 0, 0,
		0, 0), out: 40, uhwOut: -1})
	if native != 0 || port.gotOut[26] != uverbs.PortStateActive || port.gotOut[28] != 3 {
		t.Errorf("native QUERY_PORT: %v; state %d, RoCE MTU code %d", native,
			port.gotOut[26], port.gotOut[28])
	}
	if errno := r.ioctl(r.command(uverbs.ObjectDevice, uverbs.MethodQueryContext,
		r.output(0, atOut, 4), r.output(1, atOut+64, 8),
		r.output(attrQueryContextOut, atUHWOut, 72))); errno != 0 {
		t.Errorf("QUERY_CONTEXT: %v", errno)
	}
	if got := u32(r.mem.Slice(atUHWOut, 72), 8); got != 16 {
		t.Errorf("QUERY_CONTEXT says %d registers", got)
	}
	o := r.objects()
	handles := r.ioctl(r.command(uverbs.ObjectDevice, methodInfoHandles,
		uverbs.IoctlAttr{AttrID: attrInfoObject, Len: 8, Flags: 1, Data: uint64(uverbs.ObjectQP)},
		r.output(attrInfoTotal, atOut, 4), r.output(attrInfoHandles, atUHWOut, 40)))
	if handles != 0 || u32(r.mem.Slice(atOut, 4), 0) != 2 ||
		u32(r.mem.Slice(atUHWOut, 8), 0) != o.rss || u32(r.mem.Slice(atUHWOut, 8), 4) != o.qp {
		t.Errorf("INFO_HANDLES: %v, %x, %x", handles,
			r.mem.Slice(atOut, 4), r.mem.Slice(atUHWOut, 8))
	}
}
