package card

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// answering is the netdev's end of a wire: it answers ARP for its address, from bytes.
type answering struct {
	wire.Wire
	ip  netip.Addr
	mac net.HardwareAddr
}

// Start has ARP requests answered (RFC 826) before anybody else sees them.
func (a answering) Start(recv func([]frame.Frame)) error {
	return a.Wire.Start(func(frames []frame.Frame) {
		for _, f := range frames {
			b := f.Data
			if len(b) < 42 || b[12] != 0x08 || b[13] != 0x06 || b[21] != 1 ||
				!bytes.Equal(b[38:42], a.ip.AsSlice()) {
				continue
			}
			reply := make([]byte, 60)
			copy(reply, b[6:12])
			copy(reply[6:], a.mac)
			copy(reply[12:], []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2})
			copy(reply[22:], a.mac)
			copy(reply[28:], a.ip.AsSlice())
			copy(reply[32:], b[22:32])
			_, _ = a.Send([]frame.Frame{{Data: reply}}) // the check sees that none comes
		}
		recv(frames)
	})
}

// addresses lists those of the model's netdev.
type addresses struct{ macs []net.HardwareAddr }

func (l *addresses) Add(mac net.HardwareAddr) error {
	l.macs = append(l.macs, mac)
	return nil
}

func (l *addresses) Remove(net.HardwareAddr) error { return nil }

func (l *addresses) Close() error { return nil }

// cardOf returns the card of the model with the PCI device id of a record.
func cardOf(r *doctor.Record) (simnic.Card, error) {
	for _, c := range simnic.Cards() {
		id := r.Capabilities["PartID"]
		if id == fmt.Sprint(c.DeviceID) || id == fmt.Sprint(c.VirtualID) {
			return c, nil
		}
	}
	return simnic.Card{}, fmt.Errorf("the model has no card with the part id %q",
		r.Capabilities["PartID"])
}

// contact runs the first contact on a card of the model.
func contact(t *testing.T, cfg simnic.Config) doctor.Report {
	t.Helper()
	nic, err := simnic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	nearNetdev, farNetdev := wire.Pair()
	if err := nic.ConnectWire(near); err != nil {
		t.Fatal(err)
	}
	if err := nic.ConnectNetdev(nearNetdev); err != nil {
		t.Fatal(err)
	}
	host, list := kernel.New(nic, kernel.Config{}), &addresses{}
	ip := netip.MustParseAddr("192.0.2.1")
	report := card.Run(t.Context(), card.Config{
		NIC: dv.Config{NIC: dv.NIC{Model: dv.Model{Kernel: host.OpenNode,
			Facts: dv.PortFacts{Name: nic.Config().Name, Netdev: nic.Config().Netdev,
				MAC: nic.MAC()}}},
			Addresses: func() (dv.AddressList, error) { return list, nil }},
		OpenNode: host.OpenNode, Wire: far, Netdev: answering{farNetdev, ip, nic.MAC()},
		NetdevMAC: nic.MAC(), LinuxAddress: ip,
		UnicastList: func() ([]net.HardwareAddr, error) { return list.macs, nil },
	})
	if err := nic.Close(); err != nil {
		t.Error(err)
	}
	return report
}
