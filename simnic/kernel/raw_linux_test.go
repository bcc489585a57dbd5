package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// rawNode is an open node with commands given as bytes.
type rawNode struct {
	t     testing.TB
	linux *Linux
	node  *node
	mem   *mmio.Region // the ioctl buffer in its first page, then the blocks it points to
	queue *mmio.Region // memory for queues
	at    int
}

func newRawNode(t testing.TB, cfg simnic.Config, linux Config) *rawNode {
	t.Helper()
	return openRawNode(t, New(newTestNIC(t, cfg), linux))
}

func openRawNode(t testing.TB, l *Linux) *rawNode {
	t.Helper()
	r := &rawNode{t: t, linux: l}
	k, err := l.OpenNode()
	if err != nil {
		t.Fatal(err)
	}
	r.node = k.(*node)
	t.Cleanup(func() { _ = k.Close() })
	for _, m := range []**mmio.Region{&r.mem, &r.queue} {
		if *m, err = mmio.Alloc(max(1<<20, 128*os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*m).Close() })
	}
	return r
}

// wholePages rounds n bytes up to pages.
func wholePages(n int) int {
	page := os.Getpagesize()
	return (n + page - 1) / page * page
}

// alloc allocates queue memory in whole pages.
func (r *rawNode) alloc(n int) uint64 {
	at := r.at
	r.at += wholePages(n)
	return r.queue.Addr() + uint64(at)
}

// hexBytes reads groups of hex digits.
func hexBytes(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// bytesOf is the C layout of uAPI structs, one after the other.
func bytesOf(parts ...any) (b []byte) {
	for _, p := range parts {
		if raw, ok := p.([]byte); ok {
			b = append(b, raw...)
			continue
		}
		c := make([]byte, uverbs.SizeOf(p))
		uverbs.PutStruct(c, p)
		b = append(b, c...)
	}
	return b
}

// ioctl runs a whole buffer.
func (r *rawNode) ioctl(buf []byte) unix.Errno {
	b := r.mem.Slice(0, len(buf))
	copy(b, buf)
	err := r.node.Ioctl(b)
	if err == nil {
		return 0
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		r.t.Fatalf("ioctl returned %T %v", err, err)
	}
	return errno
}

// write is a write command: inputs, and the room for replies in bytes, -1 for no reply. The room is
// poisoned.
type write struct {
	cmd           uint32
	core, uhw     []byte
	out, uhwOut   int
	gotOut, gotUH []byte
}

// Offsets of a write's blocks in the scratch memory.
const (
	atCore   = 4096
	atOut    = 4096 + 64<<10
	atUHW    = 4096 + 128<<10
	atUHWOut = 4096 + 192<<10
)

func (r *rawNode) input(id uint16, at int, b []byte) uverbs.IoctlAttr {
	a := uverbs.IoctlAttr{AttrID: id, Len: uint16(len(b)), Flags: uverbs.AttrMandatory}
	if len(b) <= 8 {
		var v [8]byte
		copy(v[:], b)
		a.Data = binary.NativeEndian.Uint64(v[:])
		return a
	}
	copy(r.mem.Slice(at, len(b)), b)
	a.Data = r.mem.Addr() + uint64(at)
	return a
}

func (r *rawNode) output(id uint16, at, n int) uverbs.IoctlAttr {
	for i := range r.mem.Slice(at, n+16) {
		r.mem.Bytes()[at+i] = 0xa5
	}
	return uverbs.IoctlAttr{AttrID: id, Len: uint16(n), Flags: uverbs.AttrMandatory,
		Data: r.mem.Addr() + uint64(at)}
}

// do runs w and fills in its replies.
func (r *rawNode) do(w *write) unix.Errno {
	attrs := []uverbs.IoctlAttr{{AttrID: uverbs.AttrWriteCmd, Len: 8,
		Flags: uverbs.AttrMandatory, Data: uint64(w.cmd)}}
	if w.core != nil {
		attrs = append(attrs, r.input(uverbs.AttrCoreIn, atCore, w.core))
	}
	if w.out >= 0 {
		attrs = append(attrs, r.output(uverbs.AttrCoreOut, atOut, w.out))
	}
	if w.uhw != nil {
		attrs = append(attrs, r.input(uverbs.AttrUHWIn, atUHW, w.uhw))
	}
	if w.uhwOut >= 0 {
		attrs = append(attrs, r.output(uverbs.AttrUHWOut, atUHWOut, w.uhwOut))
	}
	errno := r.ioctl(r.command(uverbs.ObjectDevice, uverbs.MethodInvokeWrite, attrs...))
	w.gotOut, w.gotUH = r.mem.Slice(atOut, max(0, w.out)), r.mem.Slice(atUHWOut, max(0, w.uhwOut))
	return errno
}

// command is the buffer of an ioctl.
func (r *rawNode) command(object, method uint16, attrs ...uverbs.IoctlAttr) []byte {
	n := 24 + 16*len(attrs)
	b := bytesOf(uverbs.IoctlHdr{Length: uint16(n), ObjectID: object, MethodID: method,
		NumAttrs: uint16(len(attrs)), DriverID: r.linux.cfg.DriverID})
	for _, a := range attrs {
		b = append(b, bytesOf(a)...)
	}
	return b
}

// must runs a command that has to succeed.
func (r *rawNode) must(w write) write {
	r.t.Helper()
	if errno := r.do(&w); errno != 0 {
		r.t.Fatalf("command %#x: %v", w.cmd, errno)
	}
	return w
}

// open creates the context with the command of the release, and returns its reply.
func (r *rawNode) open() (resp uverbs.Mlx5AllocUcontextResp) {
	r.t.Helper()
	req := contextRequest(16, 15)
	if r.linux.isRelease(Linux54) {
		w := r.must(write{cmd: uverbs.CmdGetContext, core: make([]byte, 8),
			out: 8, uhw: req, uhwOut: 72})
		var core uverbs.GetContextResp
		uverbs.GetStruct(w.gotOut, &core)
		r.t.Cleanup(func() { _ = unix.Close(int(core.AsyncFD)) })
		uverbs.GetStruct(w.gotUH, &resp)
		return resp
	}
	if errno := r.getContext(req, 72); errno != 0 {
		r.t.Fatalf("GET_CONTEXT: %v", errno)
	}
	uverbs.GetStruct(r.mem.Slice(atUHWOut, 72), &resp)
	return resp
}

func contextRequest(total, low uint32) []byte {
	return bytesOf(uverbs.Mlx5AllocUcontextReqV2{TotalNumBfregs: total, NumLowLatencyBfregs: low,
		MaxCQEVersion: 1, LibCaps: uverbs.Mlx5LibCap4KUAR})
}

// getContext is the native method.
func (r *rawNode) getContext(uhw []byte, room int) unix.Errno {
	return r.ioctl(r.command(uverbs.ObjectDevice, uverbs.MethodGetContext,
		r.output(uverbs.AttrNumCompVectors, atOut, 4),
		r.output(uverbs.AttrCoreSupport, atOut+64, 8),
		r.input(uverbs.AttrUHWIn, atUHW, uhw), r.output(uverbs.AttrUHWOut, atUHWOut, room)))
}

// objects are one of each kind, created with minimal requests.
type objects struct {
	pd, mr, cq, wq, table, rss, qp, flow uint32
	cqn, qpn                             uint32
}

func u32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }

