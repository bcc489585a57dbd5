package dv

// Stats is a snapshot of all counters. All count from Open.
type Stats struct {
	Rx []RxStats
	Tx []TxStats
	// LinkUp is the port's state as last told.
	LinkUp bool
	// LinkChanges counts the times it was told.
	LinkChanges uint64
	// ActiveRxQueues is how many receive queues get flows now, and Rebalances how often that, or
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
	// Compressed is how many of the packets came in compressed completions.
	Compressed uint64
	// Segmented is how many of the packets took more than one buffer.
	Segmented uint64
	// Polls is calls of Poll that looked at the ring, Hits those that returned packets.
	Polls, Hits uint64
	// Arms is events asked for, Events those that came, Wakes returns of Wait for another reason.
	Arms, Events, Wakes uint64
	// AsleepNanos is the nanoseconds spent in Wait, with those of one that is going on.
	AsleepNanos uint64
	// Refills is publications of new buffers (doorbell record stores).
	Refills uint64
	// Stalls is the times the ring was found without a single buffer for the NIC, which drops
	// what comes for it then, until the next of Refills. Stats.OutOfBuffer counts those frames.
	Stalls uint64
	// Drops are frames that came in and were not delivered.
	Drops RxDrops
	// Resets is recoveries of the queue from an error.
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
	// Packets and Bytes posted and flushed. A segmented packet counts once, its
	// headers too.
	Packets, Bytes uint64
	// LSO is how many of the packets asked for segmentation, Inline how many
	// were written into their descriptor as a whole, ZeroCopy how many were
	// sent by PostFrame.
	LSO, Inline, ZeroCopy uint64
	// MultiPacket is how many shared their descriptor with others, or could have.
	MultiPacket uint64
	// Doorbells is flushes that had something to say.
	Doorbells uint64
	// BlueFlames is how many of them carried their descriptor.
	BlueFlames uint64
	// Completions is completion entries consumed.
	Completions uint64
	// Stalls is posts refused because the ring or its staging memory was full.
	Stalls uint64
	// Drops are packets that were posted and not sent.
	Drops TxDrops
	// Resets is recoveries of the queue from an error.
	Resets uint64
}

// TxDrops counts packets by the reason they were not sent.
type TxDrops struct {
	// Refused by Post: too short, too long, or asking for what the device lacks.
	Refused uint64
	// Lost when the queue was reset: posted, and never reported as sent.
	Lost uint64
}
