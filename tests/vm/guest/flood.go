//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// flood is the subcommand: it opens a slice, fills every send ring, and closes at once, so that all
// rings still contain work when they are destroyed. It repeats that the given number of times. With
// -settle it waits for the work to complete before it closes.
func flood(args []string) error {
	fs := flag.NewFlagSet("flood", flag.ExitOnError)
	mac, rounds := fs.String("mac", "", ""), fs.Int("rounds", 1, "")
	settle := fs.Bool("settle", false, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	src, err := net.ParseMAC(*mac)
	if err != nil {
		return err
	}
	posted, multi := 0, uint64(0)
	for range *rounds {
		d, err := dv.Open(context.Background(), dv.Config{NIC: dv.NIC{Device: "mlx5_0", MAC: src,
			RxQueues: 2, TxQueues: 2}})
		if err != nil {
			return err
		}
		n, err := fill(d)
		if *settle && err == nil {
			settled(d)
		}
		if err := errors.Join(err, d.Close()); err != nil {
			return err
		}
		posted += n
		for _, q := range d.Stats().Tx {
			multi += q.MultiPacket
		}
	}
	fmt.Printf("posted %d, in shared descriptors %d\n", posted, multi)
	return nil
}

// maxFlood is more frames than a send ring has space for.
const maxFlood = 1 << 14

// fill fills every send ring and returns how many frames that took.
func fill(d *dv.Device) (posted int, err error) {
	frame := make([]byte, 1000)
	copy(frame, []byte{0x02, 0xaa, 0, 0, 0, 0x99})
	copy(frame[6:], d.MAC())
	frame[12], frame[13] = 0x88, 0xb5
	for i := range d.NumTx() {
		q := d.Tx(i)
		for range maxFlood {
			err := q.Post(&dv.TxPacket{Bufs: [][]byte{frame}})
			if errors.Is(err, dv.ErrRingFull) {
				break
			}
			if err != nil {
				return posted, err
			}
			posted++
		}
		q.Flush()
	}
	return posted, nil
}

// settled waits until the send queues have completed all frames, for at most half a minute.
func settled(d *dv.Device) {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(
		deadline); runtime.Gosched() {
		waiting := 0
		for i := range d.NumTx() {
			d.Tx(i).Reclaim()
			waiting += d.Tx(i).Size() - d.Tx(i).Free()
		}
		if waiting == 0 {
			return
		}
	}
}
