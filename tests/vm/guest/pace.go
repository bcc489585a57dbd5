//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// pace implements the subcommand: it opens a slice whose send queue the NIC keeps to a rate, sends
// frames of 1000 bytes through it, and waits until they have left.
func pace(args []string) error {
	fs := flag.NewFlagSet("pace", flag.ExitOnError)
	mac, rate := fs.String("mac", "", ""), fs.Uint64("rate", 0, "bits per second")
	frames := fs.Int("frames", 0, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	src, err := net.ParseMAC(*mac)
	if err != nil {
		return err
	}
	d, err := dv.Open(context.Background(), dv.Config{NIC: dv.NIC{Device: "mlx5_0", MAC: src,
		RxQueues: 1, TxQueues: 1}, Tuning: dv.Tuning{NoMultiPacketSend: true}})
	if err != nil {
		return err
	}
	return errors.Join(sendPaced(d, dv.TxRate{BitsPerSecond: *rate}, *frames), d.Close())
}

// sendPaced sends at a rate, at another one with a burst that leaves at once, and without limit.
func sendPaced(d *dv.Device, r dv.TxRate, frames int) error {
	limits := d.Caps().Pacing
	if err := d.LimitTxRate(0, r); err != nil {
		return err
	}
	if err := postFrames(d, frames); err != nil {
		return err
	}
	fmt.Println("posted")
	for q := d.Tx(0); q.Free() < q.Size(); q.Reclaim() { // as long as it takes
		runtime.Gosched()
	}
	if limits.Burst {
		if err := d.LimitTxRate(0, dv.TxRate{BitsPerSecond: r.BitsPerSecond, Burst: 4000,
			TypicalPacket: 1000}); err != nil {
			return fmt.Errorf("with a burst: %w", err)
		}
	}
	if err := d.LimitTxRate(0, dv.TxRate{}); err != nil {
		return fmt.Errorf("no limit: %w", err)
	}
	err := d.LimitTxRate(0, dv.TxRate{BitsPerSecond: uint64(limits.MaxKbps)*1000 + 1000})
	if !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("beyond the card's: %v", err)
	}
	fmt.Printf("sent %d, %d to %d kbit/s\n", d.Stats().Tx[0].Packets, limits.MinKbps,
		limits.MaxKbps)
	return nil
}

// postFrames posts frames of 1000 bytes that are for nobody.
func postFrames(d *dv.Device, n int) error {
	frame := make([]byte, 1000)
	copy(frame, []byte{0x02, 0xaa, 0, 0, 0, 0x99})
	copy(frame[6:], d.MAC())
	frame[12], frame[13] = 0x88, 0xb5
	q := d.Tx(0)
	for range n {
		if err := q.Post(&dv.TxPacket{Bufs: [][]byte{frame}}); err != nil {
			return err
		}
	}
	q.Flush()
	return nil
}
