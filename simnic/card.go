package simnic

import (
	"fmt"
	"strings"
)

// Card describes one generation of cards: the identity that a NIC of that card reports, through
// package kernel and through package pcie.
type Card struct {
	Name  string // as Config.Card has it
	Title string // product name

	DeviceID  uint16    // PCI device id of a physical function
	VirtualID uint16    // of a virtual one
	Firmware  [3]uint16 // major, minor, sub-minor

	RealTimeOption bool // Config.RealTimeClock can be set
	Caps           Caps
}

// defaultCard says what Config has when it names none.
const defaultCard = "cx6dx"

// Cards returns the supported cards, oldest first.
//
// PCI ids are those of linux drivers/net/ethernet/mellanox/mlx5/core/main.c (the module of Linux
// 7.2 has all of them as aliases) and of DPDK drivers/common/mlx5/mlx5_common.h; firmware versions
// the ones that NVIDIA's network operator lists as supported, that of the long-term DOCA 2.9 for
// ConnectX-6 Dx, and those bundled with MFT 4.35.0 for ConnectX-6 Lx, -8, -9 and BlueField-3.
// Clocks, stride ranges and the rest are as published outputs of "ibv_devinfo -v" show them: of
// parts 4117 with firmware 14.27.1016, 4119 with 16.31.1014, 4125 with 22.36.1010;
// dv/mlx5/testdata/cards has more, with their addresses. Inline modes and VLAN insertion follow
// DPDK drivers/net/mlx5/mlx5.c (mlx5_set_min_inline), multi-packet sends linux/mlx5_os.c beside
// it.
//
// Not known are the clocks, stride ranges and formats of compressed completions of ConnectX-6 Lx,
// ConnectX-7 and later and of BlueField: they have the values of ConnectX-6 Dx. Of ConnectX-9
// DPDK's mlx5.rst says that it takes steering by hardware's tables alone; whether its firmware
// still takes the rules that mlx5_ib gives it is not known, and the model's does.
//
// Real-time stamps are an option of the firmware of ConnectX-6 Dx and later
// (REAL_TIME_CLOCK_ENABLE), which is off until it is set (Config.RealTimeClock): CREATE_RQ with
// such stamps was refused on a card in that state (github.com/NVIDIA/daqiri/pull/284), and sites
// set the option by hand (github.com/NVIDIA/5t5g/issues/3).
func Cards() []Card {
	return []Card{
		{Name: "cx4lx", Title: "ConnectX-4 Lx", DeviceID: 0x1015, VirtualID: 0x1016,
			Firmware: [3]uint16{14, 32, 1010}, Caps: connectX4LxCaps()},
		{Name: "cx5", Title: "ConnectX-5", DeviceID: 0x1017, VirtualID: 0x1018,
			Firmware: [3]uint16{16, 35, 4554}, Caps: connectX5Caps()},
		{Name: defaultCard, Title: "ConnectX-6 Dx", DeviceID: 0x101d, VirtualID: 0x101e,
			Firmware: [3]uint16{22, 43, 2026}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "cx6lx", Title: "ConnectX-6 Lx", DeviceID: 0x101f, VirtualID: 0x101e,
			Firmware: [3]uint16{26, 48, 1000}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "cx7", Title: "ConnectX-7", DeviceID: 0x1021, VirtualID: 0x101e,
			Firmware: [3]uint16{28, 46, 1006}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "bf2", Title: "BlueField-2", DeviceID: 0xa2d6, VirtualID: 0x101e,
			Firmware: [3]uint16{24, 46, 1006}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "bf3", Title: "BlueField-3", DeviceID: 0xa2dc, VirtualID: 0x101e,
			Firmware: [3]uint16{32, 48, 1000}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "cx8", Title: "ConnectX-8", DeviceID: 0x1023, VirtualID: 0x101e,
			Firmware: [3]uint16{40, 48, 1000}, RealTimeOption: true, Caps: DefaultCaps()},
		{Name: "cx9", Title: "ConnectX-9", DeviceID: 0x1025, VirtualID: 0x101e,
			Firmware: [3]uint16{82, 48, 1000}, RealTimeOption: true, Caps: DefaultCaps()},
	}
}

