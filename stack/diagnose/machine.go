package diagnose

import (
	"fmt"
	"slices"
)

// Bounds of what the machine and the process may do.
const (
	// muchGarbage is the share of the time that processors were busy from which on its collection
	// is worth a line, where they were busy for someWork of one, and for leastWork seconds: the Go
	// runtime counts some of the time only when a collection ends.
	muchGarbage, someWork, leastWork = 0.15, 0.2, 1.0
)

func machineRules() []rule {
	return []rule{
		{Kind{"numa-far", "the process runs on processors of another NUMA node than the card is " +
			"at: each descriptor and frame crosses between them",
			"numactl --cpunodebind, CPUAffinity= of systemd or the cpuset: the processors that " +
				"the evidence names"}, farNode},
		{Kind{"gc-share", "the program allocates faster than its heap allows, and garbage is " +
			"collected all the time",
			"GOGC=200 or more, with GOMEMLIMIT as the bound; rdma-netstack profile cpu, then " +
				"fewer allocations for each request"}, garbage},
		{Kind{"pause-frames", "the port is paused by the switch, or pauses it: nothing is sent " +
			"meanwhile, and queues fill",
			"find who is slow behind the switch; ethtool -A IF rx off tx off where nobody needs " +
				"them; sent ones: as for ring-too-small"}, pauseFrames},
	}
}

func farNode(o *observation) (float64, string) {
	h := o.after.Host
	if len(h.CardCPUs) == 0 || len(h.CPUs) == 0 || slices.ContainsFunc(h.CPUs,
		func(c int) bool { return slices.Contains(h.CardCPUs, c) }) {
		return 0, ""
	}
	return 15, fmt.Sprintf("the process may use the processors %s; those at the card are %s",
		ranges(h.CPUs), ranges(h.CardCPUs))
}

// ranges writes numbers in rising order as 0-3,8.
func ranges(all []int) string {
	text := ""
	for i := 0; i < len(all); i++ {
		first := i
		for i+1 < len(all) && all[i+1] == all[i]+1 {
			i++
		}
		if text != "" {
			text += ","
		}
		if text += fmt.Sprint(all[first]); i > first {
			text += fmt.Sprintf("-%d", all[i])
		}
	}
	return text
}

func garbage(o *observation) (float64, string) {
	now, then := o.after.Facts, o.before.Facts
	busy, gc := now.BusySeconds-then.BusySeconds, now.GCSeconds-then.GCSeconds
	if busy < max(leastWork, someWork*o.seconds) || gc < muchGarbage*busy {
		return 0, ""
	}
	return 50 * gc / busy, fmt.Sprintf("%s of %.1f busy processors (of %d) went to garbage "+
		"collection", percent(gc/busy), busy/o.seconds, now.Processors)
}

func pauseFrames(o *observation) (float64, string) {
	now, then := o.after.Host, o.before.Host
	received := now.PauseReceived - min(now.PauseReceived, then.PauseReceived)
	sent := now.PauseSent - min(now.PauseSent, then.PauseSent)
	if received+sent < least {
		return 0, ""
	}
	rate := float64(received+sent) / o.seconds
	return 10 + min(50, rate/20), fmt.Sprintf("%d pause frames received, %d sent, %.0f a second",
		received, sent, rate)
}
