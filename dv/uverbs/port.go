package uverbs

import "fmt"

// PortAttr holds the state of a port as the kernel's RDMA side sees it. On Ethernet the MTU is the
// netdev's, and is not here.
type PortAttr struct {
	State     uint8  // PortStateActive when the netdev is up and has carrier
	PhysState uint8  // 5 link up, 3 disabled, 2 polling
	LinkLayer uint8  // LinkLayerEthernet is needed
	SpeedMbps uint32 // of the link, Mbit/s, up to the maximum of the old encoding; 0 unknown
}

// Ethernet reports whether the port carries Ethernet frames.
func (p PortAttr) Ethernet() bool { return p.LinkLayer == LinkLayerEthernet }

// Active reports whether the link is up.
func (p PortAttr) Active() bool { return p.State == PortStateActive }

// QueryPort queries the state of a port, counted from 1. A port the device does not have is EINVAL.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	var r QueryPortResp
	err := c.runWrite(write{op: opQueryPort, noun: fmt.Sprintf("port %d", port),
		in: QueryPortReq{PortNum: port}, out: &r})
	return PortAttr{State: r.State, PhysState: r.PhysState, LinkLayer: r.LinkLayer,
		SpeedMbps: linkSpeed(r.ActiveWidth, r.ActiveSpeed)}, err
}

// linkSpeed multiplies the number of lanes by the speed of a lane, both in InfiniBand's encoding.
func linkSpeed(width, speed uint8) uint32 {
	lanes := map[uint8]uint32{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
	mbps := map[uint8]uint32{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000,
		32: 25000, 64: 50000, 128: 100000}
	return lanes[width] * mbps[speed]
}