// CardNamed returns the card of that name; "" is ConnectX-6 Dx. The error lists the names.
func CardNamed(name string) (Card, error) {
	if name == "" {
		name = defaultCard
	}
	var names []string
	for _, c := range Cards() {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return Card{}, fmt.Errorf("no card %q: choose one of %s", name, strings.Join(names, ", "))
}

// DeviceID returns the PCI device id of the NIC's card, or of a virtual function of it.
func (n *NIC) DeviceID() uint16 {
	if n.cfg.Function.Kind == VF {
		return n.card.VirtualID
	}
	return n.card.DeviceID
}

// FirmwareVersion returns the version as tools print it.
func (c Card) FirmwareVersion() string {
	return fmt.Sprintf("%d.%d.%04d", c.Firmware[0], c.Firmware[1], c.Firmware[2])
}

// connectX5Caps returns those of the first generation that needs no headers inline and takes
// enhanced multi-packet sends.
func connectX5Caps() Caps {
	c := DefaultCaps()
	c.VLANInsert = true // DPDK does not use it: a hardware bug then breaks pausing
	c.MiniFormats = 1<<MiniHash | 1<<MiniChecksum | 1<<MiniChecksumStride
	c.LogMinStrides = 9
	c.FrequencyKHz = 156250
	return c
}

// connectX4LxCaps returns those of a card that requires at least the Ethernet header inline in each
// send WQE, on physical and virtual functions.
func connectX4LxCaps() Caps {
	c := connectX5Caps()
	c.MinInline = InlineL2
	c.Pacing = PacingCap{MinKbps: 1, MaxKbps: 50_000_000, Rates: 127}
	c.EnhancedMPW = false
	c.MiniFormats = 1<<MiniHash | 1<<MiniChecksum
	return c
}

// InlineMode says how much of a frame must be inside its send WQE
// (min_wqe_inline_mode of the NIC vport context).
type InlineMode uint8

// Inline modes, in the numbers of the vport context.
const (
	InlineNone InlineMode = 0
	InlineL2   InlineMode = 1 // 18 bytes: MAC addresses, one VLAN tag, type
	InlineIP   InlineMode = 2
	InlineL4   InlineMode = 3
)

// Caps holds what the device can do. Sizes are bytes and log fields base-2
// logarithms of the unit they name. The zero Caps in a Config stands for those of its card; a
// partly filled one is used unchanged.
type Caps struct {
	MaxSendWQE  int // bytes of one send WQE
	MaxRecvWQE  int // bytes of one receive WQE
	LogMaxQueue int // SQ basic blocks, RQ entries
	LogMaxCQ    int // CQ entries
	LogMaxRQT   int // entries of an indirection table
	MaxLSO      int // payload bytes of one LSO WQE

	MinInline   InlineMode
	VLANInsert  bool // Ethernet segment may ask for a tag
	LegacyMPW   bool // LSO WQEs of operation modifier 1 carry frames of one length
	EnhancedMPW bool
	PadTX       bool // frames below 60 bytes are padded by the device

	Compression    bool   // CQE compression
	MiniFormats    uint32 // bit n: mini CQE format n
	MaxCompressed  int    // packets of one session
	StridingRQ     bool
	LogMinStride   int // bytes of a stride
	LogMaxStride   int
	LogMinStrides  int // strides of a WQE
	LogMaxStrides  int
	VLANStrip      bool
	ScatterFCS     bool
	EndPad         bool
	DelayDrop      bool
	ChecksumFull   bool // CQE checksum covers padding too
	LRO            bool
	LROMinMSS      int // payload bytes below which segments are not merged
	LROTimersUsec  [4]uint16
	MultiPathFlows bool // DontTrap rules
	LogMaxFlows    int  // rules of all tables together
	CQModeration   bool
	Pacing         PacingCap
	FrequencyKHz   uint32 // of the free-running clock of time stamps
	Timestamps     TimestampCap
}

// PacingCap says what rates the device keeps send queues to. The range is published of a port of
// 100 Gbit/s (github.com/openucx/ucx/issues/10430); that a ConnectX-4 Lx takes no burst size and
// keeps no rates for user contexts, and the number of rates of all cards, are the model's choice.
type PacingCap struct {
	MinKbps, MaxKbps uint32 // kbit/s; 0: no pacing
	Rates            int    // different ones at a time, without that of no limit
	Burst            bool   // a burst and a typical packet size can be set
	Contexts         bool   // entries of the table can be for the queues of one user context (DEVX)
}

// DefaultCaps returns those of a ConnectX-6 Dx.
func DefaultCaps() Caps {
	return Caps{
		MaxSendWQE:  1024,
		MaxRecvWQE:  512,
		LogMaxQueue: 15,
		LogMaxCQ:    22,
		LogMaxRQT:   11,
		MaxLSO:      1 << 18,
		MinInline:   InlineNone,
		VLANInsert:  true,
		LegacyMPW:   true,
		EnhancedMPW: true,
		PadTX:       true,
		Compression: true,
		MiniFormats: 1<<MiniHash | 1<<MiniChecksum | 1<<MiniFlowTagStride |
			1<<MiniChecksumStride | 1<<MiniL34Stride,
		MaxCompressed:  64,
		StridingRQ:     true,
		LogMinStride:   6,
		LogMaxStride:   13,
		LogMinStrides:  3,
		LogMaxStrides:  16,
		VLANStrip:      true,
		ScatterFCS:     true,
		EndPad:         true,
		DelayDrop:      true,
		LRO:            true,
		LROMinMSS:      1348,
		LROTimersUsec:  [4]uint16{8, 16, 32, 1024},
		MultiPathFlows: true,
		LogMaxFlows:    16,
		CQModeration:   true,
		Pacing: PacingCap{MinKbps: 1, MaxKbps: 100_000_000, Rates: 127, Burst: true,
			Contexts: true},
		FrequencyKHz: 1000000,
		Timestamps:   StampsFreeRunning,
	}
}
