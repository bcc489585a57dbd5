package mlx5

// Field tables of what the device writes: completions (struct mlx5_cqe64 of
// linux include/linux/mlx5/device.h and of mlx5dv.h, struct mlx5_err_cqe) and
// the 8-byte forms of a compressed session.

// CQE of success. Several words have two readings: a receive with LRO, a
// completed send, a striding receive queue.
var (
	CQETunneled      = Field{"tunneled", 0x00, 0, 0}
	CQEOuterL3       = Field{"outer_l3_v6", 0x00, 1, 1}
	CQETLSState      = Field{"tls_state", 0x00, 4, 3}
	CQEWQEID         = Field{"wqe_id", 0x02, 15, 0} // striding: which WQE
	CQELROFlags      = Field{"lro_flags", 0x04, 7, 0}
	CQELROPush       = Field{"lro_psh", 0x04, 6, 6}
	CQELROMinTTL     = Field{"lro_min_ttl", 0x05, 7, 0}
	CQELROWindow     = Field{"lro_tcp_win", 0x06, 15, 0}
	CQELROAck        = Field{"lro_ack_seq", 0x08, 31, 0}
	CQEHash          = Field{"rss_hash", 0x0c, 31, 0}
	CQEHashType      = Field{"rss_hash_type", 0x10, 7, 0}
	CQEMLPath        = Field{"ml_path", 0x11, 7, 0}
	CQEChecksum      = Field{"check_sum", 0x14, 15, 0}
	CQESLID          = Field{"slid", 0x16, 15, 0}
	CQEFlagsRQPN     = Field{"flags_rqpn", 0x18, 31, 0}
	CQEIPExtInfo     = Field{"hds_ip_ext", 0x1c, 7, 3}
	CQEL4OK          = Field{"l4_ok", 0x1c, 2, 2}
	CQEL3OK          = Field{"l3_ok", 0x1c, 1, 1}
	CQEL2OK          = Field{"l2_ok", 0x1c, 0, 0}
	CQEIPFragment    = Field{"ip_frag", 0x1d, 7, 7}
	CQEL4Type        = Field{"l4_type", 0x1d, 6, 4}
	CQEL3Type        = Field{"l3_type", 0x1d, 3, 2}
	CQEIPExt         = Field{"ip_ext", 0x1d, 1, 1}
	CQEVLANStripped  = Field{"vlan_stripped", 0x1d, 0, 0}
	CQEVLAN          = Field{"vlan_tci", 0x1e, 15, 0}
	CQELROSegments   = Field{"lro_num_seg", 0x20, 7, 0}
	CQEUIdx          = Field{"uidx", 0x20, 23, 0}
	CQEMetadata      = Field{"metadata", 0x24, 31, 0}
	CQEByteCount     = Field{"byte_cnt", 0x2c, 31, 0}
	CQEFiller        = Field{"filler", 0x2c, 31, 31}  // striding: no packet, strides skipped
	CQEStrides       = Field{"strides", 0x2c, 30, 16} // striding: strides consumed
	CQEStridingBytes = Field{"stride_bytes", 0x2e, 15, 0}
	CQETimestamp     = Field{"timestamp", 0x30, 63, 0}
	CQEDrops         = Field{"rx_drop_counter", 0x38, 7, 0}
	CQEFlowTag       = Field{"flow_tag", 0x38, 23, 0}
	CQESendOpcode    = Field{"wqe_opcode", 0x38, 7, 0}
	CQEQPN           = Field{"qpn", 0x38, 23, 0}
	CQEWQECounter    = Field{"wqe_counter", 0x3c, 15, 0} // striding: index of the first stride
	CQESignature     = Field{"signature", 0x3e, 7, 0}
	CQEKind          = Field{"opcode", 0x3f, 7, 4}
	CQEFormat        = Field{"format", 0x3f, 3, 2}
	CQESolicited     = Field{"se", 0x3f, 1, 1}
	CQEOwner         = Field{"owner", 0x3f, 0, 0}
)

