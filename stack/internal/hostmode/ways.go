package hostmode

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
)

// maxWays bounds what is remembered of the kernel's routes, in addresses.
const maxWays = 4096

// ways remembers which way the kernel sends to an address, until its configuration changes.
type ways struct {
	mu    sync.RWMutex
	known map[netip.Addr]way // guarded by mu
}

// way says how an address is reached.
type way struct {
	kernel bool       // not by our netdev
	source netip.Addr // from where, as the kernel chooses
}

func (w *ways) get(a netip.Addr) (way, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	found, ok := w.known[a]
	return found, ok
}

func (w *ways) set(a netip.Addr, found way) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.known == nil || len(w.known) >= maxWays {
		w.known = map[netip.Addr]way{}
	}
	w.known[a] = found
}

func (w *ways) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = nil
}

// ByKernel reports whether the kernel is to connect to an address: one of this host, or one whose
// route does not leave by our netdev. So is one without a route, as the kernel knows the reason.
func (h *Host) ByKernel(a netip.Addr) bool { return h.way(a).kernel }

// way asks the kernel, once per address. Groups and broadcast go by our netdev.
func (h *Host) way(a netip.Addr) way {
	switch {
	case a.IsLoopback():
		return way{kernel: true, source: localhost()[a.BitLen()/128]}
	case !a.IsValid() || a.IsUnspecified():
		return way{kernel: true}
	case a.Is6() && (a.IsLinkLocalMulticast() || a.IsInterfaceLocalMulticast()):
		return way{}
	case a.Is6() && a.IsLinkLocalUnicast():
		other := a.Zone() != "" && !h.stack.HasZone(a.Zone()) // another netdev's
		return way{kernel: other || h.has(a)}
	}
	if w, ok := h.ways.get(a); ok {
		return w
	}
	to, err := h.kernel.WayTo(a)
	other := err != nil || to.Local || to.Index != h.device.Load().Index
	toAll := a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	w := way{kernel: other && !toAll, source: to.Source}
	h.ways.set(a, w)
	return w
}

// Source returns the address of ours from which the kernel would send to a; the zero Addr: it is
// left to the stack.
func (h *Host) Source(a netip.Addr) netip.Addr {
	if a.IsLinkLocalUnicast() && a.Is6() {
		return netip.Addr{} // in netstack's form it has no zone
	}
	return h.way(a).source
}

// has says whether a is an address that the stack serves on.
func (h *Host) has(a netip.Addr) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, p := range h.addrs {
		if p.Addr() == a.WithZone("") {
			return true
		}
	}
	return false
}

// sender returns the kernel's socket from which a socket of ours sends to a: the one of the address
// from, or else of the kernel's choice, or else any of a's version of IP.
func (h *Host) sender(b *Binding, from, a netip.Addr) (Datagrams, error) {
	w := h.way(a)
	h.mu.RLock()
	defer h.mu.RUnlock()
	p := b.at[from]
	if p == nil && !from.IsValid() {
		p = b.at[w.source]
	}
	for _, own := range h.addrs {
		if p == nil && !from.IsValid() && own.Addr().Is4() == a.Is4() &&
			own.Addr().IsLinkLocalUnicast() == a.IsLinkLocalUnicast() {
			p = b.at[own.Addr()]
		}
	}
	if p == nil || p.conn == nil {
		return nil, os.NewSyscallError("sendto", syscall.EADDRNOTAVAIL)
	}
	return p.conn, nil
}
