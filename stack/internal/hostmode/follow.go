package hostmode

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

const (
	// FollowPause gives the least time between two looks at the host's configuration.
	FollowPause = 20 * time.Millisecond
	// returnGrace says for how long addresses are kept that a netdev lacks which is there
	// again: whoever configures it does so in steps, and the kernel tries those of IPv6 first.
	returnGrace = 30 * time.Second
)

// follow keeps addresses and routes as the host has them, until the stack ends.
func (h *Host) follow() {
	late, sweep := h.env.Clock.NewTimer(time.Hour), h.env.Clock.NewTimer(time.Hour)
	for _, timer := range []clock.Timer{late, sweep} {
		timer.Stop()
		defer timer.Stop()
	}
	for {
		select {
		case <-h.env.Ctx.Done():
			return
		case <-h.idle:
			sweep.Reset(portSweep)
			continue
		case <-sweep.C:
			h.sweepPorts()
			continue
		case <-h.kernel.Changed():
		case <-h.returned:
		case <-late.C:
		}
		h.ways.forget()
		if wait := h.look(); wait > 0 {
			late.Reset(wait)
		}
		if h.env.Clock.Sleep(h.env.Ctx, FollowPause) != nil {
			return
		}
	}
}

// look compares the host's configuration with ours, and says when to do so again; 0: when it
// changes.
func (h *Host) look() (again time.Duration) {
	h.following.Lock()
	defer h.following.Unlock()
	found, err := h.read()
	switch {
	case err == nil:
		h.stack.FollowMTU(found.MTU)
		err = h.rebind(found)
	case errors.Is(err, syscall.ENODEV):
		err = h.hide()
	}
	if err != nil && h.env.Ctx.Err() == nil {
		h.env.Log.Warn("the host's configuration is not known", "interface", h.env.Name,
			"error", err)
	}
	if err != nil || found.Index == 0 || h.Sockets().Err() != nil {
		return 0 // it is gone, or not opened yet
	}
	return sooner(h.stack.FollowMAC(h.Name(), found.MAC), h.take(found))
}

// sooner returns the shorter of two times to wait, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// read asks for the configuration of the netdev, whatever it is called by now: by its number, and
// if that is gone by its name, for one that has been made again; a driver that is loaded again may
// have given it the name of before a rename.
func (h *Host) read() (hostnet.Network, error) {
	found, err := askByName(h, h.kernel.Read)
	if first := h.first; errors.Is(err, syscall.ENODEV) && first != h.Name() {
		again, otherErr := h.kernel.Read(first)
		if otherErr == nil && bytes.Equal(again.MAC, h.stack.HardwareAddr()) {
			h.netdev.Store(&first)
			return again, nil
		}
	}
	return found, err
}

// RoutesIPv6 reports whether the host is a router of IPv6 on the netdev. An advertisement for its
// addresses has to say so, or its neighbours send nothing by it from then on (RFC 4861 section
// 7.2.5; ndisc_send_unsol_na in linux net/ipv6/ndisc.c).
func (h *Host) RoutesIPv6() bool { return h.kernel.RoutesIPv6(h.Name()) }

// Below asks the kernel what is below the netdev.
func (h *Host) Below() (hostnet.Below, error) {
	return askByName(h, h.kernel.Below)
}

// askByName asks about the netdev, and again if it was renamed meanwhile: another netdev may have
// had its name by then.
func askByName[T any](h *Host, ask func(name string) (T, error)) (answer T, err error) {
	for h.rename(); ; {
		name := h.Name()
		answer, err = ask(name)
		if h.rename(); h.Name() == name {
			return answer, err
		}
	}
}

// rename notes what the netdev is called now.
func (h *Host) rename() {
	link, err := h.kernel.LinkAt(h.device.Load().Index)
	if err != nil || link.Name == h.Name() {
		return
	}
	h.env.Log.Info("the netdev has another name", "interface", h.env.Name, "before", h.Name(),
		"now", link.Name)
	h.netdev.Store(&link.Name)
}

