package simnic

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// holdWire is a wire on which every frame waits until the test releases it.
type holdWire struct {
	mu   sync.Mutex
	seen []uint32      // numbers of the frames sent
	held chan struct{} // one entry per Send that waits
	let  chan struct{} // one entry releases one frame; closed: all
}

func newHoldWire() *holdWire {
	return &holdWire{held: make(chan struct{}, 1<<10), let: make(chan struct{})}
}

func (w *holdWire) Start(func([]frame.Frame)) error { return nil }
func (w *holdWire) Offloads() frame.Offload         { return 0 }
func (w *holdWire) Close() error                    { return nil }
func (w *holdWire) Send(fs []frame.Frame) (int, error) {
	for _, f := range fs {
		if w.open() {
			break
		}
		f.Waited.Store(true)
		w.held <- struct{}{}
		<-w.let
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range fs {
		w.seen = append(w.seen, binary.BigEndian.Uint32(f.Data[14:]))
	}
	return len(fs), nil
}

// open reports whether frames no longer wait.
func (w *holdWire) open() bool {
	select {
	case <-w.let:
		return true
	default:
		return false
	}
}

func (w *holdWire) numbers() []uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]uint32(nil), w.seen...)
}

// asyncRig is a send queue over a holdWire, with the asynchronous sender running: frame 0 waited
// while its sender did.
type asyncRig struct {
	nic  *NIC
	wire *holdWire
	cq   *testCQ
	sq   *testSQ
	n    uint32 // frames posted
}

func newAsyncRig(t *testing.T) *asyncRig {
	r := &asyncRig{nic: newNIC(t, Config{}), wire: newHoldWire()}
	if err := r.nic.ConnectWire(r.wire); err != nil {
		t.Fatal(err)
	}
	r.cq = newCQ(t, r.nic, 8, nil)
	r.sq = newSQ(t, r.nic, r.cq, 6, nil)
	rung := make(chan struct{})
	r.post()
	go func() {
		defer close(rung)
		r.sq.doorbell()
	}()
	within(t, "the first frame on the wire", r.wire.held)
	r.wire.let <- struct{}{}
	within(t, "the doorbell of a frame that was let go", rung)
	return r
}

// post posts the next frame, which contains its number.
func (r *asyncRig) post() {
	f := append([]byte(nil), frame60...)
	binary.BigEndian.PutUint32(f[14:], r.n)
	r.n++
	r.sq.post(concat(ctrl(0x0a, 6), ethSeg(0, 0, 60)[:14], f, make([]byte, 6)))
}

// ring posts frames and rings for them, which must not wait.
func (r *asyncRig) ring(t *testing.T, frames int) {
	t.Helper()
	rung := make(chan struct{})
	go func() {
		defer close(rung)
		for range frames {
			r.post()
			r.sq.doorbell()
		}
	}()
	within(t, "the doorbell", rung)
}

// within fails the test if nothing arrives on c within 30 s.
func within[T any](t *testing.T, what string, c <-chan T) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("30 s without %s", what)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("30 s without %s", what)
		}
	}
}

func (r *asyncRig) atWork() bool {
	r.sq.db.mu.Lock()
	defer r.sq.db.mu.Unlock()
	return r.sq.db.async
}

// TestAsyncSender: while frames wait, doorbells return; frames and completions keep their
// order; when frames no longer wait, doorbells send synchronously again.
func TestAsyncSender(t *testing.T) {
	r := newAsyncRig(t)
	r.ring(t, 1)
	within(t, "a second frame that waits", r.wire.held)
	r.ring(t, 9)
	if e := r.cq.mustPoll(t); be16(e[0x3c:]) != 0 || r.cq.poll() != nil {
		t.Errorf("completions beside that of the first frame: %x", e)
	}
	close(r.wire.let)
	eventually(t, "frames", func() bool { return len(r.wire.numbers()) == 11 })
	for i, n := range r.wire.numbers() {
		if n != uint32(i) {
			t.Errorf("frame %d is number %d", i, n)
		}
	}
	for i := range uint16(10) {
		eventually(t, "a completion", func() bool { return byte(r.cq.entry(r.cq.ci)[63]) == 0 })
		if e := r.cq.mustPoll(t); be16(e[0x3c:]) != 2*(i+1) {
			t.Errorf("completion %d: %x", i, e)
		}
	}
	eventually(t, "an end of the asynchronous sender", func() bool { return !r.atWork() })
	r.ring(t, 1)
	if n := len(r.wire.numbers()); n != 12 || r.cq.poll() == nil {
		t.Errorf("%d frames when the doorbell returned", n)
	}
	clean(t, r.nic)
}

