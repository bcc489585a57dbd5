package dv

import "sync/atomic"

// counter is counted by one goroutine without atomics, and shown to others
// once per batch.
type counter struct {
	n     uint64 // the owner's
	shown atomic.Uint64
}

// show makes n visible. The comparison saves a locked store where nothing
// changed.
func (c *counter) show() {
	if c.n != c.shown.Load() {
		c.shown.Store(c.n)
	}
}

// rxCounts is the counters of RxStats.
type rxCounts struct {
	packets, bytes, compressed, segmented, polls, hits, refills, stalls, resets counter
	arms, events, wakes                                                         counter
	tooLong, flushed, errors, malformed                                         counter
}

// show makes what a batch changes visible.
func (c *rxCounts) show() {
	c.packets.show()
	c.bytes.show()
	c.compressed.show()
	c.segmented.show()
	c.polls.show()
	c.hits.show()
	c.refills.show()
	c.stalls.show()
}

// showFaults makes what an error changes visible.
func (c *rxCounts) showFaults() {
	c.resets.show()
	c.tooLong.show()
	c.flushed.show()
	c.errors.show()
	c.malformed.show()
}

// showWaits makes what arming and waiting change visible, and the polls that
// found nothing.
func (c *rxCounts) showWaits() {
	c.polls.show()
	c.refills.show()
	c.arms.show()
	c.events.show()
	c.wakes.show()
}

func (c *rxCounts) stats() RxStats {
	return RxStats{
		Packets: c.packets.shown.Load(), Bytes: c.bytes.shown.Load(),
		Compressed: c.compressed.shown.Load(), Segmented: c.segmented.shown.Load(),
		Polls: c.polls.shown.Load(), Hits: c.hits.shown.Load(),
		Arms: c.arms.shown.Load(), Events: c.events.shown.Load(), Wakes: c.wakes.shown.Load(),
		Refills: c.refills.shown.Load(), Stalls: c.stalls.shown.Load(),
		Resets: c.resets.shown.Load(),
		Drops: RxDrops{
			TooLong: c.tooLong.shown.Load(), Flushed: c.flushed.shown.Load(),
			Error: c.errors.shown.Load(), Malformed: c.malformed.shown.Load(),
		},
	}
}

// txCounts is the counters of TxStats.
type txCounts struct {
	packets, bytes, inline, zeroCopy, lso, mpw, doorbells, blueFlames counter
	completions                                                       counter
	stalls, refused, lost, resets                                     counter
}

// showPosts makes the most important of what a flush changes visible: each
// counter costs it a locked store, and many flushes are of one packet.
func (c *txCounts) showPosts() {
	c.packets.show()
	c.bytes.show()
}

// showDone makes what completions and earlier flushes changed visible.
func (c *txCounts) showDone() {
	c.completions.show()
	c.doorbells.show()
	c.blueFlames.show()
	c.inline.show()
	c.zeroCopy.show()
	c.lso.show()
	c.mpw.show()
}

// showFaults makes what an error or a full ring changes visible.
func (c *txCounts) showFaults() {
	c.stalls.show()
	c.refused.show()
	c.lost.show()
	c.resets.show()
}

func (c *txCounts) stats() TxStats {
	return TxStats{
		Packets: c.packets.shown.Load(), Bytes: c.bytes.shown.Load(), LSO: c.lso.shown.Load(),
		MultiPacket: c.mpw.shown.Load(), Inline: c.inline.shown.Load(),
		ZeroCopy: c.zeroCopy.shown.Load(), Doorbells: c.doorbells.shown.Load(),
		BlueFlames: c.blueFlames.shown.Load(), Completions: c.completions.shown.Load(),
		Stalls: c.stalls.shown.Load(), Resets: c.resets.shown.Load(),
		Drops: TxDrops{Refused: c.refused.shown.Load(), Lost: c.lost.shown.Load()},
	}
}
