package uverbs

import "structs"

// Structs and numbers of include/uapi/rdma/mlx5-abi.h and mlx5_user_ioctl_cmds.h: the contents of
// AttrUHWIn and AttrUHWOut if the driver is mlx5_ib. Conventions as in abi_core.go.

// Values of Mlx5AllocUcontextReqV2.LibCaps.
const (
	Mlx5LibCap4KUAR  uint64 = 1
	Mlx5LibCapDynUAR uint64 = 2
)

// Mlx5AllocUctxDEVX is the only flag of Mlx5AllocUcontextReqV2.Flags; never set here.
const Mlx5AllocUctxDEVX uint32 = 1

// Mlx5MaxBfregs gives the maximum number of static doorbell registers of a context (linux
// drivers/infiniband/hw/mlx5).
const Mlx5MaxBfregs = 512

// Mlx5AllocUcontextReqV2 mirrors struct mlx5_ib_alloc_ucontext_req_v2.
type Mlx5AllocUcontextReqV2 struct {
	_                   structs.HostLayout
	TotalNumBfregs      uint32 `c:"total_num_bfregs"`
	NumLowLatencyBfregs uint32 `c:"num_low_latency_bfregs"`
	Flags               uint32 `c:"flags"`
	CompMask            uint32 `c:"comp_mask"`
	MaxCQEVersion       uint8  `c:"max_cqe_version"`
	Reserved0           uint8  `c:"reserved0"`
	Reserved1           uint16 `c:"reserved1"`
	Reserved2           uint32 `c:"reserved2"`
	LibCaps             uint64 `c:"lib_caps"`
}

// Bits of Mlx5AllocUcontextResp.CompMask.
const (
	Mlx5UcontextCoreClockOffset uint32 = 1
	Mlx5UcontextDumpFillMkey    uint32 = 2
	Mlx5UcontextECE             uint32 = 4
	Mlx5UcontextSQD2RTS         uint32 = 8
	Mlx5UcontextRealTimeTS      uint32 = 16
	Mlx5UcontextMkeyUpdateTag   uint32 = 32
)

// Values of Mlx5AllocUcontextResp.EthMinInline (enum mlx5_user_inline_mode).
const (
	Mlx5InlineUnknown uint8 = 0
	Mlx5InlineNone    uint8 = 1
	Mlx5InlineL2      uint8 = 2
	Mlx5InlineIP      uint8 = 3
	Mlx5InlineTCPUDP  uint8 = 4
)

// Mlx5AllocUcontextResp mirrors struct mlx5_ib_alloc_ucontext_resp.
type Mlx5AllocUcontextResp struct {
	_                  structs.HostLayout
	QPTabSize          uint32 `c:"qp_tab_size"`
	BFRegSize          uint32 `c:"bf_reg_size"` // bytes; 0 without write combining
	TotBfregs          uint32 `c:"tot_bfregs"`
	CacheLineSize      uint32 `c:"cache_line_size"`
	MaxSQDescSz        uint16 `c:"max_sq_desc_sz"` // bytes of one send WQE
	MaxRQDescSz        uint16 `c:"max_rq_desc_sz"` // bytes of one receive WQE
	MaxSendWQEBB       uint32 `c:"max_send_wqebb"` // 64-byte units of one send ring
	MaxRecvWR          uint32 `c:"max_recv_wr"`
	MaxSRQRecvWR       uint32 `c:"max_srq_recv_wr"`
	NumPorts           uint16 `c:"num_ports"`
	FlowActionFlags    uint16 `c:"flow_action_flags"`
	CompMask           uint32 `c:"comp_mask"`
	ResponseLength     uint32 `c:"response_length"`
	CQEVersion         uint8  `c:"cqe_version"`
	CmdsSuppUHW        uint8  `c:"cmds_supp_uhw"`
	EthMinInline       uint8  `c:"eth_min_inline"`
	ClockInfoVersions  uint8  `c:"clock_info_versions"`
	HCACoreClockOffset uint64 `c:"hca_core_clock_offset"`
	LogUARSize         uint32 `c:"log_uar_size"`
	NumUARsPerPage     uint32 `c:"num_uars_per_page"`
	NumDynBfregs       uint32 `c:"num_dyn_bfregs"`
	DumpFillMkey       uint32 `c:"dump_fill_mkey"`
}

