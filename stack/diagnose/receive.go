package diagnose

import (
	"cmp"
	"fmt"
	"slices"
)

// Bounds of what receive queues may do.
const (
	// lostFrames is the share of frames without room that is worth a line.
	lostFrames = 1e-4
	// atLimit is the share of the time from which on a worker takes no more, and atRest that below
	// which it could take half of another's work.
	atLimit, atRest = 0.9, 0.5
	// vainLooks is the share of looks with frames below which to sleep is better.
	vainLooks = 0.05
	// manyLooks gives the looks per second of a worker that does not sleep.
	manyLooks = 1000
)

func receiveRules() []rule {
	return []rule{
		{Kind{"ring-too-small", "bursts are longer than a receive ring, or its worker did not " +
			"get to run in time, and frames are dropped",
			"more --queues; --rx-mode polling; fewer other loads on its processors; in a " +
				"program NIC.Rings.RxQueueSize of stack.Config"}, smallRing},
		{Kind{"one-hot-queue", "one receive queue has the work of all: few flows, or most of the " +
			"packets are of one",
			"have clients use more connections (rdma-netstack ss -ti); more --queues spread " +
				"those there are anew"}, hotQueue},
		{Kind{"flows-not-spread", "the receive queues that get flows are at their limit, while " +
			"others get none",
			"--spread all; if the device refuses it, rdma-netstack status health says why"},
			unspreadFlows},
		{Kind{"polling-idle", "workers that never sleep find next to nothing to do, and occupy a " +
			"processor each",
			"--rx-mode adaptive; fewer --queues"}, idlePolling},
	}
}

func smallRing(o *observation) (float64, string) {
	var stalls, dropped uint64
	worst, most := 0, uint64(0)
	for i, q := range o.queues {
		stalls, dropped = stalls+q.stalls, dropped+q.dropped
		if n := q.stalls + q.dropped; n > most {
			worst, most = i, n
		}
	}
	if stalls > 0 { // the counter has frames of others, too
		dropped += o.added("link_rx_out_of_buffer")
	}
	lost := share(dropped, o.packets+dropped)
	if dropped < least || lost < lostFrames {
		return 0, ""
	}
	evidence := fmt.Sprintf("%d of %d frames (%s) found no room", dropped, o.packets+dropped,
		percent(lost))
	if q := o.queues[worst]; q.size > 0 {
		evidence += fmt.Sprintf("; the ring of queue %d holds %d, and was found empty %d times",
			worst, q.size, q.stalls)
	}
	return costOfLoss(lost), evidence
}

// byWork returns the numbers of the queues, the one with the most work first.
func (o *observation) byWork() []int {
	all := make([]int, len(o.queues))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int {
		return cmp.Compare(o.queues[b].work, o.queues[a].work)
	})
	return all
}

func hotQueue(o *observation) (float64, string) {
	if active := o.gauge("rx_active_queues"); len(o.queues) < 2 || active == 1 {
		return 0, ""
	}
	order := o.byWork()
	hot, rest := o.queues[order[0]], 0.0
	for _, i := range order[1:] {
		rest += o.queues[i].work / float64(len(order)-1)
	}
	if hot.work < atLimit || rest > atRest || o.queues[order[1]].work >= atLimit ||
		hot.polls == 0 {
		return 0, ""
	}
	return 50 * (hot.work - rest), fmt.Sprintf("the worker of queue %d is at work for %s of the "+
		"time, with %s of the packets; those of the %d others for %s", order[0],
		percent(hot.work), percent(share(hot.packets, o.packets)), len(order)-1, percent(rest))
}

func unspreadFlows(o *observation) (float64, string) {
	active := int(o.gauge("rx_active_queues"))
	if active == 0 || active >= len(o.queues) {
		return 0, ""
	}
	order := o.byWork()
	last := o.queues[order[active-1]] // of those that get flows the one with the least work
	if last.work < atLimit || last.polls == 0 {
		return 0, ""
	}
	evidence := fmt.Sprintf("%d of %d queues get flows, and their workers are at work for %s of "+
		"the time or more", active, len(o.queues), percent(last.work))
	if n := o.added("link_spread_refused"); n > 0 {
		evidence += fmt.Sprintf("; the device refused to spread flows %d times", n)
	}
	return 50 * (1 - float64(active)/float64(len(o.queues))), evidence
}

func idlePolling(o *observation) (float64, string) {
	var polls, hits uint64
	for _, q := range o.queues {
		few := q.polls > 0 && float64(q.polls) < manyLooks*o.seconds
		if !q.sleeps || q.asleep >= sleepless || few {
			return 0, ""
		}
		polls, hits = polls+q.polls, hits+q.hits
	}
	found := share(hits, polls)
	switch {
	case len(o.queues) == 0 || found >= vainLooks:
		return 0, ""
	case polls == 0: // rings count looks in vain with the next batch of frames
		return 10, fmt.Sprintf("%d workers never slept, and no frame came", len(o.queues))
	}
	return 10 * (1 - found), fmt.Sprintf("%d workers never slept and looked %.0f times a second; "+
		"%s of these looks found frames", len(o.queues), float64(polls)/o.seconds, percent(found))
}
