package uverbs

import (
	"fmt"
	"reflect"
	"strings"
)

// DeviceCaps are the capabilities that a device and its kernel driver reported when the context was
// opened: GET_CONTEXT and EX_QUERY_DEVICE, decoded. Each field's tag says what it means; Facts
// lists them. A capability the kernel did not report reads as zero.
type DeviceCaps struct {
	Firmware     string `says:"firmware version, major.minor.sub"`
	NodeGUID     uint64 `says:"identity of the device, stable across reboots and renames"`
	SysImageGUID uint64 `says:"identity of the card; equal for all functions of one card"`
	VendorID     uint32 `says:"IEEE company id of the vendor; 0x2c9 is Mellanox"`
	PartID       uint32 `says:"PCI device id of the function"`
	HwVer        uint32 `says:"PCI revision of the device"`
	Ports        int    `says:"number of ports, counted from 1; more than 1 on an e-switch manager"`
	CompVectors  uint32 `says:"interrupt vectors completion queues can be spread over"`

	OptionalMRAccess bool `says:"unknown access bits are ignored, so relaxed ordering can be set"`

	CQEVersion    uint8  `says:"completion format; 1 is needed for raw packet queues"`
	CacheLine     uint32 `says:"bytes of a cache line as the device believes it"`
	MaxSendDesc   int    `says:"bytes of the largest send WQE, headers and inline data included"`
	MaxRecvDesc   int    `says:"bytes of the largest receive WQE"`
	MaxSendBlocks uint32 `says:"64-byte blocks of the largest send ring"`
	MaxRecvWR     uint32 `says:"work requests of the largest receive ring"`
	InlineMode    uint8  `says:"headers needed inline: 0 unsaid, 1 none, 2 L2, 3 L3, 4 L4"`
	MinInline     int    `says:"bytes to put inline in every send WQE for InlineMode: 0 or 18"`

	Bfregs      uint32 `says:"send doorbell registers granted to this context"`
	BFRegSize   uint32 `says:"bytes of a send doorbell register; 0: no write combining"`
	UARsPerPage uint32 `says:"doorbell pages of the device in one page of the system"`

	MaxQP     uint32 `says:"queue pairs the device can have"`
	MaxCQ     uint32 `says:"completion queues the device can have"`
	MaxCQE    uint32 `says:"entries of the largest completion queue, less one"`
	MaxMR     uint32 `says:"memory regions the device can have"`
	MaxMRSize uint64 `says:"bytes of the largest memory region"`
	MaxWQ     uint32 `says:"receive work queues the device can have"`

	RawPacketRSS bool `says:"raw packet receive queues with an indirection table; needed"`
	Steering     bool `says:"flow rules in a table before the kernel netdev's; needed"`

	MaxIndTables    uint32 `says:"indirection tables the device can have"`
	MaxIndTableSize uint32 `says:"entries of the largest indirection table"`
	Toeplitz        bool   `says:"the receive hash is Toeplitz with a key of 40 bytes"`
	HashFields      uint64 `says:"header fields a receive hash may cover, bits HashSrcIPv4 ..."`

	Checksums       bool `says:"IP and TCP/UDP checksums: computed on send, verified on receive"`
	VLANStrip       bool `says:"the outer VLAN tag can be taken off and reported in the completion"`
	ScatterFCS      bool `says:"the frame check sequence can be delivered with the frame"`
	DelayDrop       bool `says:"frames wait for a buffer instead of a drop; needs CAP_SYS_RAWIO"`
	WriteEndPadding bool `says:"bus writes can be padded to whole cache lines"`

	MaxTSO uint32 `says:"bytes of payload segmented from one send WQE; 0: none"`

	MPW         bool `says:"several frames may share one send WQE (multi-packet send)"`
	EnhancedMPW bool `says:"multi-packet send with inline data and several pointers"`
	SWParsing   bool `says:"software may tell the device where the headers of a frame are"`

	CQECompression uint32 `says:"formats of compressed CQEs: 1 hash, 2 checksum, 4 with stride"`
	MaxMiniCQEs    uint32 `says:"completions in one block of compressed CQEs"`
	CQE128Comp     bool   `says:"128-byte completions can be compressed"`
	CQE128Pad      bool   `says:"completions can be padded to 128 bytes"`

	Striding           bool   `says:"one receive WQE can take many frames, each in whole strides"`
	MinStrideLogBytes  uint32 `says:"log2 of the smallest stride in bytes"`
	MaxStrideLogBytes  uint32 `says:"log2 of the largest stride in bytes"`
	MinLogStridesInWQE uint32 `says:"log2 of the fewest strides in one WQE"`
	MaxLogStridesInWQE uint32 `says:"log2 of the most strides in one WQE"`

	PacingMinKbps uint32 `says:"lowest rate a send queue can be limited to, kbit/s"`
	PacingMaxKbps uint32 `says:"highest rate a send queue can be limited to, kbit/s; 0: no pacing"`
	PacingBurst   bool   `says:"burst and typical packet size of a paced queue can be set"`

	ModerationMaxCount  uint16 `says:"most completions held for one event; 0: no moderation"`
	ModerationMaxPeriod uint16 `says:"longest time a completion event can be held, microseconds"`

	TunnelOffloads uint32 `says:"tunnels parsed: 1 VXLAN, 2 GRE, 4 GENEVE, 8 MPLS/GRE, 16 MPLS/UDP"`

	TimestampMask  uint64 `says:"valid bits of completion timestamps"`
	CoreClockKHz   uint64 `says:"frequency of the free-running clock behind them, kHz"`
	ClockPage      bool   `says:"the free-running clock can be mapped"`
	ClockPageAt    uint64 `says:"byte offset of the clock in its page"`
	ClockInfo      bool   `says:"a page has the conversion of timestamps to wall time"`
	RealTimeStamps bool   `says:"completions can carry wall time instead of clock ticks"`

	BounceBuffers bool `says:"no DMA to user memory (confidential virtual machine): unusable"`
}

