package mlx5

// Field tables of what a driver writes: segments of send and receive WQEs.

// Control segment, first 16 bytes of a send WQE (struct mlx5_wqe_ctrl_seg).
var (
	CtrlOpMod     = Field{"opmod", 0, 7, 0}
	CtrlIndex     = Field{"wqe_index", 1, 15, 0} // producer counter at the WQE's first basic block
	CtrlOpcode    = Field{"opcode", 3, 7, 0}
	CtrlQPN       = Field{"qpn", 4, 31, 8} // number of the send queue
	CtrlDS        = Field{"ds", 7, 5, 0}   // whole WQE, this segment included
	CtrlSignature = Field{"signature", 8, 7, 0}
	CtrlStream    = Field{"dci_stream", 9, 15, 0}
	CtrlFM        = Field{"fm", 11, 7, 5}
	CtrlCE        = Field{"ce", 11, 3, 2}
	CtrlSE        = Field{"se", 11, 1, 1}
	CtrlImm       = Field{"imm", 12, 31, 0}

	CtrlLayout = Layout{"ctrl", CtrlSegSize, []Field{
		CtrlOpMod, CtrlIndex, CtrlOpcode, CtrlQPN, CtrlDS, CtrlSignature, CtrlStream,
		CtrlFM, CtrlCE, CtrlSE, CtrlImm,
	}}
)

// Ethernet segment, second 16 bytes of a send WQE (struct mlx5_wqe_eth_seg).
// Insert bits and inline length are two readings of the same 16 bits, as are
// the tag and the first two inline bytes.
var (
	EthSWPOuterL4  = Field{"swp_outer_l4", 0, 7, 0} // offsets in units of 2 bytes
	EthSWPOuterL3  = Field{"swp_outer_l3", 1, 7, 0}
	EthSWPInnerL4  = Field{"swp_inner_l4", 2, 7, 0}
	EthSWPInnerL3  = Field{"swp_inner_l3", 3, 7, 0}
	EthL4Csum      = Field{"l4_csum", 4, 7, 7}
	EthL3Csum      = Field{"l3_csum", 4, 6, 6}
	EthL4InnerCsum = Field{"l4_inner_csum", 4, 5, 5}
	EthL3InnerCsum = Field{"l3_inner_csum", 4, 4, 4}
	EthSWPFlags    = Field{"swp_flags", 5, 7, 0}
	EthMSS         = Field{"mss", 6, 15, 0}
	EthMetadata    = Field{"metadata", 8, 31, 0}
	EthInsert      = Field{"insert_vlan", 12, 15, 15}
	EthTrailer     = Field{"insert_trailer", 12, 14, 14}
	EthInlineLen   = Field{"inline_hdr_sz", 12, 9, 0}
	EthInsertSVLAN = Field{"insert_svlan", 13, 0, 0}
	EthTCI         = Field{"vlan_tci", 14, 15, 0}

	// EthLayout reads bytes 12 to 15 as an inline header.
	EthLayout = Layout{"eth", EthSegSize,
		append(ethCommon[:len(ethCommon):len(ethCommon)], EthInlineLen)}
	// EthInsertLayout reads them as a VLAN tag to insert: use it when EthInsert is set.
	EthInsertLayout = Layout{"eth", EthSegSize,
		append(ethCommon[:len(ethCommon):len(ethCommon)], EthInsertSVLAN, EthTCI)}
)

var ethCommon = []Field{
	EthSWPOuterL4, EthSWPOuterL3, EthSWPInnerL4, EthSWPInnerL3, EthL4Csum,
	EthL3Csum, EthL4InnerCsum,
	EthL3InnerCsum, EthSWPFlags, EthMSS, EthMetadata, EthInsert, EthTrailer,
}

// Data segment, 16 bytes of a send or receive WQE (struct mlx5_wqe_data_seg),
// and the head of an inline one (struct mlx5_wqe_inline_seg), whose bytes
// follow at 4.
var (
	DataInline    = Field{"inline", 0, 7, 7}
	DataByteCount = Field{"byte_count", 0, 30, 0}
	DataLKey      = Field{"lkey", 4, 31, 0}
	DataAddr      = Field{"addr", 8, 63, 0}

	DataLayout = Layout{"data", DataSegSize,
		[]Field{DataInline, DataByteCount, DataLKey, DataAddr}}
	InlineLayout = Layout{"inline", InlineHeaderSize, []Field{DataInline, DataByteCount}}
)

// Next segment, head of a striding receive WQE (struct mlx5_wqe_srq_next_seg).
var (
	NextIndex     = Field{"next_wqe_index", 2, 15, 0} // linked-list queues only
	NextSignature = Field{"signature", 4, 7, 0}

	NextLayout = Layout{"next", 16, []Field{NextIndex, NextSignature}}
)

// Doorbell record of a queue pair or work queue, 8 bytes in host memory, and
// of a completion queue.
var (
	DBRRecv = Field{"recv_counter", 0, 31, 0} // low 16 bits count
	DBRSend = Field{"send_counter", 4, 31, 0} // low 16 bits count

	QPRecordLayout = Layout{"dbrec", 8, []Field{DBRRecv, DBRSend}}

	DBRConsumer = Field{"consumer_index", 0, 23, 0}
	DBRArmSN    = Field{"arm_sn", 4, 5, 4}
	DBRArmCmd   = Field{"arm_cmd", 4, 0, 0} // 1: only for a solicited or error CQE
	DBRArmCI    = Field{"arm_ci", 4, 23, 0}

	CQRecordLayout = Layout{"cq dbrec", 8, []Field{DBRConsumer, DBRArmSN, DBRArmCmd, DBRArmCI}}
)
