package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// result is what a measurement counted, in the units of columns. All but Seconds is of both ends.
type result struct {
	Ops, Seconds, CPU float64 // CPU: seconds, of user and system
	// Queued is for how long threads waited for a processor, and Idle for how long the machine's
	// processors had nothing to run, in seconds times processors. Both at a time: Linux put
	// a thread that it woke where another one ran.
	Queued, Idle float64
	// Switches is how often a goroutine was given a processor. The runtime counts one in eight.
	Switches float64
	// Sleeps is how often a thread gave up its processor to wait: in a futex or in epoll. Each has
	// a wake-up. Preempted is how often the kernel took one away.
	Sleeps, Preempted float64
	// Syscalls is reads and writes of descriptors: of the model's event descriptors.
	Syscalls float64
	// LockWaits is contended locks, of package sync and of the runtime, by the mutex profile;
	// LockTime is how long goroutines waited for those of sync, in seconds.
	LockWaits, LockTime float64
	Allocs, Bytes       float64
	// Frames are those received; Polls looks at receive rings, Hits those that found any. Events
	// are completion events that woke a worker, Arms those asked for. Doorbells are of send queues.
	Frames, Polls, Hits, Events, Arms, Doorbells float64
	// Active is how many receive queues got flows at the end.
	Active float64
	// Line is how long a cache line takes between two processors and back, in ns.
	Line float64
}

// trackingPeriod is of how many switches of a goroutine the runtime takes one sample
// (gTrackingPeriod in runtime2.go).
const trackingPeriod = 8

// read takes all counters.
func (w *world) read(r *traffic) result {
	c := result{Ops: float64(r.operations()), Seconds: float64(time.Now().UnixNano()) / 1e9}
	c.readSystem()
	c.readRuntime()
	for _, h := range []host{w.server, w.client} {
		if h, ok := h.(*ours); ok {
			c.readDevice(h.stack.Device().Stats())
		}
	}
	return c
}

func (c *result) readSystem() {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail with these arguments
	}
	c.CPU = float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	c.Sleeps, c.Preempted = float64(u.Nvcsw), float64(u.Nivcsw)
	c.Queued, c.Idle = queued(), idle()
	data, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		var n float64
		if _, err := fmt.Sscanf(line, "syscr: %f", &n); err == nil {
			c.Syscalls += n
		}
		if _, err := fmt.Sscanf(line, "syscw: %f", &n); err == nil {
			c.Syscalls += n
		}
	}
}

// queued is for how long the threads that there are have waited on a run queue, in seconds
// (Documentation/scheduler/sched-stats.rst: the second number).
func queued() (sum float64) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, name := range files {
		var ran, waited float64
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if _, err := fmt.Sscan(string(data), &ran, &waited); err == nil {
			sum += waited / 1e9
		}
	}
	return sum
}

// ticks is how many units of /proc/stat are a second (USER_HZ).
const ticks = 100

// idle is for how long the machine's processors have been idle, in seconds.
func idle() float64 {
	data, _ := os.ReadFile("/proc/stat")
	var user, nice, system, idle, waiting float64
	if _, err := fmt.Sscanf(string(data), "cpu %f %f %f %f %f", &user, &nice, &system, &idle,
		&waiting); err != nil {
		return 0
	}
	return (idle + waiting) / ticks
}

func (c *result) readRuntime() {
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"},
		{Name: "/sync/mutex/wait/total:seconds"},
		{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	for _, n := range s[0].Value.Float64Histogram().Counts {
		c.Switches += trackingPeriod * float64(n)
	}
	c.LockTime = s[1].Value.Float64()
	c.Allocs, c.Bytes = float64(s[2].Value.Uint64()), float64(s[3].Value.Uint64())
	c.LockWaits = lockWaits()
}

// lockWaits is the contended unlocks so far.
func lockWaits() (sum float64) {
	runtime.SetMutexProfileFraction(1)
	n, _ := runtime.MutexProfile(nil)
	records := make([]runtime.BlockProfileRecord, n+64)
	n, ok := runtime.MutexProfile(records)
	if !ok {
		return math.NaN()
	}
	for _, r := range records[:n] {
		sum += float64(r.Count)
	}
	return sum
}

func (c *result) readDevice(s dv.Stats) {
	c.Active = max(c.Active, float64(s.ActiveRxQueues))
	for _, q := range s.Rx {
		c.Frames += float64(q.Packets)
		c.Polls += float64(q.Polls)
		c.Hits += float64(q.Hits)
		c.Events += float64(q.Events)
		c.Arms += float64(q.Arms)
	}
	for _, q := range s.Tx {
		c.Doorbells += float64(q.Doorbells)
	}
}

// since is what was counted from b on.
func (c result) since(b result) result {
	return result{
		c.Ops - b.Ops, c.Seconds - b.Seconds, c.CPU - b.CPU,
		c.Queued - b.Queued, c.Idle - b.Idle, c.Switches - b.Switches,
		c.Sleeps - b.Sleeps, c.Preempted - b.Preempted, c.Syscalls - b.Syscalls,
		c.LockWaits - b.LockWaits, c.LockTime - b.LockTime,
		c.Allocs - b.Allocs, c.Bytes - b.Bytes,
		c.Frames - b.Frames, c.Polls - b.Polls, c.Hits - b.Hits, c.Events - b.Events,
		c.Arms - b.Arms, c.Doorbells - b.Doorbells, c.Active, c.Line,
	}
}
