package addrconf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrlock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

const (
	// detectionProbes are spread over Config.DuplicateDetection.
	detectionProbes = 3
	// detectionSlack says what a detection may take beyond its time.
	detectionSlack = 30 * time.Second
	manyAddresses  = 16
)

// Detection spreads the probes over Config.DuplicateDetection; a negative one sends none.
func (s *Manager) Detection() gstack.DADConfigurations {
	d := s.cfg.DuplicateDetection
	if d < 0 {
		return gstack.DADConfigurations{}
	}
	return gstack.DADConfigurations{
		DupAddrDetectTransmits: detectionProbes,
		RetransmitTimer:        max(d/detectionProbes, time.Millisecond),
	}
}

// DisableDetection ends duplicate detection on an interface: of a link without hardware addresses,
// and of loopback, where Linux has none either (IFA_F_NODAD). There the probe comes back to its
// sender, and netstack panics if the interface is closed meanwhile.
func (s *Manager) DisableDetection(nic tcpip.NICID) {
	for _, p := range []tcpip.NetworkProtocolNumber{header.ARPProtocolNumber,
		header.IPv6ProtocolNumber} {
		if ep, err := s.env.Net.GetNetworkEndpoint(nic, p); err == nil {
			if d, ok := ep.(gstack.DuplicateAddressDetector); ok {
				d.SetDADConfigurations(gstack.DADConfigurations{})
			}
		}
	}
}

