package stack

import (
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostnet"
)

// conns are the connections that the kernel has accepted at ports of ours, closed ones included for
// as long as the kernel knows them. What it does not tell is not listed.
func (h *host) conns() (all []Socket) {
	if h == nil {
		return nil
	}
	list, err := h.kernel.Conns(h.serves)
	if err != nil {
		h.stack.log.Debug("the kernel's connections", "interface", h.stack.name, "error", err)
	}
	for _, c := range list {
		all = append(all, kernelSocket(c))
	}
	return all
}

// serves says whether the kernel accepts connections for us at a port.
func (h *host) serves(local netip.AddrPort) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	p := h.ports[hostKey{backing.TCP, netip.AddrPortFrom(local.Addr().WithZone(""), local.Port())}]
	return p != nil && p.listener != nil
}

func kernelSocket(c hostnet.Conn) Socket {
	return Socket{Network: "tcp", State: c.State, RecvQ: c.RecvQ, SendQ: c.SendQ, Local: c.Local,
		Remote: c.Remote, Kernel: true, TCP: &TCPInfo{RTO: c.RTO, RTT: c.RTT, RTTVar: c.RTTVar,
			MSS: c.MSS, Cwnd: c.Cwnd, Ssthresh: c.Ssthresh, Unacked: c.Unacked, SegsOut: c.SegsOut,
			SegsIn: c.SegsIn, Retrans: c.Retrans, Timestamps: c.Timestamps, SACK: c.SACK,
			SndWscale: c.SndWscale, RcvWscale: c.RcvWscale, BytesAcked: c.BytesAcked,
			BytesReceived: c.BytesReceived}}
}
