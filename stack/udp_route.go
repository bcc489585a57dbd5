package stack

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// maxRoutes bounds the routes one socket keeps. A server with more peers than that looks some of
// them up again, which costs it a microsecond per datagram.
const maxRoutes = 4096

// routeCache keeps the route to each peer address: netstack's route lookup, source address choice
// and neighbour lookup take three times as long as the rest of sending a datagram.
type routeCache struct {
	mu     sync.RWMutex
	routes map[routeKey]*path // guarded by mu
	epoch  uint64             // of the stack when routes were found; guarded by mu
	closed bool               // guarded by mu
}

// path is a route and the header template of datagrams that take it.
type path struct {
	route    *gstack.Route
	template atomic.Pointer[headerTemplate]
}

type routeKey struct {
	local, remote tcpip.Address
}

// use calls send with the route for key. Routes are released only while nobody is in use.
func (r *routeCache) use(s *Stack, key routeKey, send func(*path) tcpip.Error) tcpip.Error {
	for range 2 {
		if err, ok := r.try(s, key, send); ok {
			return err
		}
		if err := r.find(s, key); err != nil {
			return err
		}
	}
	// A stack whose addresses change between find and try, or whose sockets have more peers than
	// maxRoutes: go without the cache.
	route, err := s.findRoute(key)
	if err != nil {
		return err
	}
	defer route.Release()
	return send(&path{route: route})
}

// try sends if there is a cached route that still works.
func (r *routeCache) try(s *Stack, key routeKey, send func(*path) tcpip.Error) (tcpip.Error, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.routes[key]
	if p == nil || r.epoch != s.epoch.Load() {
		return nil, false
	}
	err := send(p)
	_, stale := err.(*tcpip.ErrInvalidEndpointState) // an address or the interface went away
	return err, !stale
}

// find looks the route for key up and remembers it.
func (r *routeCache) find(s *Stack, key routeKey) tcpip.Error {
	epoch := s.epoch.Load()
	route, err := s.findRoute(key)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		route.Release()
		return nil
	}
	if r.epoch != epoch || r.routes == nil {
		r.release()
		r.routes, r.epoch = make(map[routeKey]*path), epoch
	}
	r.evict(key)
	r.routes[key] = &path{route: route}
	return nil
}

// evict makes room for key. mu is held.
func (r *routeCache) evict(key routeKey) {
	if old := r.routes[key]; old != nil {
		old.route.Release()
		delete(r.routes, key)
	}
	if len(r.routes) < maxRoutes {
		return
	}
	for k, p := range r.routes { // any one: map order is random
		p.route.Release()
		delete(r.routes, k)
		return
	}
}

// release gives all routes back. mu is held.
func (r *routeCache) release() {
	for _, p := range r.routes {
		p.route.Release()
	}
	r.routes = nil
}

// drop ends the cache's use.
func (r *routeCache) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.release()
}

func (s *Stack) findRoute(key routeKey) (*gstack.Route, tcpip.Error) {
	var nic tcpip.NICID
	if onLink(key.remote) {
		nic = nicID
	}
	protocol := ipv6Protocol
	if key.remote.Len() == 4 {
		protocol = ipv4Protocol
	}
	return s.net.FindRoute(nic, key.local, key.remote, protocol, false /* multicastLoop */)
}
