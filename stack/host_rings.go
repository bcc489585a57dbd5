package stack

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// On an mlx5 device a rule per port of ours leads its frames to rings. Packet sockets of the netdev
// bring the rest (rdma.RingsAndSockets), and all while the device is away. What is made first is
// closed last: the kernel's sockets, rules, netstack's endpoints.

// openLink opens packet sockets on the netdev, and beside them the rings of its device, if it has
// one.
func (h *host) openLink(ctx context.Context) (link *rdma.Endpoint, err error) {
	s := h.stack
	cfg := s.uplinkConfig(s.cfg.NIC)
	cfg.Host = h
	if h.link, err = packet.Open(cfg.PortConfig()); err != nil {
		return nil, err
	}
	if s.uplink, err = uplink.Open(ctx, cfg); err != nil {
		return nil, err
	}
	link = s.uplink.Endpoint()
	if s.uplink.HasRings() {
		h.rules = link
	}
	return link, nil
}

// claimBlock has the device lead the ports to dial from to us, another block of them if a process
// that the kernel does not know of has rules for these, and tells the link.
func (h *host) claimBlock(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.rules != nil {
		err := h.rules.AddBlock(ctx, h.block.First, h.plainAddrs()...)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		if err := h.nextBlock(); err != nil {
			return err
		}
	}
	if err := h.tellAllPorts(); err != nil {
		return err
	}
	first := h.block.First
	return asError("set ephemeral ports",
		h.stack.net.SetPortRange(first, first+backing.BlockSize-1))
}

// nextBlock takes another block in place of the present one. mu is held.
func (h *host) nextBlock() error {
	var addrs []netip.Addr
	for _, a := range h.plainAddrs() {
		addrs = append(addrs, h.zoned(a))
	}
	next, err := backing.OpenBlock(int(h.block.First)+backing.BlockSize, addrs, *h.device.Load())
	if err != nil {
		return err
	}
	old := h.block
	h.block = next
	return old.Close()
}

// plainAddrs returns the addresses in use. mu is held, or nobody else knows h.
func (h *host) plainAddrs() (addrs []netip.Addr) {
	for _, p := range h.addrs {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// rule returns the device's for a port of its own.
func (p *hostPort) rule(priority dv.Priority) dv.HostRule {
	proto := uint8(unix.IPPROTO_TCP)
	if p.key.protocol == backing.UDP {
		proto = unix.IPPROTO_UDP
	}
	return dv.HostRule{Priority: priority, Proto: proto, Addr: p.key.at.Addr(),
		Port: p.key.at.Port()}
}

// steer has the device lead frames to p to the rings; those of the block's ports go there anyway,
// and none of localhost come by it. mu is held.
func (h *host) steer(p *hostPort) error {
	if h.rules == nil {
		return nil
	}
	return h.addRule(p, h.ruleState)
}

// unsteer has frames to p go to the kernel, and come by packet sockets for as long as it is ours:
// to connections from before. mu is held.
func (h *host) unsteer(p *hostPort) error {
	if h.rules == nil || p.ofBlock {
		return nil
	}
	return errors.Join(h.rules.RemoveRule(p.rule(dv.PriorityHandOver)),
		h.rules.RemoveRule(p.rule(dv.PriorityListener)))
}
