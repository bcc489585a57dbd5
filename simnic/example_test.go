package simnic_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// A NIC without a driver: what its netdev port sends leaves by the wire, and what
// comes from the wire for its MAC reaches the netdev port.
func Example() {
	nic, err := simnic.New(simnic.Config{MAC: []byte{2, 0, 0, 0, 0, 1}})
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	cable, far := wire.Pair()
	netdev, host := wire.Pair()
	err = errors.Join(nic.ConnectWire(cable), nic.ConnectNetdev(netdev),
		far.Start(func(frames []frame.Frame) { fmt.Println("wire:", len(frames), "frame") }),
		host.Start(func(frames []frame.Frame) { fmt.Println("netdev:", len(frames), "frame") }))
	if err != nil {
		log.Fatal(err)
	}
	request := make([]byte, frame.MinFrame)
	copy(request, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	reply := make([]byte, frame.MinFrame)
	copy(reply, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2})
	if _, err := host.Send([]frame.Frame{{Data: request}}); err != nil {
		log.Fatal(err)
	}
	if _, err := far.Send([]frame.Frame{{Data: reply}}); err != nil {
		log.Fatal(err)
	}
	c := nic.Counters()
	fmt.Println(c.Wire.TxPackets, c.Wire.RxPackets, c.Check())
	// Output:
	// wire: 1 frame
	// netdev: 1 frame
	// 1 1 <nil>
}
