package stack

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/link/uplink"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// macRetry says how long after a change of the netdev's MAC that could not be followed it is tried
// again.
const macRetry = time.Second

// macFollower keeps the link's MAC address that of the netdev, for a stack that has that: on the
// host's own addresses, or with NIC.Steering.AllowNetdevMAC. One goroutine uses it.
type macFollower struct {
	s       *Stack
	refused string           // why the last change could not be followed; "": there is none
	source  uplink.MACSource // of the device; nil on the host's own addresses
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
