//go:build linux

package localhost

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// Host holds the slices, and knows which of them has which port. Its methods may be called from any
// goroutine.
type Host struct {
	fabric *fabric
	slices []*slice
	notes  notes

	// own counts datagrams that a socket received from its own slice, which cross nothing.
	own atomic.Uint64

	mu     sync.Mutex
	next   int             // the slice to look at first; guarded by mu
	owners map[port]*claim // guarded by mu
}

// port names one that a socket may be bound to.
type port struct {
	transport string // tcp or udp
	v6        bool
	number    uint16
}

// claim says whose a port is. It lasts when its sockets are closed: who binds the port next is
// where peers look for it.
type claim struct {
	slice   *slice
	sockets int
}

// most bounds the slices of a Host, whose numbers are the last byte of their addresses.
const most = 254

// Open makes a host of some slices. Close ends it.
func Open(ctx context.Context, slices int) (*Host, error) {
	h := &Host{owners: map[port]*claim{}}
	f, outside, err := newFabric(min(slices, most))
	if err != nil {
		return nil, err
	}
	h.fabric = f
	for i, end := range outside {
		s, err := openSlice(ctx, i+1, end)
		if err != nil {
			return nil, errors.Join(err, h.Close())
		}
		h.slices = append(h.slices, s)
	}
	return h, nil
}

// Close ends all slices, and the sockets on them.
func (h *Host) Close() (err error) {
	for _, s := range h.slices {
		err = errors.Join(err, s.close())
	}
	return err
}

// OpenSocket makes a socket as unmodified.Program's Open does, on a slice if it is bound and
// connected to addresses of loopback or none; all others are the kernel's.
func (h *Host) OpenSocket(ctx context.Context, network string, laddr, raddr net.Addr,
	control func(syscall.RawConn) error) (unmodified.Socket, net.Conn, error) {
	q := request{network: network, local: addressOf(laddr), remote: addressOf(raddr),
		dials: raddr != nil}
	if !isHere(q.local.Addr()) || !isHere(q.remote.Addr()) {
		h.notes.add(h, func(n *Notes) { n.Kernel++ })
		return nil, nil, nil
	}
	for {
		at := h.choose(q)
		local, remote := at.translate(q, laddr), raddr
		if q.dials {
			remote = h.peer(q, at, raddr)
		}
		s, c, err := at.program.Open(ctx, network, local, remote, control)
		if s == nil {
			h.leave(at)
			return nil, c, err
		}
		ports := q.ports(s)
		if !h.claimAll(at, ports) { // another slice's socket was given the same
			h.leave(at)
			if err := s.Close(); err != nil {
				return nil, nil, err
			}
			if q.local.Port() != 0 { // over the other version of IP
				return nil, nil, os.NewSyscallError("bind", syscall.EADDRINUSE)
			}
			continue
		}
		h.notes.addSocket(h)
		return wrap(s, h, at, ports), nil, nil
	}
}

// request describes a socket that a program asks for.
type request struct {
	network       string // with 4 or 6 where the version of IP is decided
	local, remote netip.AddrPort
	dials         bool
}

func (q request) transport() string { return q.network[:3] }

// versions returns which of IP, 4 and 6, a socket of the address is of.
func (q request) versions(a netip.Addr) (v4, v6 bool) {
	switch {
	case a.IsValid() && !a.IsUnspecified():
		return a.Is4(), !a.Is4()
	case strings.HasSuffix(q.network, "4"):
		return true, false
	case strings.HasSuffix(q.network, "6"):
		return false, true
	}
	return true, true
}

// ports returns those that an open socket is bound to. A connection's is not another's to know.
func (q request) ports(s unmodified.Socket) (all []port) {
	if q.dials && q.transport() == "tcp" {
		return nil
	}
	at := addressOf(s.LocalAddr())
	v4, v6 := q.versions(at.Addr())
	if v4 {
		all = append(all, port{q.transport(), false, at.Port()})
	}
	if v6 {
		all = append(all, port{q.transport(), true, at.Port()})
	}
	return all
}

