package stack_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// connect makes a connected pair for nettest; stop closes all of it.
func connect(server, client *stack.Stack) (c1, c2 net.Conn, stop func(), err error) {
	l, err := server.Listen("tcp", ":0")
	if err != nil {
		return nil, nil, nil, err
	}
	if c1, err = redial(client, at(netpair.ServerIP4, l.Addr())); err != nil {
		return nil, nil, nil, err
	}
	c2, err = l.Accept()
	return c1, c2, func() {
		c1.Close()
		c2.Close()
		l.Close()
		server.Close()
		client.Close()
	}, err
}

func port(a net.Addr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return p
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		return connect(netpair.New(t, netpair.Faults{}, netpair.Both(quick)))
	})
}

func TestConnWithLoss(t *testing.T) {
	need.Long(t, "retransmission timeouts in real time, 14 s")
	bad := wire.FaultConfig{Drop: 0.05, Reorder: 0.02, Duplicate: 0.02, Seed: netpair.Seed(t)}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		j := join(t, cable{queues: 1, faults: bad})
		c1, c2, closeAll, err := connect(j.server, j.client)
		rest := j.mustMove(t, moving.Limit)
		return c1, c2, func() { rest(); closeAll() }, err
	})
}
