// Package frame has the Ethernet frames that the software NIC and its wires
// exchange: the metadata of frames whose checksum or segmentation is left to
// the next one, header parsing, checksums, segmentation, and the
// virtio-net header that Linux uses for the same metadata.
//
// Nothing here allocates per frame, except Cut when its buffer has to grow.
package frame

import "sync/atomic"

// GSO says how the receiver of an unsegmented frame segments it.
type GSO uint8

// Kinds of segmentation.
const (
	GSONone  GSO = iota // an ordinary frame
	GSOTCPv4            // TCP over IPv4
	GSOTCPv6            // TCP over IPv6
	GSOUDP              // UDP datagrams of equal size, IPv4 or IPv6
)

// Frame holds an Ethernet frame without FCS. Data belongs to the caller of the function that the
// frame is passed to: it is valid, and must not be written, until that call returns.
type Frame struct {
	Data []byte

	// NeedsCsum says that the TCP or UDP checksum, at CsumStart+CsumOffset, holds
	// only the sum of the pseudo header. The last one who can complete it does so,
	// over Data[CsumStart:]. Both offsets are in bytes. The meaning is that of
	// VIRTIO_NET_HDR_F_NEEDS_CSUM (virtio 1.2, section 5.1.6.2).
	NeedsCsum             bool
	CsumStart, CsumOffset uint16

	// GSO is not GSONone in an unsegmented frame: Data is up to 64 KiB, HdrLen bytes of L2 to L4
	// headers and then payload to be cut into pieces of MSS bytes. NeedsCsum is then set, too.
	GSO    GSO
	HdrLen uint16
	MSS    uint16

	// Waited, unless nil, is set by a receiver in the same process that makes the
	// sender wait for a buffer. The sender owns it and clears it.
	Waited *atomic.Bool
}

// Offload names a set of the kinds of frames that a wire takes beside ordinary ones.
type Offload uint8

// Members of Offload.
const (
	OffloadCsum Offload = 1 << iota // frames with NeedsCsum
	OffloadTSO4                     // frames with GSOTCPv4
	OffloadTSO6                     // frames with GSOTCPv6
	OffloadUSO                      // frames with GSOUDP
)

// NeededOffload returns the offload that a wire needs for an unsegmented frame.
func (f *Frame) NeededOffload() Offload {
	switch f.GSO {
	case GSOTCPv4:
		return OffloadTSO4
	case GSOTCPv6:
		return OffloadTSO6
	}
	return OffloadUSO
}

// MeasureHeader sets HdrLen, which in frames from Linux is only a hint, from the
// headers. A frame without a whole TCP or UDP header becomes an ordinary one.
func (f *Frame) MeasureHeader() {
	if f.GSO == GSONone || len(f.Data) < EtherHeader {
		return
	}
	p := Parse(f.Data)
	if p.L4At == 0 || f.MSS == 0 {
		f.GSO = GSONone
		return
	}
	f.HdrLen = uint16(p.L4At + p.L4Len)
}

// Packets returns how many packets the frame stands for; 1 for an ordinary frame.
func (f *Frame) Packets() int {
	if f.GSO == GSONone || f.MSS == 0 {
		return 1
	}
	payload := len(f.Data) - int(f.HdrLen)
	return max(1, (payload+int(f.MSS)-1)/int(f.MSS))
}

// Longest returns the length in bytes of the longest packet the frame stands for.
func (f *Frame) Longest() int {
	if f.GSO == GSONone {
		return len(f.Data)
	}
	return min(len(f.Data), int(f.HdrLen)+int(f.MSS))
}

// Bytes returns the length in bytes of all packets the frame stands for, headers included.
func (f *Frame) Bytes() int { return len(f.Data) + (f.Packets()-1)*int(f.HdrLen) }
