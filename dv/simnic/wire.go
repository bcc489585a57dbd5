package simnic

import "sync/atomic"

// GSO says what an unsegmented frame is to be cut into.
type GSO uint8

// Kinds of segmentation. GSONone is an ordinary frame.
const (
	GSONone GSO = iota
	GSOTCPv4
	GSOTCPv6
	GSOUDP // UDP datagrams of equal size, either IP version
)

// Frame is an Ethernet frame on its way, without FCS. Data belongs to whoever
// calls with it and is valid, and must not be written, until the call returns.
type Frame struct {
	Data []byte

	// NeedsCsum: the L4 checksum at CsumStart+CsumOffset holds the sum of the
	// pseudo header only; whoever puts the frame on a real wire completes it over
	// Data[CsumStart:]. As VIRTIO_NET_HDR_F_NEEDS_CSUM.
	NeedsCsum             bool
	CsumStart, CsumOffset uint16

	// GSO != GSONone: Data is up to 64 KiB, with HdrLen bytes of L2 to L4 headers
	// and then payload to be cut into pieces of MSS bytes. NeedsCsum is then set too.
	GSO    GSO
	HdrLen uint16
	MSS    uint16

	waited *atomic.Bool // see origin: how a sender on the same goroutine learns of it
}

// Offload is a set of things a wire can carry.
type Offload uint8

// Members of Offload.
const (
	OffloadCsum Offload = 1 << iota // NeedsCsum
	OffloadTSO4
	OffloadTSO6
	OffloadUSO
)

// Wire is what a port, or its netdev side, is plugged into.
type Wire interface {
	// Start begins reception: recv is called with frames in order of arrival, in
	// batches so that the device can coalesce. It may be called from several
	// goroutines at once, and from inside Send of the other end. recv takes
	// nothing from the caller after it returns.
	Start(recv func([]Frame)) error
	// Send carries the frames, in order. It may be called from any goroutine and
	// must not keep the data. It returns how many frames were carried: the first
	// n; an error says why the rest was not.
	Send(frames []Frame) (n int, err error)
	// Offloads says which frames Send takes beside ordinary ones. What it does
	// not name is cut up and completed by the caller.
	Offloads() Offload
	// Close stops reception: no recv is running or will be called after it
	// returns. Closing twice is allowed.
	Close() error
}