// decodeCaps decodes the three replies.
func decodeCaps(a contextAnswer, core ExQueryDeviceResp, drv Mlx5QueryDeviceResp) DeviceCaps {
	var d DeviceCaps
	d.fromContext(a)
	d.fromDevice(core)
	d.fromDriver(drv)
	return d
}

func (d *DeviceCaps) fromContext(a contextAnswer) {
	u := a.driver
	d.CompVectors = a.vectors
	d.OptionalMRAccess = a.coreSupport&CoreSupportOptionalMRAccess != 0
	d.CQEVersion, d.CacheLine = u.CQEVersion, u.CacheLineSize
	d.MaxSendDesc, d.MaxRecvDesc = int(u.MaxSQDescSz), int(u.MaxRQDescSz)
	d.MaxSendBlocks, d.MaxRecvWR = u.MaxSendWQEBB, u.MaxRecvWR
	d.InlineMode, d.MinInline = u.EthMinInline, minInline(u.EthMinInline)
	d.Bfregs, d.BFRegSize = u.TotBfregs, u.BFRegSize
	d.UARsPerPage = max(1, u.NumUARsPerPage) // 0 on kernels that report one per page only
	d.ClockPage = u.CompMask&Mlx5UcontextCoreClockOffset != 0
	d.ClockPageAt = u.HCACoreClockOffset
	d.ClockInfo = u.ClockInfoVersions&1 != 0
	d.RealTimeStamps = u.CompMask&Mlx5UcontextRealTimeTS != 0
}

// minInline returns how many bytes rdma-core's providers/mlx5 puts inline for a mode. A device in
// mode 3 or 4 may require more: the whole header.
func minInline(mode uint8) int {
	if mode == Mlx5InlineNone {
		return 0
	}
	return 18
}

