package pcie

import (
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Capability groups of QUERY_HCA_CAP (linux include/linux/mlx5/device.h, enum mlx5_cap_type).
const (
	capGeneral   = 0
	capEthernet  = 1
	capFlowTable = 7
	capQoS       = 12
)

// capSize is one capability group, in bytes.
const capSize = 4096

// capValue is one field of a capability group and the model's value.
type capValue struct {
	name string
	f    field
	v    uint64
}

// generalCaps is what mlx5_core, mlx5e and mlx5_ib need of group 0 (linux
// include/linux/mlx5/mlx5_ifc.h, cmd_hca_cap). Fields not listed are zero: no RoCE, no e-switch, no
// on-demand paging.
var generalCaps = []capValue{
	{"log_max_srq_sz", field{128, 8}, 15},
	{"log_max_qp", field{155, 5}, 18},
	{"log_max_srq", field{171, 5}, 16},
	{"max_sgl_for_optimized_performance", field{192, 8}, 30},
	{"log_max_cq", field{219, 5}, 24},
	{"log_max_eq_sz", field{224, 8}, maxLogEQ},
	{"log_max_mkey", field{234, 6}, 24},
	{"log_max_eq", field{252, 4}, 7},
	{"max_indirection", field{256, 8}, 4},
	{"log_max_mrw_sz", field{265, 7}, 32},
	// mlx5e takes lists of up to 65,534 (en.h, MLX5E_MAX_RQ_NUM_KSMS). With shorter ones, linux
	// 7.2 warns in en/params.c:433 when a program of XDP is attached: no queue would hold the
	// frames of AF_XDP that are shorter than a page.
	{"log_max_klm_list_size", field{282, 6}, 16},
	{"log_max_ra_req_qp", field{330, 6}, 4},
	{"log_max_ra_res_qp", field{346, 6}, 4},
	{"end_pad", field{352, 1}, 1},
	{"start_pad", field{355, 1}, 1},
	{"vport_counters", field{385, 1}, 1},
	{"modify_rq_counter_set_id", field{388, 1}, 1},
	{"max_qp_cnt", field{390, 10}, maxQueueCounters},
	{"eth_virt", field{419, 1}, 1},
	{"nic_flow_table", field{422, 1}, 1},
	{"mcam_reg", field{425, 1}, 1},
	{"pcam_reg", field{426, 1}, 1},
	{"port_type", field{438, 2}, 1},
	{"num_ports", field{440, 8}, 1},
	{"log_max_msg", field{451, 5}, 30},
	{"max_tc", field{460, 4}, 1},
	{"cqe_version", field{508, 4}, 1},
	{"umr_modify_entity_size_disabled", field{519, 1}, 1},
	{"umr_indirect_mkey_disabled", field{521, 1}, 1},

	{"sctr_data_cqe", field{533, 1}, 1},
	{"eth_net_offloads", field{540, 1}, 1},
	{"cq_oi", field{544, 1}, 1},
	{"cq_resize", field{545, 1}, 1},
	{"cq_moderation", field{546, 1}, 1},
	{"cq_period_mode_modify", field{547, 1}, 1},
	{"block_lb_mc", field{552, 1}, 1},
	{"cq_period_start_from_cqe", field{555, 1}, 1},
	{"umr_ptr_rlky", field{560, 1}, 1},
	{"xrc", field{572, 1}, 1},
	{"ud", field{573, 1}, 1},
	{"uc", field{574, 1}, 1},
	{"rc", field{575, 1}, 1},
	{"uar_sz", field{586, 6}, 5},
	{"log_pg_sz", field{600, 8}, 12},
	{"bf", field{608, 1}, 1},
	{"driver_version", field{609, 1}, 1},
	{"log_bf_reg_size", field{619, 5}, 9},
	{"log_max_transport_domain", field{803, 5}, 8},
	{"log_max_pd", field{811, 5}, 23},
	{"log_max_xrcd", field{827, 5}, 8},
	{"flow_counter_bulk_alloc", field{784, 8}, 7},
	{"log_max_flow_counter_bulk", field{840, 8}, logMaxCounterQuery},
	{"max_flow_counter_15_0", field{848, 16}, maxFlowCounters},
	{"flow_counters_dump", field{865, 1}, 1},
	{"log_max_rq", field{867, 5}, 20},
	{"log_max_sq", field{875, 5}, 20},
	{"log_max_tir", field{883, 5}, 20},
	{"log_max_tis", field{891, 5}, 12},
	{"basic_cyclic_rcv_wqe", field{896, 1}, 1},
	{"log_max_rmp", field{899, 5}, 10},
	{"log_max_rqt", field{907, 5}, 20},
	{"log_max_tis_per_sq", field{923, 5}, 1},
	{"log_max_stride_sz_rq", field{931, 5}, 12},
	{"log_min_stride_sz_rq", field{939, 5}, 4},
	{"log_max_stride_sz_sq", field{947, 5}, 12},
	{"log_min_stride_sz_sq", field{955, 5}, 4},
	{"disable_local_lb_uc", field{993, 1}, 1},
	{"disable_local_lb_mc", field{994, 1}, 1},
	{"log_max_vlan_list", field{1003, 5}, 8},
	{"log_max_current_mc_list", field{1011, 5}, logMulticastList},
	{"log_max_current_uc_list", field{1019, 5}, logUnicastList},
	{"log_max_uctx", field{1123, 5}, logMaxContexts},
	{"log_max_umem", field{1131, 5}, logMaxUMEMs},
	{"num_of_uars_per_page", field{1312, 32}, 1},
	{"uctx_cap", field{1696, 32}, contextSendsRaw},
}

// Maximum number of addresses in the lists of the NIC vport context, log2.
const logMulticastList, logUnicastList = 8, 7

// flowTableFixed is group 7, from byte 64 on (NIC receive, flow_table_prop_layout).
var flowTableFixed = []capValue{
	{"ft_support", field{0, 1}, 1},
	{"flow_counter", field{2, 1}, 1},
	{"flow_modify_en", field{3, 1}, 1},
	{"modify_root", field{4, 1}, 1},
	{"identified_miss_table_mode", field{5, 1}, 1},
	{"flow_table_modify", field{6, 1}, 1},
	{"log_max_ft_size", field{34, 6}, 16},
	{"max_ft_level", field{56, 8}, 64},
	{"log_max_ft_num", field{120, 8}, 8},
	{"log_max_flow_counter", field{144, 8}, 8},
	{"log_max_destination", field{152, 8}, 8},
	{"log_max_flow", field{184, 8}, 16},
}

// matchFields are the header fields that flow rules may match, as bits of the supported-fields
// words of group 7.
var matchFields = []int{0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15, 18, 19, 20, 21}

// Words of flow_table_prop_layout that list supported match fields, and again as bit masks.
const ftFieldSupport, ftFieldBitmask = 256, 384

// Where group 7 describes each kind of flow table.
const (
	flowTableNICReceive = 64
	flowTableSniffRx    = 192
	flowTableSniffTx    = 384
)

// nicCaps are the fields of group 0 that follow from the NIC's capabilities.
func (f *Function) nicCaps() []capValue {
	c := f.nic.Caps()
	return []capValue{
		{"log_max_qp_sz", field{136, 8}, uint64(c.LogMaxQueue)},
		{"log_max_cq_sz", field{200, 8}, uint64(c.LogMaxCQ)},
		{"striding_rq", field{513, 1}, flag(c.StridingRQ)},
		{"qos", field{539, 1}, flag(f.pacing().MaxKbps != 0)},
		{"max_wqe_sz_sq", field{656, 16}, uint64(c.MaxSendWQE)},
		{"max_wqe_sz_rq", field{688, 16}, uint64(c.MaxRecvWQE)},
		{"log_max_rqt_size", field{915, 5}, uint64(c.LogMaxRQT)},
		{"ext_stride_num_range", field{928, 1}, flag(c.LogMinStrides < 9)},
		{"log_max_wq_sz", field{987, 5}, uint64(c.LogMaxQueue)},
		{"sq_ts_format", field{1088, 2}, uint64(c.Timestamps)},
		{"rq_ts_format", field{1090, 2}, uint64(c.Timestamps)},
		{"device_frequency_mhz", field{1216, 32}, uint64(c.FrequencyKHz / 1000)},
		{"device_frequency_khz", field{1248, 32}, uint64(c.FrequencyKHz)},
		{"mini_cqe_resp_stride_index", field{1468, 1},
			flag(c.MiniFormats>>simnic.MiniChecksumStride&1 != 0)},
		{"cqe_compression", field{1471, 1}, flag(c.Compression)},
		{"cqe_compression_max_num", field{1488, 16}, uint64(c.MaxCompressed)},
	}
}

// setCaps writes values into a capability group.
func setCaps(b []byte, values []capValue) {
	for _, c := range values {
		c.f.set(b, c.v)
	}
}

// generalCapBytes is group 0 before the driver changes fields.
func (f *Function) generalCapBytes() []byte {
	b := make([]byte, capSize)
	setCaps(b, generalCaps)
	setCaps(b, f.nicCaps())
	return b
}

// ethernetCaps is group 1 (per_protocol_networking_offload_caps), made from the NIC's capabilities.
func (f *Function) ethernetCaps() []capValue {
	c := f.nic.Caps()
	values := []capValue{
		{"csum_cap", field{0, 1}, 1},
		{"vlan_cap", field{1, 1}, flag(c.VLANStrip)},
		{"lro_cap", field{2, 1}, flag(c.LRO)},
		{"lro_psh_flag", field{3, 1}, flag(c.LRO)},
		{"self_lb_en_modifiable", field{8, 1}, 1},
		{"max_lso_cap", field{11, 5}, uint64(bits.Len(uint(c.MaxLSO)) - 1)},
		{"wqe_vlan_insert", field{7, 1}, flag(c.VLANInsert)},
		{"multi_pkt_send_wqe", field{16, 2}, flag(c.LegacyMPW)},
		{"wqe_inline_mode", field{18, 2}, inlineMode(c.MinInline)},
		{"rss_ind_tbl_cap", field{20, 4}, 8},
		{"reg_umr_sq", field{24, 1}, 1},
		{"scatter_fcs", field{25, 1}, flag(c.ScatterFCS)},
		{"enhanced_multi_pkt_send_wqe", field{26, 1}, flag(c.EnhancedMPW)},
		{"lro_min_mss_size", field{80, 16}, uint64(c.LROMinMSS)},
	}
	for i, usec := range c.LROTimersUsec {
		values = append(values, capValue{"lro_timer_supported_periods",
			field{lroPeriods + 32*i, 32}, uint64(usec)})
	}
	return values
}

// lroPeriods is lro_timer_supported_periods: four words.
const lroPeriods = 384

// multiPathTIRs is nic_rx_multi_path_tirs: an entry may send frames to a TIR and to the next table.
// DONT_TRAP rules, which leave Linux a copy, need it.
var multiPathTIRs = field{0, 1}

// sharedSnifferTIR is allow_sniffer_and_nic_rx_shared_tir: entries of all kinds of tables
// may send frames to one TIR.
var sharedSnifferTIR = field{2, 1}

func (f *Function) flowTableCaps(b []byte) {
	multiPathTIRs.set(b, flag(f.nic.Caps().MultiPathFlows))
	sharedSnifferTIR.set(b, 1)
	setCaps(b[flowTableSniffRx:], flowTableFixed)
	setCaps(b[flowTableSniffTx:], flowTableFixed)
	nic := b[flowTableNICReceive:]
	setCaps(nic, flowTableFixed)
	for _, m := range matchFields {
		field{ftFieldSupport + m, 1}.set(nic, 1)
		field{ftFieldBitmask + m, 1}.set(nic, 1)
	}
}

// Values of wqe_inline_mode (linux include/linux/mlx5/vport.h, MLX5_CAP_INLINE_MODE_*).
const inlineByVport, inlineNotRequired = 1, 2

// inlineMode says which setting determines how many bytes of a frame a send WQE must hold inline.
func inlineMode(least simnic.InlineMode) uint64 {
	if least == simnic.InlineNone {
		return inlineNotRequired
	}
	return inlineByVport
}

func flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}