// TestAsyncSenderAndTheEndOfTheQueue destroys the queue, or closes the NIC, while frames wait. The
// call returns once the frame on the wire is released; the queue's memory is not accessed
// afterwards.
func TestAsyncSenderAndTheEndOfTheQueue(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *asyncRig){
		"destroy": func(t *testing.T, r *asyncRig) { worked(t, r.sq.Destroy()) },
		"reset": func(t *testing.T, r *asyncRig) {
			worked(t, r.sq.Modify(StateReady, StateReset))
			worked(t, r.sq.Destroy())
		},
		"error": func(t *testing.T, r *asyncRig) {
			worked(t, r.sq.Modify(StateReady, StateError))
			worked(t, r.sq.Destroy())
		},
		"close": func(t *testing.T, r *asyncRig) {
			worked(t, r.nic.Close())
			worked(t, r.sq.Destroy())
		},
		"all at once": func(t *testing.T, r *asyncRig) {
			var all sync.WaitGroup
			all.Go(func() { _ = r.sq.Modify(StateReady, StateReset) })
			all.Go(func() { worked(t, r.nic.Close()) })
			all.Go(func() { worked(t, r.nic.Close()) })
			all.Go(func() { worked(t, r.sq.Destroy()) })
			all.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				r := newAsyncRig(t)
				r.ring(t, 1)
				within(t, "a second frame that waits", r.wire.held)
				r.ring(t, 3)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					end(t, r)
				}()
				close(r.wire.let)
				within(t, "an end", ended)
				r.sq.ring.Close() // touched again, these would panic
				r.sq.rec.Close()
				r.sq.Doorbell(r.sq.last)
				eventually(t, "an end of the asynchronous sender",
					func() bool { return !r.atWork() })
			}
		})
	}
}

// TestAsyncSenderForSlowReceiver sends to a queue that delays drops and whose driver is
// slower than the sender: frames not dropped for lack of a buffer arrive in order, and every frame
// is completed.
func TestAsyncSenderForSlowReceiver(t *testing.T) {
	const count = 3000
	wa, wb := wire.Pair()
	x := newNIC(t, Config{Seed: 1})
	worked(t, x.ConnectWire(wa))
	tx := newCQ(t, x, 6, nil)
	sq := newSQ(t, x, tx, 6, nil)
	y := newNIC(t, Config{Seed: 2})
	worked(t, y.ConnectWire(wb))
	rx := newCQ(t, y, 8, nil)
	rq := newRQ(t, y, rx, 3, 4, func(a *RQAttr) { a.DelayDrop = true })
	m := mem(t, 8*2048)
	key := newKey(t, y, m, nil)
	mac := [6]byte{2, 9}
	flowTo(t, y, mac, newTIR(t, y, TIRAttr{RQ: rq.RQ}))

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		f := to(mac, [6]byte{2, 8})
		for posted, done := 0, 0; done < count; {
			for ; posted < count && posted-done < 32; posted++ {
				binary.BigEndian.PutUint32(f[14:], uint32(posted))
				sq.post(concat(ctrl(0x0a, 6), ethSeg(0, 0, 60)[:14], f, make([]byte, 6)))
				if posted%3 == 0 {
					sq.doorbell()
				}
			}
			sq.doorbell()
			for tx.poll() != nil {
				done++
			}
			runtime.Gosched()
		}
	}()
	posted, last := 0, -1
	take := func() {
		for ; posted < 8; posted++ {
			rq.post(seg(2048, key.Key(), m.Addr()+uint64(rq.pc%8)*2048))
		}
		for e := rx.poll(); e != nil; e = rx.poll() {
			n := int(binary.BigEndian.Uint32(m.Bytes()[int(be16(e[0x3c:]))%8*2048+14:]))
			if n <= last {
				t.Errorf("frame %d behind %d", n, last)
			}
			last, posted = n, posted-1
		}
	}
	eventually(t, "all frames", func() bool {
		take()
		c := y.Counters()
		return c.Slice.RxPackets+c.Drops.OutOfBuffer == count
	})
	within(t, "an end of sending", sent)
	clean(t, x)
	worked(t, sq.Destroy())
}

func worked(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
