package hostmode

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Binding holds a listener or UDP socket of a program, and where it is bound. Host.Bind makes it
// serve.
type Binding struct {
	protocol backing.Protocol
	v4, v6   bool       // the versions of IP that it covers
	addr     netip.Addr // the zero Addr: every address of these versions
	port     uint16

	listener Listener // of TCP
	receiver Receiver // of UDP

	connected bool // netstack may have connections of the listener, which is closed

	at map[netip.Addr]*Port // by address; guarded by Host.mu
}

// Listener takes the connections that the kernel has accepted for a program's listener. Its methods
// are called by any goroutine, Waiting with Host's lock held: it calls nothing of Host.
type Listener interface {
	Backlog() int
	// Accept takes c over, or waits for room in the backlog first. It resets c once Refuse was
	// called.
	Accept(c *net.TCPConn)
	Waiting() bool // connections wait that no program has
	Refuse()       // what waits is reset, and whatever comes later
}

// Receiver takes the datagrams that the kernel has for a program's socket.
type Receiver interface {
	// Receive takes a datagram whose payload lies in buf behind Headroom, with the kernel's control
	// messages about it. buf and oob are the caller's again when it returns.
	Receive(buf, oob []byte, from, to netip.AddrPort)
}

// At says where a program's socket is bound: at every address of the versions of IP that it covers
// where Addr is the zero one.
type At struct {
	V4, V6 bool
	Addr   netip.Addr
	Port   uint16
}

// ForListener returns the binding of a TCP listener, which Host.Bind takes.
func ForListener(at At, l Listener) *Binding {
	return &Binding{protocol: backing.TCP, v4: at.V4, v6: at.V6, addr: at.Addr, port: at.Port,
		listener: l, at: map[netip.Addr]*Port{}}
}

// ForReceiver returns the binding of a UDP socket, which Host.Bind takes.
func ForReceiver(at At, r Receiver) *Binding {
	return &Binding{protocol: backing.UDP, v4: at.V4, v6: at.V6, addr: at.Addr, port: at.Port,
		receiver: r, at: map[netip.Addr]*Port{}}
}

// KeepConnections says, before Unbind, that netstack may have connections of the listener: its port
// stays ours until they have ended.
func (b *Binding) KeepConnections() { b.connected = true }

// covers reports whether what is sent to an address of ours reaches the socket.
func (b *Binding) covers(a netip.Addr) bool {
	if b.addr.IsValid() {
		return a == b.addr
	}
	return a.Is4() && b.v4 || a.Is6() && b.v6
}

// end ends what waits in the binding.
func (b *Binding) end() {
	if b.listener != nil {
		b.listener.Refuse()
	}
}

type portKey struct {
	protocol backing.Protocol
	at       netip.AddrPort
}

// Port describes a port of ours and the kernel's socket for it.
//
//	          first binding            last binding
//	(none) ───────────────────▶ serving ───────────┐
//	  ▲ │  dial from it            ▲               │
//	  │ └────────────▶ silent ◀────┼───────────────┘
//	  │                  │         │ binding
//	  └──────────────────┴─────────┘
//	  no dial or connection of ours is left, of TIME-WAIT neither
//
// While it is silent the kernel answers nobody there: it would reset our connections. It refuses
// who comes when it has the port back; see portSweep.
type Port struct {
	key      portKey
	socket   Socket
	ofBlock  bool // the socket is the block's
	listener Acceptor
	conn     Datagrams
	users    []*Binding // guarded by Host.mu
	turn     int        // whose the next connection is; guarded by Host.mu
	held     bool       // a connection was made from it; guarded by Host.mu
	dials    int        // that are made from it now; guarded by Host.mu
	accepted bool       // the kernel has had connections there; guarded by Host.mu
	// connected: netstack may have connections there without a listener; guarded by Host.mu
	connected bool
	// shared: another process has the socket, too, and accepts and reads from it; guarded by
	// Host.mu
	shared bool
	// yielded: the kernel serves there in our place, but for others; guarded by Host.mu
	yielded bool
	others  []netip.AddrPort // guarded by Host.mu
}

// zoned returns an address as the kernel's sockets want it.
func (h *Host) zoned(a netip.Addr) netip.Addr {
	if a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(strconv.Itoa(h.device.Load().Index))
	}
	return a
}

// Bind takes the ports of b at all addresses there are, and at those that come to be later. One
// that is bound to any address has localhost's as well, as far as they are free there.
func (h *Host) Bind(b *Binding) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	addrs := []netip.Addr{b.addr}
	if !b.addr.IsValid() {
		addrs = slices.DeleteFunc(h.plainAddrs(), func(a netip.Addr) bool { return !b.covers(a) })
	}
	for _, a := range addrs {
		if err := h.join(b, a); err != nil {
			return errors.Join(err, h.leave(b))
		}
	}
	for _, a := range localhost() {
		if !b.addr.IsValid() && b.covers(a) {
			_ = h.join(b, a) // another process has the port there, or there is no IPv6
		}
	}
	h.bindings[b] = struct{}{}
	return h.tellPorts()
}

