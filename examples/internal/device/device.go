// Package device is what the examples share: the choice between a ConnectX and a software one.
package device

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

const (
	// Address is what the examples serve on by default, from RFC 5737.
	Address = "192.0.2.10/24"
	// Help describes the flag -device.
	Help = "RDMA device, or sim: a software NIC on the TAP interface slice0 (root)"
)

// TAP is the interface of the software NIC. Linux has the address 192.0.2.1 there.
const TAP = "slice0"

// Config returns the configuration of the named RDMA device. "sim" is a software ConnectX, whose
// wire is a TAP interface of the calling thread's network namespace. The caller calls done after
// the stack is closed.
func Config(name string) (cfg dv.NIC, done func() error, err error) {
	if name != "sim" {
		return dv.NIC{Device: name}, func() error { return nil }, nil
	}
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return dv.NIC{}, nil, fmt.Errorf("make the software NIC: %w", err)
	}
	if err := connect(nic); err != nil {
		return dv.NIC{}, nil, errors.Join(err, nic.Close())
	}
	facts := dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()}
	return dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic), Facts: facts},
		Rings: dv.Rings{DelayDrop: true}}, nic.Close, nil
}

// connect makes the TAP interface and connects the NIC's port to it.
func connect(nic *simnic.NIC) error {
	tap, err := wire.OpenTAP(TAP)
	if err != nil {
		return err
	}
	linux := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}
	err = lab.Up(TAP, lab.Setup{MTU: nic.MTU(), Addresses: linux})
	if err == nil {
		err = nic.ConnectWire(tap)
	}
	if err != nil {
		return errors.Join(err, tap.Close())
	}
	return nil
}
