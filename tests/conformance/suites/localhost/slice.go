//go:build linux

package localhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/unmodified"
)

// slice holds a stack on a NIC of its own, and what package net asks for sockets on it.
type slice struct {
	nic     *simnic.NIC
	stack   *stack.Stack
	program *unmodified.Program
	v4, v6  netip.Addr
	sockets int // open ones; guarded by Host.mu
}

// openSlice makes the slice with a number from 1 on, which its addresses end in.
func openSlice(ctx context.Context, number int, port wire.Wire) (*slice, error) {
	a4, a6 := subnet4.Addr().As4(), subnet6.Addr().As16()
	a4[3], a6[15] = byte(number), byte(number)
	s := &slice{v4: netip.AddrFrom4(a4), v6: netip.AddrFrom16(a6)}
	var err error
	if s.nic, err = simnic.New(simnic.Config{Seed: uint64(number)}); err != nil {
		return nil, err
	}
	if err := s.nic.ConnectWire(port); err != nil {
		return nil, errors.Join(err, s.nic.Close())
	}
	cfg := stack.Config{
		Name: fmt.Sprintf("slice%d", number),
		NIC: dv.NIC{RxQueues: 1, TxQueues: 1, Model: dv.Model{Kernel: kernel.Opener(s.nic),
			Facts: dv.PortFacts{Name: "sim", MAC: s.nic.MAC(), MTU: s.nic.MTU()}}},
		Addresses: []netip.Prefix{netip.PrefixFrom(s.v4, subnet4.Bits()),
			netip.PrefixFrom(s.v6, subnet6.Bits())},
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
	}
	if s.stack, err = stack.Open(ctx, cfg); err != nil {
		return nil, errors.Join(err, s.nic.Close())
	}
	s.program = unmodified.For(s.stack, &unmodified.Config{NoLocalhost: true},
		slog.New(slog.DiscardHandler))
	return s, nil
}

func (s *slice) close() error { return errors.Join(s.stack.Close(), s.nic.Close()) }

// address returns that of one version of IP.
func (s *slice) address(v6 bool) netip.Addr {
	if v6 {
		return s.v6
	}
	return s.v4
}
