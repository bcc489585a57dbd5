package simnic

import (
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// bell is the doorbell of a send queue. Its lock is never held for long, unlike
// the queue's: whoever rings does not wait for what is being sent.
type bell struct {
	mu      sync.Mutex
	on      bool   // the queue is not in the reset state: its memory may be looked at
	rung    uint16 // what the record said at the last doorbell
	flamed  bool   // there was a BlueFlame copy since reset, the last one into half
	half    int
	standIn bool          // somebody else executes what is rung for
	again   bool          // there was a doorbell since the stand-in looked
	removed bool          // the queue is destroyed
	wake    chan struct{} // of the stand-in
}

func newBell() bell { return bell{wake: make(chan struct{}, 1)} }

// ring takes a doorbell and checks it. It reports whether the stand-in was told,
// so that nothing is left to do.
func (sq *SQ) ring(v uint64, check func(*SQ, uint64)) (told bool) {
	b := &sq.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on {
		check(sq, v)
		b.rung = uint16(sq.attr.Record.LoadBE32(mlx5.RecordSend))
	}
	if b.standIn {
		b.again = true
		b.rouse()
	}
	return b.standIn
}

// restart follows the queue into the reset state or out of it.
func (b *bell) restart(on bool, rung uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on, b.rung, b.flamed = on, rung, false
}

// remove ends the stand-in. Nobody looks at the queue's memory any more.
func (b *bell) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on, b.removed = false, true
	b.rouse()
}

func (b *bell) rouse() {
	select {
	case b.wake <- struct{}{}:
	default: // it is awake
	}
}

// standInFor is how long a stand-in stays after a frame last had to wait. A
// congestion is over sooner, or the next one is not far.
const standInFor = 100 * time.Millisecond

// delegate has a goroutine of the NIC execute what is left, and what is rung for
// as long as frames keep having to wait. A device returns from a doorbell at
// once; a goroutine that waits here for a receiver may hold locks that others
// need, the receiver among them. Called with the lock held.
func (sq *SQ) delegate() {
	b := &sq.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.standIn && !b.removed {
		b.standIn = true
		sq.nic.background.run(sq.standIn)
	}
}

// standIn executes what is posted until no frame has had to wait for standInFor,
// the queue is destroyed or the NIC closed. NIC.Close waits for it.
func (sq *SQ) standIn() {
	t := time.NewTimer(standInFor)
	defer t.Stop()
	waited := true
	for last := time.Now(); !sq.dismiss(!waited && time.Since(last) >= standInFor); {
		sq.mu.Lock()
		waited = sq.run()
		sq.mu.Unlock()
		if waited { // something may be left
			last = time.Now()
			continue
		}
		t.Reset(standInFor)
		select {
		case <-sq.bell.wake:
		case <-t.C:
		case <-sq.nic.done:
		}
	}
}

// dismiss ends the stand-in's time if it is over and there was no doorbell since
// it looked, or if there is nothing to execute any more.
func (sq *SQ) dismiss(over bool) bool {
	b := &sq.bell
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed || sq.nic.closed.Load() || over && !b.again {
		b.standIn = false
		return true
	}
	b.again = false
	return false
}
