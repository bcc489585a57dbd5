package uverbs

import "structs"

// Queue and steering structs of include/uapi/rdma/ib_user_verbs.h; conventions as in abi_core.go.

// QPDest mirrors struct ib_uverbs_qp_dest: address of an RDMA peer, all zero for raw packet queue
// pairs.
type QPDest struct {
	_            structs.HostLayout
	DGID         [16]byte `c:"dgid"`
	FlowLabel    uint32   `c:"flow_label"`
	DLID         uint16   `c:"dlid"`
	Reserved     uint16   `c:"reserved"`
	SGIDIndex    uint8    `c:"sgid_index"`
	HopLimit     uint8    `c:"hop_limit"`
	TrafficClass uint8    `c:"traffic_class"`
	SL           uint8    `c:"sl"`
	SrcPathBits  uint8    `c:"src_path_bits"`
	StaticRate   uint8    `c:"static_rate"`
	IsGlobal     uint8    `c:"is_global"`
	PortNum      uint8    `c:"port_num"`
}

// ExCreateQPReq mirrors struct ib_uverbs_ex_create_qp.
type ExCreateQPReq struct {
	_               structs.HostLayout
	UserHandle      uint64 `c:"user_handle"`
	PDHandle        uint32 `c:"pd_handle"`
	SendCQHandle    uint32 `c:"send_cq_handle"`
	RecvCQHandle    uint32 `c:"recv_cq_handle"`
	SRQHandle       uint32 `c:"srq_handle"`
	MaxSendWR       uint32 `c:"max_send_wr"`
	MaxRecvWR       uint32 `c:"max_recv_wr"`
	MaxSendSGE      uint32 `c:"max_send_sge"`
	MaxRecvSGE      uint32 `c:"max_recv_sge"`
	MaxInlineData   uint32 `c:"max_inline_data"`
	SQSigAll        uint8  `c:"sq_sig_all"`
	QPType          uint8  `c:"qp_type"`
	IsSRQ           uint8  `c:"is_srq"`
	Reserved        uint8  `c:"reserved"`
	CompMask        uint32 `c:"comp_mask"`
	CreateFlags     uint32 `c:"create_flags"`
	RWQIndTblHandle uint32 `c:"rwq_ind_tbl_handle"`
	SourceQPN       uint32 `c:"source_qpn"`
}

