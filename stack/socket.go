package stack

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// defaultName names the link of a stack whose Config has no name.
const defaultName = "net0"

// The stack's two interfaces and protocols.
const (
	nicID      = env.NIC
	loopbackID = env.Loopback

	ipv4Protocol = header.IPv4ProtocolNumber
	ipv6Protocol = header.IPv6ProtocolNumber
)

// family is the kind of socket the host stack would have made; it decides how addresses print.
type family uint8

const (
	inet4 family = iota // AF_INET
	inet6               // AF_INET6 with IPV6_V6ONLY
	inet                // AF_INET6, dual stack: IPv4 peers appear as ::ffff:a.b.c.d
)

// listenFamily chooses as net.Listen does: a wildcard without a 4 or 6 in the network is
// dual-stack.
func listenFamily(network string, ip net.IP) family {
	switch {
	case network[len(network)-1] == '4':
		return inet4
	case network[len(network)-1] == '6':
		return inet6
	case len(ip) == 0 || ip.IsUnspecified():
		return inet
	case ip.To4() != nil:
		return inet4
	}
	return inet
}

// dialFamily chooses as net.Dial does: AF_INET if neither end is an IPv6 address.
func dialFamily(network string, local, remote net.IP) family {
	switch {
	case network[len(network)-1] == '4':
		return inet4
	case network[len(network)-1] == '6':
		return inet6
	case is4(local) && is4(remote):
		return inet4
	}
	return inet
}

// is4 counts "no address" as IPv4, as package net does.
func is4(ip net.IP) bool { return len(ip) <= net.IPv4len || ip.To4() != nil }

func (f family) protocol() tcpip.NetworkProtocolNumber {
	if f == inet4 {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// ip converts a netstack address to the bytes the host stack would report for this kind of socket:
// 4 of them for AF_INET, 16 else. "Any" becomes 0.0.0.0 or ::. buf backs the result.
func (f family) ip(a tcpip.Address, buf *[16]byte) net.IP {
	if f == inet4 {
		*buf = [16]byte{}
		copy(buf[:4], a.AsSlice())
		return buf[:4:4]
	}
	switch a.Len() {
	case header.IPv4AddressSize:
		*buf = [16]byte{10: 0xff, 11: 0xff}
		copy(buf[12:], a.AsSlice())
	case header.IPv6AddressSize:
		*buf = a.As16()
	default:
		*buf = [16]byte{}
	}
	return buf[:]
}

// addrPort is ip for netip.
func (f family) addrPort(a tcpip.FullAddress, zone string) netip.AddrPort {
	var buf [16]byte
	ip, _ := netip.AddrFromSlice(f.ip(a.Addr, &buf))
	return netip.AddrPortFrom(ip.WithZone(zone), a.Port)
}

// address returns the other way: an address a caller gave, for use with this kind of socket.
func (f family) address(ip net.IP) (tcpip.Address, error) {
	if len(ip) == 0 || ip.Equal(net.IPv4zero) || ip.Equal(net.IPv6zero) {
		if f == inet4 && len(ip) != 0 && ip.To4() == nil {
			return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: ip.String()}
		}
		return tcpip.Address{}, nil
	}
	if v4 := ip.To4(); v4 != nil {
		return tcpip.AddrFrom4Slice(v4), nil
	}
	if f == inet4 {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: ip.String()}
	}
	if len(ip) != net.IPv6len {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv6 address", Addr: ip.String()}
	}
	return tcpip.AddrFrom16Slice(ip), nil
}

// fromNetip is address for netip.
func (f family) fromNetip(a netip.Addr) (tcpip.Address, error) {
	a = a.Unmap()
	if f == inet4 && !a.Is4() {
		return tcpip.Address{}, &net.AddrError{Err: "non-IPv4 address", Addr: a.String()}
	}
	if a.IsUnspecified() {
		return tcpip.Address{}, nil
	}
	return toAddress(a), nil
}

// zones knows the names that the stack's link has in zones of addresses.
type zones struct {
	name   string     // ours
	netdev string     // of the port's netdev, when the stack was opened
	index  func() int // of that netdev; 0: there is none
}

