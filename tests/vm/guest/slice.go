//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// echo is a slice without a stack: it answers every UDP datagram through the rings of package dv
// alone.
type echo struct {
	shared                                                bool // several frames share a buffer
	dev                                                   *dv.Device
	echoed, astray, unverified, unstamped, tagged, groups atomic.Uint64
}

// slice is the subcommand: it opens a device, reports, echoes until SIGTERM or the device's end,
// and reports again. It also reports on SIGUSR1.
func slice(args []string) error {
	fs := flag.NewFlagSet("slice", flag.ExitOnError)
	name, mac := fs.String("device", "mlx5_0", ""), fs.String("mac", "", "")
	rx, tx := fs.Int("rx", 2, ""), fs.Int("tx", 2, "")
	segments := fs.Int("segments", 0,
		"segments of one packet to be cut, sent when an echo is asked for")
	striding, vlan := fs.Bool("striding", false, ""), fs.Int("vlan", 0, "")
	blueFlame := fs.Bool("blueflame", false, "")
	events := fs.Int("events", 0, "frames an event waits for, or as many tens of microseconds")
	if err := fs.Parse(args); err != nil {
		return err
	}
	cfg := dv.Config{
		NIC: dv.NIC{
			Device:   *name,
			RxQueues: *rx,
			TxQueues: *tx,
			VLAN:     uint16(*vlan),
			Rings:    dv.Rings{Striding: *striding},
		}, Tuning: dv.Tuning{
			BlueFlame:         *blueFlame,
			EventFrames:       uint16(*events),
			EventMicroseconds: uint16(10 * *events),
		},
	}
	var err error
	if *mac != "" {
		if cfg.MAC, err = net.ParseMAC(*mac); err != nil {
			return err
		}
	}
	e := &echo{shared: *striding}
	if e.dev, err = dv.Open(context.Background(), cfg); err != nil {
		return err
	}
	if err := show(e.report()); err != nil {
		return err
	}
	e.run(*segments)
	closed := e.dev.Close()
	return errors.Join(show(e.obituary()), closed)
}

// run echoes until the process is told to stop or the device ends.
func (e *echo) run(segments int) {
	stop, ask := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	signal.Notify(ask, unix.SIGUSR1)
	var workers sync.WaitGroup
	for i := range e.dev.NumRx() {
		workers.Go(func() { e.work(i, segments) })
	}
	e.untilOver(stop, ask)
	e.dev.Stop()
	workers.Wait()
}

// untilOver reports on request, until told to stop or until the device ends.
func (e *echo) untilOver(stop, ask <-chan os.Signal) {
	for {
		select {
		case <-ask:
			show(e.report())
		case <-stop:
			return
		case <-e.dev.Done():
			return
		}
	}
}

// work owns receive queue i and, as long as there is one, send queue i.
func (e *echo) work(i, segments int) {
	rx, tx := e.dev.Rx(i), e.dev.Tx(i%e.dev.NumTx())
	pkts := make([]dv.Packet, 64)
	var clock uint64
	for {
		n := rx.Poll(pkts)
		if n == 0 {
			rx.Arm()
			if n = rx.Poll(pkts); n == 0 && rx.Wait() != nil {
				return
			}
		}
		tx.Lock()
		for j := range pkts[:n] {
			clock = e.stamp(&pkts[j], clock)
			e.answer(i, tx, &pkts[j], segments)
		}
		tx.Flush()
		tx.Reclaim()
		tx.Unlock()
		rx.Release(pkts[:n])
	}
}

// stamp checks a packet's time stamp and returns it; before is that of the previous packet in the
// queue.
func (e *echo) stamp(p *dv.Packet, before uint64) uint64 {
	if p.Timestamp == 0 || p.Timestamp < before {
		e.unstamped.Add(1)
	}
	return p.Timestamp
}

// answer looks at one packet and answers it: odd queues send the very frame they received if they
// can, even queues a copy.
func (e *echo) answer(queue int, tx *dv.TxQueue, p *dv.Packet, segments int) {
	if p.Data[0]&1 != 0 {
		e.groups.Add(1)
		return
	}
	if p.Flags&dv.RxVLAN != 0 && p.VLAN&0xfff == e.dev.VLAN() {
		e.tagged.Add(1)
	}
	d, ok := parseDatagram(p)
	if !ok {
		return
	}
	if e.dev.QueueFor(d.flow) != queue {
		e.astray.Add(1)
	}
	if p.Flags&(dv.RxL3OK|dv.RxL4OK) != dv.RxL3OK|dv.RxL4OK {
		e.unverified.Add(1)
	}
	if segments > 0 {
		if err := tx.Post(d.bulk(segments)); err != nil {
			return
		}
	}
	d.turn()
	if queue%2 == 0 || e.shared {
		if tx.Post(&dv.TxPacket{Bufs: e.dev.Rx(queue).Segments(nil, p),
			Flags: dv.TxL3Csum | dv.TxL4Csum}) == nil {
			e.echoed.Add(1)
		}
		return
	}
	if tx.PostFrame(p.Frame, 0, p.Size(), dv.TxL3Csum|dv.TxL4Csum) == nil {
		p.Frame = dv.NoFrame
		e.echoed.Add(1)
	}
}

// report is the current state.
func (e *echo) report() rig.SliceReport {
	d := e.dev
	return rig.SliceReport{
		Name: d.Name(), Netdev: d.Netdev(), MAC: d.MAC().String(), Rx: d.NumRx(), Tx: d.NumTx(),
		Caps: d.Caps(), LinkUp: d.LinkUp(),
		Echoed: e.echoed.Load(), Astray: e.astray.Load(), Unverified: e.unverified.Load(),
		Unstamped: e.unstamped.Load(), Tagged: e.tagged.Load(), Groups: e.groups.Load(),
		Features: d.Features(), Stats: d.Stats(),
	}
}

// obituary is the last report: it contains why the device ended, and the errors that calls return
// after that.
func (e *echo) obituary() rig.SliceReport {
	r := e.report()
	if err := e.dev.Err(); err != nil {
		r.Err = err.Error()
		r.Posted = fmt.Sprint(e.dev.Tx(0).Post(&dv.TxPacket{Bufs: [][]byte{make([]byte, 60)}}))
		r.Waited = fmt.Sprint(e.dev.Rx(0).Wait())
	}
	return r
}

// show prints a report as one line.
func show(r rig.SliceReport) error { return json.NewEncoder(os.Stdout).Encode(r) }