// choose returns the slice for a socket: the one that has its port, else one with the fewest
// sockets, other than the one it connects to.
func (h *Host) choose(q request) *slice {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.bound(q)
	if at == nil {
		var peer *slice
		if q.dials {
			peer = h.ownerOf(q.target(), nil)
		}
		at = h.fewest(peer)
	}
	at.sockets++
	return at
}

// bound returns the slice that has the port a socket asks for, or nil. mu is held.
func (h *Host) bound(q request) *slice {
	v4, v6 := q.versions(q.local.Addr())
	for _, is6 := range []bool{false, true} {
		if is6 && !v6 || !is6 && !v4 || q.local.Port() == 0 {
			continue
		}
		if c := h.owners[port{q.transport(), is6, q.local.Port()}]; c != nil {
			return c.slice
		}
	}
	return nil
}

// fewest returns a slice with the fewest sockets, but not the one named. mu is held.
func (h *Host) fewest(not *slice) (best *slice) {
	for i := range h.slices {
		s := h.slices[(h.next+i)%len(h.slices)]
		if s != not && (best == nil || s.sockets < best.sockets) {
			best = s
		}
	}
	h.next++
	return best
}

// target names the port that a request connects to.
func (q request) target() port {
	_, v6 := q.versions(q.remote.Addr())
	if v6 && !q.remote.Addr().IsValid() || q.remote.Addr().IsUnspecified() {
		v6 = strings.HasSuffix(q.network, "6")
	}
	return port{q.transport(), v6, q.remote.Port()}
}

// ownerOf returns the slice of a port. One that no socket has yet is given to a slice, other than
// the asking one. mu is held.
func (h *Host) ownerOf(p port, asks *slice) *slice {
	c := h.owners[p]
	if c == nil {
		c = &claim{slice: h.fewest(asks)}
		h.owners[p] = c
	}
	return c.slice
}

// peer returns the address of the slice that has the port a socket connects to.
func (h *Host) peer(q request, at *slice, raddr net.Addr) net.Addr {
	to := q.target()
	h.mu.Lock()
	defer h.mu.Unlock()
	return withIP(raddr, h.ownerOf(to, at).address(to.v6).AsSlice())
}

// translate returns the address of the slice for that of loopback which a socket is bound to.
func (s *slice) translate(q request, local net.Addr) net.Addr {
	a := q.local.Addr()
	if !a.IsValid() || a.IsUnspecified() {
		return local
	}
	return withIP(local, s.address(a.Is6()).AsSlice())
}

// claimAll notes whose the ports of a socket are. It reports whether none is another slice's.
func (h *Host) claimAll(at *slice, ports []port) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range ports {
		if c := h.owners[p]; c != nil && c.slice != at && c.sockets > 0 {
			return false
		}
	}
	for _, p := range ports {
		if c := h.owners[p]; c == nil || c.slice != at {
			h.owners[p] = &claim{slice: at}
		}
		h.owners[p].sockets++
	}
	return true
}

// leave forgets a socket that is closed, or did not open.
func (h *Host) leave(at *slice, ports ...port) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at.sockets--
	for _, p := range ports {
		if c := h.owners[p]; c != nil && c.slice == at {
			c.sockets--
		}
	}
}

// join counts one more socket of a slice: a connection that was accepted.
func (h *Host) join(at *slice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at.sockets++
}

// sentTo returns where a datagram to an address of loopback, or to none, goes: to the slice that
// has the port.
func (h *Host) sentTo(at *slice, to netip.AddrPort) netip.AddrPort {
	a := to.Addr().Unmap()
	if !to.IsValid() || !isHere(a) {
		return to
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	owner := h.ownerOf(port{"udp", a.Is6(), to.Port()}, at)
	return netip.AddrPortFrom(replaceAddr(to.Addr(), owner.address(a.Is6())), to.Port())
}

// SocketOf returns the socket that a File stands for, if one of this process gave it.
func (h *Host) SocketOf(from func(*unmodified.Program) (unmodified.Socket, bool),
) (unmodified.Socket, bool) {
	for _, at := range h.slices {
		if s, ok := from(at.program); ok {
			h.join(at)
			return wrap(s, h, at, nil), true
		}
	}
	return nil, false
}
