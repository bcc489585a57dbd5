package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kernel answers questions about the network namespace of the thread that called Open. Its methods
// may be called from any goroutine.
type Kernel struct {
	diag *netlink.Handle // for Conns

	mu     sync.RWMutex    // held for reading while a question is asked
	handle *netlink.Handle // nil: closed; guarded by mu
}

// Open makes the sockets for the questions.
func Open() (*Kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ask for the host's configuration: %w", err)
	}
	diag, err := netlink.NewHandle(unix.NETLINK_INET_DIAG)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("ask for the kernel's connections: %w", err)
	}
	return &Kernel{handle: h, diag: diag}, nil
}

// Close ends the questions: later ones fail with net.ErrClosed.
func (k *Kernel) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.handle != nil {
		k.handle.Close()
		k.diag.Close()
		k.handle = nil
	}
}

// Read asks for the configuration of the device called name. An error that is unix.ENODEV says that
// it is not there.
func (k *Kernel) Read(name string) (Network, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return Network{}, net.ErrClosed
	}
	link, err := k.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = unix.ENODEV
	}
	if err != nil {
		return Network{}, fmt.Errorf("read the configuration of %s: %w", name, err)
	}
	a := link.Attrs()
	n := Network{Name: a.Name, Index: a.Index, MTU: a.MTU, MAC: a.HardwareAddr,
		Up: a.Flags&net.FlagUp != 0}
	addrs, err := k.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, fmt.Errorf("read the addresses of %s: %w", name, err)
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok &&
			a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			n.Addresses = append(n.Addresses, p)
		}
	}
	routes, err := k.handle.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return Network{}, fmt.Errorf("read the routes of %s: %w", name, err)
	}
	n.Routes = usableRoutes(routes, a.Index)
	return n, nil
}

// LinkAt asks for the device with a number, which stays the same when it is renamed. An error that
// is unix.ENODEV says that it is not there.
func (k *Kernel) LinkAt(index int) (Link, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return Link{}, net.ErrClosed
	}
	link, err := k.handle.LinkByIndex(index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		err = unix.ENODEV
	}
	if err != nil {
		return Link{}, fmt.Errorf("ask about the device with number %d: %w", index, err)
	}
	return Link{link.Attrs().Name, link.Attrs().HardwareAddr}, nil
}

// LastIndex returns the largest ifindex of all devices but the one called name.
func (k *Kernel) LastIndex(name string) (last int, err error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return 0, net.ErrClosed
	}
	all, err := k.handle.LinkList()
	if err != nil {
		return 0, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range all {
		if a := l.Attrs(); a.Name != name {
			last = max(last, a.Index)
		}
	}
	return last, nil
}

// usableRoutes returns the routes to hosts by device index, without those that a better one hides.
func usableRoutes(routes []netlink.Route, index int) (list []Route) {
	slices.SortStableFunc(routes, func(a, b netlink.Route) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
	for _, r := range routes {
		to, ok := destination(r)
		gateway, reachable := nextHop(r, index)
		if r.Type != unix.RTN_UNICAST || !ok || !reachable || slices.ContainsFunc(list,
			func(o Route) bool { return o.Destination == to }) {
			continue
		}
		list = append(list, Route{Destination: to, Gateway: gateway, MTU: r.MTU})
	}
	return list
}

func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst != nil {
		return prefixOf(r.Dst)
	}
	if r.Family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0), true
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
}

// nextHop returns the router of r, or of the first of its next hops by the device. A router of the
// other version of IP cannot be used.
func nextHop(r netlink.Route, index int) (netip.Addr, bool) {
	gw, via := r.Gw, r.Via
	if len(r.MultiPath) > 0 {
		i := slices.IndexFunc(r.MultiPath, func(h *netlink.NexthopInfo) bool {
			return h.LinkIndex == index
		})
		if i < 0 {
			return netip.Addr{}, false
		}
		gw, via = r.MultiPath[i].Gw, r.MultiPath[i].Via
	}
	if via != nil {
		return netip.Addr{}, false
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap(), true
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

// WayTo asks which way the kernel would send to an address. An error says that it would not.
func (k *Kernel) WayTo(a netip.Addr) (Way, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.handle == nil {
		return Way{}, net.ErrClosed
	}
	routes, err := k.handle.RouteGet(a.AsSlice())
	if err != nil {
		return Way{}, fmt.Errorf("ask for the route to %s: %w", a, err)
	}
	if len(routes) == 0 {
		return Way{}, fmt.Errorf("ask for the route to %s: %w", a, unix.ENETUNREACH)
	}
	src, _ := netip.AddrFromSlice(routes[0].Src)
	return Way{Index: routes[0].LinkIndex, Local: routes[0].Type == unix.RTN_LOCAL,
		Source: src.Unmap()}, nil
}