// Readings of a CQE.
var (
	// CQELayout is an Ethernet receive.
	CQELayout = Layout{"rx", CQESize, []Field{
		CQETunneled, CQEOuterL3, CQETLSState, CQEHash, CQEHashType, CQEMLPath,
		CQEChecksum, CQEIPExtInfo, CQEL4OK,
		CQEL3OK, CQEL2OK, CQEIPFragment, CQEL4Type, CQEL3Type, CQEIPExt,
		CQEVLANStripped, CQEVLAN, CQELROSegments,
		CQEUIdx, CQEMetadata, CQEByteCount, CQETimestamp, CQEDrops, CQEFlowTag,
		CQEWQECounter, CQESignature,
		CQEKind, CQEFormat, CQESolicited, CQEOwner,
	}}
	// LROLayout says what CQELayout leaves out and a coalesced receive adds
	// (CQELROSegments above 1).
	LROLayout = Layout{"lro", CQESize, []Field{CQELROPush, CQELROMinTTL, CQELROWindow,
		CQELROAck, CQELROSegments}}
	// StridingLayout says what a striding receive queue adds or reads its own way.
	StridingLayout = Layout{"striding", CQESize,
		[]Field{CQEWQEID, CQEFiller, CQEStrides, CQEStridingBytes}}
	// SendCQELayout is a completed send.
	SendCQELayout = Layout{"tx", CQESize, []Field{
		CQEUIdx, CQEByteCount, CQETimestamp, CQESendOpcode, CQEQPN, CQEWQECounter,
		CQESignature, CQEKind, CQEFormat,
		CQESolicited, CQEOwner,
	}}
)

// What an error CQE has elsewhere than one of success.
var (
	CQEHWSyndrome     = Field{"hw_error_syndrome", 0x34, 7, 0}
	CQEHWSyndromeType = Field{"hw_syndrome_type", 0x35, 7, 0}
	CQEVendorSyndrome = Field{"vendor_err_synd", 0x36, 7, 0}
	CQESyndrome       = Field{"syndrome", 0x37, 7, 0}

	// ErrorCQELayout is a failed send or receive.
	ErrorCQELayout = Layout{"error", CQESize, []Field{
		CQEUIdx, CQEByteCount, CQEHWSyndrome, CQEHWSyndromeType, CQEVendorSyndrome,
		CQESyndrome, CQESendOpcode,
		CQEQPN, CQEWQECounter, CQESignature, CQEKind, CQEFormat, CQESolicited, CQEOwner,
	}}
)

// The 8-byte forms, one table per format. The last two are known from one
// source (DPDK drivers/common/mlx5/mlx5_prm.h and its receive functions).
var (
	MiniHashValue   = Field{"rss_hash", 0, 31, 0}
	MiniCsumValue   = Field{"check_sum", 0, 15, 0}
	MiniTagLow      = Field{"flow_tag_low", 0, 15, 0}
	MiniHeaderType  = Field{"l4_hdr_type_etc", 1, 7, 0}
	MiniStrideIndex = Field{"stride_idx", 2, 15, 0}
	MiniTagHigh     = Field{"flow_tag_high", 4, 7, 0}
	MiniBytes       = Field{"byte_cnt", 4, 31, 0}
	MiniBytes24     = Field{"byte_cnt", 4, 23, 0} // beside MiniTagHigh

	MiniHashLayout      = Layout{"mini hash", MiniCQESize, []Field{MiniHashValue, MiniBytes}}
	MiniCsumLayout      = Layout{"mini csum", MiniCQESize, []Field{MiniCsumValue, MiniBytes}}
	MiniTagStrideLayout = Layout{"mini tag stride", MiniCQESize,
		[]Field{MiniTagLow, MiniStrideIndex, MiniTagHigh, MiniBytes24}}
	MiniCsumStrideLayout = Layout{"mini csum stride", MiniCQESize,
		[]Field{MiniCsumValue, MiniStrideIndex, MiniBytes}}
	MiniHeaderStrideLayout = Layout{"mini header stride", MiniCQESize,
		[]Field{MiniHeaderType, MiniStrideIndex, MiniBytes}}
)
