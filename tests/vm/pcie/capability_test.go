package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// behind names, for each capability, the commands that a driver may send because of it. A
// capability that is a size, or describes the layout of WQEs and CQEs, has none.
var behind = map[string][]string{
	"log_max_cq": {"CREATE_CQ", "QUERY_CQ", "DESTROY_CQ"}, "log_max_cq_sz": nil,
	"cq_resize": {"MODIFY_CQ"}, "cq_moderation": {"MODIFY_CQ"},
	"cq_period_mode_modify": {"MODIFY_CQ"}, "cq_period_start_from_cqe": {"MODIFY_CQ"},
	"cq_oi": nil, "cqe_version": nil, "cqe_compression": nil, "cqe_compression_max_num": nil,
	"mini_cqe_resp_stride_index": nil, "sctr_data_cqe": nil,
	"log_max_eq": {"CREATE_EQ", "DESTROY_EQ"}, "log_max_eq_sz": nil,

	"log_max_qp": {"CREATE_QP", "QUERY_QP", "RST2INIT_QP", "INIT2INIT_QP", "2ERR_QP", "2RST_QP",
		"DESTROY_QP"},
	"log_max_qp_sz": nil, "log_max_msg": nil, "log_max_ra_req_qp": nil,
	"log_max_ra_res_qp": nil, "max_wqe_sz_sq": nil, "max_wqe_sz_rq": nil, "block_lb_mc": nil,
	"end_pad": nil, "start_pad": nil, "max_sgl_for_optimized_performance": nil,
	"rc": {"INIT2RTR_QP", "RTR2RTS_QP", "RTS2RTS_QP"}, "uc": {"INIT2RTR_QP", "RTR2RTS_QP"},
	"ud":          {"INIT2RTR_QP", "RTR2RTS_QP"},
	"log_max_srq": {"CREATE_RMP", "QUERY_RMP", "MODIFY_RMP", "DESTROY_RMP"},
	"log_max_rmp": {"CREATE_RMP", "QUERY_RMP", "MODIFY_RMP", "DESTROY_RMP"}, "log_max_srq_sz": nil,
	"xrc":          {"CREATE_XRC_SRQ", "QUERY_XRC_SRQ", "ARM_XRC_SRQ", "DESTROY_XRC_SRQ"},
	"log_max_xrcd": {"ALLOC_XRCD", "DEALLOC_XRCD"},

	"log_max_mkey": {"CREATE_MKEY", "DESTROY_MKEY"}, "log_max_mrw_sz": nil,
	"max_indirection": nil, "log_max_klm_list_size": nil, "log_pg_sz": nil,
	"umr_ptr_rlky": {"CREATE_QP"}, "umr_modify_entity_size_disabled": nil,
	"umr_indirect_mkey_disabled": nil, "reg_umr_sq": {"CREATE_SQ"},

	// A program creates all of these by commands of its own, in a UMEM.
	"log_max_uctx": {"CREATE_UCTX", "DESTROY_UCTX", "QUERY_HCA_CAP", "QUERY_TIS",
		"ALLOC_Q_COUNTER", "ALLOC_FLOW_COUNTER", "CREATE_TIR", "MODIFY_TIR", "CREATE_RQT"},
	"log_max_umem": {"CREATE_UMEM", "DESTROY_UMEM", "CREATE_CQ", "MODIFY_CQ", "CREATE_SQ",
		"CREATE_RQ", "CREATE_QP", "CREATE_MKEY", "CREATE_RMP", "CREATE_XRC_SRQ"},
	"uctx_cap": {"CREATE_UCTX", "CREATE_TIS", "CREATE_SQ"},

	"log_max_pd":               {"ALLOC_PD", "DEALLOC_PD"},
	"log_max_transport_domain": {"ALLOC_TRANSPORT_DOMAIN", "DEALLOC_TRANSPORT_DOMAIN"},
	"uar_sz":                   {"ALLOC_UAR", "DEALLOC_UAR"}, "bf": nil, "log_bf_reg_size": nil,
	"num_of_uars_per_page": nil,

	"log_max_sq":    {"CREATE_SQ", "MODIFY_SQ", "QUERY_SQ", "DESTROY_SQ"},
	"log_max_rq":    {"CREATE_RQ", "MODIFY_RQ", "QUERY_RQ", "DESTROY_RQ"},
	"log_max_tir":   {"CREATE_TIR", "MODIFY_TIR", "DESTROY_TIR"},
	"log_max_tis":   {"CREATE_TIS", "MODIFY_TIS", "DESTROY_TIS"},
	"log_max_rqt":   {"CREATE_RQT", "MODIFY_RQT", "DESTROY_RQT"},
	"log_max_wq_sz": nil, "log_max_rqt_size": nil, "log_max_tis_per_sq": nil,
	"log_max_stride_sz_rq": nil, "log_min_stride_sz_rq": nil, "log_max_stride_sz_sq": nil,
	"log_min_stride_sz_sq": nil, "basic_cyclic_rcv_wqe": nil, "striding_rq": nil,
	"ext_stride_num_range": nil,
	"qos":                  {"QUERY_HCA_CAP"}, "packet_pacing": {"SET_PP_RATE_LIMIT", "MODIFY_SQ"},
	"packet_pacing_burst_bound": nil, "packet_pacing_typical_size": nil,
	"packet_pacing_uid":      {"SET_PP_RATE_LIMIT", "CREATE_SQ"},
	"packet_pacing_max_rate": nil, "packet_pacing_min_rate": nil,
	"packet_pacing_rate_table_size": nil,

	"vport_counters":           {"QUERY_VPORT_COUNTER"},
	"max_qp_cnt":               {"ALLOC_Q_COUNTER", "QUERY_Q_COUNTER", "DEALLOC_Q_COUNTER"},
	"modify_rq_counter_set_id": {"MODIFY_RQ"},
	"max_flow_counter_15_0": {"ALLOC_FLOW_COUNTER", "QUERY_FLOW_COUNTER",
		"DEALLOC_FLOW_COUNTER"},
	"flow_counter_bulk_alloc":   {"ALLOC_FLOW_COUNTER"},
	"flow_counters_dump":        {"QUERY_FLOW_COUNTER"},
	"log_max_flow_counter_bulk": {"QUERY_FLOW_COUNTER"},

	"mcam_reg": {"ACCESS_REG"}, "pcam_reg": {"ACCESS_REG"}, "port_type": {"ACCESS_REG"},
	"num_ports": {"QUERY_VPORT_STATE", "MODIFY_VPORT_STATE"}, "max_tc": nil,
	"driver_version": {"SET_DRIVER_VERSION"}, "device_frequency_mhz": nil,
	"device_frequency_khz": nil, "sq_ts_format": {"CREATE_SQ"}, "rq_ts_format": {"CREATE_RQ"},
	"disable_local_lb_uc": {"QUERY_NIC_VPORT_CONTEXT", "MODIFY_NIC_VPORT_CONTEXT"},
	"disable_local_lb_mc": {"QUERY_NIC_VPORT_CONTEXT", "MODIFY_NIC_VPORT_CONTEXT"},
	"log_max_vlan_list":   {"QUERY_NIC_VPORT_CONTEXT", "MODIFY_NIC_VPORT_CONTEXT"},
	"log_max_current_mc_list": {"QUERY_NIC_VPORT_CONTEXT",
		"MODIFY_NIC_VPORT_CONTEXT"},
	"log_max_current_uc_list": {"QUERY_NIC_VPORT_CONTEXT",
		"MODIFY_NIC_VPORT_CONTEXT"},

	"eth_net_offloads": {"QUERY_HCA_CAP"}, "csum_cap": nil, "vlan_cap": {"MODIFY_RQ"},
	"lro_cap": {"MODIFY_TIR"}, "lro_psh_flag": nil, "lro_min_mss_size": nil,
	"lro_timer_supported_periods": nil, "wqe_vlan_insert": nil,
	"self_lb_en_modifiable": {"MODIFY_TIR"}, "max_lso_cap": nil, "multi_pkt_send_wqe": nil,
	"wqe_inline_mode": {"QUERY_NIC_VPORT_CONTEXT"}, "rss_ind_tbl_cap": {"CREATE_RQT"},
	"scatter_fcs": {"CREATE_RQ"}, "enhanced_multi_pkt_send_wqe": nil,

	"eth_virt": {"QUERY_NIC_VPORT_CONTEXT", "MODIFY_NIC_VPORT_CONTEXT"},
	"nic_flow_table": {"CREATE_FLOW_TABLE", "DESTROY_FLOW_TABLE", "CREATE_FLOW_GROUP",
		"DESTROY_FLOW_GROUP", "SET_FLOW_TABLE_ENTRY", "DELETE_FLOW_TABLE_ENTRY"},
	"ft_support": {"CREATE_FLOW_TABLE"}, "flow_counter": {"SET_FLOW_TABLE_ENTRY",
		"ALLOC_FLOW_COUNTER", "QUERY_FLOW_COUNTER", "DEALLOC_FLOW_COUNTER"},
	"flow_modify_en": {"SET_FLOW_TABLE_ENTRY"}, "modify_root": {"SET_FLOW_TABLE_ROOT"},
	"identified_miss_table_mode": {"CREATE_FLOW_TABLE"}, "flow_table_modify": {"MODIFY_FLOW_TABLE"},
	"log_max_ft_size": nil, "max_ft_level": nil, "log_max_ft_num": nil,
	"log_max_flow_counter": nil, "log_max_destination": nil, "log_max_flow": nil,
}

