package rdma

import "slices"

// spreadPolicy decides how many queues get flows, from how busy they are. It has no clock: it
// counts looks.
//
//	       two looks in a row: all busy          patience looks in a row: one less would do
//	n ───────────────────────────────────▶ 2n   n ────────────────────────────────────────▶ n-1
//
// Growth soon after a shrink doubles the patience, so that a load which wants n-1 and n in turn
// does not move flows, which are reordered then, again and again.
type spreadPolicy struct {
	limit, active int
	full          int // looks in a row that found all busy
	spare         int // looks in a row that found one queue to spare
	patience      int // of these, before there is one less; 0: minPatience
	sinceShrink   int // looks
	shrunk        bool
}

const (
	fullShare   = 0.8 // of the time on average, of a queue that has no more to give
	fullLooks   = 2
	spareShare  = 0.5 // of the time, that the queues which are left would be busy on average
	minPatience = 30  // looks: 3 s
	maxPatience = 600
)

// next is how many queues should get flows, when those have been busy for these shares of the time
// since the look before.
func (p *spreadPolicy) next(busy []float64) int {
	sum := 0.0
	for _, share := range busy[:p.active] {
		sum += share
	}
	p.sinceShrink++
	p.full, p.spare = p.full+1, p.spare+1
	if sum < fullShare*float64(p.active) || slices.Max(busy[:p.active]) < fullShare {
		p.full = 0
	}
	if p.active == 1 || sum > spareShare*float64(p.active-1) {
		p.spare = 0
	}
	switch {
	case p.full >= fullLooks:
		return min(2*p.active, p.limit)
	case p.spare >= max(p.patience, minPatience):
		return p.active - 1
	}
	return p.active
}

// changed notes that n queues get flows now.
func (p *spreadPolicy) changed(n int) {
	if n < p.active {
		p.shrunk, p.sinceShrink = true, 0
	} else if p.shrunk {
		p.patience = max(p.patience, minPatience)
		if p.sinceShrink < 4*p.patience {
			p.patience = min(2*p.patience, maxPatience)
		} else {
			p.patience = minPatience
		}
	}
	p.active, p.full, p.spare = n, 0, 0
}
