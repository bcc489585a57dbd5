package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// flood is the subcommand: it opens a slice, fills every send ring, and closes at once, so that the device has work in
// all rings when they go away. It does that as often as it is told.
func flood(args []string) error {
	fs := flag.NewFlagSet("flood", flag.ExitOnError)
	mac, rounds := fs.String("mac", "", ""), fs.Int("rounds", 1, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	src, err := net.ParseMAC(*mac)
	if err != nil {
		return err
	}
	posted := 0
	for range *rounds {
		n, err := floodOnce(src)
		if err != nil {
			return err
		}
		posted += n
	}
	fmt.Println("posted", posted)
	return nil
}

func floodOnce(mac net.HardwareAddr) (posted int, err error) {
	d, err := dv.Open(context.Background(), dv.Config{Device: "mlx5_0", MAC: mac, RxQueues: 2, TxQueues: 2})
	if err != nil {
		return 0, err
	}
	frame := make([]byte, 1000)
	copy(frame, []byte{0x02, 0xaa, 0, 0, 0, 0x99})
	copy(frame[6:], mac)
	frame[12], frame[13] = 0x88, 0xb5
	for i := range d.NumTx() {
		q := d.Tx(i)
		for {
			err := q.Post(&dv.TxPacket{Bufs: [][]byte{frame}})
			if errors.Is(err, dv.ErrRingFull) {
				break
			}
			if err != nil {
				return posted, errors.Join(err, d.Close())
			}
			posted++
		}
		q.Flush()
	}
	return posted, d.Close()
}
