package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"golang.org/x/sys/unix"
)

// Commands that a C program built from the uapi headers (linux-libc-dev). Addresses are filled in
// before use.
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

// put64 fills in an address.
func put64(b []byte, at int, v uint64) []byte {
	binary.NativeEndian.PutUint64(b[at:], v)
	return b
}

// put32 fills in a handle.
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

// The whole command sequence that creates a queue of each kind, in the bytes of the headers'
// structs, and its replies.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		need.That(t, "little-endian", errors.New("the vectors are of a little-endian machine"))
	}
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.linux.page = fourKiB
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
	wantBytes(t, "core's answer", r.mem.Slice(atOut, 16),
		hexBytes("08000000 00000000 01000000 00000000"))
	wantBytes(t, "driver's answer", r.mem.Slice(atUHWOut, 72),
		hexBytes(`00000400 00020000 10000000 40000000 00040002 00800000 00800000 00800000
		01000000 20000000 48000000 01030100 00000000 00000000 0c000000 01000000 00040000 00000000`))
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
	// PD 1 remains. The vectors expect CQ 2, QP 3, WQ 4, table 6, RSS QP 7. New handles are the
	// lowest free ones, so 0 is used first.
	filler := put32(bytesOf(uverbs.RegMRReq{}), 32, 1)
	addr := r.alloc(4096)
	put64(put64(put64(filler, 8, addr), 16, 4096), 24, addr)
	mr := r.must(write{cmd: uverbs.CmdRegMR, core: filler, out: 12, uhwOut: -1})
	if h := u32(mr.gotOut, 0); h != 0 {
		t.Errorf("the lowest free handle is given as %d", h)
	}

	channel := r.must(write{cmd: uverbs.CmdCreateCompChannel,
		core: make([]byte, 8), out: 4, uhwOut: -1})
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
	qp := r.must(write{cmd: uverbs.ExCmdCreateQP, core: hexBytes(vecQP),
		out: 40, uhw: uhw, uhwOut: 40})
	sqn := u32(qp.gotOut, 4)
	wantBytes(t, "CREATE_QP's answer", qp.gotOut, bytesOf(uint32(3), sqn, uint32(512), uint32(0),
		uint32(1), uint32(0), uint32(0), uint32(0), uint32(0), uint32(40)))
	wantBytes(t, "CREATE_QP's driver answer", qp.gotUH, append([]byte{1}, make([]byte, 39)...))
	if _, known := r.linux.nic.SQ(sqn); !known {
		t.Errorf("QPN %#x is no send queue's number", sqn)
	}
	r.must(write{cmd: uverbs.CmdModifyQP, core: append(make([]byte, 64), hexBytes(vecToInit)...),
		out: -1, uhwOut: -1})

	uhw = hexBytes(vecWQUHW)
	put64(put64(uhw, 0, r.alloc(8192)), 8, records+0x80)
	wq := r.must(write{cmd: uverbs.ExCmdCreateWQ, core: hexBytes(vecWQ),
		out: 24, uhw: uhw, uhwOut: 8})
	rqn := u32(wq.gotOut, 20)
	wantBytes(t, "CREATE_WQ's answer", wq.gotOut, bytesOf(uint32(0), uint32(24), uint32(4),
		uint32(512), uint32(1), rqn))
	wantBytes(t, "CREATE_WQ's driver answer", wq.gotUH, bytesOf(uint32(8), uint32(0)))
	r.must(write{cmd: uverbs.ExCmdModifyWQ, core: hexBytes(vecWQRdy),
		uhw: make([]byte, 8), out: -1, uhwOut: -1})
	if rq, known := r.linux.nic.RQ(rqn); !known || rq.State() != simnic.StateReady {
		t.Errorf("receive queue %#x: %v", rqn, known)
	}

	one := put32(hexBytes("00000000 00000000 04000000 00000000"), 8, 4)
	for want := uint32(5); want <= 6; want++ {
		table := r.must(write{cmd: uverbs.ExCmdCreateRWQIndTbl, core: one, out: 16, uhwOut: -1})
		wantBytes(t, "IND_TBL's answer", table.gotOut[:12], bytesOf(uint32(0), uint32(16), want))
	}
	rss := r.must(write{cmd: uverbs.ExCmdCreateQP, core: hexBytes(vecRSS), out: 40,
		uhw: append(hexBytes(vecRSSUHW), make([]byte, 88)...), uhwOut: 40})
	wantBytes(t, "RSS QP's answer", rss.gotOut,
		append([]byte{7}, append(make([]byte, 35), 40, 0, 0, 0)...))
	flow := r.must(write{cmd: uverbs.ExCmdCreateFlow, core: hexBytes(vecFlow), out: 8, uhwOut: -1})
	wantBytes(t, "CREATE_FLOW's answer", flow.gotOut, bytesOf(uint32(0), uint32(8)))
	if n := r.linux.nic.Objects().Flows; n != 1 {
		t.Errorf("%d rules in force", n)
	}
}
