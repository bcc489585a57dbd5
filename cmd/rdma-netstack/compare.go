package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

const compareHelp = `Usage: rdma-netstack compare [flags]

Runs the same HTTP server and the same DNS server on the host's stack and on a slice of the software
NIC, puts the same loads on both in turn, and prints both results. The clients use kernel sockets in
network namespaces of their own, which the command removes when it ends. It takes about 20 seconds
and needs no NIC.

The host's server is reached over a veth pair, the slice's over a TAP interface and the software
NIC. The figures of the slice include the work of that software NIC; a veth pair costs the host
almost nothing. The figures therefore do not predict those of a real NIC. Clients and servers share
the processors of this machine.

  --json       print the results as one JSON object
  --time T     duration of each load (default 600ms). Each runs twice on both, in turn
  --queues N   receive and send queues of the slice (default 2)
`

func compareCommand() command {
	return command{
		"compare",
		"measure the same servers on the host's stack and on a slice",
		compareHelp,
		compare,
	}
}

// compareFlags say how to measure.
type compareFlags struct {
	json   bool
	time   time.Duration
	queues int
}

func (f *compareFlags) define(fs *flag.FlagSet) {
	fs.BoolVar(&f.json, "json", false, "")
	fs.DurationVar(&f.time, "time", 600*time.Millisecond, "")
	fs.IntVar(&f.queues, "queues", 2, "")
}

func (f *compareFlags) check() error {
	switch {
	case f.time < 10*time.Millisecond || f.time > time.Minute:
		return usageError{fmt.Errorf("--time %v: want 10ms to 1m", f.time)}
	case f.queues < 1 || f.queues > 64:
		return usageError{fmt.Errorf("--queues %d: want 1 to 64", f.queues)}
	}
	return nil
}

func compare(ctx context.Context, args []string, out streams) error {
	var f compareFlags
	fs := newFlags()
	f.define(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	if err := lab.CanMakeNets(); errors.Is(err, unix.EPERM) {
		code, err := lab.RunAsNamespaceRoot(
			append([]string{"compare"}, args...),
			out.stdout.to,
			out.stderr,
		)
		if err == nil && code != exitDone {
			err = exitCode(code)
		}
		return err
	} else if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	results, err := runCompare(ctx, f)
	if err != nil {
		return err
	}
	return results.print(f, out.stdout)
}

// rounds is the number of times that each load runs on each stack.
const rounds = 2

// runCompare measures. Host and slice take turns, so that other load on the machine affects both
// alike.
func runCompare(ctx context.Context, f compareFlags) (all comparison, err error) {
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	host, err := newHostSide(&undo)
	if err != nil {
		return nil, err
	}
	slice, err := newSliceSide(ctx, f.queues, &undo)
	if err != nil {
		return nil, err
	}
	wrk, _ := exec.LookPath("wrk")
	for _, l := range compareLoads(wrk) {
		row := compared{load: l}
		for range rounds {
			for _, turn := range []struct {
				side *contender
				sum  *float64
			}{{host, &row.Host}, {slice, &row.Slice}} {
				v, err := l.run(ctx, turn.side, f.time)
				if err != nil {
					return nil, fmt.Errorf("%s on %s: %w", l.Name, turn.side.name, err)
				}
				*turn.sum += v / rounds
			}
		}
		all = append(all, row)
	}
	return all, nil
}
