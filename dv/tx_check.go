package dv

import "time"

// txTimeout says how long descriptors may wait without a completion, with the link up, before the
// queue is replaced: what linux allows the queues of a netdev on the same port (watchdog_timeo in
// drivers/net/ethernet/mellanox/mlx5/core/en_main.c). A ring is sent in less than 100 ms on the
// slowest link that a card has, but not while the other end pauses the port (IEEE 802.3 annex 31B,
// 802.1Qbb), which may be for minutes.
const txTimeout = 15 * time.Second

// Check looks after a queue that nobody may be at: it reclaims, asks for a replacement of a queue
// that stands still for longer than 15 s with the link up, makes all counters visible and logs
// resets that had no line yet. Call it about 100 ms after a Flush, and again and again for as long
// as it returns true: there is something left to look after.
func (q *TxQueue) Check() (again bool) {
	q.Reap()
	q.watchForStall()
	q.logResets()
	q.count.showPosts()
	q.publishCounts()
	q.count.showFaults()
	return !q.signals.isStopped() && (q.pc != q.cc || q.recovery.unlogged > 0)
}

// showEvery is after how many completions Reap shows the counters: that costs three times as much
// as to consume one.
const showEvery = 16

// publishCounts makes what completions and flushes changed visible.
func (q *TxQueue) publishCounts() {
	q.shown = q.count.completions.n
	q.count.showDone()
}

// txStall says how long descriptors have waited without a completion, with the link up.
type txStall struct {
	since    time.Time // zero: none wait
	cc       uint32
	timedOut bool // too long: the queue is to be replaced
}

// watchForStall signals a reset when the queue has stood still for too long.
func (q *TxQueue) watchForStall() {
	if q.rung == q.cc {
		q.stall = txStall{}
		return
	}
	now := q.recovery.now()
	if q.stall.since.IsZero() || q.stall.cc != q.cc || !q.linkUp() {
		q.stall = txStall{since: now, cc: q.cc}
	} else if now.Sub(q.stall.since) > txTimeout {
		q.stall.timedOut = true
		q.signals.raiseBits(signalReset)
	}
}

// fullError returns the answer to a packet there is no room for.
func (q *TxQueue) fullError() error {
	q.count.stalls.n++
	q.count.showFaults()
	q.watchForStall()
	return ErrRingFull
}

// logResets logs the resets there were since the last line, once per second at most.
func (q *TxQueue) logResets() {
	if n := q.recovery.resetsToLog(); n > 0 {
		q.log.Warn("send queue was in error and is replaced", "queue", q.index, "resets", n,
			"lost_packets", q.count.lost.n, "cause", q.recovery.cause)
	}
}
