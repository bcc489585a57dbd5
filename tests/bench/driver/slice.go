package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// slice is a stack on a software NIC of its own.
type slice struct {
	*stack.Stack
	nic  *simnic.NIC
	dev  *dv.Device
	link *rdma.Endpoint
}

// newSlice connects a NIC to wire and puts a stack on it. The slice owns the wire, also when
// newSlice fails.
func newSlice(wire wire.Wire, at netip.Prefix, opts rdma.Options) (*slice, error) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the software NIC: %w", err), wire.Close())
	}
	s := &slice{nic: nic}
	if err := nic.ConnectWire(wire); err != nil {
		return nil, errors.Join(err, wire.Close(), s.close())
	}
	mac := net.HardwareAddr{0x02, 0, 0x5e, 0, 0x53, at.Addr().As4()[3]}
	if s.dev, err = dv.Open(context.Background(), dv.Config{
		NIC: dv.NIC{
			MAC: mac,
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()},
			},
			Rings: dv.Rings{DelayDrop: true},
		}, // as in "serve --device sim"
	}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.link, err = rdma.New(s.dev, opts); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.Stack, err = stack.New(s.link, stack.Config{Addresses: []netip.Prefix{at},
		Addressing: stack.AddressOptions{DuplicateDetection: -1}}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close closes what s has opened.
func (s *slice) close() error {
	var errs []error
	if s.Stack != nil {
		errs = append(errs, s.Stack.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	return errors.Join(append(errs, s.nic.Close())...)
}
