package dv

// TxQueue is one send queue. It is not safe for concurrent use: hold Lock
// around calls when there is more than one user, or a Device.Close about.
type TxQueue struct{}

// MaxBlocks is the most blocks of the ring one packet takes: with Free at
// least this, Post can fail for want of staging memory only.
const MaxBlocks = 15

// Lock and Unlock guard the queue for its users. Hold it briefly.
func (q *TxQueue) Lock()   {}
func (q *TxQueue) Unlock() {}

// Post copies p into the ring or its staging memory; the NIC sees it at Flush.
// Frames below 60 bytes are padded with zeros. ErrRingFull: no room now;
// ErrFrameSize, ErrNotSupported: this packet will never do. A packet whose
// payload fits one segment is sent plainly, with both checksums computed.
func (q *TxQueue) Post(p *TxPacket) error { return ErrClosed }

// PostFrame sends n bytes at offset off of frame f without copying. On success
// the frame is the queue's, and goes back to the pool when sent; on failure it
// stays the caller's. Received frames of the device may be sent on this way:
// set the Packet's Frame to NoFrame then.
func (q *TxQueue) PostFrame(f Frame, off, n int, flags TxFlags) error { return ErrClosed }

// Flush shows the NIC what was posted: one doorbell for all of it.
func (q *TxQueue) Flush() {}

// Reclaim consumes completions, frees what they cover and returns how many
// packets that were. It also recovers a queue that failed.
func (q *TxQueue) Reclaim() int { return 0 }

// Free is the number of free 64-byte blocks of the ring. A packet takes up to
// MaxBlocks, mostly one or two.
func (q *TxQueue) Free() int { return 0 }

// Stats returns the queue's counters; any goroutine may call it, without Lock.
func (q *TxQueue) Stats() TxStats { return TxStats{} }