// full completes an address with what netstack needs to know of the link: link-local addresses
// are on our NIC.
func (z *zones) full(a tcpip.Address, port int, zone string) (tcpip.FullAddress, error) {
	full := tcpip.FullAddress{Addr: a, Port: uint16(port)}
	if port < 0 || port > 0xffff {
		return full, &net.AddrError{Err: "invalid port", Addr: strconv.Itoa(port)}
	}
	if zone != "" && !z.has(zone) {
		return full, &net.AddrError{Err: "no such zone", Addr: zone}
	}
	if env.OnLink(a) {
		full.NIC = nicID
	}
	return full, nil
}

// has reports whether a zone of an address is the stack's link: by our name or number, or, as
// in package net, by the name or the index of the port's netdev. The latter is found by its index,
// for it may have been renamed.
func (z *zones) has(zone string) bool {
	if zone == z.name || zone == strconv.Itoa(nicID) || zone == z.netdev ||
		zone == defaultName && z.name == z.netdev {
		return true
	}
	index := z.index()
	if index == 0 {
		return false
	}
	if zone == strconv.Itoa(index) {
		return true
	}
	ifi, err := net.InterfaceByName(zone)
	return err == nil && ifi.Index == index
}

// of returns what is printed after the % of a.
func (z *zones) of(a tcpip.Address) string {
	if env.OnLink(a) {
		return z.name
	}
	return ""
}

func (z *zones) tcpAddr(f family, a tcpip.FullAddress) *net.TCPAddr {
	both := new(struct {
		addr net.TCPAddr
		ip   [16]byte
	}) // one allocation
	both.addr = net.TCPAddr{IP: f.ip(a.Addr, &both.ip), Port: int(a.Port), Zone: z.of(a.Addr)}
	return &both.addr
}

func (z *zones) udpAddr(f family, a tcpip.FullAddress) *net.UDPAddr {
	both := new(struct {
		addr net.UDPAddr
		ip   [16]byte
	})
	both.addr = net.UDPAddr{IP: f.ip(a.Addr, &both.ip), Port: int(a.Port), Zone: z.of(a.Addr)}
	return &both.addr
}

// bindAddress converts what a caller wants to bind to.
func (z *zones) bindAddress(f family, ip net.IP, port int, zone string) (tcpip.FullAddress, error) {
	a, err := f.address(ip)
	if err != nil {
		return tcpip.FullAddress{}, err
	}
	if f == inet6 && a.Len() == net.IPv4len {
		return tcpip.FullAddress{}, os.NewSyscallError("bind", syscall.EINVAL)
	}
	return z.full(a, port, zone)
}

// connState is embedded in every conn and listener: whether it, or its stack, is closed.
type connState struct {
	stack  *Stack
	closed atomic.Bool
}

// done is net.ErrClosed once the conn or its stack is closed.
func (g *connState) done() error {
	if g.closed.Load() {
		return net.ErrClosed
	}
	return g.stack.life.done()
}

