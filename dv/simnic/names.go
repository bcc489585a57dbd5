package simnic

// Named is a counter with its name in ethtool -S or in sysfs hw_counters of linux mlx5.
type Named struct {
	Name  string
	Value uint64
}

// Linux lists the counters that linux mlx5 knows, by its names. Those of the port
// count bytes with FCS.
func (c Counters) Linux() []Named {
	w, d := &c.Wire, &c.Drops
	return []Named{
		{"rx_packets_phy", w.RxPackets},
		{"rx_bytes_phy", w.RxBytes + 4*w.RxPackets},
		{"tx_packets_phy", w.TxPackets},
		{"tx_bytes_phy", w.TxBytes + 4*w.TxPackets},
		{"rx_oversize_pkts_phy", d.WireOversize},
		{"rx_undersize_pkts_phy", d.WireRunt},
		{"rx_steer_missed_packets", d.SteerMissed},
		{"rx_vport_unicast_packets", w.RxUnicast},
		{"rx_vport_multicast_packets", w.RxMulticast},
		{"rx_vport_broadcast_packets", w.RxBroadcast},
		{"tx_vport_unicast_packets", c.Slice.TxUnicast + c.Netdev.TxUnicast},
		{"tx_vport_multicast_packets", c.Slice.TxMulticast + c.Netdev.TxMulticast},
		{"tx_vport_broadcast_packets", c.Slice.TxBroadcast + c.Netdev.TxBroadcast},
		{"out_of_buffer", d.OutOfBuffer},
		{"eth_wqe_too_small", d.TooLong},
		{"resp_local_length_error", d.LengthError},
		{"req_cqe_error", c.ReqErrors + c.ReqFlushed},
		{"req_cqe_flush_error", c.ReqFlushed},
		{"resp_cqe_error", c.RespErrors + c.RespFlushed},
		{"resp_cqe_flush_error", c.RespFlushed},
		{"cq_overrun", c.CQOverruns},
		{"rx_lro_packets", c.LROPackets},
	}
}
