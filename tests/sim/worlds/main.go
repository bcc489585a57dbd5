// Command worlds simulates hosts on a bad network, one world for each seed, on virtual time, and
// says which seeds break an invariant. Command run, beside it, builds it so that its runs repeat,
// and has its flags.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/sim"
)

// options are the command's flags.
type options struct {
	seed         int64
	from, seeds  uint64
	jobs         int
	twice, first bool
	minimise     bool
	worker       bool
	path, host   bool
	only         string
	stacks       bool
	frames       bool
	work, faults list
}

// list is numbers with commas between; nil is all.
type list []int

// String implements flag.Value.
func (l *list) String() string {
	if *l == nil {
		return "all"
	}
	text := make([]string, len(*l))
	for i, n := range *l {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// Set implements flag.Value. "none" leaves out all.
func (l *list) Set(s string) error {
	*l = list{}
	if s == "none" {
		return nil
	}
	for _, f := range strings.Split(s, ",") {
		n, err := strconv.Atoi(f)
		if err != nil {
			return err
		}
		*l = append(*l, n)
	}
	return nil
}

func main() {
	o := options{}
	flag.Int64Var(&o.seed, "seed", -1, "run this seed only, and print its plan and its log")
	flag.Uint64Var(&o.seeds, "seeds", 2000, "how many seeds to run")
	flag.Uint64Var(&o.from, "from", 0, "the first of them")
	flag.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "how many processes run at once")
	flag.BoolVar(&o.twice, "twice", false, "run each seed twice, and compare; with -seed: print "+
		"where they differ first")
	flag.BoolVar(&o.first, "first", false, "stop at the first seed that fails")
	flag.BoolVar(&o.minimise, "minimise", false, "with -seed: look for the least that fails")
	flag.BoolVar(&o.frames, "frames", false, "with -seed: print every frame sent")
	flag.BoolVar(&o.stacks, "stacks", false, "with -seed: print all goroutines if it fails")
	flag.BoolVar(&o.worker, "worker", false, "print a line of JSON per seed; used by worlds itself")
	flag.StringVar(&o.only, "only", "", "run those of the seeds only whose worlds have a "+
		"fallback, upgrades, those of them on rings, or with a process killed; "+
		"late readers of packet sockets, or merged segments there; a resized MTU, "+
		"or a netdev readdressed")
	flag.BoolVar(&o.path, "path", false, "worlds with a router of a smaller MTU")
	flag.BoolVar(&o.host, "host", false, "worlds with hosts on the address of their kernel")
	flag.Var(&o.work, "work", "numbers of the work to keep, or none")
	flag.Var(&o.faults, "faults", "numbers of the faults to keep, or none")
	flag.Parse()
	os.Exit(o.run())
}

// run returns the exit code.
func (o *options) run() int {
	switch {
	case o.worker:
		o.runWorker()
		return 0
	case o.minimise && o.seed >= 0:
		return o.runMinimise()
	case o.twice && o.seed >= 0:
		return o.runTwice()
	case o.seed >= 0:
		return o.runOne()
	}
	return o.runAll()
}

// heapLimit is what a worker's memory may grow to before garbage is collected in the middle of a
// run, in bytes. Runs collect between events, long before (sim.Run).
const heapLimit = 2 << 30

// alone makes this process one in which runs repeat.
func alone() {
	quietMonitor()
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(heapLimit)
}

func (o *options) plan(seed uint64) sim.Plan {
	p := sim.NewPlan(seed)
	if o.path {
		p = sim.NewPathPlan(seed)
	}
	if o.host {
		p = sim.NewBesidePlan(seed)
	}
	p.Keep(o.work, o.faults)
	return p
}

// runOne runs one seed and prints everything about it.
func (o *options) runOne() int {
	alone()
	p := o.plan(uint64(o.seed))
	fmt.Print(p.String())
	if o.frames {
		p.Watch = func(at time.Duration, host int, f []byte) {
			fmt.Printf("%v host %d: %d bytes, %x\n", at, host, len(f), f[:min(len(f), 74)])
		}
	}
	r := sim.Run(p)
	for _, line := range r.Log {
		fmt.Println(line)
	}
	fmt.Printf("%v of virtual time, %d frames, %d sent without copying, %d timers, trace %016x\n",
		r.Virtual, r.Frames, r.InPlace, r.Steps, r.Trace)
	if r.Err != nil {
		fmt.Printf("FAIL: %v\n", r.Err)
		if o.stacks {
			fmt.Print(r.Stacks)
		}
		return 1
	}
	fmt.Println("ok")
	return 0
}

// runTwice runs a seed twice, and prints where the runs differ first.
func (o *options) runTwice() int {
	alone()
	one, again := o.events(), o.events()
	for i := range min(len(one), len(again)) {
		if one[i] != again[i] {
			for _, e := range one[max(0, i-5):i] {
				fmt.Println("both:  ", e)
			}
			fmt.Printf("first:  %s\nsecond: %s\nthey differ at event %d of %d and %d\n", one[i],
				again[i], i, len(one), len(again))
			return 1
		}
	}
	if len(one) != len(again) {
		fmt.Printf("one run has %d events, the other %d\n", len(one), len(again))
		return 1
	}
	fmt.Printf("two runs have the same %d events\n", len(one))
	return 0
}

// events runs the seed and describes every event.
func (o *options) events() (all []string) {
	p := o.plan(uint64(o.seed))
	p.Watch = func(at time.Duration, host int, f []byte) {
		all = append(all, fmt.Sprintf("%v host %d sends %d bytes, checksum %08x, %x", at, host,
			len(f), crc32.ChecksumIEEE(f), f[:min(len(f), 74)]))
	}
	p.Step = func(at time.Duration) { all = append(all, fmt.Sprintf("%v timer", at)) }
	r := sim.Run(p)
	return append(all, fmt.Sprintf("end after %v: %v", r.Virtual, r.Err))
}

// outcome is the line that a worker prints for a seed.
type outcome struct {
	Seed    uint64
	Err     string
	Virtual float64 // seconds
	Frames  uint64
	Steps   uint64
	InPlace uint64
	Left    bool // out: the world is not one of those wanted
}

// runWorker runs o.seeds seeds from o.from on, up to the first that fails.
func (o *options) runWorker() {
	alone()
	out := json.NewEncoder(os.Stdout)
	for i := range o.seeds {
		seed := o.from + i
		p := o.plan(seed)
		if o.only != "" && !p.Has(o.only) {
			if out.Encode(outcome{Seed: seed, Left: true}) != nil {
				return
			}
			continue
		}
		r := sim.Run(p)
		line := outcome{Seed: seed, Virtual: r.Virtual.Seconds(), Frames: r.Frames, Steps: r.Steps,
			InPlace: r.InPlace}
		if r.Err != nil {
			line.Err = r.Err.Error()
		} else if o.twice {
			if again := sim.Run(o.plan(seed)); again.Trace != r.Trace {
				line.Err = fmt.Sprintf("does not repeat: trace %016x, then %016x", r.Trace,
					again.Trace)
			}
		}
		if out.Encode(line) != nil || line.Err != "" {
			return // what a run that failed has left would be in the way of the next
		}
	}
}