// TestCapabilities: each advertised capability is in the table behind, and each command listed
// there succeeds in the sequence of a driver that uses every kind of object.
func TestCapabilities(t *testing.T) {
	d := newDriver(t)
	d.everything()
	did := d.fn.Commands()
	all := append(d.fn.nicCaps(), d.fn.ethernetCaps()...)
	all = append(append(all, generalCaps...), flowTableFixed...)
	all = append(all, d.fn.pacingCaps()...)
	for _, c := range all {
		needs, known := behind[c.name]
		if c.v != 0 && !known {
			t.Errorf("%s is advertised: which commands stand behind it?", c.name)
		}
		for _, name := range needs {
			if s := did[name]; c.v != 0 && (s.Done == 0 || s.Refused > 0) {
				t.Errorf("%s is advertised, and %s was done %d times and refused %d times", c.name,
					name, s.Done, s.Refused)
			}
		}
	}
	for _, spec := range commands {
		if did[spec.name].Done == 0 {
			t.Errorf("%s is in the command table, and no driver can use it", spec.name)
		}
	}
}

// everything creates, changes, queries and destroys one of each object.
func (d *driver) everything() {
	d.t.Helper()
	d.lifecycle()
	cqn := d.cq(4)
	d.do("MODIFY_CQ", about(0x403, cqn, 80), 16)
	d.do("QUERY_CQ", about(0x402, cqn, 16), 80)
	rqn, tirn := d.receiver(cqn, number.u32(d.do("ALLOC_Q_COUNTER", input(0x771, 0, 16), 16)))
	queues := d.sender(cqn)
	table := d.rqt(0x916, 0, rqn)
	d.rqt(0x917, table, rqn)
	d.steers(tirn)
	d.do("QUERY_RQ", about(0x90b, rqn, 16), 272)
	d.do("MODIFY_TIR", about(0x901, tirn, 272), 16)
	d.do("QUERY_Q_COUNTER", func() []byte {
		in := input(0x773, 0, 32)
		queryQueueSet.set(in, 1)
		return in
	}(), 256)
	d.pairs(cqn)
	d.pools()
	d.program(queues[1].n)
	for _, o := range append([]object{{0x902, tirn}, {0x918, table}, {0x90a, rqn}, {0x772, 1}},
		append(queues, object{0x401, cqn}, object{0x302, d.eqn}, object{0x202, d.mkey(1, 0,
			4096) >> 8})...) {
		d.do("a destroy command", about(o.op, o.n, 16), 16)
	}
	d.do("TEARDOWN_HCA", input(0x103, 0, 16), 16)
	d.do("DISABLE_HCA", input(0x105, 0, 16), 16)
}

