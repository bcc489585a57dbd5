package dv

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Stats holds a snapshot of all counters. All count from Open.
type Stats struct {
	Rx []RxStats
	Tx []TxStats
	// LinkUp is the port's state as last told.
	LinkUp bool
	// LinkChanges counts the times it was told.
	LinkChanges uint64
	// ActiveRxQueues says how many receive queues get flows now, and Rebalances how often that, or
	// their shares, changed.
	ActiveRxQueues int
	Rebalances     uint64
	// OutOfBuffer is Device.OutOfBuffer.
	OutOfBuffer uint64
}

// RxStats counts what one receive queue did.
type RxStats struct {
	// Packets and Bytes delivered by Poll; bytes without FCS.
	Packets, Bytes uint64
	// Compressed says how many of the packets came in compressed completions.
	Compressed uint64
	// Segmented says how many of the packets took more than one buffer.
	Segmented uint64
	// Polls counts calls of Poll that looked at the ring, Hits those that returned packets.
	Polls, Hits uint64
	// Arms counts events asked for, Events those that came, Wakes returns of Wait for another
	// reason.
	Arms, Events, Wakes uint64
	// AsleepNanos counts the nanoseconds spent in Wait, with those of one that is going on.
	AsleepNanos uint64
	// Refills counts publications of new buffers (doorbell record stores).
	Refills uint64
	// Stalls counts the times the ring was found without a single buffer for the NIC, which drops
	// what comes for it then, until the next of Refills. Stats.OutOfBuffer counts those frames.
	Stalls uint64
	// Drops counts frames that came in and were not delivered.
	Drops RxDrops
	// Resets counts recoveries of the queue from an error.
	Resets uint64
}

// RxDrops counts received frames by the reason they were not delivered.
type RxDrops struct {
	// TooLong for a frame buffer (syndrome local length).
	TooLong uint64
	// Flushed buffers: the ring was in error, no frame was lost by them.
	Flushed uint64
	// Error completions of any other kind.
	Error uint64
	// Malformed completions, which the NIC should not have written.
	Malformed uint64
}

// TxStats counts what one send queue did. Packets and Bytes are current as of
// the last Flush, the rest as of the last Reclaim that found something, or Check.
type TxStats struct {
	// Packets and Bytes posted and flushed. A segmented packet counts once, its headers once for
	// each descriptor.
	Packets, Bytes uint64
	// LSO says how many of the packets asked for segmentation, Inline how many were written into
	// their descriptor as a whole, ZeroCopy how many were sent by PostFrame.
	LSO, Inline, ZeroCopy uint64
	// MultiPacket says how many shared their descriptor with others, or could have.
	MultiPacket uint64
	// InPlace says how many of the packets were sent from WithSendMemory without copying, and
	// Held how many of them are held now, until the NIC has read them.
	InPlace, Held uint64
	// Doorbells counts flushes that had something to say.
	Doorbells uint64
	// BlueFlames says how many of them carried their descriptor.
	BlueFlames uint64
	// Completions counts completion entries consumed.
	Completions uint64
	// Stalls counts posts refused because the ring or its staging memory was full.
	Stalls uint64
	// Drops counts packets that were posted and not sent.
	Drops TxDrops
	// Resets counts recoveries of the queue from an error.
	Resets uint64
}

// TxDrops counts packets by the reason they were not sent.
type TxDrops struct {
	// Refused by Post: too short, too long, or asking for what the device lacks.
	Refused uint64
	// Lost when the queue was reset: posted, and never reported as sent.
	Lost uint64
}

// counter counts in one goroutine without atomics, and shows others the count once per batch.
type counter struct {
	n     uint64 // the owner's
	shown atomic.Uint64
}

// publishCount makes n visible. The comparison saves a locked store where nothing changed.
func (c *counter) publishCount() {
	if c.n != c.shown.Load() {
		c.shown.Store(c.n)
	}
}

// rxCounts holds the counters of RxStats.
type rxCounts struct {
	packets, bytes, compressed, segmented, polls, hits, refills, stalls, resets counter
	arms, events, wakes                                                         counter
	tooLong, flushed, errors, malformed                                         counter
}

// publishCounts makes what a batch changes visible.
func (c *rxCounts) publishCounts() {
	c.packets.publishCount()
	c.bytes.publishCount()
	c.compressed.publishCount()
	c.segmented.publishCount()
	c.polls.publishCount()
	c.hits.publishCount()
	c.refills.publishCount()
	c.stalls.publishCount()
}

