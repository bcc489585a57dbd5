package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// client is the uverbs client library on a software NIC, with memory for queues.
type client struct {
	t   *testing.T
	nic *simnic.NIC
	ctx *uverbs.Context
	pd  *uverbs.PD
	mem *mmio.Region // cut up by take
	at  int
}

func newClient(t *testing.T, cfg simnic.Config, linux Config) *client {
	t.Helper()
	nic := newTestNIC(t, cfg)
	return openClient(t, nic, New(nic, linux))
}

// openClient opens the node like another process. Its objects are destroyed before the NIC is
// closed.
func openClient(t *testing.T, nic *simnic.NIC, linux *Linux) *client {
	t.Helper()
	c := &client{t: t, nic: nic, mem: must(mmio.Alloc(64 * max(16<<10, os.Getpagesize())))(t)}
	t.Cleanup(func() { _ = c.mem.Close() })
	c.ctx = must(uverbs.Open(must(linux.OpenNode())(t), uverbs.Options{}))(t)
	t.Cleanup(func() { _ = c.ctx.Close() })
	c.pd = must(c.ctx.AllocPD())(t)
	return c
}

// alloc allocates memory in whole pages.
func (c *client) alloc(n int) *mmio.Region {
	r := c.mem.Sub(c.at, n)
	c.at += wholePages(n)
	return r
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// connect connects the ports of two clients.
func connect(t *testing.T, a, b *client) {
	t.Helper()
	wa, wb := wire.Pair()
	if err := errors.Join(a.nic.ConnectWire(wa), b.nic.ConnectWire(wb)); err != nil {
		t.Fatal(err)
	}
}

// clientCQ is a completion queue with its memory and its consumer counter.
type clientCQ struct {
	*uverbs.CQ
	buf, dbr *mmio.Region
	n, ci    int
}

// cq makes a completion queue of n entries, none of which looks valid.
func (c *client) cq(n int, ch *uverbs.CompChannel) *clientCQ {
	c.t.Helper()
	q := &clientCQ{buf: c.alloc(n * 64), dbr: c.alloc(8), n: n}
	for i := range n {
		q.buf.Bytes()[i*64+63] = mlx5.OpOwn(mlx5.CQEInvalid, 0, 0, 1)
	}
	q.CQ = must(c.ctx.CreateCQ(uverbs.CQAttr{Entries: n, Buf: q.buf, DBR: q.dbr,
		Channel: ch, UserHandle: 0xc1}))(c.t)
	return q
}

// next returns the next completion, nil if there is none.
func (q *clientCQ) next() *mlx5.CQE {
	e := (*mlx5.CQE)(q.buf.Slice(q.ci%q.n*64, 64))
	if e.Opcode() == mlx5.CQEInvalid || int(e.Owner()) != q.ci/q.n&1 {
		return nil
	}
	q.ci++
	q.dbr.StoreBE32(0, uint32(q.ci)&mlx5.RecordIndexMask)
	return e
}

// arm requests an event for the next completion, the sn-th event so far.
func (q *clientCQ) arm(sn uint32) {
	word := mlx5.ArmWord(sn, false, uint32(q.ci))
	q.dbr.StoreBE32(4, word)
	q.ArmPage.Store64(q.ArmOffset, mlx5.ArmDoorbell(word, q.CQN))
}

var testMAC = [6]byte{2, 0, 0, 0, 0, 2}

// receiver is a receive side: 8 buffers of 2 KiB for frames to testMAC.
type receiver struct {
	cq     *clientCQ
	wq     *uverbs.WQ
	mr     *uverbs.MR
	dbr    *mmio.Region
	frames *mmio.Region
	table  *uverbs.IndTable
	rss    *uverbs.QP
	flow   *uverbs.Flow
}

func (c *client) receiver(ch *uverbs.CompChannel) *receiver {
	t := c.t
	t.Helper()
	r := &receiver{cq: c.cq(8, ch), dbr: c.alloc(8), frames: c.alloc(8 * 2048)}
	ring := c.alloc(8 * 16)
	r.mr = must(c.pd.RegMR(r.frames, uverbs.AccessLocalWrite))(t)
	r.wq = must(c.pd.CreateWQ(uverbs.WQAttr{CQ: r.cq.CQ, Entries: 8, Buf: ring, DBR: r.dbr,
		UserIndex: 5, UserHandle: 0xb1}))(t)
	for i := range 8 {
		mlx5.PutData(ring.Slice(i*16, 16), 2048, r.mr.LKey, r.frames.Addr()+uint64(i)*2048)
	}
	r.dbr.StoreBE32(0, 8)
	if err := r.wq.Ready(); err != nil {
		t.Fatal(err)
	}
	r.table = must(c.ctx.CreateIndirectionTable([]*uverbs.WQ{r.wq}, 0))(t)
	r.rss = must(c.pd.CreateRSSQP(uverbs.RSSAttr{Table: r.table}))(t)
	r.flow = must(r.rss.CreateFlow(toTestMAC()))(t)
	return r
}

func toTestMAC(more ...uverbs.FlowSpec) uverbs.FlowAttr {
	specs := []uverbs.FlowSpec{uverbs.EthMatch{Dst: testMAC, DstMask: uverbs.ExactMAC}.Spec()}
	return uverbs.FlowAttr{Specs: append(specs, more...)}
}

// sender is a send queue of 64 blocks with a payload buffer.
type sender struct {
	cq       *clientCQ
	qp       *uverbs.QP
	mr       *uverbs.MR
	ring     *mmio.Region
	dbr, buf *mmio.Region
	pc       int
}

func (c *client) sender() *sender {
	t := c.t
	t.Helper()
	s := &sender{cq: c.cq(64, nil), ring: c.alloc(64 * 64), dbr: c.alloc(8), buf: c.alloc(2048)}
	s.mr = must(c.pd.RegMR(s.buf, 0))(t)
	s.qp = must(c.pd.CreateRawQP(uverbs.QPAttr{CQ: s.cq.CQ, Entries: 64, SQBuf: s.ring, DBR: s.dbr,
		UserIndex: 7, UserHandle: 0xa1}))(t)
	if err := s.qp.ToReady(1); err != nil {
		t.Fatal(err)
	}
	copy(s.buf.Bytes(), testMAC[:])
	copy(s.buf.Slice(6, 8), []byte{2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	for i := 14; i < 100; i++ {
		s.buf.Bytes()[i] = byte(i)
	}
	return s
}

// frame is the frame that send sends.
func (s *sender) frame() []byte { return s.buf.Slice(0, 100) }

// post writes a WQE and publishes it, without the doorbell.
func (s *sender) post() (wqe []byte) {
	wqe = s.ring.Slice(s.pc%64*64, 64)
	mlx5.PutCtrl(wqe, mlx5.OpSend, 0, uint16(s.pc), s.qp.SQN, 3, mlx5.CEAlways)
	mlx5.PutEth(wqe[16:], mlx5.Eth{})
	mlx5.PutData(wqe[32:], 100, s.mr.LKey, s.buf.Addr())
	s.pc++
	s.dbr.StoreBE32(4, uint32(s.pc)&0xffff)
	return wqe
}

func (s *sender) send() { s.qp.Reg.Store64(s.qp.RegOffset, mlx5.Doorbell(s.post())) }

// A frame goes from one NIC's send queue to another NIC's receive queue, all of
// it set up through ioctls, and the event descriptor wakes the receiver.
func TestFrameThroughTheNode(t *testing.T) {
	a, b := newClient(t, simnic.Config{Seed: 1}, Config{}),
		newClient(t, simnic.Config{Seed: 2}, Config{})
	connect(t, a, b)
	ch := must(b.ctx.CreateCompChannel())(t)
	r, s := b.receiver(ch), a.sender()
	for i := range 20 {
		r.cq.arm(uint32(i))
		s.send()
		if n, err := ch.Wait(); n != 1 || err != nil {
			t.Fatalf("wait: %d, %v", n, err)
		}
		if c := s.cq.next(); c == nil || c.Opcode() != mlx5.CQEReq || c.UIdx() != 7 {
			t.Fatalf("send completion is %v", c)
		}
		c := r.cq.next()
		if c == nil || c.Opcode() != mlx5.CQERecv || c.ByteCount() != 100 || c.UIdx() != 5 {
			t.Fatalf("receive completion is %v", c)
		}
		if got := r.frames.Slice(i%8*2048, 100); !bytes.Equal(got, s.frame()) {
			t.Errorf("received %x", got)
		}
		r.dbr.StoreBE32(0, uint32(i+9))
	}
	for _, o := range []interface{ Close() error }{r.flow, r.rss, r.table, r.wq, r.cq, r.mr,
		b.pd, s.qp, s.cq, s.mr, a.pd} {
		if err := o.Close(); err != nil {
			t.Errorf("close %T: %v", o, err)
		}
	}
	for _, c := range []*client{a, b} {
		if v := c.nic.Violations(); len(v) != 0 {
			t.Errorf("violations: %v", v)
		}
	}
}

// The client library works with every release, and receives events.
func TestClientOnEveryRelease(t *testing.T) {
	for _, release := range []Release{Linux54, Linux612, Linux72} {
		a, b := newClient(t, simnic.Config{Seed: 1}, Config{Release: release}),
			newClient(t, simnic.Config{Seed: 2}, Config{Release: release})
		connect(t, a, b)
		ch := must(b.ctx.CreateCompChannel())(t)
		r, s := b.receiver(ch), a.sender()
		r.cq.arm(0)
		s.send()
		if n, err := ch.Wait(); n != 1 || err != nil || r.cq.next() == nil {
			t.Errorf("release %d: wait: %d, %v", release, n, err)
		}
		b.nic.SetLink(false)
		if e, err := b.ctx.AsyncEvents().ReadEvent(); err != nil ||
			e.Type != uverbs.EventPortError {
			t.Errorf("release %d: event is %v, %v", release, e, err)
		}
	}
}

// Frames of a wire with offload metadata are completed before delivery: a partial checksum is
// computed, an unsegmented frame arrives in segments.
func TestUnfinishedFramesArriveFinished(t *testing.T) {
	c := newClient(t, simnic.Config{Seed: 1}, Config{})
	near, far := wire.PairCarrying(frame.OffloadCsum | frame.OffloadTSO4)
	if err := c.nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	r := c.receiver(nil)
	for _, n := range []int{100, 3000} {
		hdr, l3, l4 := simtest.Header(false, false, 0, n)
		copy(hdr, testMAC[:])
		f := frame.Frame{Data: append(hdr, bytes.Repeat([]byte{7}, n)...), NeedsCsum: true,
			CsumStart: uint16(l4), CsumOffset: 16}
		binary.BigEndian.PutUint16(f.Data[l3+10:], simtest.Checksum(f.Data[l3:l4]))
		p := frame.Parse(f.Data)
		p.SeedChecksum(f.Data)
		segments := 1
		if n > 1460 {
			f.GSO, f.HdrLen, f.MSS, segments = frame.GSOTCPv4, uint16(len(hdr)), 1400, 3
		}
		if _, err := far.Send([]frame.Frame{f}); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for range segments {
			e := r.cq.next()
			if e == nil {
				t.Fatal("a segment is missing")
			}
			if !e.L3OK() || !e.L4OK() {
				t.Errorf("checksums are not vouched for: %v", e)
			}
			frame := r.frames.Slice(int(e.WQECounter())%8*2048, int(e.ByteCount()))
			got = append(got, simtest.CheckFrame(t, frame, l3, l4, false)...)
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{7}, n)) {
			t.Errorf("%d bytes of payload arrived", len(got))
		}
	}
}

// newTestNIC returns a NIC whose counters are checked for consistency at the end of the test.
func newTestNIC(t testing.TB, cfg simnic.Config) *simnic.NIC {
	t.Helper()
	n, err := simnic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.Close()
		if err := n.Counters().Check(); err != nil {
			t.Error(err)
		}
	})
	return n
}
