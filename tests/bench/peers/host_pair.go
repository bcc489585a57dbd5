package main

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/plain"
)

// openPair makes both ends in this process.
func openPair(e end) (server, client host, err error) {
	switch e.Link {
	case linkSim:
		return pairOurs(e)
	case linkPipe:
		a, b := pipe.New("", "", 1500)
		return pairGvisor(a, b)
	case linkInline:
		a, b := plain.Pair()
		return pairGvisor(a, b)
	}
	return nil, nil, fmt.Errorf("no pair of %q", e.Link)
}

func pairOurs(e end) (host, host, error) {
	a, b := wire.Pair()
	if e.Carry {
		a, b = wire.PairCarrying(frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6)
	}
	server, err := newOurs(e, a, serverPrefix, serverMAC)
	if err != nil {
		return nil, nil, err
	}
	client, err := newOurs(e, b, clientPrefix, clientMAC)
	if err != nil {
		return nil, nil, err
	}
	return server, client, nil
}

func pairGvisor(a, b gstack.LinkEndpoint) (host, host, error) {
	server, err := plain.New(a, serverPrefix, gstack.NICOptions{})
	if err != nil {
		return nil, nil, err
	}
	client, err := plain.New(b, clientPrefix, gstack.NICOptions{})
	if err != nil {
		return nil, nil, err
	}
	return server, client, nil
}