// localhost returns the addresses that name this host everywhere.
func localhost() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
}

// Unbind ends what Bind began, once the program's socket is closed, and what waits in b.
func (h *Host) Unbind(b *Binding) {
	if err := h.unbind(b); err != nil {
		h.env.Log.Warn("close a socket", "interface", h.env.Name, "error", err)
	}
	b.end()
}

func (h *Host) unbind(b *Binding) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, bound := h.bindings[b]; !bound {
		return nil
	}
	delete(h.bindings, b)
	return errors.Join(h.leave(b), h.tellPorts())
}

// join adds b to the users of its port at a. mu is held.
func (h *Host) join(b *Binding, a netip.Addr) error {
	k := portKey{b.protocol, netip.AddrPortFrom(a, b.port)}
	before := h.ports[k]
	p, err := h.port(k)
	if err != nil {
		return err
	}
	err = h.serve(p, b)
	if err == nil {
		p.users = append(p.users, b)
		err = h.steer(p)
	}
	if err != nil {
		p.users = slices.DeleteFunc(p.users, func(u *Binding) bool { return u == b })
	}
	if err != nil && before == nil {
		h.forget(k)
		return errors.Join(err, p.close())
	} else if err != nil {
		return err
	}
	b.at[a] = p
	return nil
}

// serve makes the kernel serve at p, if it does not yet. mu is held.
func (h *Host) serve(p *Port, b *Binding) (err error) {
	switch {
	case p.shared:
	case b.protocol == backing.TCP && p.listener == nil:
		if p.listener, err = p.socket.Listener(b.listener.Backlog()); err == nil {
			from := p.listener
			h.ended.Go(func() { h.acceptFrom(p, from) })
		}
	case b.protocol == backing.UDP && p.conn == nil:
		if p.conn, err = p.socket.Conn(); err == nil {
			from := p.conn
			h.ended.Go(func() { h.readFrom(p, from) })
		}
	}
	return err
}

// port returns the port of a key, which is taken if it is not ours yet. mu is held.
func (h *Host) port(k portKey) (*Port, error) {
	if p := h.ports[k]; p != nil {
		return p, nil
	}
	at := netip.AddrPortFrom(h.zoned(k.at.Addr()), k.at.Port())
	p := &Port{key: k, socket: h.block.Socket(k.protocol, at)}
	if p.ofBlock = p.socket != nil; !p.ofBlock {
		var err error
		if p.socket, p.shared, err = h.openSocket(k, at); err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				err = portTaken{err}
			}
			return nil, err
		}
		h.tellOfFilters(h.sockets.Own())
	}
	h.ports[k] = p
	h.untold.note(k)
	return p, nil
}

// forget removes a port, which is ours no longer. mu is held.
func (h *Host) forget(k portKey) {
	delete(h.ports, k)
	h.untold.note(k)
}

// portTaken says that another process of the host has a port.
type portTaken struct{ error }

func (e portTaken) Error() string {
	return e.error.Error() + " (another process of this host has the port: ss -tulpn)"
}

func (e portTaken) Unwrap() error { return e.error }

// leave takes b from its ports. Those that nobody uses any more are silent, and given back once
// they can be. mu is held.
func (h *Host) leave(b *Binding) error {
	var errs []error
	var idle []*Port
	for a, p := range b.at {
		delete(b.at, a)
		p.users = slices.DeleteFunc(p.users, func(u *Binding) bool { return u == b })
		p.connected = p.connected || b.connected
		if len(p.users) > 0 {
			continue
		}
		if !p.held {
			errs = append(errs, h.unsteer(p))
		}
		idle = append(idle, p)
	}
	h.keepConns(idle)
	for _, p := range idle {
		errs = append(errs, p.silence())
	}
	return errors.Join(append(errs, h.giveBack(idle))...)
}

// silence ends what the kernel serves at the port.
func (p *Port) silence() error {
	var errs []error
	if p.listener != nil {
		errs = append(errs, p.listener.Close())
	}
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	p.listener, p.conn = nil, nil
	if p.shared {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, p.socket.Silence())...)
}

// close gives the port back to the kernel, or to the block.
func (p *Port) close() error {
	err := p.silence()
	if p.ofBlock {
		return err
	}
	if p.yielded {
		err = errors.Join(err, p.socket.PassAllBut(nil))
	}
	return errors.Join(err, p.socket.Close())
}

// untold lists what the link has not been told yet of the ports that are ours; guarded by Host.mu.
type untold struct {
	known   bool                 // all but these ports are as the link was told
	changed map[portKey]struct{} // they are ours now, or no longer
}

// note says that a port has come to be ours, or is no longer.
func (u *untold) note(k portKey) {
	if u.changed == nil {
		u.changed = map[portKey]struct{}{}
	}
	u.changed[k] = struct{}{}
}

