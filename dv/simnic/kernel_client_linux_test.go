package simnic

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// client is the uverbs client library on a software NIC, with memory for queues.
type client struct {
	t   *testing.T
	nic *NIC
	ctx *uverbs.Context
	pd  *uverbs.PD
	mem *mmio.Region // cut up by take
	at  int
}

func newClient(t *testing.T, cfg Config, linux LinuxConfig) *client {
	t.Helper()
	nic, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nic.Close() })
	return openClient(t, nic, NewLinux(nic, linux))
}

func openClient(t *testing.T, nic *NIC, linux *Linux) *client {
	t.Helper()
	k, err := linux.OpenNode()
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, nic: nic}
	if c.ctx, err = uverbs.Open(k, uverbs.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.ctx.Close() })
	if c.pd, err = c.ctx.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if c.mem, err = mmio.Alloc(1 << 20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.mem.Close() })
	return c
}

// take gives out memory, page by page.
func (c *client) take(n int) *mmio.Region {
	r := c.mem.Sub(c.at, n)
	c.at += (n + 4095) &^ 4095
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

// cq makes a completion queue of n entries, none of which looks valid.
func (c *client) cq(n int, ch *uverbs.CompChannel) (*uverbs.CQ, *mmio.Region, *mmio.Region) {
	c.t.Helper()
	buf, dbr := c.take(n*64), c.take(8)
	for i := range n {
		buf.Bytes()[i*64+63] = mlx5.OpOwn(mlx5.CQEInvalid, 0, 0, 1)
	}
	q := must(c.ctx.CreateCQ(uverbs.CQAttr{Entries: n, Buf: buf, DBR: dbr, Channel: ch, UserHandle: 0xc1}))(c.t)
	return q, buf, dbr
}

// A frame goes from one NIC's send queue to another NIC's receive queue, all of
// it set up through ioctls, and the event descriptor wakes the receiver.
func TestFrameThroughTheNode(t *testing.T) {
	a, b := newClient(t, Config{Seed: 1}, LinuxConfig{}), newClient(t, Config{Seed: 2}, LinuxConfig{})
	wa, wb := Pair()
	if err := a.nic.ConnectWire(wa); err != nil {
		t.Fatal(err)
	}
	if err := b.nic.ConnectWire(wb); err != nil {
		t.Fatal(err)
	}
	mac := [6]byte{2, 0, 0, 0, 0, 2}

	// Receiver.
	ch := must(b.ctx.CreateCompChannel())(t)
	rxCQ, rxBuf, rxCQDBR := b.cq(8, ch)
	ring, dbr, frames := b.take(8*16), b.take(8), b.take(8*2048)
	mr := must(b.pd.RegMR(frames, uverbs.AccessLocalWrite))(t)
	wq := must(b.pd.CreateWQ(uverbs.WQAttr{CQ: rxCQ, Entries: 8, Buf: ring, DBR: dbr, UserIndex: 5}))(t)
	for i := range 8 {
		mlx5.PutData(ring.Slice(i*16, 16), 2048, mr.LKey, frames.Addr()+uint64(i)*2048)
	}
	dbr.StoreBE32(0, 8)
	if err := wq.Ready(); err != nil {
		t.Fatal(err)
	}
	table := must(b.ctx.CreateIndirectionTable([]*uverbs.WQ{wq}, 0))(t)
	rss := must(b.pd.CreateRSSQP(uverbs.RSSAttr{Table: table}))(t)
	flow := must(rss.CreateFlow(uverbs.FlowAttr{Specs: []uverbs.FlowSpec{uverbs.EthMatch{Dst: mac, DstMask: uverbs.ExactMAC}.Spec()}}))(t)
	word := mlx5.ArmWord(0, false, 0)
	rxCQDBR.StoreBE32(4, word)
	rxCQ.ArmPage.Store64(rxCQ.ArmOffset, mlx5.ArmDoorbell(word, rxCQ.CQN))

	// Sender.
	txCQ, txBuf, _ := a.cq(8, nil)
	sqBuf, sqDBR, payload := a.take(64*64), a.take(8), a.take(2048)
	txMR := must(a.pd.RegMR(payload, 0))(t)
	qp := must(a.pd.CreateRawQP(uverbs.QPAttr{CQ: txCQ, Entries: 64, SQBuf: sqBuf, DBR: sqDBR, UserIndex: 7}))(t)
	if err := qp.ToReady(1); err != nil {
		t.Fatal(err)
	}
	frame := payload.Slice(0, 100)
	copy(frame, mac[:])
	copy(frame[6:], []byte{2, 0, 0, 0, 0, 1, 0x88, 0xb5})
	for i := 14; i < len(frame); i++ {
		frame[i] = byte(i)
	}
	wqe := sqBuf.Slice(0, 64)
	mlx5.PutCtrl(wqe, mlx5.OpSend, 0, 0, qp.SQN, 3, mlx5.CEAlways)
	mlx5.PutEth(wqe[16:], mlx5.Eth{})
	mlx5.PutData(wqe[32:], 100, txMR.LKey, payload.Addr())
	sqDBR.StoreBE32(4, 1)
	qp.Reg.Store64(qp.RegOffset, mlx5.Doorbell(wqe))

	if n, err := ch.Wait(); n != 1 || err != nil {
		t.Fatalf("wait: %d, %v", n, err)
	}
	if c := mlx5.CQE(txBuf.Slice(0, 64)); c.Opcode() != mlx5.CQEReq || c.UIdx() != 7 {
		t.Errorf("send completion is %v", c)
	}
	rx := mlx5.CQE(rxBuf.Slice(0, 64))
	if rx.Opcode() != mlx5.CQERecv || rx.ByteCount() != 100 || rx.UIdx() != 5 {
		t.Errorf("receive completion is %v", rx)
	}
	if string(frames.Slice(0, 100)) != string(frame) {
		t.Errorf("received %x", frames.Slice(0, 100))
	}
	for _, c := range []interface{ Close() error }{flow, rss, table, wq, rxCQ, mr, b.pd, qp, txCQ, txMR, a.pd} {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
	for _, c := range []*client{a, b} {
		if v := c.nic.Violations(); len(v) != 0 {
			t.Errorf("violations: %v", v)
		}
	}
}
