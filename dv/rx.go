package dv

// RxQueue is one receive queue. It has one owner, the goroutine that calls
// Poll, Release, Refill, Arm and Wait; Wake and Stats are for everybody.
type RxQueue struct{}

// Poll fills dst with received frames and returns how many; 0 if there are
// none. It never blocks. The frames are the caller's until Release.
func (q *RxQueue) Poll(dst []Packet) int { return 0 }

// Release gives frames back, in any order and any portion, also those of
// other queues of the device. Packets whose Frame is NoFrame are skipped;
// Release makes it so in each.
func (q *RxQueue) Release(pkts []Packet) {}

// Refill hands every free buffer to the NIC at once, filling gaps in the ring
// from the pool, and returns how many. Release and Poll do this in time by
// themselves; before a long pause it returns the last few.
func (q *RxQueue) Refill() int { return 0 }

// Arm asks for an event at the next frame. Poll once more afterwards, then
// Wait. Arming again before the event does nothing.
func (q *RxQueue) Arm() {}

// Wait parks the goroutine until the event that Arm asked for, Wake, or the
// end: then it returns ErrClosed, or an error that is ErrFailed.
func (q *RxQueue) Wait() error { return ErrClosed }

// Wake makes the Wait that is going on, or else the next one, return nil. Any
// goroutine may call it.
func (q *RxQueue) Wake() {}

// Stats returns the queue's counters; any goroutine may call it.
func (q *RxQueue) Stats() RxStats { return RxStats{} }
