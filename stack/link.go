package stack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// healthInterval says how often resets of queues are looked for, if anybody is to be told, and
// fragments that were dropped in host mode.
const healthInterval = time.Second

// macRetry says how long after a change of the netdev's MAC that could not be followed it is tried
// again.
const macRetry = time.Second

// watch follows the device: it acts on changes of the link, and ends the stack when the device
// fails for good.
func (s *Stack) watch() {
	defer close(s.life.watched)
	samples := s.clock.NewTimer(healthInterval)
	if s.cfg.HealthChanged == nil && s.host == nil {
		samples.Stop()
	}
	defer samples.Stop()
	for {
		select {
		case <-samples.C:
			s.health.sample(s.Devices())
			s.host.tellFragments()
			samples.Reset(healthInterval)
		case <-s.life.ctx.Done():
			return
		case <-s.host.netdevGone():
			endWithDevice(s, s.uplink.FirstInterface().Err())
			return
		case <-s.uplink.MTUChanged():
			s.mtu.follow()
		case <-s.uplink.LinkChanged():
			s.linkChanged(s.uplink.LinkUp())
		case <-s.uplink.Done():
			endWithDevice(s, s.uplink.Err())
			return
		}
	}
}

// endWithDevice ends a stack whose device has ended, which somebody else may have stopped.
func endWithDevice(s *Stack, err error) {
	if errors.Is(err, dv.ErrClosed) || errors.Is(err, packet.ErrClosed) {
		err = nil
	}
	s.end(err)
}

// uplinkConfig returns what the stack wants of its uplink.
func (s *Stack) uplinkConfig() uplink.Config {
	o := s.cfg.linkOptions()
	o.SpreadRefused = func(err error) {
		s.health.notice(reportRx, err)
		if err == nil {
			s.log.Info("the device spreads flows again", "interface", s.name)
			return
		}
		s.log.Warn("flows stay on the receive queues that they are on: the device refuses another "+
			"table, and is asked again after 1 s to 1 min", "interface", s.name, "error", err)
	}
	reportXDP := func(err error) {
		s.health.notice(reportRx, err)
		if err == nil {
			s.log.Info("every receive queue has an AF_XDP socket", "interface", s.name)
			return
		}
		s.log.Warn("frames come by packet sockets, not AF_XDP", "interface", s.name, "error", err)
	}
	u, nic := s.cfg.Uplink, s.health.dumped(s.cfg.driverConfig(), s.addrs.AnnounceLater)
	return uplink.Config{NIC: nic, Backend: u.Backend, XDP: u.XDP,
		Successor: s.cfg.Predecessor != nil, XDPReport: reportXDP,
		Fallback: u.Fallback, MaxOutage: u.MaxOutage, GracePeriod: u.GracePeriod,
		OpenInterface: u.OpenInterface, Options: o, Ended: s.life.ctx,
		HardwareAddr: s.HardwareAddr, UseDevice: s.handover.UseDevice, Changed: s.backendChanged,
		Logger: s.log, Clock: s.clock, Bond: s.cfg.bond}
}

// ZeroCopySend has devices that stacks of this process open from now on send what programs write
// to TCP in pieces of more than 32 KiB from where netstack keeps it until it is acknowledged,
// instead of copying it once more. Netstack's large buffers lie in 16 MiB of the process's own
// then, for good, which each such device may read and not write; what finds no room there is
// copied, as before. Call it before there are stacks: it stores to a variable of netstack's that
// they read.
//
// An error says what of this version of gVisor's is not as expected: everything is copied then. A
// device that may lock less memory has less of it, or none: [dv.Device.SendMemory], the health of
// tx and a line of the log say so.
func ZeroCopySend() error { return rdma.UseSendMemory() }

// SendMemoryStats holds what the memory that ZeroCopySend uses counts; package link/rdma says what.
type SendMemoryStats = rdma.SendMemoryStats

// SendMemory returns the counters of the memory that ZeroCopySend uses; the zero value without it.
func SendMemory() SendMemoryStats { return rdma.SendMemoryUsed() }

// linkChanged makes the stack known on a link that is there again, which may be another one than
// before.
func (s *Stack) linkChanged(up bool) {
	if !up {
		s.health.report(reportLink, errLinkDown)
		s.log.Warn("the link is down", "interface", s.name)
		return
	}
	s.log.Warn("the link is up", "interface", s.name)
	s.neighbours.Forget()
	s.linkIsUp()
}

// linkIsUp makes the stack known on a link that carries frames again, and has what was lost
// repeated.
func (s *Stack) linkIsUp() {
	s.health.report(reportLink, nil)
	s.conns.restartSlowStart()
	s.neighbours.AskAgain()
	if s.link != nil {
		s.link.Repeat()
	}
	s.addrs.LinkUp()
}

