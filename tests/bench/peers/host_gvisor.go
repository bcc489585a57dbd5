package main

import (
	"runtime"

	"gvisor.dev/gvisor/pkg/tcpip/link/qdisc/fifo"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/plain"
)

// openGvisor makes the server's end, netstack as its users run it, on a link to the kernel.
func openGvisor(e end) (host, error) {
	link, err := openLink(e)
	if err != nil {
		return nil, err
	}
	var opts gstack.NICOptions
	if e.FIFO {
		opts.QDisc = fifo.New(link, runtime.GOMAXPROCS(0), 1000) // as in runsc
	}
	return plain.New(link, serverPrefix, opts)
}
