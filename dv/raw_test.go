package dv_test

import (
	"bytes"
	"net"
	"os"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A bare sender and a bare receiver: rings written by hand, to do what the queues of this package
// never would.

// rawSide is what both have: a context, a registered region and a completion queue of 16 entries.
type rawSide struct {
	t     testing.TB
	ctx   *uverbs.Context
	pd    *uverbs.PD
	mem   *mmio.Region
	mr    *uverbs.MR
	cq    *uverbs.CQ
	cqMem *mmio.Region
	ci    uint32
}

// Where things are in the memory of a side.
const (
	rawFrameAt = 0
	rawEntries = 16
)

// Rings begin with a page.
var (
	rawPart     = max(0x2000, os.Getpagesize())
	rawRingAt   = rawPart
	rawCQAt     = 2 * rawPart
	rawRecordAt = 3 * rawPart
	rawMemLen   = 4 * rawPart
)

func newRawSide(t testing.TB, open func() (uverbs.Kernel, error)) *rawSide {
	t.Helper()
	k, err := open()
	if err != nil {
		t.Fatal(err)
	}
	s := &rawSide{t: t}
	s.ctx = must(uverbs.Open(k, uverbs.Options{}))(t)
	t.Cleanup(func() {
		if err := s.ctx.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	s.mem = must(mmio.Alloc(rawMemLen))(t)
	t.Cleanup(func() { s.mem.Close() })
	s.pd = must(s.ctx.AllocPD())(t)
	s.mr = must(s.pd.RegMR(s.mem.Sub(rawFrameAt, 0x1000), uverbs.AccessLocalWrite))(t)
	s.cqMem = s.mem.Sub(rawCQAt, rawEntries*mlx5.CQESize)
	for i := range rawEntries {
		s.cqMem.Bytes()[i*mlx5.CQESize+mlx5.CQESize-1] = mlx5.OpOwn(mlx5.CQEInvalid, 0, 0, 1)
	}
	s.cq = must(s.ctx.CreateCQ(uverbs.CQAttr{Entries: rawEntries, Buf: s.cqMem,
		DBR: s.mem.Sub(rawRecordAt, 8)}))(t)
	return s
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// completion is a copy of the next completion, nil if there is none.
func (s *rawSide) completion() *mlx5.CQE {
	at := int(s.ci%rawEntries) * mlx5.CQESize
	last := byte(s.cqMem.LoadBE32(at + mlx5.CQEOwnWord))
	if last>>4 == byte(mlx5.CQEInvalid) || uint32(last&1) != s.ci/rawEntries&1 {
		return nil
	}
	s.ci++
	s.mem.StoreBE32(rawRecordAt, s.ci)
	return (*mlx5.CQE)(bytes.Clone(s.cqMem.Slice(at, mlx5.CQESize)))
}

// await is the next completion, which must come.
func (s *rawSide) await(what string) (c *mlx5.CQE) {
	s.t.Helper()
	eventually(s.t, "completion of "+what, func() bool { c = s.completion(); return c != nil })
	return c
}

// awaitSyndrome wants an error completion.
func (s *rawSide) awaitSyndrome(what string, want mlx5.Syndrome) {
	s.t.Helper()
	if c := s.await(what); !c.Opcode().IsError() || c.Syndrome() != want {
		s.t.Errorf("%s: %v, want syndrome %v", what, c, want)
	}
}

// rawSender is a send ring of 64 blocks.
type rawSender struct {
	*rawSide
	qp   *uverbs.QP
	ring *mmio.Region
	pc   uint16
}

func newRawSender(t testing.TB, open func() (uverbs.Kernel, error)) *rawSender {
	t.Helper()
	s := &rawSender{rawSide: newRawSide(t, open)}
	s.ring = s.mem.Sub(rawRingAt, 64*mlx5.BB)
	s.qp = must(s.pd.CreateRawQP(uverbs.QPAttr{CQ: s.cq, Entries: 64, SQBuf: s.ring,
		DBR: s.mem.Sub(rawRecordAt+64, 8), UserIndex: 1}))(t)
	return s
}

// send posts a frame of n bytes at an address and rings. What the device wants inline is that of
// the frame in the memory of the side.
func (s *rawSender) send(lkey uint32, addr uint64, n int) {
	w, inline := s.ring.Slice(int(s.pc%64)*mlx5.BB, mlx5.BB), s.ctx.Caps().MinInline
	clear(w)
	ds := 2 + mlx5.EthDS(inline)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, s.pc, s.qp.SQN, uint8(ds), mlx5.CEAlways)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{InlineLen: uint16(inline)})
	if inline > 0 {
		mlx5.PutInlineHeader(w[mlx5.CtrlSegSize:], s.mem.Slice(rawFrameAt, inline))
	}
	mlx5.PutData(w[(ds-1)*mlx5.DSSize:], uint32(n-inline), lkey, addr+uint64(inline))
	s.pc++
	mmio.ToDevice()
	s.mem.StoreBE32(rawRecordAt+64+mlx5.RecordSend, uint32(s.pc))
	mmio.ToDevice()
	s.qp.Reg.Store64(s.qp.RegOffset, mlx5.Doorbell(w))
}

// sendFrame sends a frame of n bytes to dst.
func (s *rawSender) sendFrame(dst net.HardwareAddr, n int) {
	copy(s.mem.Slice(rawFrameAt, n), frame(dst, peerMAC, 0x88b5, n))
	s.send(s.mr.LKey, s.mem.Addr()+rawFrameAt, n)
}

// rewind prepares ring and record for a queue pair that was reset.
func (s *rawSender) rewind() {
	s.pc = 0
	s.mem.StoreBE32(rawRecordAt+64+mlx5.RecordSend, 0)
}

// rawReceiver is a receive ring of 16 entries that gets the frames of one address.
type rawReceiver struct {
	*rawSide
	wq   *uverbs.WQ
	ring *mmio.Region
	pc   uint32
}

func newRawReceiver(t testing.TB, open func() (uverbs.Kernel, error),
	mac net.HardwareAddr) *rawReceiver {
	t.Helper()
	r := &rawReceiver{rawSide: newRawSide(t, open)}
	r.ring = r.mem.Sub(rawRingAt, rawEntries*mlx5.DataSegSize)
	r.wq = must(r.pd.CreateWQ(uverbs.WQAttr{CQ: r.cq, Entries: rawEntries, Buf: r.ring,
		DBR: r.mem.Sub(rawRecordAt+64, 8), UserIndex: 2}))(t)
	table := must(r.ctx.CreateIndirectionTable([]*uverbs.WQ{r.wq}, 0))(t)
	rss := must(r.pd.CreateRSSQP(uverbs.RSSAttr{Table: table}))(t)
	must(rss.CreateFlow(uverbs.FlowAttr{Specs: []uverbs.FlowSpec{uverbs.EthMatch{Dst: [6]byte(mac),
		DstMask: uverbs.ExactMAC}.Spec()}}))(t)
	return r
}

// post gives the device a buffer of n bytes at an address.
func (r *rawReceiver) post(lkey uint32, addr uint64, n int) {
	mlx5.PutData(r.ring.Slice(int(r.pc%rawEntries)*mlx5.DataSegSize, mlx5.DataSegSize), uint32(n),
		lkey, addr)
	r.pc++
	mmio.ToDevice()
	r.mem.StoreBE32(rawRecordAt+64, r.pc)
}

// postGood gives the device a buffer of 2 KiB in the region.
func (r *rawReceiver) postGood() { r.post(r.mr.LKey, r.mem.Addr()+rawFrameAt, 2048) }

// rewind prepares ring and record for a queue that was reset.
func (r *rawReceiver) rewind() {
	r.pc = 0
	r.mem.StoreBE32(rawRecordAt+64, 0)
}