// addAddresses takes our addresses into use after duplicate detection. All are probed at the same
// time; those of a family are added in the order of the configuration, for netstack sends to a
// group from the first that was added, as Linux does. A failure of the link-local address,
// which is not configured, is an error only if there is no other, or if DHCPv6 needs it.
func (s *Manager) addAddresses(ctx context.Context, mac tcpip.LinkAddress) error {
	all := s.cfg.Addresses
	if len(all) >= manyAddresses {
		s.env.Log.Warn("many addresses make every received packet slower", "interface",
			s.env.Name, "addresses", len(all))
	}
	errs := make([]error, len(all))
	var linkLocal error
	var wg sync.WaitGroup
	if header.IsValidUnicastEthernetAddress(mac) && !s.cfg.Host {
		p := netip.PrefixFrom(env.FromAddress(header.LinkLocalAddr(mac)), 64)
		wg.Go(func() { linkLocal = s.AddAddress(ctx, p) })
	}
	first := make(chan struct{})
	close(first)
	last := map[bool]chan struct{}{false: first, true: first}
	for i, p := range all {
		turn, added := last[p.Addr().Is4()], make(chan struct{})
		last[p.Addr().Is4()] = added
		pass := sync.OnceFunc(func() { close(added) })
		wg.Go(func() {
			defer pass()
			errs[i] = s.addInTurn(ctx, p, turn, pass)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("wait until nobody objects to our addresses %v: %w", all,
			context.Cause(ctx))
	}
	if err := errors.Join(errs...); err != nil || linkLocal == nil {
		return err
	}
	if len(all) == 0 && !s.cfg.dynamic() || s.cfg.DHCPv6 || s.env.Ctx.Err() != nil {
		return linkLocal
	}
	s.env.Log.Warn("there is no link-local address, and no IPv6 but for the addresses given",
		"interface", s.env.Name, "error", linkLocal)
	return nil
}

// AddAddress probes for p and then takes it into use.
func (s *Manager) AddAddress(ctx context.Context, p netip.Prefix) error {
	turn := make(chan struct{})
	close(turn)
	return s.addInTurn(ctx, p, turn, func() {})
}

// addInTurn is AddAddress that adds p when turn is closed and calls pass once it has.
func (s *Manager) addInTurn(ctx context.Context, p netip.Prefix,
	turn <-chan struct{}, pass func()) error {
	// a probe that comes back starts another round
	limit := detectionSlack + 2*max(s.cfg.DuplicateDetection, 0)
	ctx, cancel := s.env.Clock.WithTimeoutCause(ctx, limit,
		fmt.Errorf("duplicate detection has not ended in %v", limit))
	defer cancel()
	if p.Addr().Is4() {
		if err := s.probeByARP(ctx, p); err != nil {
			return err
		}
	}
	select {
	case <-turn:
	case <-ctx.Done():
		return s.probeError(p, context.Cause(ctx))
	}
	// Netstack probes for IPv6 addresses itself and tells us the outcome.
	outcome := newAddressOutcome()
	defer s.raEvents.expect(p.Addr(), outcome)()
	if err := s.env.Net.AddProtocolAddress(env.NIC, env.ProtocolAddress(p),
		gstack.AddressProperties{Disp: outcome}); err != nil {
		return env.AsError("add address "+p.String(), err)
	}
	pass()
	if err := outcome.wait(ctx); err != nil {
		// netstack would keep it, undecided
		s.env.Net.RemoveAddress(env.NIC, env.ToAddress(p.Addr()))
		return s.probeError(p, err)
	}
	s.env.Log.Info("address in use", "interface", s.env.Name, "address", p.String())
	return nil
}

// probeByARP asks whether another host has p's IPv4 address (RFC 5227 section 2.1.1).
func (s *Manager) probeByARP(ctx context.Context, p netip.Prefix) error {
	outcome := newAddressOutcome()
	how, terr := s.env.Net.CheckDuplicateAddress(env.NIC, header.IPv4ProtocolNumber,
		env.ToAddress(p.Addr()), func(r gstack.DADResult) { outcome.report(dadError(r)) })
	if _, none := terr.(*tcpip.ErrNotSupported); none || how == gstack.DADDisabled {
		return nil
	}
	if terr != nil {
		return env.AsError("probe for address "+p.String(), terr)
	}
	if err := outcome.wait(ctx); err != nil {
		return s.probeError(p, err)
	}
	return nil
}

// takenError says that another host has an address.
type takenError struct{ by net.HardwareAddr } // empty: it does not say who it is

func (takenError) Error() string { return env.ErrDuplicateAddress.Error() }
func (takenError) Unwrap() error { return env.ErrDuplicateAddress }

// dadError returns what the result of a detection means; nil is that nobody has the address.
func dadError(r gstack.DADResult) error {
	switch r := r.(type) {
	case *gstack.DADDupAddrDetected:
		return takenError{net.HardwareAddr(r.HolderLinkAddress)}
	case *gstack.DADError:
		return fmt.Errorf("the link sends nothing: %w (%s)", env.Errno(r.Err), r.Err)
	case *gstack.DADAborted:
		return net.ErrClosed
	}
	return nil
}

// probeError returns the error of an address that cannot be used.
func (s *Manager) probeError(p netip.Prefix, err error) error {
	if !errors.Is(err, env.ErrDuplicateAddress) {
		return fmt.Errorf("probe for address %s: %w", p, err)
	}
	by := ""
	var taken takenError
	if errors.As(err, &taken) && len(taken.by) > 0 {
		by = " by " + taken.by.String()
		if taken.by.String() == s.HardwareAddr().String() {
			by += ", which is our own hardware address, so another process or host has that too,"
		}
	}
	return fmt.Errorf("address %s is in use on this link%s: "+
		"%w (choose another one, or set DuplicateDetection negative)", p, by, err)
}

// addressOutcome receives from netstack the result of adding an address. It implements
// gstack.AddressDispatcher.
type addressOutcome struct{ result chan error }

func newAddressOutcome() addressOutcome { return addressOutcome{make(chan error, 1)} }

// OnChanged implements gstack.AddressDispatcher.
func (s addressOutcome) OnChanged(_ gstack.AddressLifetimes, state gstack.AddressAssignmentState) {
	if state == gstack.AddressAssigned {
		s.report(nil)
	}
}

// OnRemoved implements gstack.AddressDispatcher.
func (s addressOutcome) OnRemoved(reason gstack.AddressRemovalReason) {
	if reason == gstack.AddressRemovalDADFailed {
		s.report(env.ErrDuplicateAddress)
		return
	}
	s.report(net.ErrClosed)
}

// report keeps the first outcome.
func (s addressOutcome) report(err error) {
	select {
	case s.result <- err:
	default:
	}
}

// wait returns the outcome, or why ctx ended before there was one.
func (s addressOutcome) wait(ctx context.Context) error {
	select {
	case err := <-s.result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	// defendInterval says how often one address is defended at most (RFC 5227 section 1.1,
	// DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// twinInterval says how often a line is logged about our own hardware address elsewhere.
	twinInterval = time.Minute
	// manyDefended counts the addresses from which on old entries are forgotten.
	manyDefended = 64
	// claimQueue says how many claims wait to be dealt with. What exceeds it is counted only.
	claimQueue = 16
)

// claims are uses of our addresses by others: of an IP address by another host (RFC 5227 section
// 2.4, RFC 4862 section 5.4.4), or of our hardware address. Receive goroutines see them
// (HeardARP, HeardNDP), and [Manager.guard] acts.
type claims struct {
	own    atomic.Pointer[tcpip.LinkAddress] // the link's hardware address; nil: there is no link
	shared bool                              // it is Linux's, too
	seen   chan claim

	conflicts, defences, twins, moves atomic.Uint64 // as in Stats
}

// hardware returns the link's hardware address, "" if it has none.
func (c *claims) hardware() tcpip.LinkAddress {
	if own := c.own.Load(); own != nil {
		return *own
	}
	return ""
}

// claim is that the host with a hardware address uses an address of ours; without one, it is the
// hardware address.
type claim struct {
	addr netip.Addr
	mac  tcpip.LinkAddress
}

// conflict notes that mac uses our address a.
func (c *claims) conflict(a tcpip.Address, mac tcpip.LinkAddress) {
	c.conflicts.Add(1)
	c.note(claim{env.FromAddress(a), mac})
}

// twin notes that a frame came from our own hardware address.
func (c *claims) twin() {
	if !c.shared {
		c.twins.Add(1)
		c.note(claim{mac: c.hardware()})
	}
}

func (c *claims) note(cl claim) {
	select {
	case c.seen <- cl:
	default:
	}
}

// guard defends our addresses until the stack ends, and removes addresses that could not be probed
// for.
//
// It follows case (c) of RFC 5227 section 2.4: an address is never given up, because clients reach
// a server by it; it is announced again, at most once per defendInterval.
func (s *Manager) guard() {
	defended := map[netip.Addr]*env.RateLimit{}
	twins := env.RateLimit{Burst: 1, Period: twinInterval}
	for {
		select {
		case <-s.env.Ctx.Done():
			return
		case <-s.raEvents.removable:
			s.removeUndecided()
		case <-s.memberships.changed:
			s.TellGroups()
		case c := <-s.claims.seen:
			if c.addr.IsValid() {
				s.defendAddress(c, defended)
			} else if ok, missed := twins.Allows(s.env.Clock.Now()); ok {
				s.env.Log.Warn("frames come from our own hardware address: "+
					"another process or host uses it, or the network sends ours back; give each "+
					"slice its own MAC",
					"interface", s.env.Name, "mac", net.HardwareAddr(c.mac).String(), "more",
					missed)
			}
		}
	}
}

// removeUndecided removes addresses of advertised prefixes that could not be probed for, and asks
// for the prefixes again.
func (s *Manager) removeUndecided() {
	for _, a := range s.raEvents.takeUndecided() {
		s.env.Net.RemoveAddress(env.NIC, env.ToAddress(a))
		s.env.Log.Warn("address given up: the link sends no probe for it", "interface",
			s.env.Name, "address", a.String())
	}
	s.SolicitRouter()
}

// defendAddress announces an address that another host uses, unless the rate limit is reached.
func (s *Manager) defendAddress(c claim, defended map[netip.Addr]*env.RateLimit) {
	now := s.env.Clock.Now()
	if len(defended) >= manyDefended {
		for a, d := range defended {
			if d.Idle(now) {
				delete(defended, a)
			}
		}
	}
	d := defended[c.addr]
	if d == nil {
		d = &env.RateLimit{Burst: 1, Period: defendInterval}
		defended[c.addr] = d
	}
	ok, missed := d.Allows(now)
	if !ok {
		return
	}
	s.claims.defences.Add(1)
	s.announce(c.addr)
	s.env.Log.Warn("another host uses our address, which we have announced again", "interface",
		s.env.Name,
		"address", c.addr.String(),
		"mac", net.HardwareAddr(c.mac).String(), "more", missed)
}

// HeardARP compares the sender of a packet that came by nic with our addresses. A probe has the
// sender 0.0.0.0 and claims nothing (RFC 5227 section 1.1).
func (s *Manager) HeardARP(h header.ARP, nic gstack.NetworkInterface) {
	mac, sender := tcpip.LinkAddress(h.HardwareAddressSender()),
		tcpip.AddrFrom4Slice(h.ProtocolAddressSender())
	switch {
	case mac == s.claims.hardware():
		s.claims.twin()
	case sender != header.IPv4Any && nic.CheckLocalAddress(header.IPv4ProtocolNumber, sender):
		s.claims.conflict(sender, mac)
	}
}

// announceAgain says when an announcement is repeated (ANNOUNCE_INTERVAL of RFC 5227).
const announceAgain = 2 * time.Second

// AnnounceTwice tells the neighbours now and once more, and from here on at each LinkUp.
func (s *Manager) AnnounceTwice() {
	s.moved.Store(true)
	s.AnnounceAll()
	s.announcer.Reset(announceAgain)
}

// AnnounceNow does what AnnounceTwice does, where addresses are announced at all.
func (s *Manager) AnnounceNow() {
	if !s.cfg.NoAnnounce || s.moved.Load() {
		s.AnnounceTwice()
	}
}

// AnnounceLater tells the neighbours once more after a while: what a send queue held is lost.
func (s *Manager) AnnounceLater() {
	if !s.cfg.NoAnnounce {
		s.announcer.Reset(announceAgain)
	}
}

// AnnounceAll does what stack.Stack.Announce says.
func (s *Manager) AnnounceAll() {
	if s.env.Ctx.Err() != nil {
		return
	}
	for _, p := range s.Addrs() {
		s.announce(p.Addr())
	}
}

// announce is Announce for one address.
func (s *Manager) announce(a netip.Addr) {
	mac := tcpip.LinkAddress(s.HardwareAddr())
	switch {
	case !s.resolves || !header.IsValidUnicastEthernetAddress(mac):
	case a.Is4():
		s.gratuitousARP(mac, a)
	default:
		s.unsolicitedNA(mac, a)
	}
}

// gratuitousARP broadcasts a request for our own address, which every cache learns from.
func (s *Manager) gratuitousARP(mac tcpip.LinkAddress, a netip.Addr) {
	packet := make(header.ARP, header.ARPSize)
	packet.SetIPv4OverEthernet()
	packet.SetOp(header.ARPRequest)
	copy(packet.HardwareAddressSender(), mac)
	copy(packet.ProtocolAddressSender(), a.AsSlice())
	copy(packet.ProtocolAddressTarget(), a.AsSlice())
	s.env.Net.WritePacketToRemote(env.NIC, header.EthernetBroadcastAddress,
		header.ARPProtocolNumber, buffer.MakeWithData(packet))
}

// unsolicitedNA multicasts a neighbour advertisement that overrides cached entries.
func (s *Manager) unsolicitedNA(mac tcpip.LinkAddress, a netip.Addr) {
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6NeighborAdvertMinimumSize+options)
	icmp.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(icmp.MessageBody())
	na.SetTargetAddress(env.ToAddress(a))
	na.SetOverrideFlag(true)
	na.SetRouterFlag(s.host.RoutesIPv6())
	na.Options().Serialize(header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(mac)})
	s.multicast(icmp, env.ToAddress(a), header.IPv6AllNodesMulticastAddress)
}

// SolicitRouter asks the link's routers to advertise themselves now (RFC 4861 section 6.3.7).
func (s *Manager) SolicitRouter() {
	mac := tcpip.LinkAddress(s.HardwareAddr())
	if !header.IsValidUnicastEthernetAddress(mac) {
		return
	}
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6HeaderSize+header.NDPRSMinimumSize+options)
	icmp.SetType(header.ICMPv6RouterSolicit)
	rs := header.NDPRouterSolicit(icmp.MessageBody())
	rs.Options().Serialize(header.NDPOptionsSerializer{header.NDPSourceLinkLayerAddressOption(mac)})
	from := header.LinkLocalAddr(mac)
	for _, p := range s.Addrs() { // which stays as it is when the hardware address changes
		if a := p.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
			from = env.ToAddress(a)
		}
	}
	s.multicast(icmp, from, header.IPv6AllRoutersLinkLocalMulticastAddress)
}

