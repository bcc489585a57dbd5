package stack

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
)

const (
	// detectionProbes are spread over Config.Addressing.DuplicateDetection.
	detectionProbes = 3
	// detectionSlack says what a detection may take beyond its time.
	detectionSlack = 30 * time.Second
)

// detection spreads the probes over d; a negative d sends none.
func detection(d time.Duration) gstack.DADConfigurations {
	if d < 0 {
		return gstack.DADConfigurations{}
	}
	return gstack.DADConfigurations{
		DupAddrDetectTransmits: detectionProbes,
		RetransmitTimer:        max(d/detectionProbes, time.Millisecond),
	}
}

// disableDetection ends duplicate detection on an interface: of a link without hardware addresses,
// and of loopback, where Linux has none either (IFA_F_NODAD). There the probe comes back to its
// sender, and netstack panics if the interface is closed meanwhile.
func (s *addressManager) disableDetection(nic tcpip.NICID) {
	for _, p := range []tcpip.NetworkProtocolNumber{header.ARPProtocolNumber, ipv6Protocol} {
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
func (s *addressManager) addAddresses(ctx context.Context, mac tcpip.LinkAddress) error {
	all := s.cfg.Addresses
	if len(all) >= manyAddresses {
		s.env.Log.Warn("many addresses make every received packet slower", "interface",
			s.env.Name, "addresses", len(all))
	}
	errs := make([]error, len(all))
	var linkLocal error
	var wg sync.WaitGroup
	if header.IsValidUnicastEthernetAddress(mac) && s.stack.host == nil {
		p := netip.PrefixFrom(fromAddress(header.LinkLocalAddr(mac)), 64)
		wg.Go(func() { linkLocal = s.addAddress(ctx, p) })
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
	if len(all) == 0 && !s.cfg.dynamic() || s.cfg.Dynamic.has(DHCPv6) ||
		s.stack.life.closed.Load() {
		return linkLocal
	}
	s.env.Log.Warn("there is no link-local address, and no IPv6 but for the addresses given",
		"interface", s.env.Name, "error", linkLocal)
	return nil
}

// addAddress probes for p and then takes it into use.
func (s *addressManager) addAddress(ctx context.Context, p netip.Prefix) error {
	turn := make(chan struct{})
	close(turn)
	return s.addInTurn(ctx, p, turn, func() {})
}

// addInTurn is addAddress that adds p when turn is closed and calls pass once it has.
func (s *addressManager) addInTurn(ctx context.Context, p netip.Prefix,
	turn <-chan struct{}, pass func()) error {
	// a probe that comes back starts another round
	limit := detectionSlack + 2*max(s.cfg.Addressing.DuplicateDetection, 0)
	ctx, cancel := s.env.Clock.WithTimeoutCause(ctx, limit,
		fmt.Errorf("duplicate detection has not ended in %v", limit))
	defer cancel()
	if p.Addr().Is4() {
		if err := s.probe(ctx, p); err != nil {
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
	if err := s.env.Net.AddProtocolAddress(nicID, protocolAddress(p),
		gstack.AddressProperties{Disp: outcome}); err != nil {
		return asError("add address "+p.String(), err)
	}
	pass()
	if err := outcome.wait(ctx); err != nil {
		s.env.Net.RemoveAddress(nicID, toAddress(p.Addr())) // which netstack would keep, undecided
		return s.probeError(p, err)
	}
	s.env.Log.Info("address in use", "interface", s.env.Name, "address", p.String())
	return nil
}

// probe asks, by ARP, whether another host has p's IPv4 address (RFC 5227 section 2.1.1).
func (s *addressManager) probe(ctx context.Context, p netip.Prefix) error {
	outcome := newAddressOutcome()
	how, terr := s.env.Net.CheckDuplicateAddress(nicID, ipv4Protocol, toAddress(p.Addr()),
		func(r gstack.DADResult) { outcome.report(dadError(r)) })
	if _, none := terr.(*tcpip.ErrNotSupported); none || how == gstack.DADDisabled {
		return nil
	}
	if terr != nil {
		return asError("probe for address "+p.String(), terr)
	}
	if err := outcome.wait(ctx); err != nil {
		return s.probeError(p, err)
	}
	return nil
}

// takenError says that another host has an address.
type takenError struct{ by net.HardwareAddr } // empty: it does not say who it is

func (takenError) Error() string { return ErrDuplicateAddress.Error() }
func (takenError) Unwrap() error { return ErrDuplicateAddress }

// dadError returns what the result of a detection means; nil is that nobody has the address.
func dadError(r gstack.DADResult) error {
	switch r := r.(type) {
	case *gstack.DADDupAddrDetected:
		return takenError{net.HardwareAddr(r.HolderLinkAddress)}
	case *gstack.DADError:
		return fmt.Errorf("the link sends nothing: %w (%s)", errno(r.Err), r.Err)
	case *gstack.DADAborted:
		return net.ErrClosed
	}
	return nil
}

// probeError returns the error of an address that cannot be used.
func (s *addressManager) probeError(p netip.Prefix, err error) error {
	if !errors.Is(err, ErrDuplicateAddress) {
		return fmt.Errorf("probe for address %s: %w", p, err)
	}
	by := ""
	var taken takenError
	if errors.As(err, &taken) && len(taken.by) > 0 {
		by = " by " + taken.by.String()
		if taken.by.String() == s.stack.HardwareAddr().String() {
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
		s.report(ErrDuplicateAddress)
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
// (addr_conflict.go, ndp.go), and [Stack.guard] acts.
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

func newClaims(cfg Config) *claims {
	return &claims{shared: cfg.takesFromLinux() || cfg.Host,
		seen: make(chan claim, claimQueue)}
}

// conflict notes that mac uses our address a.
func (c *claims) conflict(a tcpip.Address, mac tcpip.LinkAddress) {
	c.conflicts.Add(1)
	c.note(claim{fromAddress(a), mac})
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
func (s *addressManager) guard() {
	defended := map[netip.Addr]*rateLimit{}
	twins := rateLimit{burst: 1, period: twinInterval}
	for {
		select {
		case <-s.env.Ctx.Done():
			return
		case <-s.raEvents.removable:
			s.removeUndecided()
		case <-s.memberships.changed:
			s.tellGroups()
		case c := <-s.claims.seen:
			if c.addr.IsValid() {
				s.defend(c, defended)
			} else if ok, missed := twins.allows(s.env.Clock.Now()); ok {
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
func (s *addressManager) removeUndecided() {
	for _, a := range s.raEvents.takeUndecided() {
		s.env.Net.RemoveAddress(nicID, toAddress(a))
		s.env.Log.Warn("address given up: the link sends no probe for it", "interface",
			s.env.Name, "address", a.String())
	}
	s.solicitRouter()
}

// defend announces an address that another host uses, unless the rate limit is reached.
func (s *addressManager) defend(c claim, defended map[netip.Addr]*rateLimit) {
	now := s.env.Clock.Now()
	if len(defended) >= manyDefended {
		for a, d := range defended {
			if now.Sub(d.since) >= defendInterval {
				delete(defended, a)
			}
		}
	}
	d := defended[c.addr]
	if d == nil {
		d = &rateLimit{burst: 1, period: defendInterval}
		defended[c.addr] = d
	}
	ok, missed := d.allows(now)
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

// watchARP wraps netstack's ARP so that c and n see its packets.
func (c *claims) watchARP(factory gstack.NetworkProtocolFactory,
	n *neighbours) gstack.NetworkProtocolFactory {
	return func(g *gstack.Stack) gstack.NetworkProtocol { return arpProtocol{factory(g), c, n} }
}

// arpProtocol is netstack's ARP, with its packets inspected.
type arpProtocol struct {
	gstack.NetworkProtocol
	claims     *claims
	neighbours *neighbours
}

// NewEndpoint implements gstack.NetworkProtocol.
func (p arpProtocol) NewEndpoint(nic gstack.NetworkInterface,
	d gstack.TransportDispatcher) gstack.NetworkEndpoint {
	if nic.ID() != nicID {
		return p.NetworkProtocol.NewEndpoint(nic, d)
	}
	i := &neighbourNIC{NetworkInterface: nic, table: p.neighbours, protocol: ipv4Protocol}
	ep := p.NetworkProtocol.NewEndpoint(i, d)
	if full, ok := ep.(arpHost); ok {
		return arpEndpoint{full, i, p.claims}
	}
	return ep
}

// arpHost is what netstack wants of an ARP endpoint.
type arpHost interface {
	gstack.NetworkEndpoint
	gstack.DuplicateAddressDetector
	gstack.LinkAddressResolver
}

// arpEndpoint is netstack's ARP on one interface, with its packets inspected.
type arpEndpoint struct {
	arpHost
	nic    *neighbourNIC
	claims *claims
}

// HandlePacket implements gstack.NetworkEndpoint. Netstack would answer for a broadcast address of
// ours.
func (e arpEndpoint) HandlePacket(pkt *gstack.PacketBuffer) {
	if h, ok := pkt.Data().PullUp(header.ARPSize); ok && header.ARP(h).IsValid() {
		e.checkSender(header.ARP(h))
		e.nic.heardARP(header.ARP(h), toOneHost(pkt))
		target := tcpip.AddrFrom4Slice(header.ARP(h).ProtocolAddressTarget())
		if e.nic.isBroadcast(target) {
			return
		}
	}
	e.arpHost.HandlePacket(pkt)
}

// checkSender compares the sender with our addresses. A probe has the sender 0.0.0.0 and claims
// nothing (RFC 5227 section 1.1).
func (e arpEndpoint) checkSender(h header.ARP) {
	mac, sender := tcpip.LinkAddress(h.HardwareAddressSender()),
		tcpip.AddrFrom4Slice(h.ProtocolAddressSender())
	switch {
	case mac == e.claims.hardware():
		e.claims.twin()
	case sender != header.IPv4Any && e.nic.CheckLocalAddress(ipv4Protocol, sender):
		e.claims.conflict(sender, mac)
	}
}

// announceAgain says when an announcement is repeated, in case the first was lost (RFC 5227's
// ANNOUNCE_INTERVAL).
const announceAgain = 2 * time.Second

// announceTwice tells the neighbours now and once more.
func (s *addressManager) announceTwice() {
	s.announceAll()
	s.announcer.Reset(announceAgain)
}

// announceLater tells the neighbours once more after a while: a send queue was replaced, and what
// it held is lost. Others repeat what they send, but a server that nobody finds sends nothing.
func (s *addressManager) announceLater() {
	if !s.cfg.Addressing.NoAnnounce {
		s.announcer.Reset(announceAgain)
	}
}

// announceAll does what [Stack.Announce] says.
func (s *addressManager) announceAll() {
	if s.stack.life.closed.Load() {
		return
	}
	for _, p := range s.stack.Addrs() {
		s.announce(p.Addr())
	}
}

// announce is Announce for one address.
func (s *addressManager) announce(a netip.Addr) {
	mac := tcpip.LinkAddress(s.stack.HardwareAddr())
	switch {
	case !s.resolves || !header.IsValidUnicastEthernetAddress(mac):
	case a.Is4():
		s.gratuitousARP(mac, a)
	default:
		s.unsolicitedNA(mac, a)
	}
}

// gratuitousARP broadcasts a request for our own address, which every cache learns from.
func (s *addressManager) gratuitousARP(mac tcpip.LinkAddress, a netip.Addr) {
	packet := make(header.ARP, header.ARPSize)
	packet.SetIPv4OverEthernet()
	packet.SetOp(header.ARPRequest)
	copy(packet.HardwareAddressSender(), mac)
	copy(packet.ProtocolAddressSender(), a.AsSlice())
	copy(packet.ProtocolAddressTarget(), a.AsSlice())
	s.env.Net.WritePacketToRemote(nicID, header.EthernetBroadcastAddress, header.ARPProtocolNumber,
		buffer.MakeWithData(packet))
}

// unsolicitedNA multicasts a neighbour advertisement that overrides cached entries.
func (s *addressManager) unsolicitedNA(mac tcpip.LinkAddress, a netip.Addr) {
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6NeighborAdvertMinimumSize+options)
	icmp.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(icmp.MessageBody())
	na.SetTargetAddress(toAddress(a))
	na.SetOverrideFlag(true)
	na.SetRouterFlag(s.stack.host != nil && s.stack.host.routesIPv6())
	na.Options().Serialize(header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(mac)})
	s.multicast(icmp, toAddress(a), header.IPv6AllNodesMulticastAddress)
}

// solicitRouter asks the link's routers to advertise themselves now (RFC 4861 section 6.3.7).
func (s *addressManager) solicitRouter() {
	mac := tcpip.LinkAddress(s.stack.HardwareAddr())
	if !header.IsValidUnicastEthernetAddress(mac) {
		return
	}
	const options = header.NDPLinkLayerAddressSize
	icmp := make(header.ICMPv6, header.ICMPv6HeaderSize+header.NDPRSMinimumSize+options)
	icmp.SetType(header.ICMPv6RouterSolicit)
	rs := header.NDPRouterSolicit(icmp.MessageBody())
	rs.Options().Serialize(header.NDPOptionsSerializer{header.NDPSourceLinkLayerAddressOption(mac)})
	from := header.LinkLocalAddr(mac)
	for _, p := range s.stack.Addrs() { // which stays as it is when the hardware address changes
		if a := p.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
			from = toAddress(a)
		}
	}
	s.multicast(icmp, from, header.IPv6AllRoutersLinkLocalMulticastAddress)
}

// multicast sends a message of neighbour discovery, whose checksum it fills in.
func (s *addressManager) multicast(icmp header.ICMPv6, from, to tcpip.Address) {
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
	s.env.Net.WritePacketToRemote(nicID, header.EthernetAddressFromMulticastIPv6Address(to),
		header.IPv6ProtocolNumber, buffer.MakeWithData(packet))
}

// rateLimit limits an action that other hosts can cause, such as a line in the log, to burst times
// per period. It is not safe for concurrent use.
type rateLimit struct {
	burst  int
	period time.Duration

	since  time.Time // when the period began
	used   int       // of burst, in it
	missed uint64    // refused since the last action that was allowed
}

// allows says whether the action may be done now, and if so how often it was refused since the
// last.
func (s *rateLimit) allows(now time.Time) (ok bool, missed uint64) {
	if now.Sub(s.since) >= s.period {
		s.since, s.used = now, 0
	}
	if s.used == s.burst {
		s.missed++
		return false, 0
	}
	s.used++
	missed, s.missed = s.missed, 0
	return true, missed
}

// lockAddresses takes the locks of the stack's MAC address and of Config.Addresses. The error is
// ErrDuplicateAddress if another process has one.
func (s *addressManager) lockAddresses() error {
	port, ok := s.stack.uplink.FirstInterface().(*packet.Port)
	if !ok || s.stack.host != nil || runtime.GOOS != "linux" {
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
		case s.cfg.Predecessor != nil:
			s.env.Go(func() {
				if err := s.locks.Await(name); err != nil {
					s.env.Log.Warn("no lock of an address after the predecessor", "address",
						address,
						"error", err)
				}
			})
		default:
			return fmt.Errorf("%s already has %s on %s: end it, or give this one another address: "+
				"%w", addrlock.Holder(name), address, port.Name(), ErrDuplicateAddress)
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
