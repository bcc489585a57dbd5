package packet

// Stats holds a snapshot of all counters. All count from Open.
type Stats struct {
	Rx []RxStats
	Tx []TxStats
	// XDP describes the AF_XDP sockets whose queues come first in Rx; nil: there are none.
	XDP *XDPStats
	// LinkUp gives the state of interface and carrier as last told, LinkChanges how often it
	// changed.
	LinkUp      bool
	LinkChanges uint64
	// FragmentsDropped counts fragments of a port with the host's MAC that were kept in vain: the
	// others of their datagram did not come in time, or there was no room.
	FragmentsDropped uint64
}

// XDPStats says how an interface is served through AF_XDP (package link/xdp).
type XDPStats struct {
	// Queues counts the receive queues of AF_XDP, Bound how many of them have a socket
	// on a queue of the interface. What comes by other queues arrives by packet sockets.
	Queues, Bound int
	// NetdevQueues tells by how many queues the interface receives, QueueChanges how often that has
	// changed.
	NetdevQueues int
	QueueChanges uint64
	// ZeroCopy says that the NIC writes to our memory; else the kernel copies.
	ZeroCopy bool
	// SendsByRings says that frames leave by AF_XDP, too; else by packet sockets.
	SendsByRings bool
	// Lacking says why queues have no socket of ours, "" if all have one.
	Lacking string
}

// RxStats counts what one queue received.
type RxStats struct {
	// Frames and Bytes delivered by Receive.
	Frames, Bytes uint64
	// Merged says how many of the frames were TCP segments merged by the kernel or the NIC.
	Merged uint64
	// Split counts datagrams that came several in one frame, which is not counted.
	Split uint64
	// Calls counts system calls, of AF_XDP looks at the ring, Hits those that returned frames,
	// Waits the times of waiting.
	Calls, Hits, Waits uint64
	// AsleepNanos gives the nanoseconds of waiting, with those of a wait that is going on.
	AsleepNanos uint64
	// Dropped by the kernel for want of room in the socket's buffer (PACKET_STATISTICS), or in the
	// ring of AF_XDP (XDP_STATISTICS).
	Dropped uint64
	// TooLong frames, above 64 KiB, and Malformed ones, which the kernel could not describe.
	TooLong, Malformed uint64
	// Discarded by Mute.
	Discarded uint64
	// Stalls says how often the driver, or the kernel, has found no memory of ours to receive into
	// (AF_XDP).
	Stalls uint64
	// Unclaimed frames were for the host's MAC, and are Linux's: see Config.Host.
	Unclaimed uint64
}

// TxStats counts what one queue sent.
type TxStats struct {
	// Frames and Bytes taken by the kernel. A frame to be cut up counts once.
	Frames, Bytes uint64
	// GSO says how many of the frames were to be cut up.
	GSO uint64
	// Calls is system calls, Full those that the kernel had no room for.
	Calls, Full uint64
	// Waited counts frames that had to wait for room in the socket's buffer or the interface's
	// queue.
	Waited uint64
	// Dropped frames: the interface was down or refused them, or the port was closed.
	Dropped uint64
}
