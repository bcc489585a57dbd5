package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const help = `Usage: perf [flags]

Measures HTTP/1.1 to 3, gRPC, DNS, bulk TCP, UDP, latency, processor time and memory of the stack
and of its peers.

`

// flags are the flags of a run.
type flags struct {
	quick       bool
	rounds      int
	only, loads *regexp.Regexp
	out         string // directory of the files of the run
	again       bool   // the run was made before
	join        string // directories of runs that are made one, with commas; empty: none
	page        string // file to put the short tables into; empty: none
	scale       float64
	profiles    string // directory of CPU profiles; empty: none are kept
	list        bool
	budget      time.Duration
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "perf:", err)
		return 2
	}
	if f.list {
		for _, p := range peers() {
			fmt.Fprintf(stdout, "%-24s %s\n", p.Name, p.About)
		}
		return 0
	}
	if err := act(ctx, f, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "perf:", err)
		return 1
	}
	return 0
}

// act measures, or reads the results of earlier runs, and prints.
func act(ctx context.Context, f flags, stdout, stderr io.Writer) (err error) {
	var r *results
	switch {
	case f.join != "":
		r, err = join(strings.Split(f.join, ","), f.out)
	case f.again:
		r, err = loadResults(f.out)
	default:
		r, err = measure(ctx, f, stderr)
	}
	if r == nil {
		return err
	}
	r.print(stdout)
	fmt.Fprint(stdout, "\nIn short:\n\n", r.markdown())
	if f.page != "" && err == nil {
		return pasteInto(f.page, r.markdown())
	}
	return err
}

func parseFlags(args []string, stderr io.Writer) (f flags, err error) {
	fs := flag.NewFlagSet("perf", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, help); fs.PrintDefaults() }
	only := fs.String("only", "",
		"measure the configurations whose name matches this regular expression")
	loads := fs.String("loads", "", "run the loads whose name matches this regular expression")
	fs.BoolVar(&f.quick, "quick", false,
		"the main configurations and loads only, in about five minutes")
	fs.BoolVar(&f.list, "list", false, "list the configurations")
	fs.IntVar(&f.rounds, "rounds", 0, "rounds (default 5, quick 3)")
	fs.Float64Var(&f.scale, "scale", 1, "factor on the duration of every load")
	fs.StringVar(&f.out, "out", "results", "directory for results.json, chart.svg and tables.md")
	fs.BoolVar(&f.again, "again", false,
		"measure nothing; print what the directory has of an earlier run")
	fs.StringVar(&f.join, "join", "", "measure nothing; join the runs in these directories, with "+
		"commas, and save them as one")
	fs.StringVar(&f.page, "page", "", "file to put the short tables into, between its marks")
	fs.StringVar(&f.profiles, "profiles", "", "directory to keep each server's CPU profiles in")
	fs.DurationVar(&f.budget, "budget", 1170*time.Second,
		"start no further round that would take longer, if it is as long as the one before")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if f.rounds == 0 {
		f.rounds = 5
		if f.quick {
			f.rounds = 3
		}
	}
	if f.only, err = regexp.Compile(*only); err != nil {
		return f, err
	}
	f.loads, err = regexp.Compile(*loads)
	return f, err
}
