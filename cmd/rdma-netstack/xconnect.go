package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/rings"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

func xconnectCommand(out streams) *cobra.Command {
	var f xconnectFlags
	cmd := &cobra.Command{Use: "xconnect --device NAME [--to NAME]",
		Short: "forward frames between two ports at layer 2",
		Long: `Forwards frames at layer 2 from ring to ring, without TCP/IP. With --to, frames that either device
receives for its MAC address leave through the other. Without --to, they leave through the same port
with source and destination address swapped, without a copy.`,
		Example: `  rdma-netstack xconnect --device mlx5_0      return every frame to its sender
  rdma-netstack xconnect --device mlx5_0 --to mlx5_1 --promiscuous`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.xconnect(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags",
		opt("to", "NAME", &f.to, "the other device; sim is a second software NIC, connected to "+
			"--to-wire", deviceNames),
		opt("to-wire", "WIRE", &f.toWire, "what the second software NIC is connected to: "+
			"tap:NAME, packet:IFNAME or none", wireWords),
		opt("dst", "MAC", macAddress(&f.dst), "set this destination address, and the device's "+
			"own as source, instead of forwarding the addresses unchanged (with --to) or swapping "+
			"them"),
		opt("time", "DURATION", &f.time, "how long to run (default until Ctrl-C)"))
	f.addTo(cmd)
	return cmd
}

// xconnectFlags holds the flags of xconnect.
type xconnectFlags struct {
	ringFlags
	to, toWire string
	dst        net.HardwareAddr
	time       time.Duration
}

func (f *xconnectFlags) check(given func(flag string) bool) error {
	if f.to == simDevice && f.toWire == "" {
		return usageError{
			errors.New(
				"--to-wire is missing: what the second software NIC is connected to, such as " +
					"tap:slice1",
			),
		}
	}
	return f.ringFlags.check(given)
}

// path describes one direction of one queue.
type path struct {
	forward *rings.Forwarder
	rx      *dv.RxQueue
	tx      *dv.TxQueue
	pool    *dv.Pool // nil: to another device
}

func (p *path) run(ctx context.Context) error {
	p.tx.Lock()
	defer p.tx.Unlock()
	if p.pool != nil {
		return p.forward.Bounce(ctx, p.rx, p.tx, p.pool)
	}
	return p.forward.Cross(ctx, p.rx, p.tx)
}

func (f *xconnectFlags) xconnect(ctx context.Context, out streams) (err error) {
	log := warningLog(out.stderr)
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	paths, about, err := f.connect(ctx, log, &undo)
	if err != nil {
		return err
	}
	fmt.Fprintln(out.stdout, about)
	if f.time > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, f.time)
		defer stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = onQueues(ctx, cancel, len(paths), func(i int) error { return paths[i].run(ctx) }, func() {
		var last, lastBytes uint64
		everySecond(ctx, func(took time.Duration) {
			frames, bytes, dropped := forwarded(paths)
			rate(out.stdout, "fw", frames-last, bytes-lastBytes, took,
				fmt.Sprintf("  dropped %d", dropped))
			last, lastBytes = frames, bytes
		})
	})
	frames, bytes, dropped := forwarded(paths)
	fmt.Fprintf(out.stdout, "forwarded %d frames, %d bytes, dropped %d because a ring was full\n",
		frames, bytes, dropped)
	return err
}

// connect opens one or two devices and pairs their queues.
func (f *xconnectFlags) connect(ctx context.Context, log *slog.Logger,
	undo *cleanup) ([]*path, string, error) {
	a, err := f.open(ctx, log, undo)
	if err != nil {
		return nil, "", err
	}
	if f.to == "" {
		return f.pair(
				a,
				a,
			), fmt.Sprintf("frames for %s on %s go back where they came from", a.MAC(),
				a.Name()), nil
	}
	other := f.ringFlags
	other.device, other.mac, other.sim = f.to, nil, simFlags{
		wire:     f.toWire,
		wireFlag: "to-wire",
		netdev:   "none",
	}
	b, err := other.open(ctx, log, undo)
	if err != nil {
		return nil, "", err
	}
	about := fmt.Sprintf("frames for %s on %s leave by %s, those for %s the other way", a.MAC(),
		a.Name(), b.Name(), b.MAC())
	return append(f.pair(a, b), f.pair(b, a)...), about, nil
}

// pair forwards each receive queue of a to the send queue of b with the same number.
func (f *xconnectFlags) pair(a, b *dv.Device) []*path {
	var paths []*path
	for i := range a.NumRx() {
		p := &path{forward: &rings.Forwarder{}, rx: a.Rx(i), tx: b.Tx(i)}
		switch {
		case f.dst != nil:
			p.forward.To, p.forward.From = f.dst, b.MAC()
		case a != b:
			p.forward.To, p.forward.From = net.HardwareAddr{}, net.HardwareAddr{}
		}
		if a == b {
			p.pool = a.Pool()
		}
		paths = append(paths, p)
	}
	return paths
}

func forwarded(paths []*path) (frames, bytes, dropped uint64) {
	for _, p := range paths {
		f, b, d := p.forward.Forwarded()
		frames, bytes, dropped = frames+f, bytes+b, dropped+d
	}
	return frames, bytes, dropped
}
