package uverbs

import "structs"

// Structs of include/uapi/rdma/rdma_user_ioctl_cmds.h and ib_user_verbs.h, host byte order except
// BE fields, with every padding byte declared. The tag is the C field name; the comment of each
// type is the C struct name. Fields called Reserved must be sent as zero. "response" fields belong
// to the older write() transport: the kernel ignores them here.

// IoctlHdr mirrors struct ib_uverbs_ioctl_hdr: the header of every ioctl, followed by NumAttrs
// IoctlAttr.
type IoctlHdr struct {
	_         structs.HostLayout
	Length    uint16 `c:"length"` // bytes, header and attributes
	ObjectID  uint16 `c:"object_id"`
	MethodID  uint16 `c:"method_id"`
	NumAttrs  uint16 `c:"num_attrs"`
	Reserved1 uint64 `c:"reserved1"`
	DriverID  uint32 `c:"driver_id"`
	Reserved2 uint32 `c:"reserved2"`
}

// IoctlAttr mirrors struct ib_uverbs_attr. Data holds, by kind: an input of up to 8 bytes itself; a
// pointer to a longer input or to any output; a handle or descriptor, also a new one on return; the
// value of a constant (Len is then 8).
type IoctlAttr struct {
	_        structs.HostLayout
	AttrID   uint16 `c:"attr_id"`
	Len      uint16 `c:"len"`
	Flags    uint16 `c:"flags"`
	AttrData uint16 `c:"attr_data"` // 0
	Data     uint64 `c:"data"`
}

// GetContextReq mirrors struct ib_uverbs_get_context.
type GetContextReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// GetContextResp mirrors struct ib_uverbs_get_context_resp.
type GetContextResp struct {
	_              structs.HostLayout
	AsyncFD        uint32 `c:"async_fd"`
	NumCompVectors uint32 `c:"num_comp_vectors"`
}

// QueryDeviceResp mirrors struct ib_uverbs_query_device_resp.
type QueryDeviceResp struct {
	_                     structs.HostLayout
	FwVer                 uint64  `c:"fw_ver"` // major<<32 | minor<<16 | sub
	NodeGUID              BE64    `c:"node_guid"`
	SysImageGUID          BE64    `c:"sys_image_guid"`
	MaxMRSize             uint64  `c:"max_mr_size"`
	PageSizeCap           uint64  `c:"page_size_cap"`
	VendorID              uint32  `c:"vendor_id"`
	VendorPartID          uint32  `c:"vendor_part_id"`
	HwVer                 uint32  `c:"hw_ver"`
	MaxQP                 uint32  `c:"max_qp"`
	MaxQPWR               uint32  `c:"max_qp_wr"`
	DeviceCapFlags        uint32  `c:"device_cap_flags"`
	MaxSGE                uint32  `c:"max_sge"`
	MaxSGERd              uint32  `c:"max_sge_rd"`
	MaxCQ                 uint32  `c:"max_cq"`
	MaxCQE                uint32  `c:"max_cqe"`
	MaxMR                 uint32  `c:"max_mr"`
	MaxPD                 uint32  `c:"max_pd"`
	MaxQPRdAtom           uint32  `c:"max_qp_rd_atom"`
	MaxEERdAtom           uint32  `c:"max_ee_rd_atom"`
	MaxResRdAtom          uint32  `c:"max_res_rd_atom"`
	MaxQPInitRdAtom       uint32  `c:"max_qp_init_rd_atom"`
	MaxEEInitRdAtom       uint32  `c:"max_ee_init_rd_atom"`
	AtomicCap             uint32  `c:"atomic_cap"`
	MaxEE                 uint32  `c:"max_ee"`
	MaxRDD                uint32  `c:"max_rdd"`
	MaxMW                 uint32  `c:"max_mw"`
	MaxRawIPv6QP          uint32  `c:"max_raw_ipv6_qp"`
	MaxRawEthyQP          uint32  `c:"max_raw_ethy_qp"`
	MaxMcastGrp           uint32  `c:"max_mcast_grp"`
	MaxMcastQPAttach      uint32  `c:"max_mcast_qp_attach"`
	MaxTotalMcastQPAttach uint32  `c:"max_total_mcast_qp_attach"`
	MaxAH                 uint32  `c:"max_ah"`
	MaxFMR                uint32  `c:"max_fmr"`
	MaxMapPerFMR          uint32  `c:"max_map_per_fmr"`
	MaxSRQ                uint32  `c:"max_srq"`
	MaxSRQWR              uint32  `c:"max_srq_wr"`
	MaxSRQSGE             uint32  `c:"max_srq_sge"`
	MaxPkeys              uint16  `c:"max_pkeys"`
	LocalCAAckDelay       uint8   `c:"local_ca_ack_delay"`
	PhysPortCnt           uint8   `c:"phys_port_cnt"`
	Reserved              [4]byte `c:"reserved"`
}

