package sim

import "time"

// extend draws what plans got later from numbers of its own, so that the rest stays what it was.
func (p *Plan) extend(d dice) {
	p.addCrowd(d)
	for i := range p.Hosts {
		h := &p.Hosts[i]
		if small := d.chance(0.3); small && h.Kind == Ours && p.Net.MTU >= 4000 {
			n := one(d, 16, 32) << 10
			h.Buffers.Min, h.Buffers.Default, h.Buffers.Max = 4<<10, n, 4*n
		}
		if d.chance(0.5) && h.Kind == Ours {
			h.Grace = one(d, time.Second, 3*time.Second, 10*time.Second)
		}
	}
}

// sendInPlace makes some hosts send large writes without copying.
func (p *Plan) sendInPlace(d dice) {
	for i := range p.Hosts {
		h := &p.Hosts[i]
		h.InPlace = d.chance(0.5) && h.Kind == Ours
	}
}

// paceSenders gives hosts of some worlds a rate for each of their connections.
func (p *Plan) paceSenders(d dice) {
	wanted := d.chance(0.15)
	for i := range p.Hosts {
		h := &p.Hosts[i]
		rate, paced := one[uint64](d, 200e3, 1e6, 10e6), d.chance(0.7)
		if wanted && paced && h.Kind == Ours && !h.Upgraded {
			h.Rate = rate
		}
	}
}

// addCrowd adds transfers of the first host to some worlds with a long way between the hosts, and a
// pause of its port in the middle of them: more is to be sent then than the rings hold.
func (p *Plan) addCrowd(d dice) {
	const transfers = 4
	wanted := d.chance(0.5)
	start, trips := d.within(0, 100*time.Millisecond), 3+d.IntN(4)
	pause := one(d, 20*time.Millisecond, 200*time.Millisecond, time.Second)
	if !wanted || p.Net.Delay < 5*time.Millisecond || !p.ordered(0) || p.leased() ||
		p.Hosts[1].Kind != Ours {
		return
	}
	for range transfers {
		p.Work = append(p.Work, WorkPlan{Kind: Bulk, Client: 1, Start: start, Count: 1,
			Bytes: 1 + d.IntN(1000), Back: 200<<10 + d.IntN(200<<10)})
	}
	for _, h := range p.Hosts {
		if h.Kind == Plain { // it is for networks that lose nothing, and delay nothing for long
			return
		}
	}
	p.Faults = append(p.Faults, FaultPlan{Kind: Paused, At: start +
		time.Duration(2*trips)*(p.Net.Delay+p.Net.Jitter/2), For: pause})
}
