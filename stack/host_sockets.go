package stack

import (
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// conns returns the connections that the kernel has accepted at ports of ours, closed ones
// included for as long as the kernel knows them. What it does not tell is not listed.
func (h *host) conns() (all []Socket) {
	if h == nil {
		return nil
	}
	list, err := h.kernel.Conns(func(local, remote netip.AddrPort) bool {
		h.mu.RLock()
		defer h.mu.RUnlock()
		return h.serves(local, remote)
	})
	if err != nil {
		h.stack.log.Debug("the kernel's connections", "interface", h.stack.name, "error", err)
	}
	for _, c := range list {
		all = append(all, kernelSocket(c))
	}
	return all
}

// kernelConn is both ends of a connection of the kernel.
type kernelConn struct{ local, remote netip.AddrPort }

// serves says whether a connection of the kernel is one that it has accepted for us. mu is held.
func (h *host) serves(local, remote netip.AddrPort) bool {
	if _, kept := h.kept[kernelConn{local, remote}]; kept {
		return true
	}
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

// keepConns notes the connections that the kernel has, before it stops serving at ports of ours:
// they go on, and the ports may be others' next. mu is held.
func (h *host) keepConns(ports []*hostPort) {
	if !slices.ContainsFunc(ports, func(p *hostPort) bool { return p.accepted }) {
		return
	}
	list, err := h.kernel.Conns(h.serves)
	if err != nil {
		h.stack.log.Debug("the kernel's connections", "interface", h.stack.name, "error", err)
		return
	}
	h.kept = map[kernelConn]struct{}{}
	for _, c := range list {
		h.kept[kernelConn{c.Local, c.Remote}] = struct{}{}
	}
}