func (r *rawNode) objects() (o objects) {
	r.t.Helper()
	o.pd = u32(r.must(write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8),
		out: 4, uhwOut: 4}).gotOut, 0)
	o.mr = u32(r.must(r.regMR(o)).gotOut, 0)
	w := r.must(r.createCQ())
	o.cq, o.cqn = u32(w.gotOut, 0), u32(w.gotUH, 0)
	o.wq = u32(r.must(r.createWQ(o)).gotOut, 8)
	o.table = u32(r.must(r.createTable(o)).gotOut, 8)
	o.rss = u32(r.must(r.createRSS(o)).gotOut, 0)
	w = r.must(r.createQP(o))
	o.qp, o.qpn = u32(w.gotOut, 0), u32(w.gotOut, 4)
	o.flow = u32(r.must(r.createFlow(o)).gotOut, 4)
	return o
}

func (r *rawNode) regMR(o objects) write {
	addr := r.alloc(8192)
	return write{cmd: uverbs.CmdRegMR, out: 12, uhwOut: -1,
		core: bytesOf(uverbs.RegMRReq{Start: addr, Length: 8192, HCAVA: addr, PDHandle: o.pd,
			AccessFlags: uverbs.AccessLocalWrite})}
}

func (r *rawNode) createCQ() write {
	return write{cmd: uverbs.ExCmdCreateCQ, out: 16, uhwOut: 8,
		core: bytesOf(uverbs.ExCreateCQReq{UserHandle: 0xc1, CQE: 63, CompChannel: -1}),
		uhw: bytesOf(uverbs.Mlx5CreateCQReq{BufAddr: r.alloc(4096),
			DBAddr: r.alloc(8), CQESize: 64})}
}

