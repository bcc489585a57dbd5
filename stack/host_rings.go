package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// On an mlx5 device a rule per port of ours leads its frames to rings. Packet sockets of the netdev
// bring the rest (rdma.RingsAndSockets), and all while the device is away. What is made first is
// closed last: the kernel's sockets, rules, netstack's endpoints.

// openLink opens packet sockets on the netdev, and before them the rings of its device, if it has
// one. cfg is how the device is opened.
func (h *host) openLink(ctx context.Context) (link *rdma.Endpoint, cfg dv.Config, err error) {
	s := h.stack
	port, err := packet.Open(s.portConfig(s.cfg.NIC))
	if err != nil {
		return nil, cfg, err
	}
	s.packets, s.nic, h.link = port, port, port
	alone := func() (*rdma.Endpoint, dv.Config, error) {
		link, err := rdma.NewOverPort(port, s.linkOptions())
		return link, cfg, err
	}
	if s.cfg.Backend == BackendPacket {
		return alone()
	}
	var ofBond bool
	cfg, ofBond, err = h.deviceConfig()
	if err == nil {
		link, err = h.openRings(ctx, cfg, ofBond)
	}
	if err == nil || s.cfg.Backend == BackendRings || !noRings(err) {
		return link, cfg, err
	}
	s.log.Warn(fmt.Sprintf("%s is a %s: served through AF_PACKET, not from rings", port.Name(),
		cmp.Or(port.Driver(), "netdev without a driver")), "error", err)
	return alone()
}

// openRings opens the device of cfg, or those of a bond's members, and returns the link.
func (h *host) openRings(ctx context.Context, cfg dv.Config, ofBond bool) (link *rdma.Endpoint,
	err error) {
	s := h.stack
	if ofBond {
		b, err := h.openBond(ctx, cfg, func(*dv.Device) error { return nil })
		if err != nil {
			return nil, err
		}
		s.bond, s.nic = b, b
		if link, err = rdma.NewOverMembers(b.backend, s.linkOptions()); err == nil {
			b.start(link)
		}
		h.rules = link
		return link, err
	}
	dev, err := dv.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.device, s.nic = dev, dev
	link, err = rdma.NewOverRingsAndSockets(dev, h.link, s.linkOptions())
	h.rules = link
	return link, err
}

// deviceConfig says which device is below the netdev, or that each member of a bond has one. An
// error that is dv.ErrNoRDMA says that there is none, or that it cannot be used so.
func (h *host) deviceConfig() (cfg dv.Config, ofBond bool, err error) {
	cfg = h.stack.health.dumped(h.stack.cfg.NIC)
	cfg.HostMode = true
	below, err := h.below()
	if err != nil {
		return cfg, false, err
	}
	cfg.VLAN = below.VLAN
	if cfg.Kernel != nil {
		return cfg, false, nil
	}
	cfg.Device, ofBond, err = portBelow(h.name(), below, h.rdmaDevices())
	return cfg, ofBond, err
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
	if err := h.tellPorts(); err != nil {
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

// portBeside is such sockets as those that carry the frames while the device is away. They are
// never muted: they receive while the device is there, too.
type portBeside struct{ *packet.Port }

// Mute implements failover.Port.
func (portBeside) Mute() error { return nil }

// Unmute implements failover.Port.
func (portBeside) Unmute() error { return nil }

// openBeside gives the link the sockets that are open, or others when the netdev is made again.
func (h *host) openBeside(vlan uint16) (failover.OpenedPort, error) {
	port := h.sockets()
	if port.Err() != nil {
		var err error
		if port, err = h.reopen(); err != nil {
			return failover.OpenedPort{}, err
		}
	}
	return failover.OpenedPort{Port: portBeside{port}, Name: port.Name(),
		Backend: rdma.SocketsInVLAN(port, vlan)}, nil
}
