package simnic

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
	FrequencyKHz   uint32 // of the free-running clock of time stamps
	Timestamps     TimestampCap
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
		FrequencyKHz:   1000000,
		Timestamps:     StampsBoth,
	}
}
