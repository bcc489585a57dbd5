package stack

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/handover"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// host joins a stack with Config.Host to package hostmode, and shows it the stack.
type host struct {
	*hostmode.Host
	stack *Stack
	mac   macFollower
}

// errFragmentsLost says what a device lacks in host mode. The log says so when it is opened.
var errFragmentsLost = errors.New("no rule of the device can leave fragments to Linux: it " +
	"may take the first of a datagram, which is lost then")

// losesFragments reports whether a device may take the first fragment of a datagram, whose others
// come by packet sockets.
func (h *host) losesFragments() bool {
	return slices.ContainsFunc(h.stack.Devices(), func(d *dv.Device) bool {
		return !d.Caps().RulesToLinux
	})
}

// openHost makes a stack on the host's own addresses.
func openHost(ctx context.Context, cfg Config) (*Stack, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var inherited *handover.Inherited
	if p := cfg.Predecessor; p != nil {
		inherited = &p.met.Ports
	}
	h, found, err := hostmode.Find(cfg.hostKernel, cfg.NIC, cfg.Clock, inherited)
	if err != nil {
		return nil, err
	}
	cfg.hostAddresses, cfg.NIC.Device = found.Addresses, h.Name()
	cfg.netdevName = h.Name()
	// the kernel has done so
	cfg.Addressing.DuplicateDetection, cfg.Addressing.NoAnnounce = -1, true
	s, err := build(cfg, &addrconf.Netdev{Network: dv.Network{Netdev: h.Name()}})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	s.host = &host{Host: h, stack: s, mac: macFollower{s: s}}
	h.Serve(&s.env, s.host, s.addrs)
	if err := s.host.open(ctx, found); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open gives the stack its link and the configuration of the host.
func (h *host) open(ctx context.Context, found hostnet.Network) error {
	s := h.stack
	s.addrs.Sources().Kernel = h.Source
	link, err := h.openLink(ctx)
	if err != nil {
		return err
	}
	first, last, err := h.ClaimBlock(ctx)
	if err == nil {
		err = env.AsError("set ephemeral ports", s.net.SetPortRange(first, last))
	}
	if err == nil {
		err = s.handover.Join(link, s.uplink.FirstDevice())
	}
	if err != nil {
		link.Close()
		return err
	}
	if err := s.attach(ctx, link); err != nil {
		return err
	}
	if err := h.UseRoutes(found.Routes); err != nil {
		return err
	}
	s.uplink.Keep()
	h.Follow()
	if !s.uplink.LinkUp() {
		s.health.report(reportLink, errLinkDown)
	}
	s.life.watched = make(chan struct{})
	go s.watch()
	return nil
}

// openLink opens packet sockets on the netdev, and beside them the rings of its device, if it has
// one.
func (h *host) openLink(ctx context.Context) (link *rdma.Endpoint, err error) {
	s := h.stack
	cfg := s.uplinkConfig()
	cfg.Host = h
	if err := s.cfg.checkDriver(&cfg.NIC); err != nil {
		return nil, err
	}
	netdev, err := cfg.OpenNetdev(cfg.PortConfig())
	if err != nil {
		return nil, err
	}
	h.UseNetdev(netdev)
	if s.uplink, err = uplink.Open(ctx, cfg); err != nil {
		return nil, err
	}
	link = s.uplink.Endpoint()
	if s.uplink.HasRings() {
		h.UseRules(link)
	}
	return link, nil
}

// HardwareAddr implements hostmode.Stack.
func (h *host) HardwareAddr() net.HardwareAddr { return h.stack.HardwareAddr() }

// HasZone implements hostmode.Stack.
func (h *host) HasZone(zone string) bool { return h.stack.zones.has(zone) }

// FollowMTU implements hostmode.Stack. The MTU may be a VLAN's and less than its port's; a device
// of the model is told by nobody else.
func (h *host) FollowMTU(mtu int) {
	s, most := h.stack, mtu
	if given := s.cfg.NIC.MTU; given > 0 {
		most = min(most, given)
	}
	if s.cfg.NIC.Model.Kernel != nil {
		for _, d := range s.Devices() {
			d.SetNetdevMTU(mtu)
		}
	}
	s.link.SetMTU(uint32(most))
	s.mtu.follow()
}

// FollowMAC implements hostmode.Stack.
func (h *host) FollowMAC(netdev string, mac net.HardwareAddr) (again time.Duration) {
	return h.mac.follow(netdev, mac)
}

// ReopenNetdev implements hostmode.Stack.
func (h *host) ReopenNetdev(name string) (packet.Netdev, error) {
	from := h.stack.uplinkConfig()
	from.Host = h
	cfg := from.PortConfig()
	cfg.Device, cfg.MTU = name, 0 // the netdev's MTU, which may be another
	return from.ReopenNetdev(cfg)
}

// tellFragments tells the log of fragments that were dropped. A nil host has none.
func (h *host) tellFragments() {
	if h != nil {
		h.TellFragments()
	}
}

// fragmentsDropped returns why fragments are lost, if some are or may be. A nil host loses none.
func (h *host) fragmentsDropped() error {
	switch {
	case h == nil:
		return nil
	case h.losesFragments():
		return errFragmentsLost
	}
	return h.FragmentsDropped()
}

// netdevGone returns what is closed when the netdev is removed with which the stack ends; nil: it
// ends with none.
func (h *host) netdevGone() <-chan struct{} {
	if h == nil || h.stack.uplink.IsKept() {
		return nil
	}
	return h.Sockets().Done()
}

// bind makes the kernel serve at the ports of b, which it returns; nil: it cannot.
func (h *host) bind(b *hostmode.Binding) (*hostmode.Binding, error) {
	if err := h.Bind(b); err != nil {
		return nil, err
	}
	return b, nil
}

// unbind ends that for a socket that is closed. Nil has no ports.
func (h *host) unbind(b *hostmode.Binding) {
	if b != nil {
		h.Unbind(b)
	}
}

// refuseKernel refuses what only the kernel reaches. A nil host refuses nothing.
func (h *host) refuseKernel(ip net.IP) error {
	to, _ := netip.AddrFromSlice(ip)
	if to = to.Unmap(); h != nil && h.ByKernel(to) {
		return errByKernel{to}
	}
	return nil
}

// holdFor takes the port that a connection is to be made from, if it is a given one. The
// caller gives them to host.DialEnded once there is a connection, or none.
func (h *host) holdFor(laddr *net.TCPAddr) ([]*hostmode.Port, error) {
	if h == nil || laddr == nil || laddr.Port == 0 {
		return nil, nil
	}
	a, _ := netip.AddrFromSlice(laddr.IP)
	if a = a.Unmap(); a.IsUnspecified() {
		a = netip.Addr{}
	}
	return h.Hold(a, uint16(laddr.Port))
}

// dialEnded gives back what holdFor has taken, if anything.
func (h *host) dialEnded(from []*hostmode.Port) {
	if len(from) > 0 {
		h.DialEnded(from)
	}
}

// boundAt returns where an endpoint of a family is bound.
func boundAt(f family, bound tcpip.FullAddress) hostmode.At {
	v4, v6 := covers(f, tcpip.Address{})
	return hostmode.At{V4: v4, V6: v6, Addr: fromAddress(bound.Addr), Port: bound.Port}
}
