package dv

// Frame names a frame buffer of the device's Pool. A frame has one owner at a
// time; the holder of the number owns the frame.
type Frame uint32

// NoFrame is no frame.
const NoFrame = ^Frame(0)

// RxFlags says what the NIC found out about a received frame.
type RxFlags uint16

const (
	// RxIPv4 and RxIPv6: the frame is IP of that version, behind any VLAN tags.
	RxIPv4 RxFlags = 1 << iota
	RxIPv6
	// RxTCP and RxUDP: the transport header was found. Never set on fragments.
	RxTCP
	RxUDP
	// RxFragment: an IPv4 fragment, the first one included.
	RxFragment
	// RxVLAN: a VLAN tag was taken out of the frame and is in Packet.VLAN.
	RxVLAN
	// RxL3OK: the IPv4 header checksum is right (IPv6 has none: set on all of it).
	RxL3OK
	// RxL4OK: the TCP or UDP checksum is right. Clear means "not vouched for":
	// frames with a wrong checksum are delivered.
	RxL4OK
	// RxHash: Packet.Hash is the frame's RSS hash.
	RxHash
)

// Packet is one received frame.
type Packet struct {
	// Data holds the frame from its Ethernet header on, without FCS, or its beginning (see More).
	// It is the NIC's buffer, with its whole remaining room as capacity; it belongs to the holder
	// of the Packet until Release or PostFrame.
	Data []byte
	// Timestamp is the NIC's clock at reception, in cycles of Caps.ClockKHz; with
	// Caps.RealTimeStamps seconds since 1970 in the upper half and nanoseconds in the lower. Clock
	// reads both. Frames that were completed in one CQE block have that of the first.
	Timestamp uint64
	// Frame refers to the buffer that holds Data, and stands for those that hold the rest.
	Frame Frame
	// Hash is the RSS (Toeplitz) hash, valid with RxHash.
	Hash uint32
	// Flags says what the NIC found out.
	Flags RxFlags
	// VLAN is the tag control information of a stripped tag, valid with RxVLAN.
	VLAN uint16
	// More says how many bytes of the frame do not fit Data and lie in further
	// buffers: RxQueue.Segments has them. 0 unless the ring has several buffers
	// per frame; and headers, of up to 1 KiB, are in Data always.
	More uint16
}

// Size returns the length of the frame in bytes.
func (p *Packet) Size() int { return len(p.Data) + int(p.More) }

// TxFlags asks the NIC for work on a frame to be sent.
type TxFlags uint8

const (
	// TxL3Csum: compute the IPv4 header checksum. Harmless on IPv6.
	TxL3Csum TxFlags = 1 << iota
	// TxL4Csum: compute the TCP or UDP checksum, from scratch: the value in the
	// frame is ignored. A frame that is neither is sent as it is.
	TxL4Csum
	// TxVLAN: insert an 802.1Q tag with TxPacket.VLAN behind the MAC addresses.
	TxVLAN
	// TxStamp: tell TxPacket.Stamper when the packet was sent.
	TxStamp
)

// Stamper takes the time at which the NIC had sent a packet.
type Stamper interface {
	// Stamp takes the time, once for each packet that was posted with TxStamp. The caller holds the
	// send queue's lock: it must not use the queue. ticks has the clock and format of
	// Packet.Timestamp; 0: the packet was lost with its queue, or the NIC does not say. A closed
	// queue calls no more.
	Stamp(ticks uint64)
}

// Holder keeps the memory of a packet as it is while it is referred to. DecRef ends one reference,
// and must not use the send queue.
type Holder interface{ DecRef() }

// TxPacket describes one frame to send, or one TCP segment or UDP datagram for the NIC to cut up.
// It stays the caller's; reuse one to save its set-up.
type TxPacket struct {
	// Bufs are the frame's bytes in order, from the Ethernet header on, without
	// FCS. Post copies them, or holds them, see Holder.
	Bufs [][]byte
	// Holder allows Post to leave payload to be segmented where it is, if all of it lies in
	// WithSendMemory. Held then says that the NIC reads it there: the caller must have made a
	// reference of Holder's for the queue before it releases the queue's lock, and may not change
	// the bytes. The queue gives it back by DecRef, with its lock held, once the NIC has read them,
	// or does not exist any more. nil: Post copies.
	Holder Holder
	// Held is set by each Post.
	Held bool
	// HdrLen gives the length of all headers up to and including those of TCP or UDP, in bytes.
	// Used when MSS > 0.
	HdrLen int
	// MSS > 0 asks for segmentation: the bytes behind the headers go out in
	// segments of MSS bytes, each with its own headers and checksums
	// (IP length and id, TCP sequence, FIN and PSH on the last only).
	MSS int
	// UDP says that the segments are datagrams. The lengths in the headers are written anew. Post
	// takes at most TxQueue.MaxDatagrams bytes of payload.
	UDP bool
	// Stamper hears with TxStamp when the packet was sent, of several segments the last. The packet
	// takes a descriptor and a completion of its own.
	Stamper Stamper
	// VLAN is the tag control information to insert with TxVLAN.
	VLAN uint16
	// Flags asks for checksums, tagging and a time stamp. Segmentation implies both checksums.
	Flags TxFlags
}
