package stack_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Two software NICs on one wire take the place of hardware, through all layers. What differs from a
// ConnectX is
// [dv.NIC.Model], the device node to open, and the facts that Linux would tell of the port.
func ExampleOpen_softwareNIC() {
	near, far := wire.Pair()
	open := func(w wire.Wire, address string) (*simnic.NIC, *stack.Stack) {
		nic, err := simnic.New(simnic.Config{})
		check(err)
		check(nic.ConnectWire(w))
		st, err := stack.Open(context.Background(), stack.Config{
			NIC: dv.NIC{
				Model: dv.Model{
					Kernel: kernel.Opener(nic),
					Facts:  dv.PortFacts{Name: nic.Config().Name, MAC: nic.MAC(), MTU: nic.MTU()},
				},
			},
			Addresses:  []netip.Prefix{netip.MustParsePrefix(address)},
			Addressing: stack.AddressOptions{DuplicateDetection: -1}, // nobody else is here
		})
		check(err)
		return nic, st
	}
	nicA, server := open(near, "192.0.2.1/24")
	defer nicA.Close()
	defer server.Close()
	nicB, client := open(far, "192.0.2.2/24")
	defer nicB.Close()
	defer client.Close()

	ln, err := server.Listen("tcp", ":7")
	check(err)
	go func() {
		conn, err := ln.Accept()
		check(err)
		fmt.Fprintf(conn, "hello from %s", conn.LocalAddr())
		conn.Close()
	}()
	conn, err := client.Dial("tcp", "192.0.2.1:7")
	check(err)
	text, err := io.ReadAll(conn)
	check(err)
	fmt.Println(string(text))
	// Output: hello from 192.0.2.1:7
}