// Announce tells every neighbour that our addresses are at our hardware address: by gratuitous ARP
// (RFC 5227 section 2.3) and unsolicited neighbour advertisements (RFC 4861 section 7.2.6). It is
// done at start, when the device's link has come up again, and when a send queue was replaced; call
// it when an address has moved here from another host.
func (s *Stack) Announce() { s.addrs.AnnounceAll() }

// backendChanged acts on what has become of the device.
func (s *Stack) backendChanged(c failover.Change) {
	if c.Rerouted {
		s.addrs.AnnounceNow()
		if s.link != nil {
			s.link.Repeat()
		}
		return
	}
	switch c.State {
	case failover.Lost:
		if s.host != nil {
			s.host.HideIfGone()
		}
		s.health.report(reportDevice, c.Cause)
		return
	case failover.Up:
		s.health.report(reportDevice, nil)
	}
	switch {
	case c.Expired:
		s.outage.begin()
		s.health.report(reportStack, syscall.ENETDOWN)
		s.conns.abortAll()
	case c.Backend != rdma.BackendNone:
		s.outage.end()
		s.health.report(reportStack, nil)
	}
	s.mtu.follow()
	if s.host != nil {
		s.host.FollowAgain() // the kernel's sockets get the datagrams that rings do not take
	}
	if c.LinkUp {
		s.linkIsUp()
	} else {
		s.health.report(reportLink, errLinkDown)
	}
}

// macFollower keeps the link's MAC address that of the netdev, for a stack that has that: on the
// host's own addresses, or with NIC.Steering.AllowNetdevMAC. One goroutine uses it.
type macFollower struct {
	s       *Stack
	refused string           // why the last change could not be followed; "": there is none
	source  uplink.MACSource // of the device; nil on the host's own addresses
}

// followNetdev compares the netdev's MAC with the link's whenever something has changed.
func (f *macFollower) followNetdev() {
	defer f.source.Close()
	late := f.s.clock.NewTimer(time.Hour)
	defer late.Stop()
	for {
		if name, mac, ok := f.source.Netdev(); ok {
			if wait := f.follow(name, mac); wait > 0 {
				late.Reset(wait)
			}
		}
		select {
		case <-f.s.life.ctx.Done():
			return
		case <-f.source.Changed():
		case <-late.C:
		}
		if f.s.clock.Sleep(f.s.life.ctx, hostmode.FollowPause) != nil {
			return
		}
	}
}

// follow makes mac, which the netdev has, the link's, and says when to try again; 0: it is done.
func (f *macFollower) follow(netdev string, mac net.HardwareAddr) (again time.Duration) {
	s := f.s
	before := s.HardwareAddr()
	if len(mac) != 6 || bytes.Equal(mac, before) {
		f.settle()
		return 0
	}
	if err := f.change(before, mac); err != nil {
		if s.life.ctx.Err() != nil {
			return 0
		}
		err = fmt.Errorf("netdev %s has the MAC %v now, which we cannot follow, and frames for it "+
			"do not come: %w", netdev, mac, err)
		s.health.report(reportLink, err)
		if f.refused != err.Error() {
			f.refused = err.Error()
			s.log.Error("the MAC of the netdev has changed", "interface", s.name, "error", err)
		}
		return macRetry
	}
	s.log.Warn("the MAC of the netdev has changed, and ours with it", "interface", s.name,
		"netdev", netdev, "before", before.String(), "now", mac.String())
	f.settle()
	s.addrs.AnnounceTwice()
	if s.link != nil {
		s.link.Repeat()
	}
	return 0
}

// settle ends what a change that could not be followed has made known.
func (f *macFollower) settle() {
	if f.refused == "" {
		return
	}
	f.refused = ""
	if f.s.uplink.LinkUp() {
		f.s.health.report(reportLink, nil)
	}
}

// change gives packet sockets, devices, link and netstack another MAC, or none of them.
func (f *macFollower) change(before, mac net.HardwareAddr) error {
	var port packet.Netdev
	if f.s.host != nil {
		port = f.s.host.Sockets()
		if err := port.SetMAC(mac); err != nil {
			return err
		}
	}
	if err := f.s.link.SetMAC(mac); err != nil {
		if port != nil {
			err = errors.Join(err, port.SetMAC(before))
		}
		return err
	}
	f.s.addrs.UseMAC(tcpip.LinkAddress(mac))
	return nil
}

// startMACFollower follows the netdev of the device, which is in the network namespace of the
// calling thread, until the stack ends. On the host's own addresses there is a goroutine that does
// so anyway, and a MAC of our own never changes.
func startMACFollower(s *Stack) {
	source, err := s.uplink.WatchMAC()
	if err != nil {
		s.log.Warn("changes of the netdev's MAC are not followed", "error", err)
	}
	if source == nil {
		return
	}
	f := &macFollower{s: s, source: source}
	s.life.background.Go(f.followNetdev)
}
