package kernel

import (
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// queryPort implements QUERY_PORT.
func queryPort(c *call) unix.Errno {
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	var req uverbs.QueryPortReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.PortNum != 1 {
		return unix.EINVAL
	}
	return c.writeReply(c.node.describePort())
}

// queryPortNative implements UVERBS_METHOD_QUERY_PORT.
func queryPortNative(c *call) unix.Errno {
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	if c.inputAttr(uverbs.AttrQueryPortNum).addr != 1 {
		return unix.EINVAL
	}
	resp := uverbs.QueryPortRespEx{Legacy: c.node.describePort()}
	if !c.node.linux.isRelease(Linux54) {
		resp.ActiveSpeedEx = uint32(resp.Legacy.ActiveSpeed)
	}
	return c.answerStruct(c.outputAttr(uverbs.AttrQueryPortResp), resp)
}

// Values of ib_uverbs_query_port_resp that have no name in package uverbs
// (include/rdma/ib_verbs.h).
const (
	portCapCM       = 1 << 16
	portSpeedEDR    = 32 // 25 Gbit/s per lane
	portWidth4X     = 2
	physLinkUp      = 5
	physDisabled    = 3
	physPolling     = 2
	portGRHRequired = 1 // IB_UVERBS_QPF_GRH_REQUIRED
	mtu4096         = 5
)

// describePort describes a 100 Gbit/s port (mlx5_query_port_roce in
// drivers/infiniband/hw/mlx5/main.c).
func (n *node) describePort() uverbs.QueryPortResp {
	r := uverbs.QueryPortResp{
		PortCapFlags: portCapCM,
		MaxMsgSz:     1 << 30,
		GIDTblLen:    256,
		PkeyTblLen:   1,
		State:        uverbs.PortStateDown,
		MaxMTU:       mtu4096,
		ActiveMTU:    roceMTU(n.nic.MTU()),
		ActiveWidth:  portWidth4X,
		ActiveSpeed:  portSpeedEDR,
		PhysState:    physDisabled,
		LinkLayer:    uverbs.LinkLayerEthernet,
		Flags:        portGRHRequired,
	}
	if n.nic.Link() {
		r.State, r.PhysState = uverbs.PortStateActive, physLinkUp
	}
	if n.linux.cfg.InfiniBand {
		r.LinkLayer, r.Flags, r.ActiveMTU = uverbs.LinkLayerInfiniBand, 0, mtu4096
		r.LID, r.SMLID, r.PkeyTblLen, r.GIDTblLen = 1, 1, 128, 8
		if !n.nic.Link() {
			r.PhysState = physPolling
		}
	}
	return r
}

// roceMTU returns the code of the largest RoCE payload that fits the netdev's MTU
// with all headers (iboe_get_mtu in include/rdma/ib_addr.h).
func roceMTU(netdev int) uint8 {
	const headers = 40 + 8 + 12 + 4 + 28 + 4
	code := uint8(0)
	for c := uint8(1); c <= mtu4096; c++ {
		if netdev-headers >= 128<<c {
			code = c
		}
	}
	return code
}

// isHWCounter reports whether a counter of the NIC is one of those that the RDMA device has in
// sysfs, as the default set of queue counters (basic_q_cnts and extended_err_cnts of linux
// drivers/infiniband/hw/mlx5/counters.c). The others are the netdev's.
func isHWCounter(name string) bool {
	switch name {
	case "out_of_buffer", "resp_local_length_error", "resp_cqe_error", "req_cqe_error",
		"resp_cqe_flush_error", "req_cqe_flush_error":
		return true
	}
	return false
}

var _ uverbs.PortCounters = (*node)(nil)

// PortCounter reads what sysfs has as ports/<port>/hw_counters/<name> of the RDMA device.
func (n *node) PortCounter(port uint8, name string) (uint64, error) {
	if n.gone.Load() {
		return 0, unix.EBADF
	}
	if port == 1 && isHWCounter(name) {
		for _, c := range n.nic.Counters().Linux() {
			if c.Name == name {
				return c.Value, nil
			}
		}
	}
	return 0, &fs.PathError{Op: "open", Path: "hw_counters/" + name, Err: unix.ENOENT}
}