// Mlx5AllocPDResp mirrors struct mlx5_ib_alloc_pd_resp.
type Mlx5AllocPDResp struct {
	_   structs.HostLayout
	PDN uint32 `c:"pdn"`
}

// Mlx5TSOCaps mirrors struct mlx5_ib_tso_caps.
type Mlx5TSOCaps struct {
	_             structs.HostLayout
	MaxTSO        uint32 `c:"max_tso"` // bytes of payload
	SupportedQPTs uint32 `c:"supported_qpts"`
}

// Mlx5RSSCaps mirrors struct mlx5_ib_rss_caps.
type Mlx5RSSCaps struct {
	_                structs.HostLayout
	RxHashFieldsMask uint64  `c:"rx_hash_fields_mask"`
	RxHashFunction   uint8   `c:"rx_hash_function"`
	Reserved         [7]byte `c:"reserved"`
}

// Mlx5CQECompCaps mirrors struct mlx5_ib_cqe_comp_caps.
type Mlx5CQECompCaps struct {
	_               structs.HostLayout
	MaxNum          uint32 `c:"max_num"`
	SupportedFormat uint32 `c:"supported_format"`
}

// Mlx5PacketPacingCaps mirrors struct mlx5_packet_pacing_caps.
type Mlx5PacketPacingCaps struct {
	_              structs.HostLayout
	QPRateLimitMin uint32  `c:"qp_rate_limit_min"` // kbit/s
	QPRateLimitMax uint32  `c:"qp_rate_limit_max"` // kbit/s
	SupportedQPTs  uint32  `c:"supported_qpts"`
	CapFlags       uint8   `c:"cap_flags"`
	Reserved       [3]byte `c:"reserved"`
}

// Mlx5SWParsingCaps mirrors struct mlx5_ib_sw_parsing_caps.
type Mlx5SWParsingCaps struct {
	_                 structs.HostLayout
	SWParsingOffloads uint32 `c:"sw_parsing_offloads"`
	SupportedQPTs     uint32 `c:"supported_qpts"`
}

// Mlx5StridingRQCaps mirrors struct mlx5_ib_striding_rq_caps; all four bounds are base-2
// logarithms.
type Mlx5StridingRQCaps struct {
	_               structs.HostLayout
	MinStrideBytes  uint32 `c:"min_single_stride_log_num_of_bytes"`
	MaxStrideBytes  uint32 `c:"max_single_stride_log_num_of_bytes"`
	MinStridesInWQE uint32 `c:"min_single_wqe_log_num_of_strides"`
	MaxStridesInWQE uint32 `c:"max_single_wqe_log_num_of_strides"`
	SupportedQPTs   uint32 `c:"supported_qpts"`
	Reserved        uint32 `c:"reserved"`
}

// Mlx5QueryDeviceResp mirrors struct mlx5_ib_query_device_resp.
type Mlx5QueryDeviceResp struct {
	_                   structs.HostLayout
	CompMask            uint32               `c:"comp_mask"`
	ResponseLength      uint32               `c:"response_length"`
	TSOCaps             Mlx5TSOCaps          `c:"tso_caps"`
	RSSCaps             Mlx5RSSCaps          `c:"rss_caps"`
	CQECompCaps         Mlx5CQECompCaps      `c:"cqe_comp_caps"`
	PacketPacingCaps    Mlx5PacketPacingCaps `c:"packet_pacing_caps"`
	MultiPktSendWQEs    uint32               `c:"mlx5_ib_support_multi_pkt_send_wqes"`
	Flags               uint32               `c:"flags"`
	SWParsingCaps       Mlx5SWParsingCaps    `c:"sw_parsing_caps"`
	StridingRQCaps      Mlx5StridingRQCaps   `c:"striding_rq_caps"`
	TunnelOffloadsCaps  uint32               `c:"tunnel_offloads_caps"`
	DCIMaxLogConcurrent uint8                `c:"dci_streams_caps.max_log_num_concurent"`
	DCIMaxLogErrored    uint8                `c:"dci_streams_caps.max_log_num_errored"`
	Reserved            uint16               `c:"reserved"`
	// value and mask; linux 6.7 and later
	RegC0 [8]byte `c:"reg_c0,newer"`
}

