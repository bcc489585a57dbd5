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
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// detectionProbes are spread over Config.DuplicateDetection.
	detectionProbes = 3
	// detectionSlack is what a detection may take beyond its time.
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
func (s *Stack) disableDetection(nic tcpip.NICID) {
	for _, p := range []tcpip.NetworkProtocolNumber{header.ARPProtocolNumber, ipv6Protocol} {
		if ep, err := s.net.GetNetworkEndpoint(nic, p); err == nil {
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
func (s *Stack) addAddresses(ctx context.Context, mac tcpip.LinkAddress) error {
	all := s.cfg.Addresses
	if len(all) >= manyAddresses {
		s.log.Warn("many addresses make every received packet slower", "interface",
			s.name, "addresses", len(all))
	}
	errs := make([]error, len(all))
	var linkLocal error
	var wg sync.WaitGroup
	if header.IsValidUnicastEthernetAddress(mac) && s.host == nil {
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
	if len(all) == 0 && !s.cfg.dynamic() || s.cfg.DHCPv6 || s.closed.Load() {
		return linkLocal
	}
	s.log.Warn("there is no link-local address, and no IPv6 but for the addresses given",
		"interface", s.name, "error", linkLocal)
	return nil
}

// addAddress probes for p and then takes it into use.
func (s *Stack) addAddress(ctx context.Context, p netip.Prefix) error {
	turn := make(chan struct{})
	close(turn)
	return s.addInTurn(ctx, p, turn, func() {})
}

// addInTurn is addAddress that adds p when turn is closed and calls pass once it has.
func (s *Stack) addInTurn(ctx context.Context, p netip.Prefix,
	turn <-chan struct{}, pass func()) error {
	// a probe that comes back starts another round
	limit := detectionSlack + 2*max(s.cfg.DuplicateDetection, 0)
	ctx, cancel := s.clock.WithTimeoutCause(ctx, limit,
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
	if err := s.net.AddProtocolAddress(nicID, protocolAddress(p),
		gstack.AddressProperties{Disp: outcome}); err != nil {
		return asError("add address "+p.String(), err)
	}
	pass()
	if err := outcome.wait(ctx); err != nil {
		s.net.RemoveAddress(nicID, toAddress(p.Addr())) // which netstack would keep, undecided
		return s.probeError(p, err)
	}
	s.log.Info("address in use", "interface", s.name, "address", p.String())
	return nil
}

// probe asks, by ARP, whether another host has p's IPv4 address (RFC 5227 section 2.1.1).
func (s *Stack) probe(ctx context.Context, p netip.Prefix) error {
	outcome := newAddressOutcome()
	how, terr := s.net.CheckDuplicateAddress(nicID, ipv4Protocol, toAddress(p.Addr()),
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

// dadError is what the result of a detection means; nil is that nobody has the address.
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

// probeError is the error of an address that cannot be used.
func (s *Stack) probeError(p netip.Prefix, err error) error {
	if !errors.Is(err, ErrDuplicateAddress) {
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
