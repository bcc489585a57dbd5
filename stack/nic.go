package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

const (
	ipv4Protocol = header.IPv4ProtocolNumber
	ipv6Protocol = header.IPv6ProtocolNumber

	// detectionProbes are spread over Config.DuplicateDetection.
	detectionProbes = 3
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

// attach gives the stack its interfaces, addresses and routes.
func (s *Stack) attach(link gstack.LinkEndpoint) error {
	if err := s.addLoopback(); err != nil {
		link.Close()
		return err
	}
	mac := link.LinkAddress()
	if err := s.addLink(link); err != nil {
		return err
	}
	routes, err := s.routeTable()
	if err != nil {
		return err
	}
	s.net.SetRouteTable(routes)
	if err := s.addAddresses(mac); err != nil {
		return err
	}
	s.changed()
	if !s.cfg.NoAnnounce {
		s.announceTwice()
	}
	return s.configure()
}

// static says whether p is one of cfg's addresses.
func (s *Stack) static(p netip.Prefix) bool {
	for _, c := range s.cfg.Addresses {
		if c.Addr() == p.Addr() {
			return true
		}
	}
	return false
}

// addLink makes link the stack's interface; pure ACKs pass through a queueing discipline that lets most
// of them ride on data.
func (s *Stack) addLink(link gstack.LinkEndpoint) error {
	opts := gstack.NICOptions{Name: s.name}
	if d := s.cfg.TCP.ACKDelay; d >= 0 {
		opts.QDisc = rdma.NewACKCoalescer(link, rdma.ACKOptions{Delay: d})
	}
	if err := s.net.CreateNICWithOptions(nicID, link, opts); err != nil {
		return asError("create interface "+s.name, err)
	}
	if b, ok := link.(interface {
		BindStack(*gstack.Stack, tcpip.NICID) error
		SetHosts([]netip.Prefix)
		SetMailboxes(func(v6 bool, port uint16) rdma.Mailbox)
		datagramLink
	}); ok {
		if !s.cfg.NoExpressLane {
			s.setHosts, s.datagrams = b.SetHosts, b
			b.SetMailboxes(s.boxes.find)
		}
		return b.BindStack(s.net, nicID)
	}
	return nil
}

func (s *Stack) addLoopback() error {
	if err := s.net.CreateNICWithOptions(loopbackID, loopback.New(), gstack.NICOptions{Name: "lo"}); err != nil {
		return asError("create interface lo", err)
	}
	for _, p := range []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")} {
		if err := s.net.AddProtocolAddress(loopbackID, protocolAddress(p), gstack.AddressProperties{}); err != nil {
			return asError("add address "+p.String(), err)
		}
	}
	// As on Linux, all that is sent to an address of ours passes lo, whatever its source; lo itself has only its own.
	return asError("make lo take packets for all our addresses", s.net.SetPromiscuousMode(loopbackID, true))
}

func protocolAddress(p netip.Prefix) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol: protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   toAddress(p.Addr()),
			PrefixLen: p.Bits(),
		},
	}
}

// onLinkAlways are destinations that never need a gateway: groups, broadcast and link-local hosts.
var onLinkAlways = []string{"224.0.0.0/4", "255.255.255.255/32", "ff00::/8", "fe80::/10"}

// routeTable lists loopback, what is on the link, cfg's routes and the gateways. Netstack orders it.
func (s *Stack) routeTable() ([]tcpip.Route, error) {
	all := []Route{}
	for _, p := range onLinkAlways {
		all = append(all, Route{Destination: netip.MustParsePrefix(p)})
	}
	for _, p := range s.cfg.Addresses {
		all = append(all, Route{Destination: p.Masked()})
	}
	all = append(all, s.cfg.Routes...)
	for _, g := range s.cfg.Gateways {
		all = append(all, Route{Destination: netip.PrefixFrom(g, 0).Masked(), Gateway: g})
	}
	all = append(all, s.learned.allRoutes()...)
	table := make([]tcpip.Route, 0, len(all)+2)
	for _, p := range []string{"127.0.0.0/8", "::1/128"} {
		subnet, err := toSubnet(netip.MustParsePrefix(p))
		if err != nil {
			return nil, err
		}
		table = append(table, tcpip.Route{Destination: subnet, NIC: loopbackID})
	}
	for _, r := range all {
		subnet, err := toSubnet(r.Destination)
		if err != nil {
			return nil, fmt.Errorf("route to %s: %w", r.Destination, err)
		}
		table = append(table, tcpip.Route{Destination: subnet, Gateway: toAddress(r.Gateway), NIC: nicID, MTU: uint32(r.MTU)})
	}
	return table, nil
}