func (d *DeviceCaps) fromDevice(r ExQueryDeviceResp) {
	b := r.Base
	flags := r.DeviceCapFlagsEx | uint64(b.DeviceCapFlags)
	d.Firmware = fmt.Sprintf("%d.%d.%04d", b.FwVer>>32, b.FwVer>>16&0xffff, b.FwVer&0xffff)
	d.NodeGUID, d.SysImageGUID = b.NodeGUID.Value(), b.SysImageGUID.Value()
	d.VendorID, d.PartID, d.HwVer, d.Ports = b.VendorID, b.VendorPartID, b.HwVer, int(b.PhysPortCnt)
	d.MaxQP, d.MaxCQ, d.MaxCQE = b.MaxQP, b.MaxCQ, b.MaxCQE
	d.MaxMR, d.MaxMRSize, d.MaxWQ = b.MaxMR, b.MaxMRSize, r.MaxWQTypeRQ
	d.RawPacketRSS = r.RSSCaps.SupportedQPTs&RawPacketBit != 0
	d.MaxIndTables, d.MaxIndTableSize = r.RSSCaps.MaxRWQIndirectionTables,
		r.RSSCaps.MaxRWQIndirectionTableSize
	d.Steering = flags&DevCapManagedFlowSteering != 0
	d.Checksums = r.RawPacketCaps&RawPacketCapIPCsum != 0 || flags&DevCapRawIPCsum != 0
	d.VLANStrip = r.RawPacketCaps&RawPacketCapCVLANStripping != 0
	d.ScatterFCS = r.RawPacketCaps&RawPacketCapScatterFCS != 0
	d.DelayDrop = r.RawPacketCaps&RawPacketCapDelayDrop != 0
	d.WriteEndPadding = flags&DevCapPCIWriteEndPadding != 0
	d.BounceBuffers = flags&DevCapBounceBuffersRequired != 0
	d.ModerationMaxCount, d.ModerationMaxPeriod = r.CQModerationCaps.MaxCount,
		r.CQModerationCaps.MaxPeriod
	d.TimestampMask, d.CoreClockKHz = r.TimestampMask, r.HCACoreClock
}

func (d *DeviceCaps) fromDriver(r Mlx5QueryDeviceResp) {
	if r.TSOCaps.SupportedQPTs&RawPacketBit != 0 {
		d.MaxTSO = r.TSOCaps.MaxTSO
	}
	d.HashFields = r.RSSCaps.RxHashFieldsMask
	d.Toeplitz = r.RSSCaps.RxHashFunction&Mlx5HashToeplitz != 0
	d.CQECompression, d.MaxMiniCQEs = r.CQECompCaps.SupportedFormat, r.CQECompCaps.MaxNum
	d.CQE128Comp, d.CQE128Pad = r.Flags&Mlx5CQE128BComp != 0, r.Flags&Mlx5CQE128BPad != 0
	d.MPW, d.EnhancedMPW = r.MultiPktSendWQEs&Mlx5AllowMPW != 0,
		r.MultiPktSendWQEs&Mlx5SupportEMPW != 0
	d.SWParsing = r.SWParsingCaps.SupportedQPTs&RawPacketBit != 0 &&
		r.SWParsingCaps.SWParsingOffloads&Mlx5SWParsing != 0
	d.TunnelOffloads = r.TunnelOffloadsCaps
	if p := r.PacketPacingCaps; p.SupportedQPTs&RawPacketBit != 0 {
		d.PacingMinKbps, d.PacingMaxKbps = p.QPRateLimitMin, p.QPRateLimitMax
		d.PacingBurst = p.CapFlags&Mlx5PacketPacingBurst != 0
	}
	if s := r.StridingRQCaps; s.SupportedQPTs&RawPacketBit != 0 {
		d.Striding = true
		d.MinStrideLogBytes, d.MaxStrideLogBytes = s.MinStrideBytes, s.MaxStrideBytes
		d.MinLogStridesInWQE, d.MaxLogStridesInWQE = s.MinStridesInWQE, s.MaxStridesInWQE
	}
}

// Check returns nil if the device can carry raw packet queues, and otherwise an error that wraps
// ErrUnsupported and says what is missing. It does not check link layer, link state and privileges.
func (d DeviceCaps) Check() error {
	var missing []string
	for _, need := range []struct {
		ok  bool
		why string
	}{
		{d.CQEVersion == 1, fmt.Sprintf("completion format 1 (the driver offers %d)",
			d.CQEVersion)},
		{d.RawPacketRSS,
			"receive queues of raw packets (absent on old cards, on ports in InfiniBand mode and " +
				"in dual-port RoCE mode)"},
		{d.Steering, "flow steering"},
		{!d.BounceBuffers, "DMA to user memory (this is a confidential virtual machine)"},
	} {
		if !need.ok {
			missing = append(missing, need.why)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w: it lacks %s", ErrUnsupported, strings.Join(missing, ", "))
}

// Fact is one capability for people to read.
type Fact struct {
	Name  string // name of the DeviceCaps field
	Value any
	Says  string // one sentence
}

// Facts lists every field of d with its meaning, in order of declaration.
func (d DeviceCaps) Facts() []Fact {
	v := reflect.ValueOf(d)
	facts := make([]Fact, v.NumField())
	for i := range facts {
		f := v.Type().Field(i)
		facts[i] = Fact{f.Name, v.Field(i).Interface(), f.Tag.Get("says")}
	}
	return facts
}
