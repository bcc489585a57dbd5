package stack

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// In host mode the kernel's socket of each port is both processes' during a hand-over, so that no
// other process can have the port, and what waits in it is lost by neither. One of them accepts and
// reads from it: the process before until it says taken, then the newcomer.

// handoverPort is a port whose socket goes with the message.
type handoverPort struct {
	UDP bool           `json:"udp"`
	At  netip.AddrPort `json:"at"` // without a zone
}

// portsPerMessage says how many descriptors a message has at most; the kernel takes 253
// (SCM_MAX_FD in linux include/net/scm.h).
const portsPerMessage = 200

// inherited are sockets of the process before that no port has yet.
type inherited struct {
	mu  sync.Mutex
	fds map[hostKey]int
}

// take returns the descriptor for a port, which is the caller's.
func (i *inherited) take(k hostKey) (fd int, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	fd, ok = i.fds[k]
	delete(i.fds, k)
	return fd, ok
}

// add reads a message of ports with its descriptors.
func (i *inherited) add(message []byte, fds []int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	var ports []handoverPort
	err := json.Unmarshal(message, &ports)
	if err == nil && len(ports) != len(fds) {
		err = errors.New("there is not one descriptor for each port")
	}
	if err != nil {
		closeFDs(fds)
		return err
	}
	if i.fds == nil {
		i.fds = map[hostKey]int{}
	}
	for n, p := range ports {
		k := hostKey{backing.TCP, p.At}
		if p.UDP {
			k.protocol = backing.UDP
		}
		i.fds[k] = fds[n]
	}
	return nil
}

// close closes those that are left.
func (i *inherited) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, fd := range i.fds {
		unix.Close(fd)
	}
	clear(i.fds)
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// duplicates are descriptors of the sockets of the ports that serve, but for those of the block.
// They are the caller's, also after an error.
func (h *host) duplicates() (ports []handoverPort, fds []int, err error) {
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
		ports = append(ports, handoverPort{k.protocol == backing.UDP, k.at})
		fds = append(fds, fd)
	}
	return ports, fds, nil
}

// sendPorts sends a newcomer duplicates.
func (h *host) sendPorts(p *peer) error {
	ports, fds, err := h.duplicates()
	defer closeFDs(fds)
	if err != nil {
		return err
	}
	for i := 0; i < len(ports); i += portsPerMessage {
		end := min(i+portsPerMessage, len(ports))
		if err := p.sendWith(msgPorts, ports[i:end], fds[i:end]); err != nil {
			return err
		}
	}
	return nil
}

// openSocket returns the kernel's socket for a port: that of the process before, if it gave it.
func (h *host) openSocket(k hostKey, at netip.AddrPort) (s *backing.Socket, given bool, err error) {
	if p := h.stack.cfg.Predecessor; p != nil {
		if fd, ok := p.ports.take(k); ok {
			return backing.Adopt(k.protocol, at, *h.device.Load(), fd), true, nil
		}
	}
	s, err = backing.Open(k.protocol, at, *h.device.Load())
	return s, false, err
}

// serveInherited has the kernel serve at the ports whose sockets the process before had.
func (h *host) serveInherited() error {
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

// pause has a newcomer accept and read from the sockets. What was accepted stays ours.
func (h *host) pause() {
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

// resume undoes pause. The stack is not closed.
func (h *host) resume() {
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

// setDeadline is of accepting and reading from the kernel's socket.
func (p *hostPort) setDeadline(t time.Time) {
	if p.listener != nil {
		p.listener.SetDeadline(t)
	}
	if p.conn != nil {
		p.conn.SetReadDeadline(t)
	}
}

// startServing accepts and reads what the kernel has for a port. mu is held.
func (h *host) startServing(p *hostPort) {
	if from := p.listener; from != nil {
		h.ended.Go(func() { h.acceptFrom(p, from) })
	}
	if from := p.conn; from != nil {
		h.ended.Go(func() { h.readFrom(p, from) })
	}
}

// isPaused is the error of a socket after pause.
func isPaused(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// refuse has the kernel begin no connection with a listener any more, if its socket is ours alone.
// Those that wait are accepted.
func (h *host) refuse() error {
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

// unaccepted says whether the kernel has a connection that the program has not got.
func (h *host) unaccepted() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, p := range h.ports {
		if p.listener != nil && !p.shared && p.socket.Waiting() > 0 {
			return true
		}
	}
	for b := range h.bindings {
		if b.listener != nil && b.listener.kernel.waiting() {
			return true
		}
	}
	return false
}

// waiting says whether a connection waits.
func (q *kernelQueue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.conns) > 0
}

// moveRules moves the rules of the ports on. unix.EADDRINUSE: another process has one; they are
// where they were then, or at both places.
func (h *host) moveRules(to ruleState) error {
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
		if before == rulesAhead {
			errs = append(errs, h.rules.RemoveRule(p.rule(dv.PriorityHandOver)))
		}
	}
	return errors.Join(errs...)
}

// addRule adds the device's rule for a port, where it is to be in a state. mu is held.
func (h *host) addRule(p *hostPort, at ruleState) error {
	if at == rulesAway || p.ofBlock || p.key.at.Addr().IsLoopback() ||
		len(p.users) == 0 && !p.held {
		return nil
	}
	priority := dv.PriorityListener
	if at == rulesAhead {
		priority = dv.PriorityHandOver
	}
	return h.rules.AddRule(h.stack.ctx, p.rule(priority))
}

// parseRights returns the descriptors that came with a message.
func parseRights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		more, err := unix.ParseUnixRights(&m)
		if err != nil {
			closeFDs(fds)
			return nil, err
		}
		fds = slices.Concat(fds, more)
	}
	return fds, nil
}
