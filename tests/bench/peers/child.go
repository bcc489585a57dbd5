package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// A child process has a server's end, or a client's, or both. It reads commands as one JSON object
// per line from its standard input, and writes its answers likewise to its standard output.

const childCommand = "child"

// childSpec says which ends a child process has.
type childSpec struct {
	Server, Client *end // nil: no such end
	Pair           bool // both, joined in memory; Server is the stack of both
	Behind         bool // the client's end has the server that is behind a proxy
	// the path of another namespace: no stack at all, frames are carried between it and this one
	Relay     string
	WAN       bool   // of a relay: the cable is long, and loses frames
	Procs     int    // GOMAXPROCS; 0: all
	Processor *int   // the only one to run on; nil: all
	Zone      string // of the DNS server: a file
}

// request is one line to a child.
type request struct {
	Op      string // begin, end, load, memory
	Load    *load  // of load
	Profile string // of end: a file to keep the CPU profile in
}

// reply is one line back.
type reply struct {
	Err     string
	Usage   *usage  // of end
	Metrics metrics // of load, memory
}

// metrics are measured values by name.
type metrics map[string]float64

// childMain runs a child process until its input ends.
func childMain(spec string) int {
	var s childSpec
	c := &child{out: json.NewEncoder(os.Stdout)}
	err := json.Unmarshal([]byte(spec), &s)
	if err == nil {
		err = c.open(s)
	}
	if err == nil {
		err = c.out.Encode(reply{})
	}
	if err == nil {
		err = c.serve(os.Stdin)
	}
	if err != nil {
		_ = c.out.Encode(reply{Err: err.Error()})
		fmt.Fprintln(os.Stderr, "perf child:", err)
		return 1
	}
	return 0
}

type child struct {
	out      *json.Encoder
	services *services // nil in a client
	client   host
	meter    meter
}

func (c *child) open(s childSpec) (err error) {
	raiseLimit()
	debug.SetGCPercent(gcPercent)
	if s.Processor != nil {
		if err := keepProcess(*s.Processor); err != nil {
			return err
		}
		s.Procs = 1
	}
	if s.Procs > 0 {
		runtime.GOMAXPROCS(s.Procs)
	}
	var server host
	switch {
	case s.Relay != "":
		c.meter.relays = true
		return relay(s.Relay, cableOf(s.WAN))
	case s.Pair:
		server, c.client, err = openPair(*s.Server)
	default:
		if s.Server != nil {
			server, err = s.Server.open()
		}
		if s.Client != nil && err == nil {
			c.client, err = s.Client.open()
		}
	}
	if err == nil && s.Behind {
		err = startBehind(c.client)
	}
	if err != nil || server == nil {
		return err
	}
	c.services, err = startServices(server, s.Zone)
	return err
}

// serve answers requests until the input ends. The process then exits at once: its stacks have
// nothing to save.
func (c *child) serve(in io.Reader) error {
	lines := json.NewDecoder(bufio.NewReader(in))
	for {
		var q request
		if err := lines.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := c.do(&q)
		if err != nil {
			r.Err = err.Error()
		}
		if err := c.out.Encode(r); err != nil {
			return err
		}
	}
}

func (c *child) do(q *request) (r reply, err error) {
	switch q.Op {
	case "begin":
		err = c.meter.begin(c.services)
	case "end":
		r.Usage, err = c.meter.end(c.services, q.Profile)
	case "memory":
		r.Metrics = memory()
	case "load":
		if c.client == nil {
			return r, errors.New("this process has no client")
		}
		r.Metrics, err = q.Load.run(c.client)
	default:
		err = fmt.Errorf("no operation %q", q.Op)
	}
	return r, err
}

// raiseLimit raises this process's limit of open files to the connections measured, or to the
// maximum allowed, and returns the possible number of connections.
func raiseLimit() int {
	const files = 2 * manyConns
	// needs CAP_SYS_RESOURCE
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int(min(l.Cur, files)) - spareFiles
}

// gcPercent keeps collections of a small heap from being most of what is measured, on all stacks.
const gcPercent = 200

// spareFiles is the number of files that a process needs in addition to connections.
const spareFiles = 1000