// addAddresses takes our addresses into use, all at the same time, once nobody has objected.
func (s *Stack) addAddresses(mac tcpip.LinkAddress) error {
	all := s.cfg.Addresses
	if header.IsValidUnicastEthernetAddress(mac) {
		all = append([]netip.Prefix{netip.PrefixFrom(fromAddress(header.LinkLocalAddr(mac)), 64)}, all...)
	}
	if len(all) > manyAddresses {
		s.log.Warn("many addresses make every received packet slower", "interface", s.name, "addresses", len(all))
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() { errs[i] = s.addAddress(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// addAddress probes for p and then takes it into use.
func (s *Stack) addAddress(p netip.Prefix) error {
	if p.Addr().Is4() {
		if err := s.probe(p); err != nil {
			return err
		}
	}
	// Netstack probes for IPv6 addresses itself and tells us the outcome.
	settled := newSettled()
	if err := s.net.AddProtocolAddress(nicID, protocolAddress(p), gstack.AddressProperties{Disp: settled}); err != nil {
		return asError("add address "+p.String(), err)
	}
	if err := settled.wait(s.ctx); err != nil {
		return inUse(p, "", err)
	}
	s.log.Info("address in use", "interface", s.name, "address", p.String())
	return nil
}

// probe asks, by ARP, whether another host has p's IPv4 address (RFC 5227 section 2.1.1).
func (s *Stack) probe(p netip.Prefix) error {
	results := make(chan gstack.DADResult, 1)
	how, terr := s.net.CheckDuplicateAddress(nicID, ipv4Protocol, toAddress(p.Addr()), func(r gstack.DADResult) { results <- r })
	if _, none := terr.(*tcpip.ErrNotSupported); none || how == gstack.DADDisabled {
		return nil
	}
	if terr != nil {
		return asError("probe for address "+p.String(), terr)
	}
	select {
	case r := <-results:
		return probeError(p, r)
	case <-s.ctx.Done():
		return net.ErrClosed
	}
}

func probeError(p netip.Prefix, r gstack.DADResult) error {
	switch r := r.(type) {
	case *gstack.DADDupAddrDetected:
		return inUse(p, " by "+net.HardwareAddr(r.HolderLinkAddress).String(), ErrDuplicateAddress)
	case *gstack.DADError:
		return asError("probe for address "+p.String(), r.Err)
	case *gstack.DADAborted:
		return fmt.Errorf("probe for address %s: %w", p, net.ErrClosed)
	}
	return nil
}

func inUse(p netip.Prefix, by string, err error) error {
	if !errors.Is(err, ErrDuplicateAddress) {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return fmt.Errorf("address %s is in use on this link%s: %w (choose another one, or set DuplicateDetection negative)", p, by, err)
}

// settled learns from netstack what became of an address. It implements gstack.AddressDispatcher.
type settled struct{ outcome chan error }

func newSettled() settled { return settled{make(chan error, 1)} }

// OnChanged implements gstack.AddressDispatcher.
func (s settled) OnChanged(_ gstack.AddressLifetimes, state gstack.AddressAssignmentState) {
	if state == gstack.AddressAssigned {
		s.report(nil)
	}
}

// OnRemoved implements gstack.AddressDispatcher.
func (s settled) OnRemoved(reason gstack.AddressRemovalReason) {
	if reason == gstack.AddressRemovalDADFailed {
		s.report(ErrDuplicateAddress)
		return
	}
	s.report(net.ErrClosed)
}

// report keeps the first outcome.
func (s settled) report(err error) {
	select {
	case s.outcome <- err:
	default:
	}
}

func (s settled) wait(ctx context.Context) error {
	select {
	case err := <-s.outcome:
		return err
	case <-ctx.Done():
		return net.ErrClosed
	}
}
