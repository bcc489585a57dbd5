package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/plain"
)

// Addresses of the two ends.
var (
	serverPrefix = netip.MustParsePrefix("192.0.2.1/24")
	clientPrefix = netip.MustParsePrefix("192.0.2.2/24")
)

// host is one end: a stack with sockets.
type host interface {
	Listen(port int) (net.Listener, error)
	ListenUDP(port int) (net.PacketConn, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	Close() error
}

// world is a server, a client and what joins them.
type world struct {
	server, client host
	services       *services
	idle           []net.Conn
}

// newWorld opens the stacks that c asks for.
func newWorld(c cell) (*world, error) {
	w := &world{}
	if err := c.openHosts(w); err != nil {
		return nil, err
	}
	var err error
	if w.services, err = startServices(w.server); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// Stacks of a row.
const (
	stackOurs    = "ours"
	stackCeiling = "ceiling" // netstack alone, the two joined by calls
)

// openHosts sets both ends of w.
func (c cell) openHosts(w *world) (err error) {
	if c.Stack == stackCeiling {
		a, b := plain.Pair()
		var err1, err2 error
		w.server, err1 = plain.New(a, serverPrefix, gstack.NICOptions{})
		w.client, err2 = plain.New(b, clientPrefix, gstack.NICOptions{})
		return errors.Join(err1, err2)
	}
	// the cable carries unsegmented packets
	a, b := wire.PairCarrying(frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6)
	if w.server, err = newOurs(a, serverPrefix, c); err != nil {
		return errors.Join(err, b.Close())
	}
	if w.client, err = newOurs(b, clientPrefix, c); err != nil {
		return errors.Join(err, w.server.Close())
	}
	return nil
}

// close ends all that w has.
func (w *world) close() (err error) {
	for _, c := range w.idle {
		c.Close()
	}
	err = errors.Join(w.client.Close(), w.server.Close())
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
		c, err := w.client.Dial(ctx, "tcp", at)
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
