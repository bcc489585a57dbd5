// Package handover lets one process take the place of another with the same addresses, or gives
// the ports of a stack to Linux, without a connection being lost.
//
//	process before:  HandOver ──▶ a newcomer takes new clients, old connections stay ──▶ drain
//	newcomer:        Meet, Join ──▶ TakeOver ──▶ the predecessor has ended: all frames are ours
//	to Linux:        YieldToKernel ──▶ connections that there are end
//
// peer.go has the messages that two processes exchange, kernel.go the order of what is done with
// Linux.
package handover

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// Local lists what a hand-over needs of its own stack.
type Local interface {
	Enter() (leave func(), err error) // keeps the stack from ending until leave is called
	Closed() bool
	Done() <-chan struct{} // closed when nothing of the stack is left
	Draining() bool
	Link() *rdma.Endpoint // nil: it is none of package link/rdma
	Ports() Ports         // those shared with the kernel; nil: there are none
	HardwareAddr() net.HardwareAddr
	Addrs() []netip.Prefix
	UnconnectedPorts() []uint16 // of UDP sockets
	// FilterPrefixes returns what a newcomer's packet filter is to know, as JSON; nil: nothing.
	FilterPrefixes() []byte
}

// Ports holds the ports of a stack on the host's own addresses, for each of which the kernel has
// a socket.
type Ports interface {
	// Duplicates returns descriptors of the sockets that serve, the block's left out. They are the
	// caller's, also after an error.
	Duplicates() (ports []Port, fds []int, err error)
	ServeInherited() error // at the ports whose sockets the process before had
	// Pause leaves accepting and reading to a newcomer, until Resume.
	Pause()
	Resume()
	// MoveRules moves the device's rules of the ports on. unix.EADDRINUSE: another process has one.
	MoveRules(to RuleState) error
	UDPPorts() map[uint16]bool // whose datagrams a newcomer gets
	// Yield gives the kernel all clients except these remote ends, by port; LeaveRest fewer of
	// them. Unyield undoes Yield, also after an error.
	Yield(remotes map[Port][]netip.AddrPort) error
	LeaveRest(remotes map[Port][]netip.AddrPort) error
	Unyield()
}

// Handover holds what a stack shares with another process or the kernel. Its methods may be called
// by any goroutine.
type Handover struct {
	env         *env.Env
	stack       Local
	predecessor *Predecessor // nil: there is none

	other   atomic.Pointer[peer]        // a process with the same addresses; nil: there is none
	kernel  atomic.Pointer[kernelShare] // nil: it has not been handed over to
	taking  *taking                     // from predecessor; set by Join
	pausing sync.Mutex                  // held from netstack's Pause to Resume
}

// New returns the hand-over of a stack, which closes p. p may be nil.
func New(e *env.Env, stack Local, p *Predecessor) *Handover {
	return &Handover{env: e, stack: stack, predecessor: p}
}

// HasGiven reports whether another process or the kernel gets new clients, or is about to.
func (m *Handover) HasGiven() bool { return m.other.Load() != nil || m.kernel.Load() != nil }
