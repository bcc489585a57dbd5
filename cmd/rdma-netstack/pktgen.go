package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/rings"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

const pktgenLong = `Sends generated frames, or counts received ones, on the descriptor rings alone, without TCP/IP.
Prints one line per second and a total. Generated frames carry a sequence number, from which the
receiver counts lost, duplicated and reordered frames.`

const pktgenExample = `  rdma-netstack pktgen rx --device mlx5_0 --mac 02:00:5e:10:00:01
  rdma-netstack pktgen tx --device mlx5_1 --dst 02:00:5e:10:00:01 --size 64 --rate 1000000`

func pktgenCommand(out streams) *cobra.Command {
	cmd := &cobra.Command{Use: "pktgen COMMAND", Short: "send or count frames at layer 2",
		Long: pktgenLong, Example: pktgenExample}
	cmd.AddCommand(pktgenTxCommand(out), pktgenRxCommand(out))
	return cmd
}

func pktgenTxCommand(out streams) *cobra.Command {
	f := pktgenFlags{size: rings.MinFrame, flows: 64}
	cmd := &cobra.Command{Use: "tx --device NAME", Short: "send generated frames at layer 2",
		Long: pktgenLong, Example: pktgenExample, Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.send(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags",
		opt("dst", "MAC", macAddress(&f.dst), "destination of the frames (required without "+
			"--pcap)"),
		opt("size", "BYTES", &f.size, "length of a frame without FCS, 60 to MTU + 14"),
		opt("flows", "N", &f.flows, "number of source ports to spread the frames over"),
		opt("pcap", "FILE", &f.pcap, "send the frames of this capture in turn, instead of "+
			"generated ones"),
		opt("rate", "N", &f.rate, "frames per second and queue (default no limit)"),
		opt("count", "N", &f.count, "frames per queue (default until Ctrl-C)"),
		f.timeOption())
	f.ringFlags.addTo(cmd)
	return cmd
}

func pktgenRxCommand(out streams) *cobra.Command {
	var f pktgenFlags
	cmd := &cobra.Command{Use: "rx --device NAME", Short: "count received frames and losses",
		Long: pktgenLong, Example: pktgenExample, Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.receive(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags", f.timeOption())
	f.ringFlags.addTo(cmd)
	return cmd
}

// pktgenFlags holds the flags of pktgen tx and rx.
type pktgenFlags struct {
	ringFlags
	dst         net.HardwareAddr
	size, flows int
	pcap        string
	rate, count uint64
	time        time.Duration
}

func (f *pktgenFlags) timeOption() option {
	return opt("time", "DURATION", &f.time, "how long to run, such as 10s (default until Ctrl-C)")
}

// limit ends ctx after --time.
func (f *pktgenFlags) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.time > 0 {
		return context.WithTimeout(ctx, f.time)
	}
	return context.WithCancel(ctx)
}

func (f *pktgenFlags) send(ctx context.Context, out streams) (err error) {
	if f.dst == nil && f.pcap == "" {
		return usageError{
			errors.New("--dst is missing: the MAC address to send to, or --pcap FILE")}
	}
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	dev, err := f.open(ctx, warningLog(out.stderr), &undo)
	if err != nil {
		return err
	}
	gens, err := f.generators(dev)
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := f.limit(ctx)
	defer cancel()
	start := time.Now()
	err = onQueues(ctx, cancel, len(gens), func(i int) error {
		q := dev.Tx(i)
		q.Lock()
		defer q.Unlock()
		return gens[i].Send(ctx, q)
	}, func() {
		var last uint64
		var lastBytes uint64
		everySecond(ctx, func(took time.Duration) {
			frames, bytes, waits := sent(gens)
			rate(out.stdout, "tx", frames-last, bytes-lastBytes, took,
				fmt.Sprintf("  ring full %d", waits))
			last, lastBytes = frames, bytes
		})
	})
	frames, bytes, waits := sent(gens)
	fmt.Fprintf(out.stdout, "sent %d frames, %d bytes in %v, ring full %d times\n", frames, bytes,
		time.Since(start).Round(time.Millisecond), waits)
	return err
}

// generators makes one per queue.
func (f *pktgenFlags) generators(dev *dv.Device) ([]*rings.Generator, error) {
	gens := make([]*rings.Generator, dev.NumTx())
	for i := range gens {
		g := &rings.Generator{
			Rate:  f.rate,
			Count: f.count,
			Flows: f.flows,
			Run:   uint32(time.Now().UnixNano()>>10) + uint32(i),
		}
		if f.pcap != "" {
			frames, err := readPcap(f.pcap)
			if err != nil {
				return nil, err
			}
			g.Frames = frames
		} else {
			frame, err := rings.Template(f.dst, dev.MAC(), f.size)
			if err != nil {
				return nil, err
			}
			g.Frames, g.Marked = [][]byte{frame}, true
		}
		gens[i] = g
	}
	return gens, nil
}

// readPcap reads all frames of a capture.
func readPcap(name string) ([][]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := wire.NewReplay(file, 0, clock.Clock{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer r.Close()
	var frames [][]byte
	err = r.Start(func(in []frame.Frame) {
		for _, f := range in {
			frames = append(frames, append([]byte(nil), f.Data...))
		}
	})
	if err == nil {
		<-r.Done()
		err = r.Err()
	}
	if err == nil && len(frames) == 0 {
		err = errors.New("no frames in it")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return frames, nil
}

func sent(gens []*rings.Generator) (frames, bytes, waits uint64) {
	for _, g := range gens {
		f, b, w := g.Sent()
		frames, bytes, waits = frames+f, bytes+b, waits+w
	}
	return frames, bytes, waits
}

// onQueues runs work for each queue in a goroutine of its own, and watch at the same time. When all
// work is done, or one fails, everything ends.
func onQueues(ctx context.Context, cancel context.CancelFunc, n int, work func(i int) error,
	watch func()) error {
	var watcher, workers sync.WaitGroup
	errs := make([]error, n)
	watcher.Go(watch)
	for i := range n {
		workers.Go(func() {
			if errs[i] = work(i); errs[i] != nil {
				cancel()
			}
		})
	}
	workers.Wait()
	cancel()
	watcher.Wait()
	return errors.Join(errs...)
}

func (f *pktgenFlags) receive(ctx context.Context, out streams) (err error) {
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	dev, err := f.open(ctx, warningLog(out.stderr), &undo)
	if err != nil {
		return err
	}
	fmt.Fprintf(out.stdout, "counting frames for %s on %s\n", dev.MAC(), dev.Name())
	counters := make([]*rings.Counter, dev.NumRx())
	for i := range counters {
		counters[i] = new(rings.Counter)
	}
	ctx, cancel := f.limit(ctx)
	defer cancel()
	err = onQueues(
		ctx,
		cancel,
		len(counters),
		func(i int) error { return counters[i].Receive(ctx, dev.Rx(i)) },
		func() {
			var last rings.Tally
			everySecond(ctx, func(took time.Duration) {
				now := tally(counters)
				rate(out.stdout, "rx", now.Frames-last.Frames, now.Bytes-last.Bytes, took, "")
				last = now
			})
		},
	)
	reportReceived(out, counters, dev.Stats())
	return err
}

func tally(counters []*rings.Counter) (sum rings.Tally) {
	for _, c := range counters {
		t := c.Tally()
		sum.Frames, sum.Bytes, sum.Marked, sum.Late = sum.Frames+t.Frames, sum.Bytes+t.Bytes,
			sum.Marked+t.Marked, sum.Late+t.Late
	}
	return sum
}

// reportReceived prints totals, and the losses according to sequence numbers and rings.
func reportReceived(out streams, counters []*rings.Counter, stats dv.Stats) {
	t := tally(counters)
	fmt.Fprintf(out.stdout, "received %d frames, %d bytes\n", t.Frames, t.Bytes)
	highest := map[uint32]uint64{}
	for _, c := range counters {
		for run, n := range c.Highest() {
			highest[run] = max(highest[run], n)
		}
	}
	var expected uint64
	for _, n := range highest {
		expected += n
	}
	if t.Marked > 0 {
		fmt.Fprintf(out.stdout,
			"generated frames: %d of %d arrived (%d lost), %d out of order or doubled\n", t.Marked,
			expected, expected-min(expected, t.Marked), t.Late)
	}
	var drops dv.RxDrops
	for _, q := range stats.Rx {
		drops.TooLong, drops.Error, drops.Malformed = drops.TooLong+q.Drops.TooLong,
			drops.Error+q.Drops.Error, drops.Malformed+q.Drops.Malformed
	}
	fmt.Fprintf(out.stdout, "dropped by the driver: %d too long, %d in error, %d malformed\n",
		drops.TooLong, drops.Error, drops.Malformed)
}
