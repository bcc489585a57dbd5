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

// ours is a stack on a software NIC.
type ours struct {
	stack *stack.Stack
	nic   *simnic.NIC
}

// newOurs owns the wire, also when it fails.
func newOurs(w wire.Wire, at netip.Prefix, c cell) (*ours, error) {
	var mode rdma.RxMode
	var spread rdma.Spread
	if err := errors.Join(mode.UnmarshalText([]byte(c.Mode)),
		spread.UnmarshalText([]byte(c.Spread))); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := nic.ConnectWire(w); err != nil {
		return nil, errors.Join(err, w.Close(), nic.Close())
	}
	s, err := stack.Open(context.Background(), stack.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: "sim", Netdev: "sim0", MAC: nic.MAC(), MTU: nic.MTU()},
			},
			MAC: net.HardwareAddr{0x02, 0, 0x5e, 0, 0x53, at.Addr().As4()[3]},
			// as in "serve --device sim"
			RxQueues: c.Queues, Rings: dv.Rings{DelayDrop: true},
		},
		Addresses: []netip.Prefix{at}, Addressing: stack.AddressOptions{DuplicateDetection: -1,
			NoAnnounce: true}, Uplink: stack.UplinkOptions{RxMode: mode, Spread: spread},
	})
	if err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	return &ours{s, nic}, nil
}

func (h *ours) Listen(port int) (net.Listener, error) {
	return h.stack.Listen("tcp", fmt.Sprintf(":%d", port))
}

func (h *ours) ListenUDP(port int) (net.PacketConn, error) {
	return h.stack.ListenPacket("udp4", fmt.Sprintf(":%d", port))
}

func (h *ours) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.stack.DialContext(ctx, network, address)
}

func (h *ours) Close() error { return errors.Join(h.stack.Close(), h.nic.Close()) }