// check says whether an operation of side d may go on, in the order package net asks.
func (g *connState) check(d *ioSide) error {
	if err := g.done(); err != nil {
		return err
	}
	if d.expired.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// orClosedErr is net.ErrClosed if the conn or the stack is closed, else err: netstack reports other
// errors when an endpoint is closed under an operation.
func (g *connState) orClosedErr(err error) error {
	if closed := g.done(); closed != nil {
		return closed
	}
	return err
}

// ioSide describes one direction of an endpoint: reading and accepting, or writing. What is needed
// only while an operation waits, or with a deadline, is made then: most connections are idle.
type ioSide struct {
	// mu is held by one operation at a time, as in package net. Only its holder parks.
	mu sync.Mutex

	parking  atomic.Pointer[parking]  // nil: no operation has waited yet
	deadline atomic.Pointer[deadline] // nil: there was none yet

	// expired is set while the deadline is in the past.
	expired atomic.Bool
}

// Events that a side is told of. Each goes to the operation in progress.
const (
	always      = waiter.EventErr | waiter.EventHUp
	readEvents  = waiter.ReadableEvents | always
	writeEvents = waiter.WritableEvents | always
)

// register has q tell l of the events of mask, for the endpoint's life.
func register(q *waiter.Queue, e *waiter.Entry, l waiter.EventListener, mask waiter.EventMask) {
	e.Init(l, mask)
	q.EventRegister(e)
}

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (d *ioSide) NotifyEvent(waiter.EventMask) { d.notify() }

// parking is where the operation of a side waits. A token means that it is to try again. Netstack,
// the deadline and Close put it there; an extra token costs one try.
type parking struct {
	token atomic.Bool
	cond  sync.Cond // its Locker is the parking
}

// Lock and Unlock are for cond, which calls Unlock once it counts the caller as one that waits:
// whoever puts the token there before does not wake it.
func (p *parking) Lock() {}
func (p *parking) Unlock() {
	if p.token.Load() {
		p.cond.Signal()
	}
}

// notify wakes the operation in progress, or the next one.
func (d *ioSide) notify() {
	p := d.parking.Load() // nil: the first to wait makes it, and tries again then
	if p != nil && !p.token.Swap(true) {
		p.cond.Signal()
	}
}

// park waits for a token. The caller holds d.mu.
func (d *ioSide) park() {
	p := d.parking.Load()
	if p == nil {
		p = new(parking)
		p.cond.L = p
		d.parking.Store(p)
		return
	}
	for !p.token.Swap(false) {
		p.cond.Wait()
	}
}

// deadline is that of a side.
type deadline struct {
	side  *ioSide
	clock clock.Clock

	mu    sync.Mutex
	at    time.Time   // guarded by mu; zero: none
	timer clock.Timer // nil: not needed yet
}

// setDeadline makes operations fail from t on, a time of c; the zero time means never.
func (d *ioSide) setDeadline(c clock.Clock, t time.Time) {
	dl := d.deadline.Load()
	if dl == nil {
		switch {
		case t.IsZero():
			d.expired.Store(false)
			return
		case c.Until(t) <= 0: // net/http does this once per connection
			d.expired.Store(true)
			d.notify()
			return
		}
		d.deadline.CompareAndSwap(nil, &deadline{side: d, clock: c})
		dl = d.deadline.Load()
	}
	dl.set(t)
}

// copyDeadline gives d's deadline to another side, which is new.
func (d *ioSide) copyDeadline(c clock.Clock, to *ioSide) {
	to.expired.Store(d.expired.Load())
	dl := d.deadline.Load()
	if dl == nil {
		return
	}
	dl.mu.Lock()
	at := dl.at
	dl.mu.Unlock()
	to.setDeadline(c, at)
}

func (dl *deadline) set(t time.Time) {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	dl.at = t
	if t.IsZero() { // without asking for the time: net/http does this twice per request
		dl.side.expired.Store(false)
		dl.stop()
		return
	}
	left := dl.clock.Until(t)
	dl.side.expired.Store(left <= 0)
	switch {
	case left <= 0:
		dl.stop()
		dl.side.notify()
	case dl.timer == nil:
		dl.timer = dl.clock.AfterFunc(left, dl.expire)
	default:
		dl.timer.Reset(left)
	}
}

// expire is the timer's function.
func (dl *deadline) expire() {
	dl.mu.Lock()
	defer dl.mu.Unlock()
	left := dl.clock.Until(dl.at)
	switch {
	case dl.at.IsZero():
	case left > 0: // the deadline moved, or the wall clock did
		dl.timer.Reset(left)
	default:
		dl.side.expired.Store(true)
		dl.side.notify()
	}
}

// stop stops the timer. mu is held.
func (dl *deadline) stop() {
	if dl.timer != nil {
		dl.timer.Stop()
	}
}

// stop stops the timer and wakes the operation in progress. The conn is closed already.
func (d *ioSide) stop() {
	if dl := d.deadline.Load(); dl != nil {
		dl.mu.Lock()
		dl.stop()
		dl.mu.Unlock()
	}
	d.notify()
}

func badClass(class int) error { return fmt.Errorf("traffic class %d: want 0 to 255", class) }

// mark has both IP versions of an endpoint send with a traffic class; one may not be there.
func mark(ep tcpip.Endpoint, class int) {
	ep.SetSockOptInt(tcpip.IPv4TOSOption, class)
	ep.SetSockOptInt(tcpip.IPv6TrafficClassOption, class)
}

// putClass writes a traffic class into an IP header that has none.
func putClass(ip []byte, v6 bool, class uint8) {
	if v6 {
		header.IPv6(ip).SetTOS(class, 0)
		return
	}
	header.IPv4(ip).SetTOS(class, 0)
}

func toAddress(a netip.Addr) tcpip.Address { return env.ToAddress(a) }

func fromAddress(a tcpip.Address) netip.Addr { return env.FromAddress(a) }

// covers says which IP versions reach a socket of family f bound to a.
func covers(f family, a tcpip.Address) (v4, v6 bool) {
	if a.Len() != 0 {
		return a.Len() == net.IPv4len, a.Len() == net.IPv6len
	}
	return f != inet6, f != inet4
}