// CreateQPResp mirrors struct ib_uverbs_create_qp_resp.
type CreateQPResp struct {
	_             structs.HostLayout
	QPHandle      uint32 `c:"qp_handle"`
	QPN           uint32 `c:"qpn"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	Reserved      uint32 `c:"reserved"`
}

// ExCreateQPResp mirrors struct ib_uverbs_ex_create_qp_resp.
type ExCreateQPResp struct {
	_              structs.HostLayout
	Base           CreateQPResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// ModifyQPReq mirrors struct ib_uverbs_modify_qp.
type ModifyQPReq struct {
	_                structs.HostLayout
	Dest             QPDest  `c:"dest"`
	AltDest          QPDest  `c:"alt_dest"`
	QPHandle         uint32  `c:"qp_handle"`
	AttrMask         uint32  `c:"attr_mask"`
	Qkey             uint32  `c:"qkey"`
	RQPSN            uint32  `c:"rq_psn"`
	SQPSN            uint32  `c:"sq_psn"`
	DestQPNum        uint32  `c:"dest_qp_num"`
	QPAccessFlags    uint32  `c:"qp_access_flags"`
	PkeyIndex        uint16  `c:"pkey_index"`
	AltPkeyIndex     uint16  `c:"alt_pkey_index"`
	QPState          uint8   `c:"qp_state"`
	CurQPState       uint8   `c:"cur_qp_state"`
	PathMTU          uint8   `c:"path_mtu"`
	PathMigState     uint8   `c:"path_mig_state"`
	EnSQDAsyncNotify uint8   `c:"en_sqd_async_notify"`
	MaxRdAtomic      uint8   `c:"max_rd_atomic"`
	MaxDestRdAtomic  uint8   `c:"max_dest_rd_atomic"`
	MinRNRTimer      uint8   `c:"min_rnr_timer"`
	PortNum          uint8   `c:"port_num"`
	Timeout          uint8   `c:"timeout"`
	RetryCnt         uint8   `c:"retry_cnt"`
	RNRRetry         uint8   `c:"rnr_retry"`
	AltPortNum       uint8   `c:"alt_port_num"`
	AltTimeout       uint8   `c:"alt_timeout"`
	Reserved         [2]byte `c:"reserved"`
}

// ExModifyQPReq mirrors struct ib_uverbs_ex_modify_qp.
type ExModifyQPReq struct {
	_         structs.HostLayout
	Base      ModifyQPReq `c:"base"`
	RateLimit uint32      `c:"rate_limit"` // kbit/s, 0 unlimited
	Reserved  uint32      `c:"reserved"`
}

// ExModifyQPResp mirrors struct ib_uverbs_ex_modify_qp_resp.
type ExModifyQPResp struct {
	_              structs.HostLayout
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
}

// QueryQPReq mirrors struct ib_uverbs_query_qp.
type QueryQPReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	AttrMask uint32 `c:"attr_mask"`
}

// QueryQPResp mirrors struct ib_uverbs_query_qp_resp.
type QueryQPResp struct {
	_               structs.HostLayout
	Dest            QPDest  `c:"dest"`
	AltDest         QPDest  `c:"alt_dest"`
	MaxSendWR       uint32  `c:"max_send_wr"`
	MaxRecvWR       uint32  `c:"max_recv_wr"`
	MaxSendSGE      uint32  `c:"max_send_sge"`
	MaxRecvSGE      uint32  `c:"max_recv_sge"`
	MaxInlineData   uint32  `c:"max_inline_data"`
	Qkey            uint32  `c:"qkey"`
	RQPSN           uint32  `c:"rq_psn"`
	SQPSN           uint32  `c:"sq_psn"`
	DestQPNum       uint32  `c:"dest_qp_num"`
	QPAccessFlags   uint32  `c:"qp_access_flags"`
	PkeyIndex       uint16  `c:"pkey_index"`
	AltPkeyIndex    uint16  `c:"alt_pkey_index"`
	QPState         uint8   `c:"qp_state"`
	CurQPState      uint8   `c:"cur_qp_state"`
	PathMTU         uint8   `c:"path_mtu"`
	PathMigState    uint8   `c:"path_mig_state"`
	SQDraining      uint8   `c:"sq_draining"`
	MaxRdAtomic     uint8   `c:"max_rd_atomic"`
	MaxDestRdAtomic uint8   `c:"max_dest_rd_atomic"`
	MinRNRTimer     uint8   `c:"min_rnr_timer"`
	PortNum         uint8   `c:"port_num"`
	Timeout         uint8   `c:"timeout"`
	RetryCnt        uint8   `c:"retry_cnt"`
	RNRRetry        uint8   `c:"rnr_retry"`
	AltPortNum      uint8   `c:"alt_port_num"`
	AltTimeout      uint8   `c:"alt_timeout"`
	SQSigAll        uint8   `c:"sq_sig_all"`
	Reserved        [5]byte `c:"reserved"`
}

// DestroyQPReq mirrors struct ib_uverbs_destroy_qp.
type DestroyQPReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyQPResp mirrors struct ib_uverbs_destroy_qp_resp.
type DestroyQPResp struct {
	_              structs.HostLayout
	EventsReported uint32 `c:"events_reported"`
}

// ExCreateWQReq mirrors struct ib_uverbs_ex_create_wq.
type ExCreateWQReq struct {
	_           structs.HostLayout
	CompMask    uint32 `c:"comp_mask"`
	WQType      uint32 `c:"wq_type"`
	UserHandle  uint64 `c:"user_handle"`
	PDHandle    uint32 `c:"pd_handle"`
	CQHandle    uint32 `c:"cq_handle"`
	MaxWR       uint32 `c:"max_wr"`
	MaxSGE      uint32 `c:"max_sge"`
	CreateFlags uint32 `c:"create_flags"`
	Reserved    uint32 `c:"reserved"`
}

// ExCreateWQResp mirrors struct ib_uverbs_ex_create_wq_resp.
type ExCreateWQResp struct {
	_              structs.HostLayout
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
	WQHandle       uint32 `c:"wq_handle"`
	MaxWR          uint32 `c:"max_wr"`
	MaxSGE         uint32 `c:"max_sge"`
	WQN            uint32 `c:"wqn"`
}

// ExDestroyWQReq mirrors struct ib_uverbs_ex_destroy_wq.
type ExDestroyWQReq struct {
	_        structs.HostLayout
	CompMask uint32 `c:"comp_mask"`
	WQHandle uint32 `c:"wq_handle"`
}

// ExDestroyWQResp mirrors struct ib_uverbs_ex_destroy_wq_resp.
type ExDestroyWQResp struct {
	_              structs.HostLayout
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
	EventsReported uint32 `c:"events_reported"`
	Reserved       uint32 `c:"reserved"`
}

// ExModifyWQReq mirrors struct ib_uverbs_ex_modify_wq.
type ExModifyWQReq struct {
	_           structs.HostLayout
	AttrMask    uint32 `c:"attr_mask"`
	WQHandle    uint32 `c:"wq_handle"`
	WQState     uint32 `c:"wq_state"`
	CurrWQState uint32 `c:"curr_wq_state"`
	Flags       uint32 `c:"flags"`
	FlagsMask   uint32 `c:"flags_mask"`
}

// ExCreateRWQIndTblReq mirrors struct ib_uverbs_ex_create_rwq_ind_table, followed by
// 1<<LogIndTblSize work queue handles of 4 bytes each.
type ExCreateRWQIndTblReq struct {
	_             structs.HostLayout
	CompMask      uint32 `c:"comp_mask"`
	LogIndTblSize uint32 `c:"log_ind_tbl_size"`
}

// ExCreateRWQIndTblResp mirrors struct ib_uverbs_ex_create_rwq_ind_table_resp.
type ExCreateRWQIndTblResp struct {
	_              structs.HostLayout
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
	IndTblHandle   uint32 `c:"ind_tbl_handle"`
	IndTblNum      uint32 `c:"ind_tbl_num"`
}

// ExDestroyRWQIndTblReq mirrors struct ib_uverbs_ex_destroy_rwq_ind_table.
type ExDestroyRWQIndTblReq struct {
	_            structs.HostLayout
	CompMask     uint32 `c:"comp_mask"`
	IndTblHandle uint32 `c:"ind_tbl_handle"`
}

// FlowAttrHdr mirrors struct ib_uverbs_flow_attr.
type FlowAttrHdr struct {
	_          structs.HostLayout
	Type       uint32  `c:"type"`
	Size       uint16  `c:"size"` // bytes of the specifications that follow
	Priority   uint16  `c:"priority"`
	NumOfSpecs uint8   `c:"num_of_specs"`
	Reserved   [2]byte `c:"reserved"`
	Port       uint8   `c:"port"`
	Flags      uint32  `c:"flags"`
}

// CreateFlowReq mirrors struct ib_uverbs_create_flow, followed by FlowAttr.Size bytes of
// specifications.
type CreateFlowReq struct {
	_        structs.HostLayout
	CompMask uint32      `c:"comp_mask"`
	QPHandle uint32      `c:"qp_handle"`
	FlowAttr FlowAttrHdr `c:"flow_attr"`
}

// CreateFlowResp mirrors struct ib_uverbs_create_flow_resp.
type CreateFlowResp struct {
	_          structs.HostLayout
	CompMask   uint32 `c:"comp_mask"`
	FlowHandle uint32 `c:"flow_handle"`
}

// DestroyFlowReq mirrors struct ib_uverbs_destroy_flow.
type DestroyFlowReq struct {
	_          structs.HostLayout
	CompMask   uint32 `c:"comp_mask"`
	FlowHandle uint32 `c:"flow_handle"`
}

// FlowSpecHdr mirrors struct ib_uverbs_flow_spec_hdr: the header of every specification.
type FlowSpecHdr struct {
	_        structs.HostLayout
	Type     uint32 `c:"type"`
	Size     uint16 `c:"size"` // bytes, header included
	Reserved uint16 `c:"reserved"`
}

// FlowEthFilter mirrors struct ib_uverbs_flow_eth_filter.
type FlowEthFilter struct {
	_         structs.HostLayout
	DstMAC    [6]byte `c:"dst_mac"`
	SrcMAC    [6]byte `c:"src_mac"`
	EtherType BE16    `c:"ether_type"`
	VLANTag   BE16    `c:"vlan_tag"`
}

// FlowSpecEth mirrors struct ib_uverbs_flow_spec_eth.
type FlowSpecEth struct {
	_    structs.HostLayout
	Hdr  FlowSpecHdr   `c:"hdr"`
	Val  FlowEthFilter `c:"val"`
	Mask FlowEthFilter `c:"mask"`
}

// FlowIPv4Filter mirrors struct ib_uverbs_flow_ipv4_filter.
type FlowIPv4Filter struct {
	_     structs.HostLayout
	SrcIP [4]byte `c:"src_ip"`
	DstIP [4]byte `c:"dst_ip"`
	Proto uint8   `c:"proto"`
	TOS   uint8   `c:"tos"`
	TTL   uint8   `c:"ttl"`
	Flags uint8   `c:"flags"`
}

// FlowSpecIPv4 mirrors struct ib_uverbs_flow_spec_ipv4.
type FlowSpecIPv4 struct {
	_    structs.HostLayout
	Hdr  FlowSpecHdr    `c:"hdr"`
	Val  FlowIPv4Filter `c:"val"`
	Mask FlowIPv4Filter `c:"mask"`
}

// FlowIPv6Filter mirrors struct ib_uverbs_flow_ipv6_filter.
type FlowIPv6Filter struct {
	_            structs.HostLayout
	SrcIP        [16]byte `c:"src_ip"`
	DstIP        [16]byte `c:"dst_ip"`
	FlowLabel    BE32     `c:"flow_label"`
	NextHdr      uint8    `c:"next_hdr"`
	TrafficClass uint8    `c:"traffic_class"`
	HopLimit     uint8    `c:"hop_limit"`
	Reserved     uint8    `c:"reserved"`
}

// FlowSpecIPv6 mirrors struct ib_uverbs_flow_spec_ipv6.
type FlowSpecIPv6 struct {
	_    structs.HostLayout
	Hdr  FlowSpecHdr    `c:"hdr"`
	Val  FlowIPv6Filter `c:"val"`
	Mask FlowIPv6Filter `c:"mask"`
}

// FlowTCPUDPFilter mirrors struct ib_uverbs_flow_tcp_udp_filter.
type FlowTCPUDPFilter struct {
	_       structs.HostLayout
	DstPort BE16 `c:"dst_port"`
	SrcPort BE16 `c:"src_port"`
}

// FlowSpecTCPUDP mirrors struct ib_uverbs_flow_spec_tcp_udp.
type FlowSpecTCPUDP struct {
	_    structs.HostLayout
	Hdr  FlowSpecHdr      `c:"hdr"`
	Val  FlowTCPUDPFilter `c:"val"`
	Mask FlowTCPUDPFilter `c:"mask"`
}

// FlowSpecActionTag mirrors struct ib_uverbs_flow_spec_action_tag.
type FlowSpecActionTag struct {
	_        structs.HostLayout
	Hdr      FlowSpecHdr `c:"hdr"`
	TagID    uint32      `c:"tag_id"` // below 1<<24
	Reserved uint32      `c:"reserved1"`
}

// FlowSpecActionDrop mirrors struct ib_uverbs_flow_spec_action_drop.
type FlowSpecActionDrop struct {
	_   structs.HostLayout
	Hdr FlowSpecHdr `c:"hdr"`
}

// FlowSpecActionCount mirrors struct ib_uverbs_flow_spec_action_count.
type FlowSpecActionCount struct {
	_        structs.HostLayout
	Hdr      FlowSpecHdr `c:"hdr"`
	Handle   uint32      `c:"handle"` // of a counters object
	Reserved uint32      `c:"reserved1"`
}
