//go:build linux

package hoststack

import (
	"context"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// hostWorld is two stacks on the addresses of two kernels (stack.Config.Host), each in the network
// namespace that has them, on packet sockets. Their ports are different ones, so that a note tells
// them apart.
func hostWorld(t *testing.T) *world {
	w := cabledWorld(t)
	w.name = "host mode"
	server, client := w.server.(inside), w.client.(inside)
	w.server = server.onHost(t, 0)
	taken, err := client.ListenPacket("udp", netip.AddrPortFrom(w.client4, firstPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.client = client.onHost(t, 0)
	w.deaf = func(r *run) string { return r.full(server.onHost(r, 1)) }
	return w
}

// firstPort is the first of those that a stack connects from, unless it is taken.
const firstPort = 61440

// onHost opens a stack on the addresses of the namespace. backlog is TCPOptions.Backlog.
func (i inside) onHost(t testing.TB, backlog int) inside {
	t.Helper()
	st, err := enter(i, func() (*stack.Stack, error) {
		return stack.Open(context.Background(), stack.Config{Host: true,
			NIC: dv.Config{Device: cable, RxQueues: 1, TxQueues: 1},
			TCP: stack.TCPOptions{Backlog: backlog}})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return inside{i.n, netstack{st}}
}
