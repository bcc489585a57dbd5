package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
)

// The kinds of faults of a kernel beside a stack that serves on its address.
const (
	Remade          FaultKind = 30 + iota // its netdev goes, and comes back with another number
	Renamed                               // the netdev has another name
	AddressAdded                          // one more address
	AddressLost                           // that of IPv4 is away
	Rerouted                              // other routes, of MTU if that is not 0
	numKernelFaults = iota
)

// kernelSlack limits how long after a change of its kernel's configuration a stack may have the one
// before.
const kernelSlack = 100 * time.Millisecond

// returnGrace says for how long a stack keeps addresses that a netdev which was made again lacks.
const returnGrace = 30 * time.Second

// followSlack returns how long after a change of its netdev's MTU the stack may have the one
// before.
func (h *ourHost) followSlack() time.Duration {
	if h.kernel != nil {
		return kernelSlack
	}
	return followSlack
}

// kernelFault does what deviceFault does for what changes in the kernel beside a stack.
func (w *world) kernelFault(h *ourHost, f FaultPlan) (begin func() (end func())) {
	k := h.kernel
	switch f.Kind {
	case Remade:
		return func() func() { return w.remake(h, f) }
	case Renamed:
		return func() func() {
			before := k.rename(fmt.Sprint("lan", h.index))
			w.afterSlack(func() error { return h.knows(k) })
			return func() {
				k.rename(before)
				w.afterSlack(func() error { return h.knows(k) })
			}
		}
	case AddressAdded:
		more := netip.PrefixFrom(otherAddress(h.index), 24)
		return func() func() {
			w.note(k.add(more))
			w.afterSlack(func() error { return h.knows(k) })
			return func() {
				w.note(k.remove(more))
				w.afterSlack(func() error { return h.knows(k) })
			}
		}
	case AddressLost:
		own := netip.PrefixFrom(address(h.index), 24)
		return func() func() {
			w.note(k.remove(own))
			w.afterSlack(func() error { return h.knows(k) })
			return func() {
				w.note(k.add(own))
				w.afterSlack(func() error { return h.knows(k) })
			}
		}
	}
	return func() func() {
		before := k.reroute(f.MTU)
		return func() { k.change(func() { k.routes = before }) }
	}
}

// afterSlack checks a stack when it must have followed a change.
func (w *world) afterSlack(check func() error) {
	w.clock.AfterFunc(kernelSlack, func() { w.note(check()) })
}

// knows says what is wrong with what a stack has of its kernel's configuration, unless the netdev
// is away or has just been made again.
func (h *ourHost) knows(k *kernelModel) error {
	k.mu.Lock()
	name, want := k.name, slices.Clone(k.addrs)
	changing := k.gone || k.now()-k.changedAt < kernelSlack
	returned := k.madeAt > 0 && k.now()-k.madeAt < returnGrace+kernelSlack
	k.mu.Unlock()
	if changing {
		return nil
	}
	stats, _ := h.stack.HostStats()
	got := h.stack.Addrs()
	if returned { // it may keep what the netdev had
		got = slices.DeleteFunc(got, func(p netip.Prefix) bool { return !slices.Contains(want, p) })
	}
	slices.SortFunc(got, comparePrefixes)
	slices.SortFunc(want, comparePrefixes)
	if stats.Netdev != name || !slices.Equal(got, want) {
		return fmt.Errorf("host %d: on %s with %v, its kernel has %s with %v", h.index,
			stats.Netdev, got, name, want)
	}
	return h.ruled()
}

// ruled says what is wrong with the rules of a device for the ports to dial from: it has one of TCP
// and one of UDP for each address of the stack.
func (h *ourHost) ruled() error {
	blocks, _ := h.rules()
	if blocks == nil {
		return nil
	}
	for _, p := range h.stack.Addrs() {
		if n := blocks[p.Addr()]; n != 2 {
			return fmt.Errorf("host %d: %d rules for ports to dial from at %v, want 2", h.index, n,
				p)
		}
		delete(blocks, p.Addr())
	}
	if len(blocks) > 0 {
		return fmt.Errorf("host %d: rules for addresses that the stack does not have: %v", h.index,
			blocks)
	}
	return nil
}

