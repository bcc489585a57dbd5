package simnic

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// end is a NIC with queue pairs that send to its neighbour and receive from it.
type end struct {
	nic   *NIC
	pairs []*pairOfQueues
}

type pairOfQueues struct {
	sq       *testSQ
	tx, rx   *testCQ
	rq       *testRQ
	key      *MKey
	buf      []byte
	addr     uint64
	mac      [6]byte
	received int
}

func newEnd(t testing.TB, w wire.Wire, id byte, n int) *end {
	e := &end{nic: newNIC(t, Config{Seed: uint64(id)})}
	if err := e.nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := mem(t, 64*2048)
		q := &pairOfQueues{tx: newCQ(t, e.nic, 6, nil), rx: newCQ(t, e.nic, 5, nil), buf: m.Bytes(),
			addr: m.Addr(), mac: [6]byte{2, id, 0, 0, 0, byte(i)}}
		q.sq = newSQ(t, e.nic, q.tx, 5, nil)
		q.rq = newRQ(t, e.nic, q.rx, 5, 4, nil)
		q.key = newKey(t, e.nic, m, nil)
		for j := range 32 {
			q.rq.post(seg(2048, q.key.Key(), q.addr+uint64(j)*2048))
		}
		flowTo(t, e.nic, q.mac, newTIR(t, e.nic, TIRAttr{RQ: q.rq.RQ}))
		e.pairs = append(e.pairs, q)
	}
	return e
}

// send posts count numbered frames of size bytes to dst, in bursts.
func (q *pairOfQueues) send(dst [6]byte, count, size int) {
	f := make([]byte, size)
	copy(f, to(dst, q.mac))
	f[12], f[13] = 0x88, 0xb5
	for i := range count {
		slot := 32 + i%32
		binary.BigEndian.PutUint32(f[14:], uint32(i))
		copy(q.buf[slot*2048:], f)
		q.sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0),
			seg(size, q.key.Key(), q.addr+uint64(slot)*2048)))
		if i%8 == 7 || i == count-1 {
			q.sq.doorbell()
			for q.tx.poll() != nil {
			}
		}
	}
}

// receive polls the received frames, checks that their numbers only increase, and reposts the
// buffers.
func (q *pairOfQueues) receive(t testing.TB) (n int) {
	for e := q.rx.poll(); e != nil; e = q.rx.poll() {
		at := int(be16(e[0x3c:])) % 32 * 2048
		if v := int(binary.BigEndian.Uint32(q.buf[at+14:])); v < q.received {
			t.Errorf("frame %d behind %d", v, q.received)
		} else {
			q.received = v
		}
		q.rq.post(seg(2048, q.key.Key(), q.addr+uint64(at)))
		n++
	}
	return n
}

func TestBackToBack(t *testing.T) {
	const queues, count = 3, 3000
	wa, wb := wire.Pair()
	ends := []*end{newEnd(t, wa, 1, queues), newEnd(t, wb, 2, queues)}
	var senders, pollers sync.WaitGroup
	done := make(chan struct{})
	var total [2]int
	for i, e := range ends {
		peer := ends[1-i]
		for j, q := range e.pairs {
			senders.Go(func() { q.send(peer.pairs[j].mac, count, 60+j*100) })
		}
		pollers.Go(func() {
			for {
				last := false
				select {
				case <-done:
					last = true
				default:
				}
				for _, q := range e.pairs {
					total[i] += q.receive(t)
				}
				if last {
					return
				}
			}
		})
	}
	churn := make(chan struct{})
	senders.Go(func() { // control path concurrent with the data path
		defer close(churn)
		for i := range 200 {
			n := ends[i%2].nic
			f := flowTo(t, n, macThird, newTIR(t, n, TIRAttr{RQ: ends[i%2].pairs[0].rq.RQ}))
			k, err := n.CreateMKey(ends[i%2].pairs[0].key.Attr())
			if err != nil {
				t.Error(err)
				return
			}
			n.SetMTU(1500 + i)
			n.Counters()
			f.Destroy()
			k.Destroy()
		}
	})
	senders.Wait()
	close(done)
	pollers.Wait()
	for i, e := range ends {
		c := e.nic.Counters()
		if got := uint64(total[i]); c.Slice.TxPackets != queues*count || c.Slice.RxPackets != got ||
			got+c.Drops.OutOfBuffer != queues*count || got == 0 {
			t.Errorf("end %d received %d: %+v", i, got, c)
		}
		clean(t, e.nic)
	}
}

// TestKeyDestroyedInUse destroys memory keys under traffic: afterwards nothing
// may touch the memory, and queues see protection errors, not crashes.
func TestKeyDestroyedInUse(t *testing.T) {
	wa, wb := wire.Pair()
	a, b := newEnd(t, wa, 1, 1), newEnd(t, wb, 2, 1)
	started := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		a.pairs[0].send(b.pairs[0].mac, 8, 60)
		close(started)
		a.pairs[0].send(b.pairs[0].mac, 2000, 1000)
	})
	<-started
	q := b.pairs[0]
	if err := q.key.Destroy(); err != nil {
		t.Fatal(err)
	}
	before := string(q.buf)
	if _, _, mine := q.key.keySpan(1, q.addr, 1); mine {
		t.Error("a key that was found before its end may still be used")
	}
	wg.Wait()
	if string(q.buf) != before {
		t.Error("memory was written after its key was destroyed")
	}
}

func TestNoAllocations(t *testing.T) {
	wa, wb := wire.Pair()
	a, b := newEnd(t, wa, 1, 1), newEnd(t, wb, 2, 1)
	qa, qb := a.pairs[0], b.pairs[0]
	qa.send(qb.mac, 64, 200)
	qb.receive(t)
	wqe := concat(ctrl(0x0a, 3), ethSeg(0xc0, 0, 0), seg(200, qa.key.Key(), qa.addr+32*2048))
	list := seg(2048, qb.key.Key(), qb.addr)
	binary.BigEndian.PutUint32(wqe[4:], qa.sq.Number()<<8|3)
	n := testing.AllocsPerRun(1000, func() {
		binary.BigEndian.PutUint16(wqe[1:], qa.sq.pc)
		qa.sq.last = binary.BigEndian.Uint64(wqe)
		copy(qa.sq.ring.Bytes()[int(qa.sq.pc)%32*64:], wqe)
		qa.sq.pc++
		qa.sq.doorbell()
		qa.tx.ci++
		qa.tx.rec.StoreBE32(0, qa.tx.ci&0xffffff)
		qb.rx.ci++
		qb.rx.rec.StoreBE32(0, qb.rx.ci&0xffffff)
		copy(qb.rq.ring.Bytes()[int(qb.rq.pc)%32*16:], list)
		qb.rq.pc++
		qb.rq.rec.StoreBE32(0, uint32(qb.rq.pc))
	})
	if n != 0 {
		t.Errorf("%v allocations to send and receive a frame", n)
	}
	if c := b.nic.Counters(); c.Drops.OutOfBuffer != 32 || c.Slice.RxPackets < 1000 {
		t.Errorf("%+v", c)
	}
}