// take makes the stack's addresses and routes those of the host, and says when to look again.
func (h *Host) take(found hostnet.Network) (again time.Duration) {
	h.mu.RLock()
	before, grace := slices.Clone(h.addrs), returnGrace-h.env.Clock.Since(h.again)
	h.mu.RUnlock()
	for _, p := range before {
		switch {
		case hasAddr(found.Addresses, p.Addr()):
		case grace > 0:
			again = grace
		default:
			h.remove(p)
		}
	}
	for _, p := range found.Addresses {
		if !hasAddr(before, p.Addr()) {
			h.add(p)
		}
	}
	if err := h.UseRoutes(found.Routes); err != nil {
		h.env.Log.Warn("the host's routes", "interface", h.env.Name, "error", err)
	}
	h.addresses.AddressesChanged()
	return again
}

func hasAddr(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr() == a })
}

// add serves on one more address.
func (h *Host) add(p netip.Prefix) {
	err := h.addPorts(p)
	if err == nil {
		err = h.addresses.AddAddress(h.env.Ctx, p)
	}
	if err != nil && h.env.Ctx.Err() == nil {
		h.env.Log.Warn("an address of the host is not served in full", "interface", h.env.Name,
			"address", p.String(), "error", err)
	}
}

// addPorts takes the block's ports of an address, and those of all that is bound to it or to any.
func (h *Host) addPorts(p netip.Prefix) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.block.Add(h.zoned(p.Addr())); err != nil {
		return err
	}
	h.addrs = append(h.addrs, p)
	var errs []error
	if h.rules != nil {
		errs = append(errs, h.rules.AddBlock(h.env.Ctx, h.block.First, p.Addr()))
	}
	for b := range h.bindings {
		if b.covers(p.Addr()) {
			errs = append(errs, h.join(b, p.Addr()))
		}
	}
	return errors.Join(append(errs, h.tellAllPorts())...)
}

// remove ends the use of an address: nothing more comes to it, its connections are aborted, and its
// ports are the kernel's. What came before and is still on its way through the stack may open a
// connection until the address is gone, so all are looked at again then.
func (h *Host) remove(p netip.Prefix) {
	err := h.withdraw(p.Addr())
	h.addresses.AbortConnectionsOf(p.Addr())
	h.addresses.RemoveAddress(p)
	h.addresses.AbortConnectionsOf(p.Addr())
	if err := errors.Join(err, h.closePorts(p.Addr())); err != nil {
		h.env.Log.Warn("give ports back", "interface", h.env.Name, "address", p.String(),
			"error", err)
	}
}

// withdraw stops receiving frames to an address. The kernel's sockets for its ports
// stay, and keep it from answering them.
func (h *Host) withdraw(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addrs = slices.DeleteFunc(slices.Clone(h.addrs),
		func(p netip.Prefix) bool { return p.Addr() == a })
	var errs []error
	for k, p := range h.ports {
		if k.at.Addr() == a {
			errs = append(errs, h.unsteer(p))
		}
	}
	if h.rules != nil {
		errs = append(errs, h.rules.RemoveBlock(h.block.First, a))
	}
	return errors.Join(append(errs, h.tellAllPorts())...)
}

// closePorts gives the ports of an address back to the kernel.
func (h *Host) closePorts(a netip.Addr) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for k, p := range h.ports {
		if k.at.Addr() != a {
			continue
		}
		for _, b := range p.users {
			delete(b.at, a)
		}
		h.forget(k)
		errs = append(errs, h.unsteer(p), p.close()) // a socket may have been bound meanwhile
	}
	return errors.Join(append(errs, h.block.Remove(h.zoned(a)), h.tellPorts())...)
}

// UseRoutes takes the host's routes into use.
func (h *Host) UseRoutes(routes []hostnet.Route) error {
	var list []env.Route
	for _, r := range routes {
		list = append(list, env.Route{Destination: r.Destination, Gateway: r.Gateway, MTU: r.MTU})
	}
	return h.addresses.Configure(env.FromLinux, list, nil)
}