// showFaults makes what an error changes visible.
func (c *rxCounts) showFaults() {
	c.resets.publishCount()
	c.tooLong.publishCount()
	c.flushed.publishCount()
	c.errors.publishCount()
	c.malformed.publishCount()
}

// showWaits makes what arming and waiting change visible, and the polls that found nothing.
func (c *rxCounts) showWaits() {
	c.polls.publishCount()
	c.refills.publishCount()
	c.arms.publishCount()
	c.events.publishCount()
	c.wakes.publishCount()
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

// txCounts holds the counters of TxStats.
type txCounts struct {
	packets, bytes, inline, zeroCopy, lso, mpw, doorbells, blueFlames counter
	completions                                                       counter
	stalls, refused, lost, resets                                     counter
	held, released                                                    counter // packets, ever
}

// showPosts makes the most important of what a flush changes visible: each
// counter costs it a locked store, and many flushes are of one packet.
func (c *txCounts) showPosts() {
	c.packets.publishCount()
	c.bytes.publishCount()
}

// showDone makes what completions and earlier flushes changed visible.
func (c *txCounts) showDone() {
	c.completions.publishCount()
	c.doorbells.publishCount()
	c.blueFlames.publishCount()
	c.inline.publishCount()
	c.zeroCopy.publishCount()
	c.lso.publishCount()
	c.mpw.publishCount()
	c.released.publishCount() // before held: nobody sees more released than were held
	c.held.publishCount()
}

// showFaults makes what an error or a full ring changes visible.
func (c *txCounts) showFaults() {
	c.stalls.publishCount()
	c.refused.publishCount()
	c.lost.publishCount()
	c.resets.publishCount()
}

func (c *txCounts) stats() TxStats {
	released := c.released.shown.Load()
	held := c.held.shown.Load()
	return TxStats{
		InPlace: held, Held: held - released,
		Packets: c.packets.shown.Load(), Bytes: c.bytes.shown.Load(), LSO: c.lso.shown.Load(),
		MultiPacket: c.mpw.shown.Load(), Inline: c.inline.shown.Load(),
		ZeroCopy: c.zeroCopy.shown.Load(), Doorbells: c.doorbells.shown.Load(),
		BlueFlames: c.blueFlames.shown.Load(), Completions: c.completions.shown.Load(),
		Stalls: c.stalls.shown.Load(), Resets: c.resets.shown.Load(),
		Drops: TxDrops{Refused: c.refused.shown.Load(), Lost: c.lost.shown.Load()},
	}
}

// portCounterLife says how old a counter of the port may be: to read one is a command to the
// firmware.
const portCounterLife = 100 * time.Millisecond

// portCounter follows a counter that the kernel keeps of the port, from open on.
type portCounter struct {
	mu    sync.Mutex // guards what follows
	clock clock.Clock
	ask   func() (uint64, error)
	known uint64 // as last asked for
	at    time.Time
	sum   uint64 // since open
}

// startCounting begins to count. Where the counter cannot be read there is nothing to count, for
// good.
func (p *portCounter) startCounting(c clock.Clock, ask func() (uint64, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock = c
	if n, err := ask(); err == nil {
		p.ask, p.known, p.at = ask, n, p.clock.Now()
	}
}

// readSince returns how much has been counted since open, 0 if that is not known. The firmware's
// counters have 32 bits (struct mlx5_ifc_query_q_counter_out_bits), and wrap.
func (p *portCounter) readSince() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ask == nil || p.clock.Since(p.at) < portCounterLife {
		return p.sum
	}
	n, err := p.ask()
	if err != nil { // the device is closed
		return p.sum
	}
	more := n - p.known
	if n < p.known {
		more = uint64(uint32(more))
	}
	p.sum += more
	p.known, p.at = n, p.clock.Now()
	return p.sum
}

// lastValue returns what readSince has returned last, and does not ask the device.
func (p *portCounter) lastValue() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sum
}

// OutOfBuffer returns how many frames the NIC has dropped since Open as the receive queue they
// were for had no buffer: the kernel's counter out_of_buffer of the port. It counts for all users
// of the RDMA device, other processes too, and not for the netdev, which has rx_out_of_buffer in
// ethtool
// -S. It is up to 100 ms old, and 0 where the kernel does not tell. RxStats.Stalls says which of
// our queues it was. A device that is over is not asked again: a command to it may take seconds.
func (d *Device) OutOfBuffer() uint64 {
	if d.Err() != nil {
		return d.outOfBuffer.lastValue()
	}
	return d.outOfBuffer.readSince()
}
