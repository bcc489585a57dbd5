package dv

import (
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Caps holds what the opened device, its kernel and its firmware can do.
type Caps struct {
	// Firmware is the device's firmware version.
	Firmware string
	// MaxTSO gives the most payload one segmentation request takes, in bytes; 0:
	// the device does not segment. It is bounded by the staging memory too.
	MaxTSO int
	// TxCsum: IPv4, TCP and UDP checksums are computed on sending.
	TxCsum bool
	// RxCsum: checksums are verified on reception.
	RxCsum bool
	// VLANStrip: tags can be taken out of received frames.
	VLANStrip bool
	// SharedMulticast: broadcast and multicast are copied to us and still reach Linux.
	SharedMulticast bool
	// RulesToLinux: rules of host mode can leave frames to Linux, see PriorityLinux. True until
	// one is refused.
	RulesToLinux bool
	// MinInline says how many header bytes the device demands inside the
	// descriptor of a sent frame: 0, 18, 78 or 138.
	MinInline int
	// ClockKHz gives the rate of the NIC's free-running clock, 0 if unknown.
	ClockKHz uint64
	// RealTimeStamps: Packet.Timestamp is wall time, as the NIC has no other stamps. Else it is of
	// the free-running clock.
	RealTimeStamps bool
	// MaxRxQueues gives the largest number of receive queues RSS can spread over.
	MaxRxQueues int
	// CQECompression: the device can compress receive completions.
	CQECompression bool
	// StridingRQ: the device can pack several frames in a receive buffer.
	StridingRQ bool
	// MultiPacketSend: the device takes several frames per send descriptor.
	MultiPacketSend bool
	// Pacing says which rates Device.LimitTxRate can keep send queues to.
	Pacing PacingCaps
}

// PacingCaps says which rates the device can keep a send queue to, in kbit/s; MaxKbps is 0 if it
// can keep none. It has a table of them, of often 128 entries, that all users of the device share:
// queues of equal rates take one.
type PacingCaps struct {
	MinKbps, MaxKbps uint32
	Burst            bool // TxRate.Burst and TypicalPacket can be set
}

// capsOf picks what concerns us out of what the kernel told.
func capsOf(c *uverbs.DeviceCaps, p *plan) Caps {
	return Caps{
		Firmware:        c.Firmware,
		MaxTSO:          min(int(c.MaxTSO), p.stage/2),
		TxCsum:          c.Checksums,
		RxCsum:          c.Checksums,
		VLANStrip:       c.VLANStrip,
		SharedMulticast: true,
		RulesToLinux:    true,
		MinInline:       minInline(c),
		ClockKHz:        c.CoreClockKHz,
		MaxRxQueues:     max(1, int(c.MaxIndTableSize)),
		CQECompression:  c.CQECompression != 0,
		StridingRQ:      c.Striding,
		MultiPacketSend: c.EnhancedMPW && minInline(c) == 0,
		Pacing:          PacingCaps{c.PacingMinKbps, c.PacingMaxKbps, c.PacingBurst},
	}
}

// minInline returns the header bytes to put in each send descriptor. Of functions that want more
// than the Ethernet header, which only virtual ones do, it is the longest headers there are,
// options included, so that frames need not be parsed: more than must be is always taken.
func minInline(c *uverbs.DeviceCaps) int {
	switch c.InlineMode {
	case inlineIP:
		return ethHeader + vlanTag + ipHeader
	case inlineTransport:
		return ethHeader + vlanTag + ipHeader + tcpHeader
	}
	return c.MinInline
}

// Inline modes of uverbs.DeviceCaps, and header sizes in bytes: IPv4 and TCP
// with all options, which is more than IPv6 without extensions.
const (
	inlineIP        = 3
	inlineTransport = 4

	ipHeader  = 60
	tcpHeader = 60
)

// txLimits returns what a send queue must keep to.
func (d *Device) txLimits() txLimits {
	c := d.context.Caps()
	ds := min(mlx5.MaxDS, c.MaxSendDesc/mlx5.DSSize)
	l := txLimits{
		minInline: d.caps.MinInline,
		frame:     d.MTU() + frameOverhead,
		tso:       d.caps.MaxTSO,
		lsoHeader: (ds-2)*mlx5.DSSize - mlx5.InlineOffset, // all but a control and a data segment
		inline:    d.plan.inline,
	}
	if d.caps.MultiPacketSend && !d.config.Tuning.NoMultiPacketSend {
		l.mpw = uint32(ds)
	}
	return l
}
