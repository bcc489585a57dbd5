package handover

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
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

// kernelShare holds what is the kernel's besides, once we have handed over to it.
type kernelShare struct {
	m       *Handover
	flows   *rdma.Flows        // ours
	unseen  map[rdma.Flow]bool // those that there was no socket of at the last look
	changed chan struct{}      // of capacity 1: a client has begun one of them anew
}

// YieldToKernel does as Stack.HandOverToKernel, without the descriptors.
func (m *Handover) YieldToKernel(ctx context.Context) error {
	k := &kernelShare{m: m, flows: new(rdma.Flows), changed: make(chan struct{}, 1)}
	leave, err := m.stack.Enter()
	if err != nil {
		return err
	}
	defer leave()
	switch {
	case m.stack.Draining():
		return errors.New("the stack is draining already")
	case m.other.Load() != nil:
		return errors.New("another process takes over")
	case !m.kernel.CompareAndSwap(nil, k):
		return errKernelHas
	}
	link, host := m.stack.Link(), m.stack.Ports()
	link.Steer(&rdma.Steering{Share: rdma.ShareNote, Flows: k.flows})
	keep := rdma.Steering{Share: rdma.ShareKeep, Flows: k.flows, Send: k.begunAnew}
	err = m.env.Clock.Sleep(ctx, kernelLook)
	if err == nil {
		m.await(link.Settled())
		link.Steer(&keep)
		err = m.workOff()
	}
	if err == nil {
		m.addFlows(k.flows)
		err = host.Yield(k.remotes())
	}
	if err != nil {
		m.takeBack()
		return err
	}
	m.await(link.Settled()) // datagrams of the time before that
	rest := keep
	rest.Ports = host.UDPPorts()
	link.Steer(&rest)
	m.env.Go(k.follow)
	return nil
}

// takeBack undoes YieldToKernel, if its newcomer did not come.
func (m *Handover) takeBack() {
	m.kernel.Store(nil)
	m.stack.Ports().Unyield()
	m.stack.Link().Steer(nil)
}

// begunAnew serves as rdma.Steering's Send: the kernel gets what the client sends next.
func (k *kernelShare) begunAnew([]byte) bool {
	env.Notify(k.changed)
	return true
}

// follow leaves the kernel the remote ends of connections that are over, until the stack ends.
func (k *kernelShare) follow() {
	e := k.m.env
	look := e.Clock.NewTimer(kernelLook)
	defer look.Stop()
	for {
		select {
		case <-e.Ctx.Done():
			return
		case <-k.changed:
		case <-look.C:
			look.Reset(kernelLook)
			k.forget()
		}
		if k.m.kernel.Load() != k {
			return
		}
		if err := k.m.stack.Ports().LeaveRest(k.remotes()); err != nil {
			e.Log.Warn("the kernel does not get new clients", "interface", e.Name, "error", err)
		}
	}
}

// forget removes flows that there has been no socket of twice, and adds those of handshakes that
// were on their way. What a client has begun anew stays the kernel's.
func (k *kernelShare) forget() {
	have := map[rdma.Flow]bool{}
	k.m.eachFlow(func(f rdma.Flow, state tcp.EndpointState) {
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
func (k *kernelShare) remotes() map[Port][]netip.AddrPort {
	all := map[Port][]netip.AddrPort{}
	for _, f := range k.flows.All() {
		seen := fromFlow(f)
		at := Port{UDP: f.Proto != uint8(tcp.ProtocolNumber), At: seen.Local}
		all[at] = append(all[at], seen.Remote)
	}
	for _, ends := range all {
		slices.SortFunc(ends, netip.AddrPort.Compare)
	}
	return all
}
