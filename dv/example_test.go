package dv_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// A device is opened, a frame sent and received, and the device closed. On
// hardware, Config{Device: "mlx5_0"} is all that differs.
func Example() {
	near, far := wire.Pair()
	card, peer := open("mlx5_sim0", near), open("mlx5_sim1", far)
	defer card.Close()
	defer peer.Close()

	frame := make([]byte, 64)
	copy(frame, peer.MAC())
	copy(frame[6:], card.MAC())
	copy(frame[12:], "\x88\xb5hello")

	tx := card.Tx(0)
	if err := tx.Post(&dv.TxPacket{Bufs: [][]byte{frame}}); err != nil {
		log.Fatal(err)
	}
	tx.Flush()   // one doorbell
	tx.Reclaim() // what is sent frees its room

	rx := peer.Rx(0)
	packets := make([]dv.Packet, 32)
	n := rx.Poll(packets)
	for _, p := range packets[:n] {
		fmt.Printf("%d bytes: %s\n", len(p.Data), p.Data[14:19])
	}
	rx.Release(packets[:n])
	// Output: 64 bytes: hello
}

// The loop of a receive queue's owner: poll while there is something, and
// sleep without missing a frame while there is not.
func ExampleRxQueue_Wait() {
	near, far := wire.Pair()
	card, peer := open("mlx5_sim0", near), open("mlx5_sim1", far)
	defer card.Close()

	owner := make(chan struct{})
	go func() {
		defer close(owner)
		q, packets := peer.Rx(0), make([]dv.Packet, 32)
		for {
			n := q.Poll(packets)
			if n == 0 {
				q.Arm()
				if n = q.Poll(packets); n == 0 && q.Wait() != nil {
					return // the device is stopped
				}
			}
			for _, p := range packets[:n] {
				fmt.Println(len(p.Data), "bytes")
				peer.Stop()
			}
			q.Release(packets[:n])
		}
	}()

	frame := make([]byte, 100)
	copy(frame, peer.MAC())
	card.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{frame}})
	card.Tx(0).Flush()
	<-owner // the owner is gone: now the memory may go
	peer.Close()
	// Output: 100 bytes
}

// open makes a software NIC at the end of a wire and opens it.
func open(name string, wire wire.Wire) *dv.Device {
	nic, err := simnic.New(simnic.Config{Name: name})
	if err != nil {
		log.Fatal(err)
	}
	if err := nic.ConnectWire(wire); err != nil {
		log.Fatal(err)
	}
	d, err := dv.Open(context.Background(), dv.Config{
		NIC: dv.NIC{
			Model: dv.Model{
				Kernel: kernel.Opener(nic),
				Facts:  dv.PortFacts{Name: name, MAC: nic.MAC()},
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	return d
}
