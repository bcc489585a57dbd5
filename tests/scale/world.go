package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/dv/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Addresses of the two ends.
var (
	serverPrefix = netip.MustParsePrefix("192.0.2.1/24")
	clientPrefix = netip.MustParsePrefix("192.0.2.2/24")
)

// host is a stack on a software NIC.
type host struct {
	*stack.Stack
	nic *simnic.NIC
}

// newHost owns the wire, also when it fails.
func newHost(w wire.Wire, at netip.Prefix, queues int, mode rdma.RxMode,
	spread rdma.Spread) (*host, error) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := nic.ConnectWire(w); err != nil {
		return nil, errors.Join(err, w.Close(), nic.Close())
	}
	s, err := stack.Open(context.Background(), stack.Config{
		NIC: dv.Config{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim", Netdev: "sim0", MAC: nic.MAC(), MTU: nic.MTU()},
			MAC:    net.HardwareAddr{0x02, 0, 0x5e, 0, 0x53, at.Addr().As4()[3]},
			// as in "serve --device sim"
			RxQueues: queues, DelayDrop: true,
		},
		Addresses: []netip.Prefix{at}, DuplicateDetection: -1, NoAnnounce: true, RxMode: mode,
		Spread: spread,
	})
	if err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	return &host{s, nic}, nil
}

func (h *host) Close() error { return errors.Join(h.Stack.Close(), h.nic.Close()) }

// world is a server, a client and the cable between them, which carries unsegmented packets.
type world struct {
	server, client *host
	services       *services
	idle           []net.Conn
}

func newWorld(queues int, mode rdma.RxMode, spread rdma.Spread) (*world, error) {
	a, b := wire.PairCarrying(frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6)
	server, err := newHost(a, serverPrefix, queues, mode, spread)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	w := &world{server: server}
	if w.client, err = newHost(b, clientPrefix, queues, mode, spread); err != nil {
		return nil, errors.Join(err, w.close())
	}
	if w.services, err = startServices(server); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close ends all that w has.
func (w *world) close() (err error) {
	for _, c := range w.idle {
		c.Close()
	}
	if w.client != nil {
		err = w.client.Close()
	}
	err = errors.Join(err, w.server.Close())
	if w.services != nil {
		w.services.running.Wait()
	}
	return err
}

// connsPerPort leaves room among the client's ephemeral ports.
const connsPerPort = 20000

// openIdle opens n connections that carry nothing.
func (w *world) openIdle(n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range n {
		at := w.address(portIdle + i/connsPerPort)
		c, err := w.client.DialContext(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("open idle connection %d of %d: %w", i+1, n, err)
		}
		w.idle = append(w.idle, c)
	}
	return nil
}

// address is that of a port of the server.
func (w *world) address(port int) string {
	return netip.AddrPortFrom(serverPrefix.Addr(), uint16(port)).String()
}
