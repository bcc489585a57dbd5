package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is everything that a seed chooses.
type Plan struct {
	Seed   uint64
	Net    NetPlan
	Hosts  []HostPlan // the first is ours
	Work   []WorkPlan
	Faults []FaultPlan

	// Watch is called for each frame sent, if it is not nil.
	Watch func(at time.Duration, host int, frame []byte)
	// Step is called for each timer that fires, if it is not nil.
	Step func(at time.Duration)
}

// Harm is what a wire does to frames: probabilities for each.
type Harm struct {
	Lose, Double, Reorder, Corrupt float64
	LateBy                         time.Duration // the most that a reordered frame is late
}

// NetPlan is the switch.
type NetPlan struct {
	MTU     int
	PathMTU int           // of a router between all hosts; 0: there is none
	FallsAt time.Duration // after all hosts are up, when the router begins to be there
	Delay   time.Duration // of every frame
	Jitter  time.Duration // the most that is added to it; order is kept
	Quantum time.Duration // frames arrive at multiples of it
	Harm    Harm
	HarmFor time.Duration // after all hosts are up
}

// add is both harms.
func (h Harm) add(o Harm) Harm {
	return Harm{h.Lose + o.Lose, h.Double + o.Double, h.Reorder + o.Reorder, h.Corrupt + o.Corrupt,
		max(h.LateBy, o.LateBy)}
}

func (h Harm) lateBy() time.Duration {
	if h.LateBy == 0 {
		return time.Millisecond
	}
	return h.LateBy
}

// dice draws the choices of a plan.
type dice struct{ *rand.Rand }

func newDice(seed, stream uint64) dice { return dice{rand.New(rand.NewPCG(seed, stream))} }

// chance is true with probability p.
func (d dice) chance(p float64) bool { return d.Float64() < p }

// within is a duration from low to high.
func (d dice) within(low, high time.Duration) time.Duration {
	return low + time.Duration(d.Int64N(int64(high-low)+1))
}

// one is one of all.
func one[T any](d dice, all ...T) T { return all[d.IntN(len(all))] }

// NewPlan draws a plan.
func NewPlan(seed uint64) Plan {
	p := Plan{Seed: seed}
	p.Net = newNetPlan(newDice(seed, 1))
	p.Hosts = newHostPlans(newDice(seed, 2), p.Net.MTU)
	p.Faults = append(newFaultPlans(newDice(seed, 4), p.Hosts),
		newOutages(newDice(seed, 6), p.Hosts)...)
	if p.harmful() {
		p.replacePlain(newDice(seed, 5))
	}
	p.Work = newWorkPlans(newDice(seed, 3), p.Hosts)
	p.vary(newDice(seed, 7))
	p.extend(newDice(seed, 8))
	p.addFallback(newDice(seed, 9))
	p.addMove(newDice(seed, 20))
	p.limitMemory(newDice(seed, 21))
	p.addUpgrades(newDice(seed, 10), newDice(seed, 22))
	p.addCookies(newDice(seed, 24))
	p.slowReaders(newDice(seed, 23))
	p.addResize(newDice(seed, 25))
	p.addReaddressing(newDice(seed, 26))
	p.sendInPlace(newDice(seed, 27))
	p.paceSenders(newDice(seed, 28))
	return p
}

// harmful reports whether frames may be lost or late.
func (p *Plan) harmful() bool {
	return len(p.Faults) > 0 || p.Net.Harm != (Harm{LateBy: p.Net.Harm.LateBy})
}

// has reports whether there is a fault of one of these kinds.
func (p *Plan) has(kinds ...FaultKind) bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return slices.Contains(kinds, f.Kind) && !f.Off
	})
}

// resets reports whether connections are reset.
func (p *Plan) resets() bool {
	return slices.ContainsFunc(p.Work, func(w WorkPlan) bool { return w.Kind == Reset && !w.Off })
}

// replacePlain replaces hosts without our link: on a network that loses frames netstack by itself
// stands still for good now and then (link/rdma/internal/tcpfix).
func (p *Plan) replacePlain(d dice) {
	for i := range p.Hosts {
		if p.Hosts[i].Kind == Plain {
			p.Hosts[i] = newOurs(d, p.Net.MTU)
		}
	}
}

func newNetPlan(d dice) NetPlan {
	n := NetPlan{
		MTU:   one(d, 1500, 1500, 1500, 1500, 1280, 4000, 9000),
		Delay: one[time.Duration](d, 1, 5, 25, 100, 500, 5000, 40000) * time.Microsecond,
	}
	n.Jitter = one(d, 0, n.Delay/10, n.Delay/2)
	n.Quantum = one[time.Duration](d, 0, 1, 10, 50, 200) * time.Microsecond
	if d.chance(0.5) {
		n.Harm = newHarm(d)
		n.HarmFor = one(d, 100*time.Millisecond, time.Second, 10*time.Second)
	}
	return n
}

// newHarm is one or several kinds of harm.
func newHarm(d dice) Harm {
	rates := []float64{0.002, 0.01, 0.05, 0.15}
	h := Harm{LateBy: d.within(0, 5*time.Millisecond)}
	for _, rate := range []*float64{&h.Lose, &h.Double, &h.Reorder, &h.Corrupt} {
		if d.chance(0.4) {
			*rate = one(d, rates...)
		}
	}
	return h
}

// Keep leaves work and faults in the plan that are in these lists of numbers; nil keeps all. The
// rest has no effect, and keeps its number.
func (p *Plan) Keep(work, faults []int) {
	for i := range p.Work {
		p.Work[i].Off = p.Work[i].Off || work != nil && !slices.Contains(work, i)
	}
	for i := range p.Faults {
		p.Faults[i].Off = p.Faults[i].Off || faults != nil && !slices.Contains(faults, i)
	}
}

// String lists the plan, a line for each host, piece of work and fault.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\nnetwork %+v\n", p.Seed, p.Net)
	for i, h := range p.Hosts {
		fmt.Fprintf(&b, "host %d %v\n", i, h)
	}
	for i, w := range p.Work {
		if !w.Off {
			fmt.Fprintf(&b, "work %d %v\n", i, w)
		}
	}
	for i, f := range p.Faults {
		if !f.Off {
			fmt.Fprintf(&b, "fault %d %v\n", i, f)
		}
	}
	return b.String()
}
