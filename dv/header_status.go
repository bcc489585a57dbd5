package dv

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// headerStatusTable maps the parser status of a completion to RxFlags in one load:
// index [7:0] is the status' low byte, [9:8] its L3OK and L4OK bits.
type headerStatusTable [1024]RxFlags

func newHeaderStatusTable() *headerStatusTable {
	v := new(headerStatusTable)
	for i := range v {
		v[i] = headerFlags(uint16(i)&0xff | uint16(i)<<1&(mlx5.HdrL3OK|mlx5.HdrL4OK))
	}
	return v
}

// of is the flags for a status (mlx5.CQE.HeaderStatus).
func (v *headerStatusTable) of(status uint16) RxFlags {
	return v[status&0xff|status>>1&0x300]
}

// headerFlags says what a status promises. A checksum is vouched for only where
// the NIC knows the header it belongs to: with fragments and unknown protocols
// its bit means nothing (linux drivers/net/ethernet/mellanox/mlx5/core/en_rx.c,
// VPP plugins/rdma/input.c).
func headerFlags(status uint16) RxFlags {
	var f RxFlags
	switch status & mlx5.HdrL3Mask >> mlx5.HdrL3Shift {
	case mlx5.L3IPv4:
		f |= RxIPv4
		if status&mlx5.HdrL3OK != 0 {
			f |= RxL3OK
		}
	case mlx5.L3IPv6:
		f |= RxIPv6 | RxL3OK
	}
	if status&mlx5.HdrVLANStripped != 0 {
		f |= RxVLAN
	}
	if status&mlx5.HdrFragment != 0 {
		return f | RxFragment
	}
	return f | headerFlagsL4(status, f&RxL3OK != 0)
}

func headerFlagsL4(status uint16, ipOK bool) RxFlags {
	var f RxFlags
	switch status & mlx5.HdrL4Mask >> mlx5.HdrL4Shift {
	case mlx5.L4UDP:
		f = RxUDP
	case mlx5.L4TCP, mlx5.L4TCPAck, mlx5.L4TCPData:
		f = RxTCP
	default:
		return 0
	}
	if ipOK && status&mlx5.HdrL4OK != 0 {
		f |= RxL4OK
	}
	return f
}
