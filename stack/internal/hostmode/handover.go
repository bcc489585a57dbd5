package hostmode

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
)

// In host mode the kernel's socket of each port is both processes' during a hand-over, so that no
// other process can have the port, and what waits in it is lost by neither. One of them accepts and
// reads from it: the process before until it says taken, then the newcomer.

// Duplicates returns descriptors of the sockets of the ports that serve, those of the block left
// out. They are the caller's, also after an error.
func (h *Host) Duplicates() (ports []handover.Port, fds []int, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for k, port := range h.ports {
		if !port.handsOver() {
			continue
		}
		fd, err := port.socket.Duplicate()
		if err != nil {
			return ports, fds, err
		}
		ports = append(ports, k.handedOver())
		fds = append(fds, fd)
	}
	return ports, fds, nil
}

// openSocket returns the kernel's socket for a port: that of the process before, if it gave it.
func (h *Host) openSocket(k portKey, at netip.AddrPort) (s Socket, given bool, err error) {
	if h.inherited != nil {
		if fd, ok := h.inherited.Take(k.handedOver()); ok {
			return h.sockets.Adopt(k.protocol, at, fd), true, nil
		}
	}
	s, err = h.sockets.Open(k.protocol, at)
	return s, false, err
}

// ServeInherited makes the kernel serve at the ports whose sockets the process before had.
func (h *Host) ServeInherited() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, p := range h.ports {
		if !p.shared || h.paused {
			continue
		}
		p.shared = false
		if len(p.users) > 0 {
			errs = append(errs, h.serve(p, p.users[0]))
		}
	}
	return errors.Join(errs...)
}

// Pause lets a newcomer accept and read from the sockets. What was accepted stays ours.
func (h *Host) Pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.paused = true
	for _, p := range h.ports {
		if p.handsOver() {
			p.shared = true
			p.setDeadline(time.Unix(1, 0))
		}
	}
}

// Resume undoes Pause. The stack is not closed.
func (h *Host) Resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.paused {
		return
	}
	h.paused = false
	for _, p := range h.ports {
		if p.shared {
			p.shared = false
			p.setDeadline(time.Time{})
			h.startServing(p)
		}
	}
}

// setDeadline ends at t what accepts and reads from the kernel's socket.
func (p *Port) setDeadline(t time.Time) {
	if p.listener != nil {
		p.listener.SetDeadline(t)
	}
	if p.conn != nil {
		p.conn.SetReadDeadline(t)
	}
}

// startServing accepts and reads what the kernel has for a port. mu is held.
func (h *Host) startServing(p *Port) {
	if from := p.listener; from != nil {
		h.ended.Go(func() { h.acceptFrom(p, from) })
	}
	if from := p.conn; from != nil {
		h.ended.Go(func() { h.readFrom(p, from) })
	}
}

// isPaused reports whether err is that of a socket after Pause.
func isPaused(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Refuse makes the kernel begin no more connections with a listener whose socket is ours alone.
// Those that wait are accepted.
func (h *Host) Refuse() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, p := range h.ports {
		if p.listener != nil && !p.shared {
			errs = append(errs, p.socket.Refuse())
		}
	}
	return errors.Join(errs...)
}

// Unaccepted reports whether the kernel has a connection that the program has not got.
func (h *Host) Unaccepted() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, p := range h.ports {
		if p.listener != nil && !p.shared && p.socket.Waiting() > 0 {
			return true
		}
	}
	for b := range h.bindings {
		if b.listener != nil && b.listener.Waiting() {
			return true
		}
	}
	return false
}

// MoveRules moves the rules of the ports on. unix.EADDRINUSE: another process has one; they are
// where they were then, or at both places.
func (h *Host) MoveRules(to handover.RuleState) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rules == nil || h.ruleState >= to {
		h.ruleState = max(h.ruleState, to)
		return nil
	}
	for _, p := range h.ports {
		if err := h.addRule(p, to); err != nil {
			return err
		}
	}
	before := h.ruleState
	h.ruleState = to
	var errs []error
	for _, p := range h.ports {
		if before == handover.RulesAhead {
			errs = append(errs, h.rules.RemoveRule(p.rule(dv.PriorityHandOver)))
		}
	}
	return errors.Join(errs...)
}

// addRule adds the device's rule for a port, where it is to be in a state. mu is held.
func (h *Host) addRule(p *Port, at handover.RuleState) error {
	if at == handover.RulesAway || p.ofBlock || p.key.at.Addr().IsLoopback() ||
		len(p.users) == 0 && !p.held {
		return nil
	}
	priority := dv.PriorityListener
	if at == handover.RulesAhead {
		priority = dv.PriorityHandOver
	}
	return h.rules.AddRule(h.env.Ctx, p.rule(priority))
}

// handedOver returns the port as a hand-over names it.
func (k portKey) handedOver() handover.Port {
	return handover.Port{UDP: k.protocol == backing.UDP, At: k.at}
}

// handsOver says whether a port is one that others can have. mu is held.
func (p *Port) handsOver() bool { return len(p.users) > 0 && !p.ofBlock }

// UDPPorts returns the ports whose datagrams are the kernel's.
func (h *Host) UDPPorts() map[uint16]bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	ports := map[uint16]bool{}
	for k, p := range h.ports {
		if k.protocol == backing.UDP && p.handsOver() {
			ports[k.at.Port()] = true
		}
	}
	return ports
}

// Yield makes the kernel serve our ports, except these remote ends. After an error Unyield is to be
// called.
func (h *Host) Yield(remotes map[handover.Port][]netip.AddrPort) error {
	h.Pause()
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, p := range h.ports {
		if p.handsOver() {
			p.yielded = true
			p.others = remotes[k.handedOver()]
			if err := p.socket.PassAllBut(p.others); err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, p := range h.ports {
		if p.yielded {
			errs = append(errs, h.unsteer(p))
		}
	}
	return errors.Join(errs...)
}

// Unyield undoes Yield, also in part.
func (h *Host) Unyield() {
	h.mu.Lock()
	for _, p := range h.ports {
		if !p.yielded {
			continue
		}
		p.yielded = false
		if err := errors.Join(p.socket.PassNone(), h.steer(p)); err != nil {
			h.env.Log.Warn("a port is not served", "interface", h.env.Name, "port",
				p.key.at, "error", err)
		}
	}
	h.mu.Unlock()
	h.Resume()
}

// LeaveRest makes the kernel serve our ports except these remote ends, which are fewer now.
func (h *Host) LeaveRest(remotes map[handover.Port][]netip.AddrPort) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for k, p := range h.ports {
		if p.yielded && !slices.Equal(p.others, remotes[k.handedOver()]) {
			p.others = remotes[k.handedOver()]
			errs = append(errs, p.socket.PassAllBut(p.others))
		}
	}
	return errors.Join(errs...)
}