// ExQueryDeviceReq mirrors struct ib_uverbs_ex_query_device.
type ExQueryDeviceReq struct {
	_        structs.HostLayout
	CompMask uint32 `c:"comp_mask"`
	Reserved uint32 `c:"reserved"`
}

// ODPCaps mirrors struct ib_uverbs_odp_caps.
type ODPCaps struct {
	_           structs.HostLayout
	GeneralCaps uint64 `c:"general_caps"`
	RC          uint32 `c:"per_transport_caps.rc_odp_caps"`
	UC          uint32 `c:"per_transport_caps.uc_odp_caps"`
	UD          uint32 `c:"per_transport_caps.ud_odp_caps"`
	Reserved    uint32 `c:"reserved"`
}

// RSSCaps mirrors struct ib_uverbs_rss_caps.
type RSSCaps struct {
	_                          structs.HostLayout
	SupportedQPTs              uint32 `c:"supported_qpts"`
	MaxRWQIndirectionTables    uint32 `c:"max_rwq_indirection_tables"`
	MaxRWQIndirectionTableSize uint32 `c:"max_rwq_indirection_table_size"`
	Reserved                   uint32 `c:"reserved"`
}

// TMCaps mirrors struct ib_uverbs_tm_caps.
type TMCaps struct {
	_              structs.HostLayout
	MaxRndvHdrSize uint32 `c:"max_rndv_hdr_size"`
	MaxNumTags     uint32 `c:"max_num_tags"`
	Flags          uint32 `c:"flags"`
	MaxOps         uint32 `c:"max_ops"`
	MaxSGE         uint32 `c:"max_sge"`
	Reserved       uint32 `c:"reserved"`
}

// CQModerationCaps mirrors struct ib_uverbs_cq_moderation_caps.
type CQModerationCaps struct {
	_         structs.HostLayout
	MaxCount  uint16 `c:"max_cq_moderation_count"`
	MaxPeriod uint16 `c:"max_cq_moderation_period"` // microseconds
	Reserved  uint32 `c:"reserved"`
}

// ExQueryDeviceResp mirrors struct ib_uverbs_ex_query_device_resp.
type ExQueryDeviceResp struct {
	_                structs.HostLayout
	Base             QueryDeviceResp  `c:"base"`
	CompMask         uint32           `c:"comp_mask"`
	ResponseLength   uint32           `c:"response_length"`
	ODPCaps          ODPCaps          `c:"odp_caps"`
	TimestampMask    uint64           `c:"timestamp_mask"`
	HCACoreClock     uint64           `c:"hca_core_clock"` // kHz
	DeviceCapFlagsEx uint64           `c:"device_cap_flags_ex"`
	RSSCaps          RSSCaps          `c:"rss_caps"`
	MaxWQTypeRQ      uint32           `c:"max_wq_type_rq"`
	RawPacketCaps    uint32           `c:"raw_packet_caps"`
	TMCaps           TMCaps           `c:"tm_caps"`
	CQModerationCaps CQModerationCaps `c:"cq_moderation_caps"`
	MaxDMSize        uint64           `c:"max_dm_size"`
	XRCODPCaps       uint32           `c:"xrc_odp_caps"`
	Reserved         uint32           `c:"reserved"`
}

// QueryPortReq mirrors struct ib_uverbs_query_port.
type QueryPortReq struct {
	_        structs.HostLayout
	Response uint64  `c:"response"`
	PortNum  uint8   `c:"port_num"`
	Reserved [7]byte `c:"reserved"`
}

// QueryPortResp mirrors struct ib_uverbs_query_port_resp.
type QueryPortResp struct {
	_             structs.HostLayout
	PortCapFlags  uint32 `c:"port_cap_flags"`
	MaxMsgSz      uint32 `c:"max_msg_sz"`
	BadPkeyCntr   uint32 `c:"bad_pkey_cntr"`
	QkeyViolCntr  uint32 `c:"qkey_viol_cntr"`
	GIDTblLen     uint32 `c:"gid_tbl_len"`
	PkeyTblLen    uint16 `c:"pkey_tbl_len"`
	LID           uint16 `c:"lid"`
	SMLID         uint16 `c:"sm_lid"`
	State         uint8  `c:"state"`
	MaxMTU        uint8  `c:"max_mtu"`
	ActiveMTU     uint8  `c:"active_mtu"`
	LMC           uint8  `c:"lmc"`
	MaxVLNum      uint8  `c:"max_vl_num"`
	SMSL          uint8  `c:"sm_sl"`
	SubnetTimeout uint8  `c:"subnet_timeout"`
	InitTypeReply uint8  `c:"init_type_reply"`
	ActiveWidth   uint8  `c:"active_width"`
	ActiveSpeed   uint8  `c:"active_speed"`
	PhysState     uint8  `c:"phys_state"`
	LinkLayer     uint8  `c:"link_layer"`
	Flags         uint8  `c:"flags"`
	Reserved      uint8  `c:"reserved"`
}