func (r *rawNode) createWQ(o objects) write {
	return write{cmd: uverbs.ExCmdCreateWQ, out: 24, uhwOut: -1,
		core: bytesOf(uverbs.ExCreateWQReq{UserHandle: 0xb1, PDHandle: o.pd,
			CQHandle: o.cq, MaxWR: 64, MaxSGE: 1}),
		uhw: bytesOf(uverbs.Mlx5CreateWQReq{BufAddr: r.alloc(1024), DBAddr: r.alloc(8),
			RQWQECount: 64, RQWQEShift: 4, UserIndex: 2})}
}

func (r *rawNode) createTable(o objects) write {
	return write{cmd: uverbs.ExCmdCreateRWQIndTbl, out: 16, uhwOut: -1,
		core: bytesOf(uverbs.ExCreateRWQIndTblReq{LogIndTblSize: 1}, o.wq, o.wq)}
}

func (r *rawNode) createRSS(o objects) write {
	rss := uverbs.Mlx5CreateQPRSSReq{RxHashFieldsMask: uverbs.HashFieldsTCPv4,
		RxHashFunction: uverbs.Mlx5HashToeplitz, RxKeyLen: 40}
	return write{cmd: uverbs.ExCmdCreateQP, out: 40, uhwOut: 40, uhw: bytesOf(rss),
		core: bytesOf(uverbs.ExCreateQPReq{UserHandle: 0xa2, PDHandle: o.pd, QPType: 8, CompMask: 1,
			RWQIndTblHandle: o.table})}
}

func (r *rawNode) createQP(o objects) write {
	return write{cmd: uverbs.ExCmdCreateQP, out: 40, uhwOut: 40,
		core: bytesOf(uverbs.ExCreateQPReq{UserHandle: 0xa1, PDHandle: o.pd, SendCQHandle: o.cq,
			RecvCQHandle: o.cq, MaxSendWR: 64, MaxSendSGE: 1, QPType: 8}),
		uhw: bytesOf(uverbs.Mlx5CreateQPReq{DBAddr: r.alloc(8), SQWQECount: 64, UIDX: 1,
			SQBufAddr: r.alloc(4096)})}
}

// Offsets in the request of createFlow: its Ethernet and IPv4 specification.
const (
	flowEthAt  = 24
	flowIPv4At = 64
)

func (r *rawNode) createFlow(o objects) write {
	eth := uverbs.FlowSpecEth{Hdr: uverbs.FlowSpecHdr{Type: uverbs.FlowSpecTypeEth, Size: 40},
		Val: uverbs.FlowEthFilter{DstMAC: [6]byte{2, 0, 0, 0, 0, 1},
			EtherType: uverbs.ToBE16(0x800)},
		Mask: uverbs.FlowEthFilter{DstMAC: uverbs.ExactMAC, EtherType: uverbs.ToBE16(0xffff)}}
	ip := uverbs.FlowSpecIPv4{Hdr: uverbs.FlowSpecHdr{Type: uverbs.FlowSpecTypeIPv4, Size: 32}}
	return write{cmd: uverbs.ExCmdCreateFlow, out: 8, uhwOut: -1,
		core: bytesOf(uverbs.CreateFlowReq{QPHandle: o.rss, FlowAttr: uverbs.FlowAttrHdr{Size: 72,
			NumOfSpecs: 2, Port: 1}}, eth, ip)}
}

// destroy is a destroying command for a handle.
func destroyCommand(cmd, handle uint32) write {
	h := host32(handle)
	zero := make([]byte, 8)
	switch cmd {
	case uverbs.CmdDeallocPD, uverbs.CmdDeregMR:
		return write{cmd: cmd, core: h, out: -1, uhwOut: -1}
	case uverbs.CmdDestroyCQ:
		return write{cmd: cmd, core: bytesOf(zero, h, zero[:4]), out: 8, uhwOut: -1}
	case uverbs.CmdDestroyQP:
		return write{cmd: cmd, core: bytesOf(zero, h, zero[:4]), out: 4, uhwOut: -1}
	case uverbs.ExCmdDestroyWQ:
		return write{cmd: cmd, core: bytesOf(zero[:4], h), out: 16, uhwOut: -1}
	}
	return write{cmd: cmd, core: bytesOf(zero[:4], h), out: -1, uhwOut: -1}
}
