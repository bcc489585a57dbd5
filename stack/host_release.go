package stack

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// A port that has no listener any more stays ours for as long as there are connections of ours at
// it, which the kernel would reset: those that have outlived their listener, and those that were
// made from it. It is looked for each portSweep while there are such ports.
//
// Who dials it from this host gets no answer meanwhile. A kernel's socket that is bound to the
// netdev (SO_BINDTOIFINDEX), so that others find none and are refused, does not help: the kernel
// looks for the socket of a packet to an address of its own as if it had come by the device that
// has the address (rt_iif in linux net/ipv4/route.c, inet_iif).
const portSweep = time.Second

// hold takes a port that a connection is made from, of one address or of all. The caller calls
// dialEnds, also after an error.
func (h *host) hold(a netip.Addr, port uint16) (held []*hostPort, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, own := range h.addrs {
		if a.IsValid() && a != own.Addr() {
			continue
		}
		p, err := h.port(hostKey{backing.TCP, netip.AddrPortFrom(own.Addr(), port)})
		if err != nil {
			return held, err
		}
		p.held, p.connected, p.dials = true, true, p.dials+1
		held = append(held, p)
		if err := h.steer(p); err != nil {
			return held, err
		}
	}
	return held, h.tellPorts()
}

// dialEnds says that dials from ports have ended: a connection is netstack's, if there is one.
func (h *host) dialEnds(from []*hostPort) {
	if len(from) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range from {
		p.dials--
	}
	h.tryGiveBack(from)
}

// sweepPorts gives back the ports that nothing is left at.
func (h *host) sweepPorts() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*hostPort
	for _, p := range h.ports {
		all = append(all, p)
	}
	h.lookAgain = time.Time{}
	h.tryGiveBack(all)
}

// tryGiveBack is giveBack for those whom no error can be told. mu is held.
func (h *host) tryGiveBack(ports []*hostPort) {
	if err := h.giveBack(ports); err != nil && h.stack.life.ctx.Err() == nil {
		h.stack.log.Warn("give ports back", "interface", h.stack.name, "error", err)
	}
}

// giveBack gives the kernel those ports back that nobody listens at, dials from or has a connection
// at. Others of them are looked at again. mu is held.
func (h *host) giveBack(ports []*hostPort) error {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p *hostPort) bool {
		return len(p.users) > 0 || p.dials > 0 || h.ports[p.key] != p
	})
	busy := h.connectedAt(ports)
	var errs []error
	var free []*hostPort
	for _, p := range ports {
		if busy[p.key.at] {
			env.Notify(h.idle)
			continue
		}
		h.forget(p.key)
		free = append(free, p)
		errs = append(errs, h.unsteer(p))
	}
	if len(free) > 0 {
		errs = append(errs, h.tellPorts()) // nobody answers for a moment, rather than both
	}
	for _, p := range free {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// connectedAt says at which of these ports there are connections of ours, in any state. The block's
// stay ours anyway, and so need not be asked for; those of localhost have none, nor do those whose
// listeners have accepted none. A tenth of the time may be spent on it, so that closing many
// listeners takes no time that grows with their square: of those asked for earlier it says that
// there are some, until sweepPorts asks. mu is held.
func (h *host) connectedAt(ports []*hostPort) map[netip.AddrPort]bool {
	at := map[netip.AddrPort]bool{}
	began := h.stack.clock.Now()
	early := began.Before(h.lookAgain)
	for _, p := range ports {
		if p.connected && !p.ofBlock && !p.key.at.Addr().IsLoopback() {
			at[p.key.at] = early
		}
	}
	if len(at) == 0 || early {
		return at
	}
	defer func() {
		now := h.stack.clock.Now()
		h.lookAgain = now.Add(9 * now.Sub(began))
	}()
	for _, ep := range h.stack.net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		if local, terr := c.GetLocalAddress(); terr == nil {
			end := netip.AddrPortFrom(fromAddress(local.Addr), local.Port)
			if _, asked := at[end]; asked {
				at[end] = true
			}
		}
	}
	return at
}

// silent says whether at is a port of TCP at which the kernel answers nobody for our sake.
func (h *host) silent(at netip.AddrPort) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at = netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())
	if p := h.ports[hostKey{backing.TCP, at}]; p != nil {
		return len(p.users) == 0
	}
	return h.block.Socket(backing.TCP, netip.AddrPortFrom(h.zoned(at.Addr()), at.Port())) != nil
}
