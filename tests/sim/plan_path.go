package sim

import "time"

// NewPathPlan draws a plan whose network has a router in the middle that takes packets of a smaller
// MTU only than the hosts' links, and questions of datagrams over it: some of them in parts, and
// some with "don't fragment"; and TCP connections, in the middle of which the router comes in half
// of the worlds. It is no kind of NewPlan's: seeds there keep what they are.
func NewPathPlan(seed uint64) Plan {
	d := newDice(seed, 40)
	p := Plan{Seed: seed, Net: NetPlan{MTU: 1500, PathMTU: one(d, 1280, 1281, 1400, 1492),
		Delay: one(d, 5*time.Microsecond, time.Millisecond), Quantum: 200 * time.Microsecond}}
	if d.chance(0.5) {
		p.Net.Harm, p.Net.HarmFor = Harm{Lose: 0.02, Double: 0.02}, time.Minute
	}
	for range 3 {
		h := newOurs(d, p.Net.MTU)
		h.IPv6 = true
		p.Hosts = append(p.Hosts, h)
	}
	for i := range 6 {
		w := WorkPlan{Kind: Datagrams, Server: i % 3, Client: (i + 1 + i/3) % 3, IPv6: i%2 == 0,
			Start: d.within(0, 100*time.Millisecond), Count: 1 + d.IntN(6), Bytes: d.IntN(1 << 16),
			Back: 4 * d.IntN(250), DF: i < 3}
		if i == 5 {
			w.Back += 3 // in parts
		}
		p.Work = append(p.Work, w)
	}
	p.addConnections(newDice(seed, 41))
	return p
}

// addConnections adds bulk both ways over the router, which is there from the beginning, or comes
// while they last: what is cut to the MTU of questions has to be sent after that.
func (p *Plan) addConnections(d dice) {
	fall := one(d, 0, d.within(time.Millisecond, 100*time.Millisecond))
	p.Net.FallsAt = fall
	for i := range p.Work {
		p.Work[i].Start += fall
	}
	for i := range 4 {
		p.Work = append(p.Work, WorkPlan{Kind: Bulk, Server: i % 3, Client: (i + 1) % 3,
			IPv6: i%2 == 0, Start: d.within(0, 50*time.Millisecond), Count: 1,
			Bytes: d.IntN(1 << 19), Back: d.IntN(1 << 19)})
	}
}
