package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	neturl "net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func healthCommand(out streams) *cobra.Command {
	var f healthFlags
	cmd := &cobra.Command{
		Use:   "health [show|recover|dump] [REPORTER]",
		Short: "health reporters of a running server",
		Long: `Prints the health of a running server, in the words of devlink health. Reporters are

    tx, rx   the send and receive queues, which recover at once from an error
    link     the port's link
    device   whether it is there and works
    stack    whether there can be connections
    memory   whether there is enough of it

    show     state, how often in error and recovered, and the reason of the last error
    recover  look for a device that is away now, also one that failed within its grace
             period
    dump     of tx, rx or device: the descriptors (WQE) and completions (CQE) in the last
             64 slots of each ring, kept at the last errors, or if there was none: as of
             now`,
		ValidArgsFunction: completeWords(func() []string {
			return append([]string{"show", "recover", "dump"}, reporters()...)
		}),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := f.take(words); err != nil {
				return err
			}
			return f.showHealth(cmd.Context(), out)
		}}
	f.addTo(cmd, opt("now", "", &f.now, "a dump as of now in any case"))
	return cmd
}

// healthFlags holds what to do with which reporter.
type healthFlags struct {
	lookFlags
	now            bool
	verb, reporter string
}

// take takes the words: what to do, then the reporter.
func (f *healthFlags) take(words []string) error {
	f.verb = "show"
	if len(words) > 0 && slices.Contains([]string{"show", "recover", "dump"}, words[0]) {
		f.verb, words = words[0], words[1:]
	}
	if len(words) > 0 {
		f.reporter, words = words[0], words[1:]
	}
	switch {
	case len(words) > 0:
		return usageError{fmt.Errorf("unexpected argument %q", words[0])}
	case f.reporter != "" && !slices.Contains(reporters(), f.reporter):
		return usageError{fmt.Errorf("no reporter %q: want one of %s", f.reporter,
			strings.Join(reporters(), ", "))}
	case f.verb != "show" && f.reporter == "":
		return usageError{fmt.Errorf("%s needs a reporter: one of %s", f.verb,
			strings.Join(reporters(), ", "))}
	case f.now && f.verb != "dump":
		return usageError{fmt.Errorf("--now is for dump")}
	}
	return nil
}

func reporters() []string { return []string{"tx", "rx", "link", "device", "stack", "memory"} }

func (f *healthFlags) showHealth(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	query := neturl.Values{"reporter": {f.reporter}}
	if f.now {
		query.Set("now", "1")
	}
	var all []admin.Reporter
	switch f.verb {
	case "dump":
		var dumps []admin.Dump
		if err := server.Get(ctx, "/health/dump?"+query.Encode(), &dumps); err != nil {
			return err
		}
		if f.json {
			return json.NewEncoder(out.stdout).Encode(dumps)
		}
		return printDumps(out.stdout, dumps)
	case "recover":
		err = server.Post(ctx, "/health/recover?"+query.Encode(), &all)
	default:
		err = server.Get(ctx, "/health", &all)
	}
	if err != nil {
		return err
	}
	if f.reporter != "" {
		all = slices.DeleteFunc(all, func(r admin.Reporter) bool {
			return r.Reporter != f.reporter
		})
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	return printHealth(out.stdout, server, all)
}

// printHealth prints as devlink health show does, with reason and notice below.
func printHealth(w io.Writer, server running.Server, all []admin.Reporter) error {
	fmt.Fprintf(w, "pid/%d:\n", server.PID)
	for _, r := range all {
		fmt.Fprintf(w, "  reporter %s\n    state %s error %d recover %d", r.Reporter, r.State,
			r.Error, r.Recover)
		if r.LastDump != nil {
			at := r.LastDump.Local()
			fmt.Fprintf(w, " last_dump_date %s last_dump_time %s", at.Format(time.DateOnly),
				at.Format(time.TimeOnly))
		}
		fmt.Fprintf(w, " grace_period %d auto_recover %v auto_dump %v\n", r.GracePeriod,
			r.AutoRecover, r.AutoDump)
		if r.Reason != "" {
			fmt.Fprintf(w, "    reason %s\n", r.Reason)
		}
		if r.Notice != "" {
			fmt.Fprintf(w, "    notice %s\n", r.Notice)
		}
	}
	return nil
}

// printDumps prints a table for each queue: descriptors, then completions.
func printDumps(w io.Writer, dumps []admin.Dump) error {
	for _, d := range dumps {
		fmt.Fprintf(w, "%s at %s", d.Queue, d.Time.Local().Format("2006-01-02 15:04:05.000"))
		if d.Reason != "" {
			fmt.Fprintf(w, ": %s", d.Reason)
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  \tSLOT\tSTATE\tFIELDS")
		for _, e := range d.WQEs {
			fmt.Fprintf(t, "  wqe\t%d\t%s\t%s\n", e.Slot, e.State, e.WQE.Text)
		}
		for _, e := range d.CQEs {
			fmt.Fprintf(t, "  cqe\t%d\t%s\t%s\n", e.Slot, e.State, e.Completion.Text)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
