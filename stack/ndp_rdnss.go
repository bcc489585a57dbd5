package stack

import (
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Bounds of what is remembered of advertised resolvers (RFC 8106 section 5.3.1 leaves them to the
// host; three is the least).
const (
	maxRouters          = 16
	maxServersPerRouter = 8
	maxServersUsed      = 8 // of all routers; each that is dead makes a lookup slower
)

// advertisedDNS are the resolvers that routers advertise, each until its lifetime is over. It is
// not safe for concurrent use.
type advertisedDNS struct {
	routers []routerDNS // by when they were first heard
	refused uint64      // resolvers beyond the bounds
}

// routerDNS are the resolvers of one router.
type routerDNS struct {
	router  netip.Addr
	servers []serverUntil
}

// serverUntil is a resolver and when it expires; the zero time is never.
type serverUntil struct {
	addr  netip.Addr
	until time.Time
}

// advertise takes one option of a router's advertisement, and reports whether the set has changed
// or an entry expires sooner.
func (d *advertisedDNS) advertise(router netip.Addr, servers []netip.Addr, lasts time.Duration,
	now time.Time) (changed bool) {
	changed = d.expire(now)
	if lasts == 0 {
		return d.withdraw(router, servers) || changed
	}
	var until time.Time
	if lasts < header.NDPInfiniteLifetime {
		until = now.Add(lasts)
	}
	for _, a := range servers {
		changed = d.add(router, serverUntil{a, until}) || changed
	}
	return changed
}

// add puts a resolver in, or prolongs or shortens its time.
func (d *advertisedDNS) add(router netip.Addr, s serverUntil) (changed bool) {
	r := d.of(router)
	if r == nil {
		d.refused++
		return false
	}
	at := slices.IndexFunc(r.servers, func(o serverUntil) bool { return o.addr == s.addr })
	switch {
	case at >= 0:
		old := r.servers[at].until
		r.servers[at] = s
		return !s.until.IsZero() && (old.IsZero() || s.until.Before(old))
	case len(r.servers) == maxServersPerRouter:
		d.refused++
		return false
	}
	r.servers = append(r.servers, s)
	return true
}

// of finds what a router has advertised, or makes room for it; nil if there is none.
func (d *advertisedDNS) of(router netip.Addr) *routerDNS {
	at := slices.IndexFunc(d.routers, func(r routerDNS) bool { return r.router == router })
	if at < 0 && len(d.routers) == maxRouters {
		return nil
	}
	if at < 0 {
		at = len(d.routers)
		d.routers = append(d.routers, routerDNS{router: router})
	}
	return &d.routers[at]
}

// withdraw forgets resolvers of a router.
func (d *advertisedDNS) withdraw(router netip.Addr, servers []netip.Addr) bool {
	return d.remove(func(r netip.Addr, s serverUntil) bool {
		return r == router &&
			slices.Contains(servers, s.addr)
	})
}

// expire removes the resolvers whose lifetime is over.
func (d *advertisedDNS) expire(now time.Time) bool {
	return d.remove(func(_ netip.Addr, s serverUntil) bool {
		return !s.until.IsZero() &&
			!s.until.After(now)
	})
}

// remove forgets resolvers, and routers without any, and reports whether there were some.
func (d *advertisedDNS) remove(which func(router netip.Addr, s serverUntil) bool) (some bool) {
	for i := range d.routers {
		r := &d.routers[i]
		n := len(r.servers)
		r.servers = slices.DeleteFunc(r.servers,
			func(s serverUntil) bool { return which(r.router, s) })
		some = some || len(r.servers) < n
	}
	d.routers = slices.DeleteFunc(d.routers, func(r routerDNS) bool { return len(r.servers) == 0 })
	return some
}

// current are the resolvers to use: those of the router that has been there longest first.
func (d *advertisedDNS) current() (all []netip.Addr) {
	for _, r := range d.routers {
		for _, s := range r.servers {
			if len(all) < maxServersUsed && !slices.Contains(all, s.addr) {
				all = append(all, s.addr)
			}
		}
	}
	return all
}

// next is when the first of them is over; the zero time is never.
func (d *advertisedDNS) next() (first time.Time) {
	for _, r := range d.routers {
		for _, s := range r.servers {
			if !s.until.IsZero() && (first.IsZero() || s.until.Before(first)) {
				first = s.until
			}
		}
	}
	return first
}
