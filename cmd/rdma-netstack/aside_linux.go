package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// asideNice leaves a program that looks a tenth of a busy processor: its work of a tenth of a
	// second takes one.
	asideNice = 10
	// asideSlice says how long it runs at a time, in nanoseconds, as Linux 6.12 and later know it.
	asideSlice = 100e3
	// asideLooks says how often threads are looked at: a sandbox may accept the call and do
	// nothing.
	asideLooks = 16
)

// standAside has this program not compete with the one that it looks at: one thread of it runs at a
// time, and gives way. Whoever has chosen another policy, or a greater nice value, keeps that.
func standAside() {
	runtime.GOMAXPROCS(1)
	// A thread that started meanwhile is like the one that started it.
	for looks, changed := 0, true; changed && looks < asideLooks; looks++ {
		changed = false
		threads, _ := os.ReadDir("/proc/self/task")
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil && threadAside(id) {
				changed = true
			}
		}
	}
}

// threadAside says whether there was something to change.
func threadAside(id int) bool {
	now, err := unix.SchedGetAttr(id, 0)
	if err != nil || now.Policy != unix.SCHED_NORMAL {
		return false
	}
	return unix.SchedSetAttr(id, &unix.SchedAttr{Policy: unix.SCHED_BATCH,
		Nice: max(now.Nice, asideNice), Runtime: asideSlice}, 0) == nil
}
