package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
)

// runMinimise leaves out work and faults of a seed, one after the other, as long as it still fails.
func (o *options) runMinimise() int {
	p := o.plan(uint64(o.seed))
	work, faults := numbers(len(p.Work), o.work), numbers(len(p.Faults), o.faults)
	if !o.fails(work, faults) {
		fmt.Printf("seed %d does not fail\n", o.seed)
		return 1
	}
	for changed := true; changed; {
		changed = o.shrink(&faults, func(l list) bool { return o.fails(work, l) }) ||
			o.shrink(&work, func(l list) bool { return o.fails(l, faults) })
	}
	fmt.Printf("go run ./tests/sim/run -seed %d -path=%v -host=%v -work %s -faults %s\n", o.seed,
		o.path, o.host, text(work), text(faults))
	return 0
}

// numbers are the ones kept of n.
func numbers(n int, kept list) (all list) {
	all = list{}
	for i := range n {
		if kept == nil || slices.Contains(kept, i) {
			all = append(all, i)
		}
	}
	return all
}

// shrink leaves out numbers without which it still fails: first halves, then single ones. It
// reports whether there were any.
func (o *options) shrink(l *list, fails func(list) bool) (shrunk bool) {
	for size := (len(*l) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(*l); {
			less := slices.Delete(slices.Clone(*l), at, at+size)
			if !fails(less) {
				at++
				continue
			}
			*l, shrunk = less, true
		}
	}
	return shrunk
}

// fails runs the seed with less, in a process of its own.
func (o *options) fails(work, faults list) bool {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	c := exec.Command(self, "-seed", fmt.Sprint(o.seed), fmt.Sprintf("-path=%v", o.path),
		fmt.Sprintf("-host=%v", o.host), "-work", text(work), "-faults", text(faults))
	return c.Run() != nil
}

// text is l as a flag.
func text(l list) string {
	if len(l) == 0 {
		return "none"
	}
	return l.String()
}
