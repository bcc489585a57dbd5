package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// Wireshark runs the programs in its extcap directory to list interfaces and to capture from them
// (doc/extcap.adoc of Wireshark): here the running servers, one interface each.

// extcapPrefix is in front of the process id in the name of an interface.
const extcapPrefix = "rdma-netstack-"

// extcapOptions says what Wireshark's dialogue for an interface offers.
const extcapOptions = "arg {number=0}{call=--wire}{type=boolflag}{default=false}" +
	"{display=Cut sent segments as the NIC does}\n" +
	"arg {number=1}{call=--count}{type=unsigned}{default=0}" +
	"{display=End after so many frames (0: never)}\n"

// withExtcap adds the command that Wireshark means, which names none.
func withExtcap(args []string) []string {
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--extcap-") }) {
		return append([]string{"extcap"}, args...)
	}
	return append([]string{}, args...) // nil is os.Args to package cobra
}

func extcapCommand(out streams) *cobra.Command {
	var f extcapFlags
	cmd := &cobra.Command{Use: "extcap", Hidden: true, Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.answer(cmd.Context(), out) }}
	addFlags(cmd, "Flags",
		opt("extcap-interfaces", "", &f.interfaces, ""),
		opt("extcap-dlts", "", &f.dlts, ""),
		opt("extcap-config", "", &f.config, ""),
		opt("capture", "", &f.capture, ""),
		opt("extcap-interface", "NAME", &f.name, ""),
		opt("fifo", "FILE", &f.fifo, ""),
		opt("extcap-capture-filter", "FILTER", &f.filter, ""),
		opt("extcap-version", "VERSION", &f.version, ""),
		opt("wire", "", &f.wire, ""),
		opt("count", "N", &f.count, ""))
	return cmd
}

// extcapFlags are Wireshark's.
type extcapFlags struct {
	interfaces, dlts, config, capture bool
	name, fifo, filter, version       string

	wire  bool // as --extcap-config has it
	count int
}

func (f *extcapFlags) answer(ctx context.Context, out streams) error {
	switch {
	case f.interfaces:
		return listInterfaces(ctx, out)
	case f.dlts:
		_, err := fmt.Fprintln(out.stdout, "dlt {number=1}{name=EN10MB}{display=Ethernet}")
		return err
	case f.config:
		_, err := fmt.Fprint(out.stdout, extcapOptions)
		return err
	case f.capture:
		return f.run(ctx, out)
	case f.filter != "": // is it right?
		if _, err := capture.ParseFilter(f.filter); err != nil {
			fmt.Fprintln(out.stdout, err) // Wireshark shows what is printed
		}
		return nil
	}
	return usageError{errors.New("want one of --extcap-interfaces, --extcap-dlts, " +
		"--extcap-config and --capture, as Wireshark gives them")}
}

// listInterfaces prints a line for each server that runs.
func listInterfaces(ctx context.Context, out streams) error {
	fmt.Fprintln(out.stdout, "extcap {version=1.0}{help=https://github.com/rdma-netstack/"+
		"rdma-netstack}{display=rdma-netstack}")
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	for _, s := range all {
		var info struct{ Name, MAC string }
		if s.Get(ctx, "/info", &info) == nil {
			fmt.Fprintf(out.stdout, "interface {value=%s%d}{display=slice %s of process %d}\n",
				extcapPrefix, s.PID, info.MAC, s.PID)
		}
	}
	return err
}

// run captures into Wireshark's FIFO.
func (f *extcapFlags) run(ctx context.Context, out streams) error {
	pid, err := strconv.Atoi(strings.TrimPrefix(f.name, extcapPrefix))
	if err != nil {
		return fmt.Errorf("interface %q is not of --extcap-interfaces", f.name)
	}
	c := captureFlags{file: f.fifo, direction: "inout", time: "host", filter: f.filter,
		count: f.count, wire: f.wire, progress: out.stderr, results: out.stdout}
	c.pid = pid
	server, err := c.server(ctx)
	if err != nil {
		return err
	}
	return c.run(ctx, server)
}