// tellPorts tells the link which ports have come to be ours or are no longer. mu is held.
func (h *Host) tellPorts() error {
	if h.link == nil || !h.untold.known {
		return h.tellAllPorts()
	}
	var added, removed []packet.Ports
	for k := range h.untold.changed {
		if p := h.ports[k]; p != nil && !p.ofBlock && h.owns(k.at.Addr()) {
			added = append(added, k.single())
		} else {
			removed = append(removed, k.single())
		}
	}
	h.untold.changed = nil
	err := h.link.ChangePorts(added, removed)
	h.untold.known = err == nil
	return err
}

// owns says whether an address is in use. mu is held.
func (h *Host) owns(a netip.Addr) bool {
	return slices.ContainsFunc(h.addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// single returns a port as the link knows it.
func (k portKey) single() packet.Ports {
	return packet.Ports{UDP: k.protocol == backing.UDP, Addr: k.at.Addr(), First: k.at.Port(),
		Last: k.at.Port()}
}

// tellAllPorts tells the link all that is ours, as it must when the link, the addresses or the
// block have changed. mu is held.
func (h *Host) tellAllPorts() error {
	if h.link == nil {
		return nil
	}
	var list []packet.Ports
	last := h.block.First + blockSize - 1
	own := map[netip.Addr]bool{}
	for _, p := range h.addrs {
		own[p.Addr()] = true
		for _, udp := range []bool{false, true} {
			list = append(list, packet.Ports{UDP: udp, Addr: p.Addr(), First: h.block.First,
				Last: last})
		}
	}
	for k, p := range h.ports {
		if !p.ofBlock && own[k.at.Addr()] {
			list = append(list, k.single())
		}
	}
	err := h.link.SetPorts(list)
	h.untold = untold{known: err == nil}
	return err
}

// A port that has no listener any more stays ours for as long as there are connections of ours at
// it, which the kernel would reset: those that have outlived their listener, and those that were
// made from it. It is looked for each portSweep while there are such ports.
//
// Who dials it from this host gets no answer meanwhile. A kernel's socket that is bound to the
// netdev (SO_BINDTOIFINDEX), so that others find none and are refused, does not help: the kernel
// looks for the socket of a packet to an address of its own as if it had come by the device that
// has the address (rt_iif in linux net/ipv4/route.c, inet_iif).
const portSweep = time.Second

// Hold takes a port that a connection is made from, of one address or of all. The caller calls
// DialEnded, also after an error.
func (h *Host) Hold(a netip.Addr, port uint16) (held []*Port, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, own := range h.addrs {
		if a.IsValid() && a != own.Addr() {
			continue
		}
		p, err := h.port(portKey{backing.TCP, netip.AddrPortFrom(own.Addr(), port)})
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

// DialEnded says that dials from ports have ended: a connection is netstack's, if there is one.
func (h *Host) DialEnded(from []*Port) {
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
func (h *Host) sweepPorts() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Port
	for _, p := range h.ports {
		all = append(all, p)
	}
	h.lookAgain = time.Time{}
	h.tryGiveBack(all)
}

// tryGiveBack does what giveBack does, and logs its error. mu is held.
func (h *Host) tryGiveBack(ports []*Port) {
	if err := h.giveBack(ports); err != nil && h.env.Ctx.Err() == nil {
		h.env.Log.Warn("give ports back", "interface", h.env.Name, "error", err)
	}
}

// giveBack gives the kernel those ports back that nobody listens at, dials from or has a connection
// at. Others of them are looked at again. mu is held.
func (h *Host) giveBack(ports []*Port) error {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p *Port) bool {
		return len(p.users) > 0 || p.dials > 0 || h.ports[p.key] != p
	})
	busy := h.connectedAt(ports)
	var errs []error
	var free []*Port
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
func (h *Host) connectedAt(ports []*Port) map[netip.AddrPort]bool {
	at := map[netip.AddrPort]bool{}
	began := h.env.Clock.Now()
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
		now := h.env.Clock.Now()
		h.lookAgain = now.Add(9 * now.Sub(began))
	}()
	for _, ep := range h.env.Net.RegisteredEndpoints() {
		c, ok := ep.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(c.State()) == tcp.StateListen {
			continue
		}
		if local, terr := c.GetLocalAddress(); terr == nil {
			end := netip.AddrPortFrom(env.FromAddress(local.Addr), local.Port)
			if _, asked := at[end]; asked {
				at[end] = true
			}
		}
	}
	return at
}

// Silent reports whether at is a port of TCP at which the kernel answers nobody for our sake.
func (h *Host) Silent(at netip.AddrPort) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	at = netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())
	if p := h.ports[portKey{backing.TCP, at}]; p != nil {
		return len(p.users) == 0
	}
	return h.block.Socket(backing.TCP, netip.AddrPortFrom(h.zoned(at.Addr()), at.Port())) != nil
}
