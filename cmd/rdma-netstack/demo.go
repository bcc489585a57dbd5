package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

func demoCommand(out streams) *cobra.Command {
	f := demoFlags{clients: "programs", queues: 2}
	cmd := &cobra.Command{Use: "demo", Args: noWords,
		Short: "demonstrate everything on this machine, without a NIC",
		Long: `Demonstrates on this machine how one port is shared between Linux and a slice. No NIC and no
configuration are needed. The command makes network namespaces, starts a software ConnectX, and
connects its port to the namespace "outside". HTTP and DNS servers answer on a slice of the port,
inside this process; a kernel HTTP server answers on the port's network interface, in the namespace
"host". ping, curl and dig, or Go clients where these are not installed, check both while the
network interface is under load. A table of frames and bytes per owner follows. The command removes
all that it made, however it ends.

Needs root, or unprivileged user namespaces.

Exit code: 0 if every check succeeds, 1 otherwise.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.demonstrate(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags",
		opt("json", "", &f.json, "print one JSON object: ok, checks, counters"),
		opt("stay", "", &f.stay, "keep everything running after the checks, print commands to "+
			"try and the URL of the slice's status page, for a browser of this machine; wait for "+
			"Ctrl-C"),
		opt("clients", "programs|go", &f.clients, "ping, curl, dig where installed, or Go "+
			"clients on kernel sockets only"),
		opt("links", "tap|veth", &f.links, "TAP interfaces, or veth pairs with packet sockets "+
			"(default tap where /dev/net/tun can be opened, else veth)"),
		opt("queues", "N", &f.queues, "receive queues of the slice, or auto"),
		opt("address", "host", func(s string) error {
			if f.host = s == "host"; !f.host {
				return errors.New("want host")
			}
			return nil
		}, "the other demonstration: HTTP and DNS servers of this process on an address and a MAC "+
			"that Linux has, too, with a kernel HTTP server on another port, and clients outside "+
			"and on the host itself. Rules of the software ConnectX tell them apart",
			oneOf("host")),
		opt("faults", "LIST", &f.faults, "faults of the wire, such as "+
			"drop=1%,reorder=5%,dup=1%,delay=2ms"),
		opt("record", "FILE", &f.record, "write every frame on the wire to a pcap file"))
	return cmd
}

// demoFlags say how the demo runs.
type demoFlags struct {
	json, stay     bool
	host           bool // on the host's own address
	clients, links string
	queues         queueCount
	record         string
	faults         wire.FaultConfig
	limit          time.Duration       // for one check
	tamper         func(*stack.Config) // for tests: misconfigures the slice
}

// Time limits of one check, on a good wire and on a bad one.
const (
	demoTimeout       = time.Minute
	faultyDemoTimeout = 3 * time.Minute
)

func (f *demoFlags) check() error {
	switch {
	case f.clients != "programs" && f.clients != "go":
		return usageError{fmt.Errorf("--clients %q: want programs or go", f.clients)}
	case f.links != "" && f.links != linkTAP && f.links != linkVeth:
		return usageError{fmt.Errorf("--links %q: want tap or veth", f.links)}
	}
	return nil
}

// faulty reports whether the wire may lose frames.
func (f *demoFlags) faulty() bool { return f.faults != wire.FaultConfig{} }

// lossy reports whether so many frames are lost that large transfers take minutes.
func (f *demoFlags) lossy() bool { return f.faults.Drop+f.faults.Corrupt > 0.02 }

func (f demoFlags) demonstrate(ctx context.Context, out streams) error {
	if err := f.check(); err != nil {
		return err
	}
	f.limit = demoTimeout
	if f.faulty() {
		f.limit = faultyDemoTimeout
	}
	if err := lab.CanMakeNets(); errors.Is(err, unix.EPERM) {
		return demoInUserNamespace(f, out)
	} else if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	p := newPrinter(f, out)
	run := runDemo
	if f.host {
		run = runHostDemo
	}
	if err := run(ctx, f, p); err != nil {
		return p.failed(err)
	}
	return p.verdict()
}

// demoInUserNamespace runs the same command again in a user namespace, where it has the privileges
// it needs.
func demoInUserNamespace(f demoFlags, out streams) error {
	var files []*os.File
	if f.stay {
		if page := pageListener(); page != nil {
			defer page.Close()
			files = append(files, page)
		}
	}
	code, err := lab.RunAsNamespaceRoot(out.args, out.stdout.to, out.stderr, files...)
	if err != nil {
		return newPrinter(f, out).failed(err)
	}
	if code != exitDone {
		return exitCode(code)
	}
	return nil
}

func runDemo(ctx context.Context, f demoFlags, p *printer) (err error) {
	began := time.Now()
	w, err := newWorld(ctx, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p.intro(w)
	w.load.start(ctx)
	for _, c := range demoChecks() {
		p.check(w.try(ctx, c))
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	w.load.stop()
	p.counters(w, time.Since(began))
	if f.stay {
		p.offer(&w.cleanup, w.stack, "software ConnectX", w.commands())
	}
	p.flush()
	if f.stay {
		<-ctx.Done()
	}
	return nil
}
