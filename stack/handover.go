package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
)

// MeetPredecessor connects to the unix socket on which another process waits in [Stack.HandOver].
// That goes on as before until [Stack.TakeOver]; give the result to [Open] as Config.Predecessor,
// or close it.
func MeetPredecessor(ctx context.Context, path string) (*Predecessor, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("meet the process to take over from: %w", err)
	}
	return MeetPredecessorOn(ctx, conn)
}

// MeetPredecessorOn does as [MeetPredecessor] over a connection that is there already: one of
// network unixpacket, or a [MessageConn]. It owns conn.
func MeetPredecessorOn(ctx context.Context, conn net.Conn) (*Predecessor, error) {
	p, err := handover.Meet(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &Predecessor{PID: p.PID, MAC: p.MAC, Addresses: p.Addresses, met: p}, nil
}

// MessageConn connects two processes for [Stack.HandOver] and [MeetPredecessorOn] in place of a
// connection of network unixpacket: each Write is a message, which one Read returns whole.
type MessageConn interface {
	net.Conn
	// TryWrite is Write if that need not wait, and reports whether it was. Several goroutines may
	// call it at once, and must not be kept waiting.
	TryWrite(message []byte) bool
}

// adopt makes cfg that of a stack that takes its predecessor's place.
func (c *Config) adopt() {
	if p := c.Predecessor; p != nil {
		c.NIC.MAC = p.MAC
		c.Addressing.DuplicateDetection = -1 // somebody has the addresses
	}
}

// adoptPrefixes gives the filter the prefixes that the process before denies and allows.
func (c *Config) adoptPrefixes() {
	if c.Predecessor == nil || c.Predecessor.met.Filter == nil {
		return
	}
	var all []filter.Entry
	err := json.Unmarshal(c.Predecessor.met.Filter, &all)
	if err == nil && c.Filter == nil {
		err = errors.New("this process has no filter: set Config.Filter, which may be empty")
	}
	if err == nil {
		err = c.Filter.Adopt(all)
	}
	if err != nil {
		c.Logger.Warn("prefixes that the process before denies or allows are lost", "error", err)
	}
}

// predecessor returns the process whose place the stack takes; nil: there is none.
func (c *Config) predecessor() *handover.Predecessor {
	if c.Predecessor == nil {
		return nil
	}
	return c.Predecessor.met
}

// TakeOver has the stack receive all new clients in place of Config.Predecessor's, which finishes
// the connections that it has. Listen first. If the predecessor has ended meanwhile there is
// nothing to take over, and all frames are ours. After an error, for instance as the predecessor
// refuses and goes on as before, the stack is of no use, and is to be closed. Without a predecessor
// TakeOver does nothing. Call it once.
func (s *Stack) TakeOver(ctx context.Context) error { return s.handover.TakeOver(ctx) }

// HandOver waits on l, a listener of network unixpacket that only we may connect to, for another
// process that takes this one's place ([MeetPredecessor]), and returns nil once that receives all
// new clients. What is to be done then is what [Stack.Drain] says; connections that there are go
// on. A stack that has itself taken over lets its predecessor end first. HandOver closes l, whose
// connections may each be a [MessageConn] as well. Other errors than ctx's mean that nobody can
// take over any more.
func (s *Stack) HandOver(ctx context.Context, l net.Listener) error {
	return s.handover.HandOver(ctx, l)
}

// KernelSocket holds the kernel's socket of a port that [Stack.HandOverToKernel] has given up,
// bound, and of TCP listening.
type KernelSocket struct {
	Network string         // tcp or udp
	Addr    netip.AddrPort // without a zone
	// File is a descriptor of it, which is the caller's, for net.FileListener, net.FilePacketConn
	// or another process.
	File *os.File
}

// HandOverToKernel has Linux serve the ports of all listeners and UDP sockets of a stack with
// [Config.Host], but for those of the block to dial from: what the caller or another program
// accepts and reads from the sockets returned are then all new clients, those that come by the
// netdev included. Connections that there are go on. The caller ends as with [Stack.Drain].
// Connections that wait in a socket of the kernel are its next owner's.
//
// An error says that nothing has changed: for instance that a port has too many connections for the
// kernel to tell from its own.
func (s *Stack) HandOverToKernel(ctx context.Context) (all []KernelSocket, err error) {
	defer func() {
		if err != nil {
			closeSockets(all)
			all, err = nil, fmt.Errorf("hand over to the kernel: %w", err)
		}
	}()
	if s.host == nil {
		return nil, errNotHost
	}
	ports, fds, err := s.host.Duplicates()
	for i, p := range ports {
		all = append(all, kernelSocketOf(p, fds[i]))
	}
	if err == nil {
		err = s.handover.YieldToKernel(ctx)
	}
	return all, err
}

var errNotHost = errors.New("the kernel has the ports only of a stack on the host's own " +
	"addresses (Config.Host)")

func closeSockets(all []KernelSocket) {
	for _, s := range all {
		s.File.Close()
	}
}

// kernelSocketOf returns the socket of a port with a descriptor, which it owns.
func kernelSocketOf(p handover.Port, fd int) KernelSocket {
	network := map[bool]string{false: "tcp", true: "udp"}[p.UDP]
	return KernelSocket{network, p.At, os.NewFile(uintptr(fd), network+" "+p.At.String())}
}

// handoverLocal shows a stack to its hand-over.
type handoverLocal struct{ *Stack }

// Enter implements handover.Local.
func (s handoverLocal) Enter() (leave func(), err error) { return s.life.enter() }

// Closed reports whether Close was called.
func (s handoverLocal) Closed() bool { return s.life.closed.Load() }

// Link implements handover.Local.
func (s handoverLocal) Link() *rdma.Endpoint { return s.link }

// Ports implements handover.Local.
func (s handoverLocal) Ports() handover.Ports {
	if s.host == nil {
		return nil
	}
	return s.host.Host
}

// FilterPrefixes implements handover.Local.
func (s handoverLocal) FilterPrefixes() []byte {
	entries, left := s.cfg.Filter.HandedOver()
	if left > 0 {
		s.log.Warn("the filter hands over a part of the prefixes that are denied: the others are "+
			"denied anew if they flood", "handed_over", len(entries), "left", left)
	}
	if len(entries) == 0 {
		return nil
	}
	text, err := json.Marshal(entries)
	if err != nil { // of times past the year 9999
		s.log.Warn("the filter's prefixes are not handed over", "error", err)
		return nil
	}
	return text
}

// UnconnectedPorts implements handover.Local.
func (s handoverLocal) UnconnectedPorts() (ports []uint16) {
	for _, so := range s.Sockets() {
		if so.Network == "udp" && so.Remote.Port() == 0 {
			ports = append(ports, so.Local.Port())
		}
	}
	return ports
}