// Bits of Mlx5QueryDeviceResp fields.
const (
	Mlx5HashToeplitz uint8 = 1 // RSSCaps.RxHashFunction

	Mlx5AllowMPW    uint32 = 2 // MultiPktSendWQEs
	Mlx5SupportEMPW uint32 = 4

	Mlx5SWParsing     uint32 = 1 // SWParsingCaps.SWParsingOffloads
	Mlx5SWParsingCsum uint32 = 2
	Mlx5SWParsingLSO  uint32 = 4

	Mlx5CQE128BComp uint32 = 1 // Flags
	Mlx5CQE128BPad  uint32 = 2

	Mlx5PacketPacingBurst uint8 = 1 // PacketPacingCaps.CapFlags
)

// Mini-CQE formats: CQECompCaps.SupportedFormat (a set) and Mlx5CreateCQReq.CQECompResFormat (one
// of them).
const (
	Mlx5CQEFormatHash       uint8 = 1
	Mlx5CQEFormatCsum       uint8 = 2
	Mlx5CQEFormatCsumStrIdx uint8 = 4
)

// Flags of Mlx5CreateCQReq.Flags.
const (
	Mlx5CreateCQ128BPad      uint16 = 1
	Mlx5CreateCQUARPageIndex uint16 = 2
	Mlx5CreateCQRealTimeTS   uint16 = 4
)

// Mlx5CreateCQReq mirrors the first 24 bytes of struct mlx5_ib_create_cq, all that linux 5.4 knows.
// Exactly this is sent. The rest of the struct names a UAR page, which contexts with static pages
// do not need.
type Mlx5CreateCQReq struct {
	_                structs.HostLayout
	BufAddr          uint64 `c:"buf_addr"`
	DBAddr           uint64 `c:"db_addr"`
	CQESize          uint32 `c:"cqe_size"` // 64 or 128
	CQECompEn        uint8  `c:"cqe_comp_en"`
	CQECompResFormat uint8  `c:"cqe_comp_res_format"`
	Flags            uint16 `c:"flags"`
}

// Mlx5CreateCQResp mirrors struct mlx5_ib_create_cq_resp.
type Mlx5CreateCQResp struct {
	_        structs.HostLayout
	CQN      uint32 `c:"cqn"`
	Reserved uint32 `c:"reserved"`
}

// Flags of Mlx5CreateQPReq.Flags and Mlx5CreateQPRSSReq.Flags.
const (
	Mlx5QPFlagSignature        uint32 = 1
	Mlx5QPFlagScatterCQE       uint32 = 2
	Mlx5QPFlagTunnelOffloads   uint32 = 4
	Mlx5QPFlagBfregIndex       uint32 = 8
	Mlx5QPFlagAllowSelfLBUC    uint32 = 64
	Mlx5QPFlagAllowSelfLBMC    uint32 = 128
	Mlx5QPFlagUARPageIndex     uint32 = 0x400
	Mlx5QPNoUserIndex          uint32 = 0xffffff // UIDX that turns CQE version 1 off
	Mlx5QPRSSKeyLen                   = 40
	Mlx5WQFlagSignature        uint32 = 1 // Mlx5CreateWQReq.Flags
	Mlx5CreateWQMaskStridingRQ uint32 = 1 // Mlx5CreateWQReq.CompMask
)

// Mlx5CreateQPReq mirrors the first 48 bytes of struct mlx5_ib_create_qp: all that linux 5.4 knows
// and the minimum that linux 6.x accepts. Exactly this is sent.
type Mlx5CreateQPReq struct {
	_          structs.HostLayout
	BufAddr    uint64 `c:"buf_addr"` // receive ring
	DBAddr     uint64 `c:"db_addr"`
	SQWQECount uint32 `c:"sq_wqe_count"` // 64-byte basic blocks
	RQWQECount uint32 `c:"rq_wqe_count"`
	RQWQEShift uint32 `c:"rq_wqe_shift"` // log2 of bytes per receive WQE
	Flags      uint32 `c:"flags"`
	UIDX       uint32 `c:"uidx"`
	BfregIndex uint32 `c:"bfreg_index"`
	SQBufAddr  uint64 `c:"sq_buf_addr"`
}

