package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

func compareCommand(out streams) *cobra.Command {
	f := compareFlags{time: 600 * time.Millisecond, port: 8053}
	f.slice.queues = 2
	cmd := &cobra.Command{Use: "compare", Args: noWords,
		Short: "measure the same servers on the host's stack and on a slice",
		Long: `Runs the same HTTP server and the same DNS server on the host's stack and on a slice of the software
NIC, puts the same loads on both in turn, and prints both results. The clients use kernel sockets in
network namespaces of their own, which the command removes when it ends. It takes about 20 seconds
and needs no NIC.

The host's server is reached over a veth pair, the slice's over a TAP interface and the software
NIC. The figures of the slice include the work of that software NIC; a veth pair costs the host
almost nothing. The figures therefore do not predict those of a real NIC. Clients and servers share
the processors of this machine.

With --device both servers run on a real network interface, and the clients on another machine. The
first of the examples serves until it is interrupted, from the host's address on eth0 and from a
slice of eth0 at the address given, and prints the second, which is for another machine of that
network and needs no privilege. The servers answer everybody, without a limit: do not leave them
running.`,
		Example: `  rdma-netstack compare --device eth0 --address 192.0.2.10/24
  rdma-netstack compare --host 192.0.2.2:8053 --slice 192.0.2.10:8053`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return usageError{err}
			}
			return compare(cmd.Context(), f, out)
		}}
	addFlags(cmd, "Flags",
		opt("json", "", &f.json, "print the results as one JSON object"),
		opt("time", "T", &f.time, "duration of each load. Each runs twice on both, in turn"),
		opt("queues", "N", &f.slice.queues, "receive queues of the slice, or auto"),
		opt("device", "NAME", &f.slice.device, "serve on this RDMA device or network interface",
			deviceOrNetdevNames),
		opt("address", "CIDR", f.slice.address, "with --device: address of the slice, as for "+
			"serve http", addressWords),
		opt("backend", "NAME", &f.slice.backend, "with --device: rings, packet, xdp or auto, as "+
			"for serve http", backendWords),
		opt("port", "N", &f.port, "with --device: TCP port of HTTP and UDP port of DNS"),
		opt("host", "ADDR:PORT", serverAddress(&f.host), "with --slice: compare these two "+
			"servers, which another machine runs"),
		opt("slice", "ADDR:PORT", serverAddress(&f.other), "with --host: the slice's server"))
	return cmd
}

// compareFlags say how to measure.
type compareFlags struct {
	json        bool
	time        time.Duration
	port        int
	slice       serveFlags // with a device: only the servers
	host, other netip.AddrPort
}

// serverAddress reads where a server of the other machine is.
func serverAddress(at *netip.AddrPort) func(string) error {
	return func(s string) (err error) {
		if *at, err = netip.ParseAddrPort(s); err != nil || at.Port() == 0 {
			return errors.New("want the server's ADDR:PORT, such as 192.0.2.2:8053")
		}
		return nil
	}
}

// Flags of one kind of comparison only.
var (
	compareServerFlags = []string{"address", "backend", "port"}
	compareClientFlags = []string{"json", "time"}
)

func (f *compareFlags) check(given func(flag string) bool) error {
	serves := f.slice.device != ""
	switch {
	case f.time < 10*time.Millisecond || f.time > time.Minute:
		return fmt.Errorf("--time %v: want 10ms to 1m", f.time)
	case f.port < 1 || f.port > 65535:
		return fmt.Errorf("--port %d: want 1 to 65535", f.port)
	case given("host") != given("slice"):
		return errors.New("--host and --slice go together: both servers are compared")
	case serves && given("host"):
		return errors.New("--device is for the servers' machine, --host and --slice are for " +
			"another: a machine does not reach its own slice")
	case f.slice.device == simDevice:
		return errors.New("--device sim: leave --device out, which compares on the software NIC")
	}
	only, where := compareServerFlags, "goes with --device"
	if serves {
		only, where = compareClientFlags, "is for the clients' machine, not for --device"
	}
	for _, name := range only {
		if given(name) {
			return fmt.Errorf("--%s %s", name, where)
		}
	}
	if !serves {
		return nil
	}
	f.slice.listen = []string{net.JoinHostPort("", strconv.Itoa(f.port))}
	return f.slice.check(given)
}

func compare(ctx context.Context, f compareFlags, out streams) error {
	switch {
	case f.slice.device != "":
		return compareServers(ctx, f, out)
	case f.host.IsValid():
		results, err := measure(ctx, f, remoteScene(f.host, f.other))
		if err != nil {
			return err
		}
		return results.print(f, out.stdout)
	}
	if err := lab.CanMakeNets(); errors.Is(err, unix.EPERM) {
		code, err := lab.RunAsNamespaceRoot(out.args, out.stdout.to, out.stderr)
		if err == nil && code != exitDone {
			err = exitCode(code)
		}
		return err
	} else if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	results, err := compareHere(ctx, f)
	if err != nil {
		return err
	}
	return results.print(f, out.stdout)
}

// compareHere makes servers, NIC and clients on this machine, measures, and removes them.
func compareHere(ctx context.Context, f compareFlags) (all *comparison, err error) {
	var undo cleanup
	defer func() { err = errors.Join(err, undo.close()) }()
	s, err := localScene(ctx, f.slice.queues.number(), &undo)
	if err != nil {
		return nil, err
	}
	return measure(ctx, f, s)
}

// rounds counts the times that each load runs on each stack.
const rounds = 2

// measure runs all loads. Host and slice take turns, so that other load on the machine affects both
// alike.
func measure(ctx context.Context, f compareFlags, s *scene) (*comparison, error) {
	all := &comparison{scene: s}
	wrk, _ := exec.LookPath("wrk")
	for _, l := range compareLoads(wrk) {
		row := compared{load: l}
		for range rounds {
			for _, turn := range []struct {
				side *contender
				sum  *float64
			}{{s.host, &row.Host}, {s.slice, &row.Slice}} {
				v, err := l.run(ctx, turn.side, f.time)
				if err != nil {
					return nil, fmt.Errorf("%s on %s: %w", l.Name, turn.side.name, err)
				}
				*turn.sum += v / rounds
			}
		}
		all.rows = append(all.rows, row)
	}
	return all, nil
}
