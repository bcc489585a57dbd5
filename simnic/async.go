package simnic

import (
	"sync"
	"time"
)

// doorbell is the doorbell register of a send queue. Its lock is never held while
// WQEs are executed, unlike the queue's: a driver that writes the doorbell does not wait for WQEs
// in execution.
//
// WQEs are executed by the goroutine that writes the doorbell, or by the queue's
// asynchronous sender, a goroutine of the NIC (SQ.sendAsync):
//
//	      doorbell: execute here
//	         +------+
//	         v      |   a frame had to wait for a receiver (SQ.startSender)
//	+-----> synchronous ------------------------------------+
//	|                                                       v
//	|   no frame has waited for asyncLinger,           asynchronous
//	+-- and no doorbell since the last look ------------+   |  ^
//	    (SQ.asyncDone)                                  |   |  | doorbell: wake it,
//	                                                    +---+  | return at once
//	                                                        +--+
//
// Destroying the queue or closing the NIC ends the asynchronous sender, too.
type doorbell struct {
	mu         sync.Mutex    // taken after SQ.mu; covers what follows
	on         bool          // the queue is not in the reset state: its memory may be read
	announced  uint16        // producer index that doorbells have announced; wraps
	rung       uint16        // the same with the doorbells that a fault lost
	blueFlamed bool          // there was a BlueFlame copy since reset, the last one into half
	half       int           // half of the register, 0 or 1
	async      bool          // the asynchronous sender runs
	again      bool          // there was a doorbell since the asynchronous sender looked
	removed    bool          // the queue is destroyed
	wake       chan struct{} // wakes the asynchronous sender; holds one wake-up
}

// takeDoorbell checks a doorbell and records the producer index that it announces. It reports
// whether the asynchronous sender executes the WQEs announced.
func (sq *SQ) takeDoorbell(v uint64, check func(*SQ, uint64) uint16) (delegated bool) {
	b := &sq.db
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on {
		b.announced = check(sq, v)
		b.rung = b.announced
	}
	if b.async {
		b.again = true
		b.wakeUp()
	}
	return b.async
}

// loseDoorbell checks a doorbell that a fault loses: it announces nothing, but the driver has rung.
func (sq *SQ) loseDoorbell(v uint64, check func(*SQ, uint64) uint16) {
	b := &sq.db
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on {
		b.rung = check(sq, v)
	}
}

// announced returns the producer index up to which doorbells let the queue execute.
func (sq *SQ) announced() uint16 {
	sq.db.mu.Lock()
	defer sq.db.mu.Unlock()
	return sq.db.announced
}

// resetDoorbell resets the doorbell when the queue enters or leaves the reset state.
func (b *doorbell) resetDoorbell(on bool, announced uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on, b.announced, b.rung, b.blueFlamed = on, announced, announced, false
}

// endSender ends the asynchronous sender. The queue's memory is not read after that.
func (b *doorbell) endSender() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on, b.removed = false, true
	b.wakeUp()
}

func (b *doorbell) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default: // it is awake
	}
}

// asyncLinger says how long the asynchronous sender runs after the last frame that had to wait:
// longer than most gaps within one congestion.
const asyncLinger = 100 * time.Millisecond

// startSender starts the asynchronous sender, which executes the remaining WQEs, and those
// announced while frames have to wait. A real doorbell returns at once; a goroutine that waits here
// for a receiver may hold locks that others need, the receiver among them. Called with the lock
// held.
func (sq *SQ) startSender() {
	b := &sq.db
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.async && !b.removed {
		b.async = true
		sq.nic.background.runBeside(sq.sendAsync)
	}
}

// sendAsync executes posted WQEs until no frame has had to wait for asyncLinger, the queue is
// destroyed or the NIC closed. NIC.Close waits for it.
func (sq *SQ) sendAsync() {
	clock := sq.nic.clock
	t := clock.NewTimer(asyncLinger)
	defer t.Stop()
	waited := true
	for last := clock.Now(); !sq.asyncDone(!waited && clock.Since(last) >= asyncLinger); {
		sq.mu.Lock()
		waited = sq.runPosted()
		sq.mu.Unlock()
		if waited { // WQEs may be left
			last = clock.Now()
			continue
		}
		t.Reset(asyncLinger)
		select {
		case <-sq.db.wake:
		case <-t.C:
		case <-sq.nic.done:
		}
	}
}

// asyncDone ends the asynchronous sender if asyncLinger has passed and there was no doorbell since
// its last pass, or if the queue is destroyed or the NIC closed.
func (sq *SQ) asyncDone(over bool) bool {
	b := &sq.db
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed || sq.nic.closed.Load() || over && !b.again {
		b.async = false
		return true
	}
	b.again = false
	return false
}
