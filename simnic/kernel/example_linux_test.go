package kernel_test

import (
	"fmt"
	"log"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// A client opens the node of a software NIC as it opens /dev/infiniband/uverbs0.
func ExampleOpener() {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	node, err := kernel.Opener(nic)()
	if err != nil {
		log.Fatal(err)
	}
	ctx, err := uverbs.Open(node, uverbs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	caps := ctx.Caps()
	fmt.Println(caps.Firmware, caps.Ports, caps.CQEVersion)
	// Output: 22.43.2026 1 1
}
