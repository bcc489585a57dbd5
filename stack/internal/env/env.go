// Package env holds what every part of a stack needs to know of it, so that no part needs the
// stack itself.
package env

import (
	"context"
	"log/slog"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Env describes a stack to its parts. Nobody writes it once the stack is made.
type Env struct {
	Name  string // of the interface, in log lines
	Log   *slog.Logger
	Clock clock.Clock
	Net   *gstack.Stack
	Ctx   context.Context // done when the stack ends
	Go    func(func())    // runs a goroutine that the end of the stack waits for
}

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
