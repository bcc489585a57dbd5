// Command scale prints what one operation costs when there are more processors, queues, sockets or
// connections: goroutine switches, sleeps of threads, events, waits for locks, bytes, processor
// time. Two stacks on software NICs are joined by a cable in memory, so no kernel's network is in
// the figures, and the work of both ends is. Each row is measured in a process of its own, and all
// of them in interleaved rounds; the table has medians. Counts hold on a busy machine; rates do
// not.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	loads                         string
	cores, queues, sockets, conns string
	rounds                        int
	length                        time.Duration
	long                          bool
	stack, mode, spread           string
	cell                          string
}

func main() {
	var o options
	flag.StringVar(&o.loads, "loads", "echo,dns,http,bulk",
		"what is measured; many: http on 16 connections of each client in turn")
	flag.StringVar(&o.cores, "cores", "1,2", "values of GOMAXPROCS; more than there are is allowed")
	flag.StringVar(&o.queues, "queues", "", "receive queues of a NIC (1,4; long: 1,2,4,8)")
	flag.StringVar(&o.sockets, "sockets", "", "clients at once (1,8; long: 1,8,64)")
	flag.StringVar(&o.conns, "conns", "", "idle connections beside them (64; long: 64,1000,50000)")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each row is measured")
	flag.DurationVar(&o.length, "length", 300*time.Millisecond, "of one measurement")
	flag.BoolVar(&o.long, "long", false, "the long defaults")
	flag.StringVar(&o.spread, "spread", "load", "queues that get flows: load or all")
	flag.StringVar(&o.stack, "stack", stackOurs,
		"ours, or ceiling: netstack alone, the two joined by calls")
	flag.StringVar(&o.mode, "rx-mode", "adaptive", "how receive workers wait")
	flag.StringVar(&o.cell, "cell", "", "a row as JSON: measure it and print the result as JSON")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if o.cell != "" {
		return child(o.cell)
	}
	cells, err := o.cells()
	if err != nil {
		return err
	}
	results := make([][]result, len(cells))
	for round := range o.rounds {
		for i, c := range cells {
			fmt.Fprintf(os.Stderr, "\rround %d of %d, row %d of %d ", round+1, o.rounds, i+1,
				len(cells))
			r, err := c.measure()
			if err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			results[i] = append(results[i], r)
		}
	}
	fmt.Fprint(os.Stderr, "\r\x1b[K")
	return printTable(os.Stdout, cells, results)
}

// child measures one row in this process.
func child(text string) error {
	var c cell
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	r, err := c.here()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// cells are all rows, those that are compared with each other in a row.
func (o options) cells() (cells []cell, err error) {
	long := func(s *string, short, long string) {
		switch {
		case *s != "":
		case o.long:
			*s = long
		default:
			*s = short
		}
	}
	switch o.stack {
	case stackOurs:
		long(&o.queues, "1,4", "1,2,4,8")
	case stackCeiling:
		if long(&o.queues, "1", "1"); o.queues != "1" {
			err = errors.New("-stack ceiling has no queues: leave -queues out")
		}
	default:
		err = fmt.Errorf("-stack %q: use ours or ceiling", o.stack)
	}
	long(&o.sockets, "1,8", "1,8,64")
	long(&o.conns, "64", "64,1000,50000")
	cores, err1 := numbers("cores", o.cores)
	queues, err2 := numbers("queues", o.queues)
	sockets, err3 := numbers("sockets", o.sockets)
	conns, err4 := numbers("conns", o.conns)
	for name := range strings.SplitSeq(o.loads, ",") {
		if loads[name] == nil {
			err = errors.Join(err, fmt.Errorf("no load %q; use echo, dns, http, many, bulk", name))
		}
		for _, n := range conns {
			for _, s := range sockets {
				for _, p := range cores {
					for _, q := range queues {
						cells = append(cells, cell{name, o.stack, p, q, s, n, o.mode, o.spread,
							o.length})
					}
				}
			}
		}
	}
	return cells, errors.Join(err, err1, err2, err3, err4)
}

// numbers parses a list of positive numbers.
func numbers(name, list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-%s %q: give positive numbers with commas", name, list)
		}
		all = append(all, n)
	}
	return all, nil
}