// rules counts the rules of the device for blocks of ports, by address, and lists those for single
// ports; nil: there is no device.
func (h *ourHost) rules() (blocks map[netip.Addr]int, single []string) {
	dev := h.stack.Device()
	if dev == nil || dev.Err() != nil {
		return nil, nil
	}
	blocks = map[netip.Addr]int{}
	for _, r := range dev.Rules() {
		what, of, ok := strings.Cut(r.Match, " of ")
		if !ok {
			continue
		}
		at, _, _ := strings.Cut(of, ",")
		if a, err := netip.ParseAddr(at); err == nil && strings.Contains(what, " ports ") {
			blocks[a]++
		} else if err == nil {
			single = append(single, r.Match)
		}
	}
	return blocks, single
}

func comparePrefixes(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }

// setAddresses gives the netdev addresses, and the routes that come with them.
func (k *kernelModel) setAddresses(all []netip.Prefix) {
	k.change(func() { k.addrs, k.routes = all, onLink(all) })
}

// rename gives the netdev another name.
func (k *kernelModel) rename(name string) (before string) {
	k.change(func() { before, k.name = k.name, name })
	return before
}

// add gives the netdev one more address.
func (k *kernelModel) add(p netip.Prefix) error {
	k.change(func() {
		k.addrs = append(slices.Clone(k.addrs), p)
		k.routes = onLink(k.addrs)
	})
	return k.net.add(p)
}

// remove takes an address of the netdev away.
func (k *kernelModel) remove(p netip.Prefix) error {
	k.change(func() {
		k.addrs = slices.DeleteFunc(slices.Clone(k.addrs), func(o netip.Prefix) bool {
			return o == p
		})
		k.routes = onLink(k.addrs)
	})
	if err := k.net.stack.RemoveAddress(1, toAddress(p.Addr())); err != nil {
		return fmt.Errorf("remove address: %v", err)
	}
	return nil
}

// reroute puts two routes in the place of each, with an MTU unless that is 0.
func (k *kernelModel) reroute(mtu int) (before []hostnet.Route) {
	k.change(func() {
		before = k.routes
		k.routes = nil
		for _, r := range before {
			bits := r.Destination.Bits() + 1
			upper := r.Destination.Addr().AsSlice()
			upper[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
			second, _ := netip.AddrFromSlice(upper)
			for _, a := range []netip.Addr{r.Destination.Addr(), second} {
				k.routes = append(k.routes, hostnet.Route{Destination: netip.PrefixFrom(a, bits),
					MTU: mtu})
			}
		}
	})
	return before
}

// remake removes the netdev with the device; end makes it again with another number.
func (w *world) remake(h *ourHost, f FaultPlan) (end func()) {
	held := h.early()
	if !h.plan.Sockets {
		h.slot.remove()
	}
	h.kernel.change(func() { h.kernel.gone = true })
	h.netdev.setGone(true)
	return func() {
		h.kernel.change(func() {
			h.kernel.gone = false
			h.kernel.index += 1 + f.Skip
			h.kernel.madeAt = w.clock.now()
			if f.Delay > 0 { // whoever configures it does so in steps
				all := h.kernel.addrs
				h.kernel.addrs = all[len(all)-1:]
				h.kernel.routes = onLink(h.kernel.addrs)
				w.clock.AfterFunc(f.Delay, func() { h.kernel.setAddresses(all) })
			}
		})
		h.netdev.setGone(false)
		if !h.plan.Sockets {
			w.note(h.slot.empty())
			h.slot.restore()
			w.note(h.recover(held))
		}
		w.clock.AfterFunc(f.settling(), func() { w.note(h.remade()) })
		w.clock.AfterFunc(returnGrace+2*kernelSlack+f.settling(), func() {
			w.note(h.knows(h.kernel))
		})
	}
}

// remade says what is wrong with a host whose netdev has been there again for long enough.
func (h *ourHost) remade() error {
	if h.plan.Sockets {
		if s := h.stack.LinkStatus(); s.State != failover.Up || s.Expired {
			return fmt.Errorf("host %d: the netdev is there again, and %+v", h.index, s)
		}
		return h.knows(h.kernel)
	}
	if err := h.back(); err != nil {
		return err
	}
	return h.knows(h.kernel)
}
