package dv

// Caps is what the opened device, its kernel and its firmware can do.
type Caps struct {
	// Firmware is the device's firmware version.
	Firmware string
	// MaxTSO is the most payload one segmentation request takes, in bytes; 0:
	// the device does not segment. It is bounded by the staging memory too.
	MaxTSO int
	// TxCsum: IPv4, TCP and UDP checksums are computed on sending.
	TxCsum bool
	// RxCsum: checksums are verified on reception.
	RxCsum bool
	// VLANStrip: tags can be taken out of received frames.
	VLANStrip bool
	// SharedMulticast: broadcast and multicast are copied to us and still reach
	// Linux.
	SharedMulticast bool
	// MinInline is how many header bytes the device demands inside the
	// descriptor of a sent frame: 0, 18, 58 or 78.
	MinInline int
	// ClockKHz is the rate of Packet.Timestamp, 0 if unknown.
	ClockKHz uint64
	// MaxRxQueues is the largest number of receive queues RSS can spread over.
	MaxRxQueues int
	// CQECompression: the device can compress receive completions (not used).
	CQECompression bool
	// StridingRQ: the device can pack several frames in a receive buffer (not used).
	StridingRQ bool
	// MultiPacketSend: the device takes several frames per send descriptor (not used).
	MultiPacketSend bool
}