// object is an object to destroy, and the command for it.
type object struct {
	op uint16
	n  uint32
}

// lifecycle runs the commands about the function that a driver sends before it creates objects.
func (d *driver) lifecycle() {
	d.t.Helper()
	hca := input(0x109, 0, 16+capSize)
	copy(hca[16:], d.fn.generalCapBytes())
	reg := input(0x805, 1, 16+128)
	registerID.set(reg, regPTYS)
	for _, c := range []struct {
		in  []byte
		out int
	}{
		{input(0x104, 0, 16), 16}, {input(0x10a, 0, 16), 112}, {input(0x10b, 0, 16), 16},
		{input(0x107, pagesBoot, 16), 16}, {input(0x108, pagesCannot, 16), 16},
		{input(0x100, 1, 16), 16 + capSize}, {hca, 16}, {input(0x102, 0, 16), 16},
		{input(0x101, 0, 16), 272}, {input(0x10d, 0, 80), 16}, {reg, 16 + 128},
		{input(0x750, 0, 16), 16}, {input(0x751, 0, 16), 16},
		{input(0x754, 0, 16), 16 + vportContextSize},
		{input(0x755, 0, vportModifyIn+vportContextSize), 16},
		{input(0x765, 0, 16), 16}, {input(0x770, 0, 32), 528},
	} {
		d.do("a command about the function", c.in, c.out)
	}
	for _, pair := range [][2]uint16{{0x800, 0x801}, {0x802, 0x803}, {0x80e, 0x80f},
		{0x816, 0x817}} {
		n := number.u32(d.do("an allocation", input(pair[0], 0, 16), 16))
		d.do("a deallocation", about(pair[1], n, 16), 16)
	}
}

