package dv_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// Behind an e-switch the port receives what its netdev lists.

// onSwitch is a NIC behind an e-switch, and its configuration with the netdev's list.
func onSwitch(t *testing.T, fn simnic.Function) (*sim, dv.Config) {
	s := newSim(t, simnic.Config{Function: fn}, kernel.Config{})
	return s, dv.Config{Addresses: func() (dv.AddressList, error) {
		return s.linux.OpenPacketSocket()
	}}
}

var (
	solicited  = net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 2}
	otherGroup = net.HardwareAddr{0x01, 0x00, 0x5e, 1, 2, 3}
)

// hears is which of these frames from the wire come to d: to our MAC, to the two groups, to all,
// to a stranger.
func hears(t *testing.T, s *sim, d *dv.Device) (heard string) {
	t.Helper()
	for i, dst := range []net.HardwareAddr{ourMAC, solicited, otherGroup, broadcast, otherMAC} {
		s.wire.send(t, frame(dst, peerMAC, 0x0806, 60))
		if len(poll(d.Rx(0))) > 0 {
			heard += string("osgbx"[i])
		}
	}
	return heard
}

func TestRegistration(t *testing.T) {
	pf := simnic.Function{Kind: simnic.SwitchPF}
	vf := simnic.Function{Kind: simnic.VF}
	for _, tc := range []struct {
		name string
		fn   simnic.Function
	}{
		{"PF with SR-IOV", pf}, {"VF", vf},
		{"trusted VF", simnic.Function{Kind: simnic.VF, Trusted: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, cfg := onSwitch(t, tc.fn)
			if heard := hears(t, s, s.open(t,
				dv.Config{NIC: dv.NIC{MAC: otherMAC}})); heard != "b" {
				t.Errorf("without registration %q comes", heard)
			}
			d := s.open(t, cfg)
			for _, step := range []struct {
				groups []net.HardwareAddr
				want   string
			}{
				{nil, "ob"}, {[]net.HardwareAddr{solicited}, "osb"},
				{[]net.HardwareAddr{solicited, otherGroup, solicited}, "osgb"},
				{[]net.HardwareAddr{otherGroup}, "ogb"}, {nil, "ob"},
			} {
				if err := d.SetGroups(step.groups); err != nil {
					t.Error(err)
				}
				if heard := hears(t, s, d); heard != step.want {
					t.Errorf("with groups %v %q comes, want %q", step.groups, heard, step.want)
				}
			}
			d.SetGroups([]net.HardwareAddr{solicited})
			before := s.nic.Counters().Drops.SwitchFilter
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if err := d.SetGroups([]net.HardwareAddr{otherGroup}); err != nil {
				t.Errorf("groups of a closed device: %v", err)
			}
			for _, dst := range []net.HardwareAddr{ourMAC, solicited, otherGroup} {
				s.wire.send(t, frame(dst, peerMAC, 0x0806, 60))
			}
			if n := s.nic.Counters().Drops.SwitchFilter - before; n != 3 {
				t.Errorf("after Close the e-switch drops %d of 3 frames", n)
			}
		})
	}
}

// Many groups become all multicast: a card's list holds few.
func TestManyGroups(t *testing.T) {
	s, cfg := onSwitch(t, simnic.Function{Kind: simnic.SwitchPF})
	d := s.open(t, cfg)
	groups := []net.HardwareAddr{solicited}
	for i := range 100 {
		groups = append(groups, net.HardwareAddr{0x01, 0, 0x5e, 7, 7, byte(i)})
	}
	for _, step := range []struct {
		n    int
		want string
	}{{101, "osgb"}, {100, "osb"}, {0, "ob"}} {
		if err := d.SetGroups(groups[:step.n]); err != nil {
			t.Fatal(err)
		}
		if heard := hears(t, s, d); heard != step.want {
			t.Errorf("with %d groups %q comes, want %q", step.n, heard, step.want)
		}
	}
}

// refusingList takes what it is told not to refuse.
type refusingList struct {
	dv.AddressList
	refuse string
}

func (l refusingList) Add(mac net.HardwareAddr) error {
	if mac.String() == l.refuse {
		return unix.ENOBUFS
	}
	return l.AddressList.Add(mac)
}

// A netdev that takes no address is said to be so, and the device works as without an e-switch;
// a group that is refused does not keep others out.
func TestRegistrationRefused(t *testing.T) {
	for _, tc := range []struct {
		name, refuse, heard string
	}{
		{"no list", "all", "b"}, {"our MAC", ourMAC.String(), "b"},
		{"a group", solicited.String(), "ogb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, cfg := onSwitch(t, simnic.Function{Kind: simnic.VF})
			open := cfg.Addresses
			cfg.Addresses = func() (dv.AddressList, error) {
				if tc.refuse == "all" {
					return nil, unix.EPERM
				}
				list, err := open()
				return refusingList{list, tc.refuse}, err
			}
			var log strings.Builder
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			d := s.open(t, cfg)
			err := d.SetGroups([]net.HardwareAddr{solicited, otherGroup})
			if heard := hears(t, s, d); heard != tc.heard {
				t.Errorf("%q comes, want %q", heard, tc.heard)
			}
			said := fmt.Sprint(err, log.String())
			if tc.name == "a group" != errors.Is(err, unix.ENOBUFS) ||
				tc.name != "a group" &&
					!strings.Contains(said, "the port's netdev does not take our addresses") {
				t.Errorf("said: %s", said)
			}
		})
	}
}

// Spoof check on: what is sent from a MAC of our own is dropped and counted; from the function's
// own it leaves.
func TestSpoofCheckOfFunction(t *testing.T) {
	for mac, want := range map[string]uint64{ourMAC.String(): 1, netdevMAC.String(): 0} {
		s, cfg := onSwitch(t, simnic.Function{Kind: simnic.VF, SpoofCheck: true})
		cfg.MAC, _ = net.ParseMAC(mac)
		cfg.Steering.AllowNetdevMAC = true
		d := s.open(t, cfg)
		q := d.Tx(0)
		q.Lock()
		err := q.Post(&dv.TxPacket{Bufs: [][]byte{frame(peerMAC, cfg.MAC, 0x0800, 60)}})
		q.Flush()
		q.Unlock()
		if drops := s.nic.Counters().Drops.Spoofed; err != nil || drops != want ||
			len(s.wire.drain()) != 1-int(want) {
			t.Errorf("from %s: %d dropped, want %d; %v", mac, drops, want, err)
		}
	}
}