// multicast sends a message of neighbour discovery, whose checksum it fills in.
func (s *Manager) multicast(icmp header.ICMPv6, from, to tcpip.Address) {
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: from,
		Dst: to}))
	packet := make(header.IPv6, header.IPv6MinimumSize, header.IPv6MinimumSize+len(icmp))
	packet.Encode(&header.IPv6Fields{
		PayloadLength:     uint16(len(icmp)),
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          header.NDPHopLimit,
		SrcAddr:           from,
		DstAddr:           to,
	})
	packet = append(packet, icmp...)
	s.env.Net.WritePacketToRemote(env.NIC, header.EthernetAddressFromMulticastIPv6Address(to),
		header.IPv6ProtocolNumber, buffer.MakeWithData(packet))
}

// Lock takes the locks of the stack's MAC address and of Config.Addresses, if below
// has a netdev. The error is
// env.ErrDuplicateAddress if another process has one.
func (s *Manager) Lock(below packet.Interface) error {
	port, ok := below.(packet.Netdev)
	if !ok || s.cfg.Host || runtime.GOOS != "linux" {
		return nil
	}
	ifi, err := net.InterfaceByName(port.Name())
	if err != nil {
		return fmt.Errorf("find %s: %w", port.Name(), err)
	}
	for _, address := range lockNames(port.MAC(), s.cfg.Addresses) {
		name := addrlock.Name(ifi.Index, port.VLAN(), address)
		err := s.locks.Take(name)
		switch {
		case err == nil:
		case !errors.Is(err, syscall.EADDRINUSE):
			s.env.Log.Warn("two processes with one address would not be noticed: no lock for it",
				"interface", port.Name(), "address", address, "error", err)
		case s.cfg.Successor:
			s.env.Go(func() {
				if err := s.locks.Await(name); err != nil {
					s.env.Log.Warn("no lock of an address after the predecessor", "address",
						address,
						"error", err)
				}
			})
		default:
			return fmt.Errorf("%s already has %s on %s: end it, or give this one another address: "+
				"%w", addrlock.Holder(name), address, port.Name(), env.ErrDuplicateAddress)
		}
	}
	return nil
}

// lockNames returns what is locked.
func lockNames(mac net.HardwareAddr, addresses []netip.Prefix) []string {
	names := []string{mac.String()}
	for _, p := range addresses {
		names = append(names, p.Addr().String())
	}
	return names
}