// sender creates a TIS and a send queue on it, and returns how to destroy them.
func (d *driver) sender(cqn uint32) []object {
	d.t.Helper()
	tis := number.u32(d.do("CREATE_TIS", input(0x912, 0, 192), 16))
	d.do("MODIFY_TIS", about(0x913, tis, 192), 16)
	in := input(0x904, 0, queuePages)
	ctx := in[queueContext:]
	queueCQ.set(ctx, uint64(cqn))
	sqcUMR.set(ctx, 1)
	sqcTISCount.set(ctx, 1)
	sqcTIS.set(ctx, uint64(tis))
	wqUAR.set(ctx[queueWQ:], firstUAR)
	wqRecord.set(ctx[queueWQ:], recordAt+64)
	wqLogStride.set(ctx[queueWQ:], 6)
	wqLogSize.set(ctx[queueWQ:], 4)
	in = binary.BigEndian.AppendUint64(in, sqAt)
	sqn := number.u32(d.do("CREATE_SQ", in, 16))
	ready := about(0x905, sqn, 272)
	queueState.set(ready[queueContext:], 1)
	d.do("MODIFY_SQ", ready, 16)
	d.do("SET_PP_RATE_LIMIT", rateIn(1, 8000, 0), 16)
	d.do("MODIFY_SQ to a rate", d.toRate(sqn, 1), 16)
	out := d.do("QUERY_SQ", about(0x907, sqn, 16), 272)
	if s := queueState.get(out[queryContextOut:]); s != uint64(simnic.StateReady) {
		d.t.Errorf("send queue in state %d", s)
	}
	return []object{{0x906, sqn}, {0x914, tis}}
}

// rqt creates or modifies an indirection table of one receive queue.
func (d *driver) rqt(op uint16, n, rqn uint32) uint32 {
	d.t.Helper()
	in := about(op, n, rqtContext+rqtEntries)
	rqtcSize.set(in[rqtContext:], 1)
	in = binary.BigEndian.AppendUint32(in, rqn)
	return number.u32(d.do("an indirection table", in, 16))
}

