package stack

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostnet"
)

// hostPause is the least time between two looks at the host's configuration.
const hostPause = 20 * time.Millisecond

// follow keeps addresses and routes as the host has them, until the stack ends.
func (h *host) follow() {
	s := h.stack
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-h.watcher.Changed():
		}
		h.ways.forget()
		found, err := h.kernel.Read(h.netdev)
		switch {
		case err == nil && found.Index == h.device.Index:
			h.take(found)
		case s.packets.Err() == nil: // gone: the link says so
			s.log.Warn("the host's configuration is not known", "interface", s.name, "error", err)
		}
		if s.clock.Sleep(s.ctx, hostPause) != nil {
			return
		}
	}
}

// take makes the stack's addresses and routes those of the host.
func (h *host) take(found hostnet.Network) {
	s := h.stack
	h.mu.RLock()
	before := slices.Clone(h.addrs)
	h.mu.RUnlock()
	for _, p := range before {
		if !hasAddr(found.Addresses, p.Addr()) {
			h.remove(p)
		}
	}
	for _, p := range found.Addresses {
		if !hasAddr(before, p.Addr()) {
			h.add(p)
		}
	}
	if err := h.useRoutes(found.Routes); err != nil {
		s.log.Warn("the host's routes", "interface", s.name, "error", err)
	}
	s.addressesChanged()
}

func hasAddr(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}

// add serves on one more address.
func (h *host) add(p netip.Prefix) {
	s := h.stack
	err := h.addPorts(p)
	if err == nil {
		err = s.addAddress(s.ctx, p)
	}
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn("an address of the host is not served in full", "interface", s.name,
			"address", p.String(), "error", err)
	}
}

// addPorts takes the block's ports of an address, and those of all that is bound to any.
func (h *host) addPorts(p netip.Prefix) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.block.Add(h.zoned(p.Addr())); err != nil {
		return err
	}
	h.addrs = append(h.addrs, p)
	var errs []error
	if h.rules != nil {
		errs = append(errs, h.rules.AddBlock(h.stack.ctx, h.block.First, p.Addr()))
	}
	for b := range h.bindings {
		if !b.addr.IsValid() && b.covers(p.Addr()) {
			errs = append(errs, h.join(b, p.Addr()))
		}
	}
	return errors.Join(append(errs, h.tellPorts())...)
}

// remove ends the use of an address: its connections are aborted, and its ports are the kernel's.
func (h *host) remove(p netip.Prefix) {
	s := h.stack
	for _, ep := range s.net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		if local, terr := c.GetLocalAddress(); terr == nil &&
			fromAddress(local.Addr) == p.Addr() {
			c.Abort()
		}
	}
	s.removeAddress(p)
	if err := h.removePorts(p.Addr()); err != nil {
		s.log.Warn("give ports back", "interface", s.name, "address", p.String(), "error", err)
	}
}

func (h *host) removePorts(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addrs = slices.DeleteFunc(slices.Clone(h.addrs),
		func(p netip.Prefix) bool { return p.Addr() == a })
	var errs []error
	for k, p := range h.ports {
		if k.at.Addr() != a {
			continue
		}
		for _, b := range p.users {
			delete(b.at, a)
		}
		delete(h.ports, k)
		errs = append(errs, h.unsteer(p), p.close())
	}
	if h.rules != nil {
		errs = append(errs, h.rules.RemoveBlock(h.block.First, a))
	}
	return errors.Join(append(errs, h.block.Remove(h.zoned(a)), h.tellPorts())...)
}

// useRoutes takes the host's routes into use, and its resolvers.
func (h *host) useRoutes(routes []hostnet.Route) error {
	var list []Route
	for _, r := range routes {
		list = append(list, Route(r))
	}
	return h.stack.applyAutoconf(fromLinux, list, h.stack.netdev.dns)
}