// A netdev that is removed and made again, as by devlink reload or when its driver is bound again,
// has another ifindex, by which the kernel's sockets know what is ours:
//
//	removed     hide    whatever is made later is not passed to the kernel's sockets
//	made again  rebind  the netdev is not, all else is
//	            Reopen  packet sockets on it, once it has an address
//
// Connections stay meanwhile, and addresses for a while longer: see returnGrace.

// HideIfGone does what hide does if the netdev has gone with a link that was lost. It comes before
// anybody can know that the link is lost, and so before the netdev is made again, whatever the
// goroutine that follows the host is at.
func (h *Host) HideIfGone() {
	h.following.Lock()
	defer h.following.Unlock()
	_, err := h.kernel.LinkAt(h.device.Load().Index)
	if !errors.Is(err, syscall.ENODEV) {
		return
	}
	if err := h.hide(); err != nil && h.env.Ctx.Err() == nil {
		h.env.Log.Warn("the kernel may answer for our ports", "interface", h.env.Name,
			"error", err)
	}
}

// hide makes the kernel's sockets drop what comes by devices made from now on: one of them
// will be the netdev, and a segment of our connections must not find the kernel.
func (h *Host) hide() error {
	d := *h.device.Load()
	if d.Last != 0 {
		return nil
	}
	last, err := h.kernel.LastIndex(h.Name())
	if err != nil {
		return err
	}
	d.Last = max(last, 1)
	return h.setDevice(d)
}

// rebind makes the kernel's sockets drop what comes by the netdev as it is now. A new number takes
// the link-local addresses with it: the kernel's sockets for them are bound to the number.
func (h *Host) rebind(found hostnet.Network) error {
	old, d := *h.device.Load(), backing.Device{Index: found.Index}
	if old == d {
		return nil
	}
	if old.Index != d.Index {
		h.mu.RLock()
		addrs := slices.Clone(h.addrs)
		h.mu.RUnlock()
		for _, p := range addrs {
			if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				h.remove(p)
			}
		}
	}
	return h.setDevice(d)
}

// setDevice changes the filters of all sockets of the kernel.
func (h *Host) setDevice(d backing.Device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.device.Store(&d)
	h.ways.forget()
	h.sockets.SetDevice(d)
	errs := []error{h.block.FollowDevice()}
	for _, p := range h.ports {
		if !p.ofBlock {
			errs = append(errs, p.socket.FollowDevice())
		}
	}
	return errors.Join(errs...)
}

// Reopen opens packet sockets on a netdev that has been made again and has an address. The caller
// closes those before them.
func (h *Host) Reopen() (packet.Netdev, error) {
	h.following.Lock()
	defer h.following.Unlock()
	found, err := h.read()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(found.Addresses, func(p netip.Prefix) bool {
		return !p.Addr().IsLinkLocalUnicast()
	}) {
		return nil, fmt.Errorf("%s has no address yet", h.Name())
	}
	if err := h.rebind(found); err != nil {
		return nil, err
	}
	name := h.Name()
	port, err := h.stack.ReopenNetdev(name)
	if err != nil {
		return nil, err
	}
	if h.rename(); h.Name() != name { // another netdev may have had its name by then
		return nil, errors.Join(fmt.Errorf("%s was renamed while it was opened", name),
			port.Close())
	}
	// the link's for now, which follows a new one then
	if err := port.SetMAC(h.stack.HardwareAddr()); err != nil {
		return nil, errors.Join(err, port.Close())
	}
	h.mu.Lock()
	before := h.link.Stats()
	for _, q := range before.Rx {
		h.past += q.Frames
	}
	h.pastFragments += before.FragmentsDropped
	h.link, h.again = port, h.env.Clock.Now()
	err = h.tellAllPorts()
	h.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	for _, protocol := range []tcpip.NetworkProtocolNumber{header.IPv4ProtocolNumber,
		header.IPv6ProtocolNumber} {
		h.env.Net.ClearNeighbors(env.NIC, protocol) // as Linux has none of them either
	}
	h.FollowAgain()
	return port, nil
}