// Mlx5CreateQPResp mirrors struct mlx5_ib_create_qp_resp.
type Mlx5CreateQPResp struct {
	_          structs.HostLayout
	BfregIndex uint32 `c:"bfreg_index"`
	ECEOptions uint32 `c:"ece_options"`
	CompMask   uint32 `c:"comp_mask"` // valid ones of the next five: none without DEVX
	TIRN       uint32 `c:"tirn"`
	TISN       uint32 `c:"tisn"`
	RQN        uint32 `c:"rqn"`
	SQN        uint32 `c:"sqn"`
	Reserved   uint32 `c:"reserved1"`
	TIRICMAddr uint64 `c:"tir_icm_addr"`
}

// Fields of a receive hash (enum mlx5_rx_hash_fields).
const (
	HashSrcIPv4  uint64 = 0x1
	HashDstIPv4  uint64 = 0x2
	HashSrcIPv6  uint64 = 0x4
	HashDstIPv6  uint64 = 0x8
	HashSrcTCP   uint64 = 0x10
	HashDstTCP   uint64 = 0x20
	HashSrcUDP   uint64 = 0x40
	HashDstUDP   uint64 = 0x80
	HashIPsecSPI uint64 = 0x100
	HashInner    uint64 = 0x80000000
)

// Hash field sets of the usual traffic classes, one RSS queue pair each: addresses and ports of
// different families cannot be mixed in one.
const (
	HashFieldsIPv4  = HashSrcIPv4 | HashDstIPv4
	HashFieldsIPv6  = HashSrcIPv6 | HashDstIPv6
	HashFieldsTCPv4 = HashFieldsIPv4 | HashSrcTCP | HashDstTCP
	HashFieldsUDPv4 = HashFieldsIPv4 | HashSrcUDP | HashDstUDP
	HashFieldsTCPv6 = HashFieldsIPv6 | HashSrcTCP | HashDstTCP
	HashFieldsUDPv6 = HashFieldsIPv6 | HashSrcUDP | HashDstUDP
)

// Mlx5CreateQPRSSReq mirrors struct mlx5_ib_create_qp_rss.
type Mlx5CreateQPRSSReq struct {
	_                structs.HostLayout
	RxHashFieldsMask uint64    `c:"rx_hash_fields_mask"`
	RxHashFunction   uint8     `c:"rx_hash_function"`
	RxKeyLen         uint8     `c:"rx_key_len"` // Mlx5QPRSSKeyLen
	Reserved         [6]byte   `c:"reserved"`
	RxHashKey        [128]byte `c:"rx_hash_key"`
	CompMask         uint32    `c:"comp_mask"`
	Flags            uint32    `c:"flags"`
}

// Mlx5BurstInfo mirrors struct mlx5_ib_burst_info.
type Mlx5BurstInfo struct {
	_            structs.HostLayout
	MaxBurstSz   uint32 `c:"max_burst_sz"`
	TypicalPktSz uint16 `c:"typical_pkt_sz"`
	Reserved     uint16 `c:"reserved"`
}

// Mlx5ModifyQPReq mirrors struct mlx5_ib_modify_qp.
type Mlx5ModifyQPReq struct {
	_          structs.HostLayout
	CompMask   uint32        `c:"comp_mask"`
	BurstInfo  Mlx5BurstInfo `c:"burst_info"`
	ECEOptions uint32        `c:"ece_options"`
}

