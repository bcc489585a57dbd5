// Package env holds what every part of a stack needs to know of it, so that no part needs the
// stack itself.
package env

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// Env describes a stack to its parts. Nobody writes it once the stack is made.
type Env struct {
	Name   string // of the interface, in log lines
	Log    *slog.Logger
	Clock  clock.Clock
	Random random.Source
	Net    *gstack.Stack
	Ctx    context.Context // done when the stack ends
	Go     func(func())    // runs a goroutine that the end of the stack waits for
}

// The stack's two interfaces.
const (
	NIC      = 1
	Loopback = 2
)

// Notify puts a token into c unless it has one.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ToAddress converts to netstack's form; the zero netip.Addr becomes netstack's "any".
func ToAddress(a netip.Addr) tcpip.Address {
	switch {
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	case a.Is6():
		return tcpip.AddrFrom16(a.As16())
	}
	return tcpip.Address{}
}

// FromAddress converts from netstack's form; "any" becomes the zero netip.Addr.
func FromAddress(a tcpip.Address) netip.Addr {
	switch a.Len() {
	case header.IPv4AddressSize:
		return netip.AddrFrom4(a.As4())
	case header.IPv6AddressSize:
		return netip.AddrFrom16(a.As16())
	}
	return netip.Addr{}
}

// ErrDuplicateAddress says that another host on the link has an address.
var ErrDuplicateAddress = errors.New("duplicate address")

// Source names where routes and resolvers come from.
type Source string

const (
	FromDHCPv4 Source = "DHCPv4"
	FromDHCPv6 Source = "DHCPv6"
	FromRA     Source = "router advertisement"
	FromLinux  Source = "the port's netdev"
)

// Route describes one entry of the routing table; stack.Route says what the fields mean.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
	MTU         int
	Source      netip.Addr
	OnLink      bool
}

// Connected returns the route to the subnet of an address of ours. Linux sends from that address by
// it with IPv4; with IPv6 the destination decides.
func Connected(p netip.Prefix) Route {
	r := Route{Destination: p.Masked()}
	if p.Addr().Is4() {
		r.Source = p.Addr()
	}
	return r
}

// CheckAddress refuses what cannot be the address of a host on an Ethernet.
func CheckAddress(p netip.Prefix) error {
	a := p.Addr()
	switch {
	case !a.IsValid():
		return errors.New("an address is empty; give one such as 192.0.2.10/24 or 2001:db8::10/64")
	case a.Is4In6():
		return fmt.Errorf("address %s is an IPv4 address in IPv6 form; write it as %s", a,
			a.Unmap())
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("address %s cannot belong to one host; "+
			"give this host's own unicast address", a)
	case a.IsLoopback():
		return fmt.Errorf("address %s is loopback, which every stack has already; "+
			"give an address of the link's subnet", a)
	case HasEnds(p) && a == p.Masked().Addr():
		return fmt.Errorf("address %s is the subnet itself; "+
			"give a host address inside it, for example %s/%d", p, a.Next(), p.Bits())
	case HasEnds(p) && a == LastAddr(p):
		return fmt.Errorf("address %s is the subnet's broadcast address; "+
			"give a host address inside the subnet", p)
	}
	return nil
}

// HasEnds says whether the first and last address of p's subnet are not hosts.
func HasEnds(p netip.Prefix) bool { return p.Addr().Is4() && p.Bits() >= 0 && p.Bits() < 31 }

// LastAddr returns the highest address of an IPv4 subnet.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// ProtocolOf returns the network protocol that carries a.
func ProtocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// ProtocolAddress converts to netstack's form.
func ProtocolAddress(p netip.Prefix) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol: ProtocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   ToAddress(p.Addr()),
			PrefixLen: p.Bits(),
		},
	}
}

// RateLimit limits an action that other hosts can cause, such as a line in the log, to Burst times
// per Period. It is not safe for concurrent use.
type RateLimit struct {
	Burst  int
	Period time.Duration

	since  time.Time // when the period began
	used   int       // of burst, in it
	missed uint64    // refused since the last action that was allowed
}

// Allows says whether the action may be done now, and if so how often it was refused since the
// last.
func (s *RateLimit) Allows(now time.Time) (ok bool, missed uint64) {
	if s.Idle(now) {
		s.since, s.used = now, 0
	}
	if s.used == s.Burst {
		s.missed++
		return false, 0
	}
	s.used++
	missed, s.missed = s.missed, 0
	return true, missed
}

// Idle says whether the period is over.
func (s *RateLimit) Idle(now time.Time) bool { return now.Sub(s.since) >= s.Period }

// AsError adds what was being done; nil stays nil.
func AsError(doing string, err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w (%s)", doing, Errno(err), err)
}

// Errno returns the number Linux uses for the condition netstack reports
// (the correspondence gVisor's own system calls use).
func Errno(err tcpip.Error) syscall.Errno {
	switch err := err.(type) {
	case interface{ Number() syscall.Errno }: // of ICMP
		return err.Number()
	case *tcpip.ErrClosedForSend, *tcpip.ErrAborted:
		return syscall.EPIPE
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrNotConnected, *tcpip.ErrClosedForReceive:
		return syscall.ENOTCONN
	case *tcpip.ErrAlreadyConnected:
		return syscall.EISCONN
	case *tcpip.ErrAlreadyConnecting:
		return syscall.EALREADY
	case *tcpip.ErrConnectStarted:
		return syscall.EINPROGRESS
	case *tcpip.ErrWouldBlock:
		return syscall.EAGAIN
	case *tcpip.ErrPortInUse, *tcpip.ErrNoPortAvailable:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrHostDown:
		return syscall.EHOSTDOWN
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrAddressFamilyNotSupported:
		return syscall.EAFNOSUPPORT
	case *tcpip.ErrDestinationRequired:
		return syscall.EDESTADDRREQ
	case *tcpip.ErrMessageTooLong:
		return syscall.EMSGSIZE
	case *tcpip.ErrNoBufferSpace:
		return syscall.ENOBUFS
	case *tcpip.ErrBroadcastDisabled:
		return syscall.EACCES
	case *tcpip.ErrNotPermitted:
		return syscall.EPERM
	case *tcpip.ErrNotSupported:
		return syscall.EOPNOTSUPP
	case *tcpip.ErrUnknownDevice, *tcpip.ErrUnknownNICID, *tcpip.ErrInvalidNICID:
		return syscall.ENODEV
	case *tcpip.ErrUnknownProtocolOption:
		return syscall.ENOPROTOOPT
	}
	return syscall.EINVAL
}

// OnLink says whether a means something only together with a link.
func OnLink(a tcpip.Address) bool {
	return header.IsV6LinkLocalUnicastAddress(a) || header.IsV6LinkLocalMulticastAddress(a)
}