// QueryPortRespEx mirrors struct ib_uverbs_query_port_resp_ex, the native method's reply.
type QueryPortRespEx struct {
	_             structs.HostLayout
	Legacy        QueryPortResp `c:"legacy_resp"`
	PortCapFlags2 uint16        `c:"port_cap_flags2"`
	Reserved      [2]byte       `c:"-"`
	ActiveSpeedEx uint32        `c:"-"` // linux 6.12 and later; reserved before
}

// AllocPDReq mirrors struct ib_uverbs_alloc_pd.
type AllocPDReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// AllocPDResp mirrors struct ib_uverbs_alloc_pd_resp.
type AllocPDResp struct {
	_        structs.HostLayout
	PDHandle uint32 `c:"pd_handle"`
}

// DeallocPDReq mirrors struct ib_uverbs_dealloc_pd.
type DeallocPDReq struct {
	_        structs.HostLayout
	PDHandle uint32 `c:"pd_handle"`
}

// RegMRReq mirrors struct ib_uverbs_reg_mr.
type RegMRReq struct {
	_           structs.HostLayout
	Response    uint64 `c:"response"`
	Start       uint64 `c:"start"`
	Length      uint64 `c:"length"` // bytes
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32 `c:"pd_handle"`
	AccessFlags uint32 `c:"access_flags"`
}

// RegMRResp mirrors struct ib_uverbs_reg_mr_resp.
type RegMRResp struct {
	_        structs.HostLayout
	MRHandle uint32 `c:"mr_handle"`
	LKey     uint32 `c:"lkey"`
	RKey     uint32 `c:"rkey"`
}

// DeregMRReq mirrors struct ib_uverbs_dereg_mr.
type DeregMRReq struct {
	_        structs.HostLayout
	MRHandle uint32 `c:"mr_handle"`
}

// CreateCompChannelReq mirrors struct ib_uverbs_create_comp_channel.
type CreateCompChannelReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
}

// CreateCompChannelResp mirrors struct ib_uverbs_create_comp_channel_resp.
type CreateCompChannelResp struct {
	_  structs.HostLayout
	FD uint32 `c:"fd"`
}

// ExCreateCQReq mirrors struct ib_uverbs_ex_create_cq.
type ExCreateCQReq struct {
	_          structs.HostLayout
	UserHandle uint64 `c:"user_handle"`
	// requested entries; the kernel creates cqe+1 rounded up to a power of two
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"` // descriptor or -1
	CompMask    uint32 `c:"comp_mask"`
	Flags       uint32 `c:"flags"`
	Reserved    uint32 `c:"reserved"`
}

// CreateCQResp mirrors struct ib_uverbs_create_cq_resp.
type CreateCQResp struct {
	_        structs.HostLayout
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// ExCreateCQResp mirrors struct ib_uverbs_ex_create_cq_resp.
type ExCreateCQResp struct {
	_              structs.HostLayout
	Base           CreateCQResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// ExModifyCQReq mirrors struct ib_uverbs_ex_modify_cq.
type ExModifyCQReq struct {
	_        structs.HostLayout
	CQHandle uint32 `c:"cq_handle"`
	AttrMask uint32 `c:"attr_mask"`
	CQCount  uint16 `c:"attr.cq_count"`
	CQPeriod uint16 `c:"attr.cq_period"` // microseconds
	Reserved uint32 `c:"reserved"`
}

// DestroyCQReq mirrors struct ib_uverbs_destroy_cq.
type DestroyCQReq struct {
	_        structs.HostLayout
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyCQResp mirrors struct ib_uverbs_destroy_cq_resp.
type DestroyCQResp struct {
	_                   structs.HostLayout
	CompEventsReported  uint32 `c:"comp_events_reported"`
	AsyncEventsReported uint32 `c:"async_events_reported"`
}

// CompEventDesc mirrors struct ib_uverbs_comp_event_desc: one read of a completion channel.
type CompEventDesc struct {
	_        structs.HostLayout
	CQHandle uint64 `c:"cq_handle"` // the user handle given when the completion queue was created
}

// AsyncEventDesc mirrors struct ib_uverbs_async_event_desc: one read of the asynchronous event
// descriptor.
type AsyncEventDesc struct {
	_         structs.HostLayout
	Element   uint64 `c:"element"` // user handle of the object, or port number
	EventType uint32 `c:"event_type"`
	Reserved  uint32 `c:"reserved"`
}
