package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func statsCommand(out streams) *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{Use: "stats", Short: "counters of a running server", Args: noWords,
		Long: `Prints every counter of a running server that is not 0: of the rings (rx0_packets is of receive
queue 0), the link and netstack, as ethtool -S and nstat do.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.showStats(cmd.Context(), out) }}
	f.addTo(cmd,
		opt("interval", "DURATION", &f.interval, "print what was added since the line before, "+
			"each time, such as 1s"),
		opt("count", "N", &f.count, "how often (default until Ctrl-C)"),
		opt("all", "", &f.zeros, "print those that are 0, too"))
	return cmd
}

func errorsCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{
		Use: "errors", Short: "drops and errors of a running server", Args: noWords,
		Long: `Prints every counter of drops and errors of a running server that is not 0, with what it means and
what to do.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.listErrors(cmd.Context(), out)
		}}
	f.addTo(cmd)
	return cmd
}

// statsFlags are those of stats.
type statsFlags struct {
	lookFlags
	interval time.Duration
	count    int
	zeros    bool
}

// server returns the one that the flags mean.
func (f *lookFlags) server(ctx context.Context) (running.Server, error) {
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	if err != nil {
		return running.Server{}, err
	}
	var pids []string
	for _, s := range all {
		if s.PID == f.pid {
			return s, nil
		}
		pids = append(pids, fmt.Sprint(s.PID))
	}
	switch {
	case len(all) == 0:
		return running.Server{}, running.ErrNone
	case f.pid != 0:
		return running.Server{}, fmt.Errorf("process %d is no server; those that run: %s", f.pid,
			strings.Join(pids, ", "))
	case len(all) > 1:
		return running.Server{}, usageError{fmt.Errorf("%w: one of %s", errSeveral,
			strings.Join(pids, ", "))}
	}
	return all[0], nil
}

func (f *statsFlags) showStats(ctx context.Context, out streams) error {
	if f.interval < 0 || f.count < 0 || f.count > 0 && f.interval == 0 {
		return usageError{fmt.Errorf("--interval %v --count %d: want a time, such as 1s, and a "+
			"number", f.interval, f.count)}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	if f.interval > 0 {
		return each(ctx, server, f.interval, f.count, func(before, now admin.Counters) error {
			return printCounters(out, now, before, f.zeros, f.json)
		})
	}
	var now admin.Counters
	if err := server.Get(ctx, "/stats", &now); err != nil {
		return err
	}
	return printCounters(out, now, admin.Counters{}, f.zeros, f.json)
}

// printCounters prints what was added since before, and gauges as they are.
func printCounters(out streams, now, before admin.Counters, zeros, asJSON bool) error {
	for name, n := range before.Counters {
		now.Counters[name] -= min(n, now.Counters[name])
	}
	if asJSON {
		return json.NewEncoder(out.stdout).Encode(now)
	}
	if !before.Time.IsZero() {
		fmt.Fprintf(out.stdout, "%s, in %.3f s:\n", now.Time.Format(time.RFC3339),
			now.Time.Sub(before.Time).Seconds())
	}
	for _, name := range now.Names() {
		if n, _ := now.Value(name); n != 0 || zeros {
			fmt.Fprintf(out.stdout, "     %s: %d\n", name, n)
		}
	}
	return out.stdout.err()
}

func (f *lookFlags) listErrors(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	var all []admin.Problem
	if err := server.Get(ctx, "/errors", &all); err != nil {
		return err
	}
	switch {
	case f.json:
		return json.NewEncoder(out.stdout).Encode(all)
	case len(all) == 0:
		_, err := fmt.Fprintln(out.stdout, "no drops, no errors")
		return err
	}
	t := tabwriter.NewWriter(out.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COUNT\tNAME\tMEANING\tADVICE")
	for _, p := range all {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", p.Count, p.Name, p.Meaning, p.Advice)
	}
	return t.Flush()
}
