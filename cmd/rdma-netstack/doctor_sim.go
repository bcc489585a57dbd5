package main

import (
	"net"
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// simContact makes the software NIC the device to test, between two cables in memory.
func simContact(cfg card.Config, undo *cleanup) (card.Config, error) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return cfg, err
	}
	undo.add(nic.Close)
	near, far := wire.Pair()
	nearNetdev, farNetdev := wire.Pair()
	if err := nic.ConnectWire(near); err != nil {
		return cfg, err
	}
	if err := nic.ConnectNetdev(nearNetdev); err != nil {
		return cfg, err
	}
	useSim(&cfg.NIC.NIC, nic)
	cfg.OpenNode = cfg.NIC.Model.Kernel
	list := &listedAddresses{}
	cfg.NIC.Addresses = func() (dv.AddressList, error) { return list, nil }
	cfg.UnicastList = func() ([]net.HardwareAddr, error) { return list.macs, nil }
	cfg.LinuxAddress, cfg.NetdevMAC = netip.MustParseAddr("192.0.2.1"), nic.MAC()
	cfg.Wire, cfg.Netdev = far, arpHost{farNetdev, cfg.LinuxAddress, nic.MAC()}
	cfg.Environment = []doctor.Fact{{Name: "card",
		Value: "the software ConnectX of this program; its netdev answers ARP and nothing else"}}
	if cfg.Ask != nil {
		say := cfg.Ask
		cfg.Ask = func(what string) {
			say(what + ": done")
			nic.SetLink(!nic.Link())
		}
	}
	return cfg, nil
}

// listedAddresses holds the addresses that the software NIC's netdev, which has no e-switch, has
// been told to receive. One goroutine uses it.
type listedAddresses struct{ macs []net.HardwareAddr }

func (l *listedAddresses) Add(mac net.HardwareAddr) error {
	l.macs = append(l.macs, mac)
	return nil
}

func (l *listedAddresses) Remove(net.HardwareAddr) error { return nil }

func (l *listedAddresses) Close() error { return nil }

// arpHost represents a wire's end with a host at it that answers ARP for its address.
type arpHost struct {
	wire.Wire
	addr netip.Addr
	mac  net.HardwareAddr
}

// Start answers requests before recv sees them.
func (h arpHost) Start(recv func([]frame.Frame)) error {
	return h.Wire.Start(func(frames []frame.Frame) {
		for _, f := range frames {
			h.answer(f.Data)
		}
		recv(frames)
	})
}

// Offsets in an ARP frame (RFC 826): the sender, and the requested address.
const (
	arpSender = 22
	arpTarget = 38
	arpEnd    = 42
)

func (h arpHost) answer(ask []byte) {
	if len(ask) < arpEnd ||
		!slices.Equal(ask[:14], probe.ARPFrame(ask[6:12], h.addr, h.addr)[:14]) ||
		!slices.Equal(ask[arpTarget:arpEnd], h.addr.AsSlice()) {
		return
	}
	reply := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	reply = append(append(reply, h.mac...), h.addr.AsSlice()...)
	reply = append(reply, ask[arpSender:arpSender+10]...)
	_, _ = h.Send([]frame.Frame{{Data: probe.EtherFrame(ask[6:12], h.mac, 0x0806, reply)}})
}
