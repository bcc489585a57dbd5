package stack_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
)

// connect makes a connected pair for nettest over a cable with faults.
func connect(t *testing.T, faults netpair.Faults) nettest.MakePipe {
	return func() (c1, c2 net.Conn, stop func(), err error) {
		server, client := netpair.New(t, faults, netpair.Both(quick))
		l, err := server.Listen("tcp", ":0")
		if err != nil {
			return nil, nil, nil, err
		}
		to := net.JoinHostPort(netpair.ServerIP4.String(), port(l.Addr()))
		if c1, err = redial(client, to); err != nil {
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
}

func port(a net.Addr) string {
	_, p, _ := net.SplitHostPort(a.String())
	return p
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, connect(t, netpair.Faults{}))
}

func TestConnWithLoss(t *testing.T) {
	need.Long(t, "retransmission timeouts in real time, 14 s")
	nettest.TestConn(t, connect(t, netpair.Faults{Loss: 0.05, Reorder: 0.02,
		Duplicate: 0.02, Seed: netpair.Seed(t)}))
}