// steers builds flow tables with a counted entry to a TIR, and destroys them.
func (d *driver) steers(tirn uint32) {
	d.t.Helper()
	c := counterID.u32(d.do("ALLOC_FLOW_COUNTER", input(0x939, 0, 16), 16))
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, [6]byte{2},
		actionForward|actionCount, []uint32{tirn}, []uint32{c}), 16)
	d.count(c, 1, false)
	for _, op := range []uint16{0x93c, 0x938, 0x934, 0x931} {
		in := input(op, 0, 64)
		ftTableID.set(in, uint64(table))
		if op == 0x934 {
			fgGroupID.set(in, uint64(group))
		}
		d.do("a steering command", in, 16)
	}
	in := input(0x93a, 0, 16)
	counterID.set(in, uint64(c))
	d.do("DEALLOC_FLOW_COUNTER", in, 16)
}

// pairs takes a queue pair through its states, once into the send queue error state.
func (d *driver) pairs(cqn uint32) {
	d.t.Helper()
	in := input(0x500, 0, 280)
	qpcSendCQ.set(in[qpContext:], uint64(cqn))
	qpn := number.u32(d.do("CREATE_QP", in, 16))
	for _, op := range []uint16{0x502, 0x50e, 0x503, 0x504, 0x505} {
		d.do("a transition", about(op, qpn, 272), 16)
	}
	d.between(func() { qpcState.set(d.fn.objects.qps[qpn].ctx[:], uint64(qpSendErr)) })
	for _, op := range []uint16{0x506, 0x507, 0x50a} {
		d.do("a transition", about(op, qpn, 272), 16)
	}
	d.do("QUERY_QP", about(0x50b, qpn, 16), 272)
	d.do("DESTROY_QP", about(0x501, qpn, 16), 16)
}

// program creates and destroys one of each object that can be in a UMEM, as a program that issues
// commands of its own.
func (d *driver) program(tis uint32) {
	d.t.Helper()
	p := d.newProgram()
	m := p.register(0, 0x94000, 0x90000)
	p.do("QUERY_TIS", about(0x915, tis, 16), queryTISOut)
	key, cqn := p.key(m, userAddress), p.cq(m, umemCQ, umemRecords)
	rqn, sqn := p.rq(m, cqn), number.u32(p.do("CREATE_SQ", p.sqIn(m, cqn, tis), 16))
	in := about(0x403, cqn, 272)
	in[7] = cqResize
	cqcLogSize.set(in[createCQContext:], 4)
	m.put(cqRingUMEM, in, umemCQ)
	p.do("MODIFY_CQ, resize", in, 16)
	table, tir := p.tirOf(rqn, 0)
	in = about(0x901, tir, 272)
	modifyTIRBits.set(in, modifyTable)
	tircTable.set(in[queueContext:], uint64(table))
	p.do("MODIFY_TIR", in, 16)
	c := counterID.u32(p.do("ALLOC_FLOW_COUNTER", p.in(0x939, 16), 16))
	in = p.in(0x93b, 32)
	queryToMemory.set(in, 1)
	queryCounters.set(in, 1)
	queryCounterID.set(in, uint64(c))
	queryKey.set(in, uint64(key))
	queryAddress.set(in, userAddress)
	p.do("QUERY_FLOW_COUNTER", in, 32)
	for _, o := range []object{{0x902, tir}, {0x918, table}, {0x90a, rqn}, {0x906, sqn},
		{0x401, cqn}, {0x202, key >> 8}, {0xa0a, m.id}} {
		p.do("a destroy command", about(o.op, o.n, 16), 16)
	}
	in = input(0xa06, 0, 16)
	contextNumber.set(in, uint64(p.uid))
	d.do("DESTROY_UCTX", in, 16)
}

// pools creates, changes and destroys both kinds of shared receive queues.
func (d *driver) pools() {
	d.t.Helper()
	for _, ops := range [][4]uint16{{0x90c, 0x90d, 0x90f, 0x90e}, {0x705, 0x708, 0x707, 0x706}} {
		n := number.u32(d.do("create", input(ops[0], 0, 280), 16))
		d.do("modify", about(ops[1], n, 272), 16)
		d.do("query", about(ops[2], n, 16), 272)
		d.do("destroy", about(ops[3], n, 16), 16)
	}
}
