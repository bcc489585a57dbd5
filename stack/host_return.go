package stack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// A netdev that is removed and made again, as by devlink reload or when its driver is bound again,
// has another ifindex, by which the kernel's sockets know what is ours:
//
//	removed     hide    whatever is made later is not passed to the kernel's sockets
//	made again  rebind  the netdev is not, all else is
//	            Reopen  packet sockets on it, once it has an address
//
// Connections stay meanwhile, and addresses for a while longer: see returnGrace.

// hideIfGone is hide for a link that has been lost, if the netdev has gone with it. It comes before
// anybody can know that the link is lost, and so before the netdev is made again, whatever the
// goroutine that follows the host is at.
func (h *host) hideIfGone() {
	h.following.Lock()
	defer h.following.Unlock()
	_, err := h.kernel.LinkAt(h.device.Load().Index)
	if !errors.Is(err, syscall.ENODEV) {
		return
	}
	if err := h.hide(); err != nil && h.stack.life.ctx.Err() == nil {
		h.stack.log.Warn("the kernel may answer for our ports", "interface", h.stack.name,
			"error", err)
	}
}

// hide has the kernel's sockets drop what comes by devices which are made from now on: one of them
// will be the netdev, and a segment of our connections must not find the kernel.
func (h *host) hide() error {
	d := *h.device.Load()
	if d.Last != 0 {
		return nil
	}
	last, err := h.kernel.LastIndex(h.Name())
	if err != nil {
		return err
	}
	d.Last = max(last, 1)
	return h.setDevice(d)
}

// followMTU tells the link the netdev's MTU, which may be a VLAN's and less than its port's, and so
// a device that nobody else tells.
func (h *host) followMTU(found hostnet.Network) {
	s := h.stack
	most := found.MTU
	if given := s.cfg.NIC.MTU; given > 0 {
		most = min(most, given)
	}
	if s.cfg.NIC.Kernel != nil {
		for _, d := range s.Devices() {
			d.SetNetdevMTU(found.MTU)
		}
	}
	s.link.SetMTU(uint32(most))
	s.mtu.follow()
}

// frameMTU returns the largest IP packet that comes to us in one frame. Rings may take less than
// the netdev's MTU; what is longer has come in fragments, and is the kernel's.
func (h *host) frameMTU(found hostnet.Network) int {
	if h.stack != nil && h.stack.link != nil && h.stack.link.Backend() == rdma.BackendRings {
		return min(found.MTU, int(h.stack.link.MTU()))
	}
	return found.MTU
}

// rebind has the kernel's sockets drop what comes by the netdev as it is now. Link-local addresses
// are removed from one that has another number: the kernel's sockets for them are bound to that.
func (h *host) rebind(found hostnet.Network) error {
	old, d := *h.device.Load(), backing.Device{Index: found.Index, MTU: h.frameMTU(found)}
	if old == d {
		return nil
	}
	if old.Index != d.Index {
		h.mu.RLock()
		addrs := slices.Clone(h.addrs)
		h.mu.RUnlock()
		for _, p := range addrs {
			if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				h.remove(p)
			}
		}
	}
	return h.setDevice(d)
}

// setDevice changes the filters of all sockets of the kernel.
func (h *host) setDevice(d backing.Device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.device.Store(&d)
	h.ways.forget()
	errs := []error{h.block.SetDevice(d)}
	for _, p := range h.ports {
		if !p.ofBlock {
			errs = append(errs, p.socket.SetDevice(d))
		}
	}
	return errors.Join(errs...)
}

// Reopen opens packet sockets on a netdev that has been made again and has an address. The caller
// closes those before them.
func (h *host) Reopen() (*packet.Port, error) {
	h.following.Lock()
	defer h.following.Unlock()
	found, err := h.read()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(found.Addresses, func(p netip.Prefix) bool {
		return !p.Addr().IsLinkLocalUnicast()
	}) {
		return nil, fmt.Errorf("%s has no address yet", h.Name())
	}
	if err := h.rebind(found); err != nil {
		return nil, err
	}
	from := h.stack.uplinkConfig(h.stack.cfg.NIC)
	from.Host = h
	cfg := from.PortConfig()
	cfg.Device, cfg.MTU = h.Name(), 0 // the netdev's MTU, which may be another
	port, err := packet.Open(cfg)
	if err != nil {
		return nil, err
	}
	// the link's for now, which follows a new one then
	if err := port.SetMAC(h.stack.HardwareAddr()); err != nil {
		return nil, errors.Join(err, port.Close())
	}
	h.mu.Lock()
	for _, q := range h.link.Stats().Rx {
		h.past += q.Frames
	}
	h.link, h.again = port, h.stack.clock.Now()
	err = h.tellAllPorts()
	h.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	for _, protocol := range []tcpip.NetworkProtocolNumber{ipv4Protocol, ipv6Protocol} {
		h.stack.net.ClearNeighbors(nicID, protocol) // as Linux has none of them either
	}
	env.Notify(h.returned)
	return port, nil
}
