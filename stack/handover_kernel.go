package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/backing"
)

// With Config.Host the kernel has a socket for each port of ours, which drops what comes by the
// netdev. Handing over to the kernel is this, in this order:
//
//  1. The link notes what begins a connection, for kernelLook: netstack may take a SYN that came
//     before from its queue only now.
//  2. The link takes nothing but what is for our connections (rdma.ShareKeep), and datagrams. What
//     begins a connection gets no answer; its client tries again a second later.
//  3. netstack works off its queues: what was delivered before is a connection, or will be none.
//  4. The kernel's sockets drop the segments of our connections only.
//  5. The rules of the ports go: what is ours comes by the packet sockets from here on.
//  6. The link takes no datagrams to the ports any more. Those that come after 4 are the kernel's,
//     too.
//
// Both have a listener's port then. A segment of a connection of ours is answered by netstack, and
// dropped by the filter of the kernel's listener; all others are the kernel's.

// kernelLook says how often it is looked which connections are left. A SYN makes one in less.
const kernelLook = 250 * time.Millisecond

// KernelSocket is the kernel's socket of a port that [Stack.HandOverToKernel] has given up, bound,
// and of TCP listening.
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
	ports, fds, err := s.host.duplicates()
	for i, p := range ports {
		all = append(all, p.socket(fds[i]))
	}
	if err == nil {
		err = s.yieldToKernel(ctx)
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

// socket returns that of a port with a descriptor, which it owns.
func (p handoverPort) socket(fd int) KernelSocket {
	network := map[bool]string{false: "tcp", true: "udp"}[p.UDP]
	return KernelSocket{network, p.At, os.NewFile(uintptr(fd), network+" "+p.At.String())}
}

// kernelShare holds what is the kernel's besides, once we have handed over to it.
type kernelShare struct {
	s       *Stack
	flows   *rdma.Flows        // ours
	unseen  map[rdma.Flow]bool // those that there was no socket of at the last look
	changed chan struct{}      // of capacity 1: a client has begun one of them anew
}

// yieldToKernel is HandOverToKernel without the descriptors.
func (s *Stack) yieldToKernel(ctx context.Context) error {
	k := &kernelShare{s: s, flows: new(rdma.Flows), changed: make(chan struct{}, 1)}
	s.live.RLock()
	defer s.live.RUnlock()
	switch {
	case s.closed.Load():
		return s.done()
	case s.draining.Load():
		return errors.New("the stack is draining already")
	case s.other.Load() != nil:
		return errors.New("another process takes over")
	case !s.kernel.CompareAndSwap(nil, k):
		return errKernelHas
	}
	s.link.Steer(&rdma.Steering{Share: rdma.ShareNote, Flows: k.flows})
	keep := rdma.Steering{Share: rdma.ShareKeep, Flows: k.flows, Send: k.begunAnew}
	err := s.clock.Sleep(ctx, kernelLook)
	if err == nil {
		s.await(s.link.Settled())
		s.link.Steer(&keep)
		err = s.workOff()
	}
	if err == nil {
		s.addFlows(k.flows)
		err = s.host.yield(k.remotes())
	}
	if err != nil {
		s.takeBack()
		return err
	}
	s.await(s.link.Settled()) // datagrams of the time before that
	rest := keep
	rest.Ports = s.host.udpPorts()
	s.link.Steer(&rest)
	s.background.Go(k.follow)
	return nil
}

// takeBack undoes yieldToKernel, if its newcomer did not come.
func (s *Stack) takeBack() {
	s.kernel.Store(nil)
	s.host.unyield()
	s.link.Steer(nil)
}

// begunAnew is rdma.Steering's Send: the kernel gets what the client sends next.
func (k *kernelShare) begunAnew([]byte) bool {
	notify(k.changed)
	return true
}

// follow leaves the kernel the remote ends of connections that are over, until the stack ends.
func (k *kernelShare) follow() {
	s := k.s
	look := s.clock.NewTimer(kernelLook)
	defer look.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-k.changed:
		case <-look.C:
			look.Reset(kernelLook)
			k.forget()
		}
		if s.kernel.Load() != k {
			return
		}
		if err := s.host.leaveRest(k.remotes()); err != nil {
			s.log.Warn("the kernel does not get new clients", "interface", s.name, "error", err)
		}
	}
}

// forget removes flows that there has been no socket of twice, and adds those of handshakes that
// were on their way. What a client has begun anew stays the kernel's.
func (k *kernelShare) forget() {
	have := map[rdma.Flow]bool{}
	k.s.eachFlow(func(f rdma.Flow, state tcp.EndpointState) {
		have[f] = true
		if f.Proto == uint8(tcp.ProtocolNumber) && state != tcp.StateTimeWait {
			k.flows.Add(f)
		}
	})
	unseen := map[rdma.Flow]bool{}
	for _, f := range k.flows.All() {
		if k.unseen[f] && !have[f] {
			k.flows.Remove(f)
		} else if !have[f] {
			unseen[f] = true
		}
	}
	k.unseen = unseen
}

// remotes returns the remote ends of our flows, by local port.
func (k *kernelShare) remotes() map[hostKey][]netip.AddrPort {
	all := map[hostKey][]netip.AddrPort{}
	for _, f := range k.flows.All() {
		seen := fromFlow(f)
		at := hostKey{backing.UDP, seen.Local}
		if f.Proto == uint8(tcp.ProtocolNumber) {
			at.protocol = backing.TCP
		}
		all[at] = append(all[at], seen.Remote)
	}
	for _, ends := range all {
		slices.SortFunc(ends, netip.AddrPort.Compare)
	}
	return all
}

// handsOver says whether a port is one that others can have. mu is held.
func (p *hostPort) handsOver() bool { return len(p.users) > 0 && !p.ofBlock }

// udpPorts returns the ports whose datagrams are the kernel's.
func (h *host) udpPorts() map[uint16]bool {
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

// yield has the kernel serve our ports, but for these remote ends. After an error unyield is to be
// called.
func (h *host) yield(remotes map[hostKey][]netip.AddrPort) error {
	h.pause()
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, p := range h.ports {
		if p.handsOver() {
			p.yielded = true
			p.others = remotes[k]
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

// unyield undoes yield, also in part.
func (h *host) unyield() {
	h.mu.Lock()
	for _, p := range h.ports {
		if !p.yielded {
			continue
		}
		p.yielded = false
		if err := errors.Join(p.socket.PassNone(), h.steer(p)); err != nil {
			h.stack.log.Warn("a port is not served", "interface", h.stack.name, "port",
				p.key.at, "error", err)
		}
	}
	h.mu.Unlock()
	h.resume()
}

// leaveRest has the kernel serve our ports but for these remote ends, which are fewer now.
func (h *host) leaveRest(remotes map[hostKey][]netip.AddrPort) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for k, p := range h.ports {
		if p.yielded && !slices.Equal(p.others, remotes[k]) {
			p.others = remotes[k]
			errs = append(errs, p.socket.PassAllBut(p.others))
		}
	}
	return errors.Join(errs...)
}
