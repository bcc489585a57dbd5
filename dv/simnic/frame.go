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

// needs is the offload that carries an unsegmented frame.
func (f *Frame) needs() Offload {
	switch f.GSO {
	case GSOTCPv4:
		return OffloadTSO4
	case GSOTCPv6:
		return OffloadTSO6
	}
	return OffloadUSO
}

// measureHeader corrects HdrLen, which in frames from Linux is a hint.
func (f *Frame) measureHeader() {
	if f.GSO == GSONone || len(f.Data) < etherHeader {
		return
	}
	p := parse(f.Data)
	if p.l4At == 0 || f.MSS == 0 {
		f.GSO = GSONone
		return
	}
	f.HdrLen = uint16(p.l4At + p.l4Len)
}

// packets is how many packets a frame stands for.
func (f *Frame) packets() int {
	if f.GSO == GSONone || f.MSS == 0 {
		return 1
	}
	payload := len(f.Data) - int(f.HdrLen)
	return max(1, (payload+int(f.MSS)-1)/int(f.MSS))
}

// longest is the length of the longest packet a frame stands for.
func (f *Frame) longest() int {
	if f.GSO == GSONone {
		return len(f.Data)
	}
	return min(len(f.Data), int(f.HdrLen)+int(f.MSS))
}

// bytes is the length of all packets a frame stands for.
func (f *Frame) bytes() int { return len(f.Data) + (f.packets()-1)*int(f.HdrLen) }
