package card

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onOneProcessor runs f on a thread that stays on one processor, if the system lets it. A netdev
// chooses its send queue by the processor, and frames of different queues overtake each other.
func onOneProcessor(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if unix.SchedGetaffinity(0, &all) == nil {
		for cpu := 0; one.Count() == 0 && cpu < 64*len(all); cpu++ {
			if all.IsSet(cpu) {
				one.Set(cpu)
			}
		}
		if unix.SchedSetaffinity(0, &one) == nil {
			defer unix.SchedSetaffinity(0, &all)
		}
	}
	f()
}