// Mlx5CreateWQReq mirrors struct mlx5_ib_create_wq.
type Mlx5CreateWQReq struct {
	_                structs.HostLayout
	BufAddr          uint64 `c:"buf_addr"`
	DBAddr           uint64 `c:"db_addr"`
	RQWQECount       uint32 `c:"rq_wqe_count"`
	RQWQEShift       uint32 `c:"rq_wqe_shift"` // log2 of bytes per WQE
	UserIndex        uint32 `c:"user_index"`   // 24 bits, returned in completions
	Flags            uint32 `c:"flags"`
	CompMask         uint32 `c:"comp_mask"`
	StrideLogBytes   uint32 `c:"single_stride_log_num_of_bytes"`
	WQELogNumStrides uint32 `c:"single_wqe_log_num_of_strides"`
	TwoByteShiftEn   uint32 `c:"two_byte_shift_en"`
}

// Mlx5CreateWQResp mirrors struct mlx5_ib_create_wq_resp.
type Mlx5CreateWQResp struct {
	_              structs.HostLayout
	ResponseLength uint32 `c:"response_length"`
	Reserved       uint32 `c:"reserved"`
}

// Mlx5ModifyWQReq mirrors struct mlx5_ib_modify_wq; it must be sent, all zero.
type Mlx5ModifyWQReq struct {
	_        structs.HostLayout
	CompMask uint32 `c:"comp_mask"`
	Reserved uint32 `c:"reserved"`
}

// Values of Mlx5FlowCountersDesc.Description.
const (
	FlowCounterPackets uint32 = 0
	FlowCounterBytes   uint32 = 1
)

// Mlx5FlowCountersDesc mirrors struct mlx5_ib_flow_counters_desc.
type Mlx5FlowCountersDesc struct {
	_           structs.HostLayout
	Description uint32 `c:"description"`
	Index       uint32 `c:"index"` // index in the array that a read returns
}

// Mlx5FlowCountersData mirrors struct mlx5_ib_flow_counters_data.
type Mlx5FlowCountersData struct {
	_            structs.HostLayout
	CountersData uint64 `c:"counters_data"` // address of NCounters Mlx5FlowCountersDesc
	NCounters    uint32 `c:"ncounters"`
	Reserved     uint32 `c:"reserved"`
}

// Mlx5CreateFlowReq mirrors struct mlx5_ib_create_flow, followed by NCountersData
// Mlx5FlowCountersData.
type Mlx5CreateFlowReq struct {
	_             structs.HostLayout
	NCountersData uint32 `c:"ncounters_data"`
	Reserved      uint32 `c:"reserved"`
}

// Mlx5ClockInfo mirrors struct mlx5_ib_clock_info, the content of the page mapped with
// MmapClockInfo.
type Mlx5ClockInfo struct {
	_              structs.HostLayout
	Sign           uint32 `c:"sign"` // odd while the kernel writes
	Resv           uint32 `c:"resv"`
	Nsec           uint64 `c:"nsec"`
	Cycles         uint64 `c:"cycles"`
	Frac           uint64 `c:"frac"`
	Mult           uint32 `c:"mult"`
	Shift          uint32 `c:"shift"`
	Mask           uint64 `c:"mask"`
	OverflowPeriod uint64 `c:"overflow_period"`
}

// Kinds of pages of the node, in the offset passed to mmap: page number = command<<8 | index&0xff |
// (index>>8)<<16 (enum mlx5_ib_mmap_cmd).
const (
	MmapRegularPage        = 0 // static UAR page, write-combining if the machine supports it
	MmapGetContiguousPages = 1 // removed: ENOSYS
	MmapWCPage             = 2 // static UAR page, write-combining or EPERM
	MmapNCPage             = 3 // static UAR page, uncached
	MmapCoreClock          = 5 // free-running clock, read-only
	MmapAllocWC            = 6
	MmapClockInfo          = 7 // clock conversion page, read-only
	MmapDeviceMem          = 8
)

// Geometry of a UAR, the 4 KiB doorbell page of the device (PRM 8.9.3).
const (
	UARSize          = 4096
	UARCQDoorbell    = 0x20  // arm register of completion queues
	UARBfregBase     = 0x800 // first send doorbell register
	BfregsPerUAR     = 2     // usable send registers
	BfregIndexPerUAR = 4     // register numbers per UAR in Mlx5CreateQPResp.BfregIndex
	// bytes of a doorbell record; word 0 receive or CQ consumer, word 1 send or arm
	DoorbellRecordLen = 8
)
