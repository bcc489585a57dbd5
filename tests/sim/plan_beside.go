package sim

import "time"

// NewBesidePlan draws a plan whose first host, and in a third of the worlds the second, serves on
// the address of a kernel: on rings beside packet sockets, or on packet sockets only. Its device
// leaves and comes back in some, and the kernel's configuration changes. It is no kind of
// NewPlan's: seeds there keep what they are.
func NewBesidePlan(seed uint64) Plan {
	d := newDice(seed, 50)
	p := Plan{Seed: seed, Net: newNetPlan(d)}
	p.Net.MTU = one(d, 1500, 1500, 4000)
	if d.chance(0.4) {
		p.Net.Harm = Harm{}
	}
	for range 2 + d.IntN(2) {
		h := newOurs(d, p.Net.MTU)
		h.IPv6, h.InPlace = d.chance(0.8), d.chance(0.5)
		p.Hosts = append(p.Hosts, h)
	}
	for i := range p.Hosts[:2] {
		h := &p.Hosts[i]
		sockets := d.chance(0.4)
		if own := i == 0 || d.chance(0.35); own {
			h.OnHost, h.Sockets, h.OwnFilters = true, sockets, d.chance(0.3)
			h.Netdev = NetdevPlan{Room: one(d, 0, 0, 16, 100),
				Drain: d.within(time.Microsecond, 100*time.Microsecond),
				Merge: one(d, 0, 0, 2, 17, 64),
				Lag:   one(d, 0, 0, 100*time.Microsecond, 2*time.Millisecond)}
		}
	}
	p.Faults = p.besideFaults(d)
	p.Work = newWorkPlans(d, p.Hosts)
	p.Work = append(p.Work, WorkPlan{Kind: Lasting, Client: 1, Start: d.within(0, time.Second),
		Pause: one(d, 20*time.Millisecond, 100*time.Millisecond, time.Second),
		Bytes: 1 + d.IntN(3000)})
	if d.chance(0.5) {
		last := &p.Work[len(p.Work)-1]
		last.Server, last.Client = 1, 0
	}
	p.Work = append(p.Work, WorkPlan{Kind: Refused, Client: 1, Start: d.within(0, time.Second),
		Count: 1 + d.IntN(8), Pause: one(d, 0, 300*time.Millisecond, 2*time.Second)})
	for i := range p.Work {
		w := &p.Work[i]
		w.IPv6 = d.chance(0.4) && p.Hosts[w.Server].IPv6 && p.Hosts[w.Client].IPv6
		if w.Kind == Datagrams { // see hostSockets.takes
			w.Bytes, w.Back = w.Bytes%1000, w.Back&^3
		}
	}
	return p
}

// besideFaults draws faults of wires and NICs, and of the kernel and its devices, one after the
// other.
func (p *Plan) besideFaults(d dice) (all []FaultPlan) {
	if d.chance(0.4) {
		all = newFaultPlans(d, p.Hosts)
	}
	at := d.within(0, 300*time.Millisecond)
	for range d.IntN(4) {
		f := FaultPlan{Kind: Remade + FaultKind(d.IntN(numKernelFaults)), At: at,
			For: one(d, 10*time.Millisecond, 300*time.Millisecond, 2*time.Second, 8*time.Second),
			MTU: one(d, 0, 1280, 1400), Skip: d.IntN(3),
			Delay: one(d, 0, 10*time.Millisecond, time.Second, 5*time.Second)}
		resized := one(d, 1280, 1400, 4000, 9000)
		other := one(d, 0, Removed, Replaced, Resized, Readdressed)
		if d.chance(0.4) && other != 0 && (!other.leaves() || !p.Hosts[0].Sockets) {
			f.Kind = other
		}
		switch f.Kind {
		case Resized:
			f.MTU = resized
		case Readdressed:
			f.For = max(f.For, leastReaddressed)
		}
		all = append(all, f)
		at += f.For + f.settling() + d.within(100*time.Millisecond, 3*time.Second)
	}
	return all
}

// leaves reports whether a device is away.
func (k FaultKind) leaves() bool { return k == Removed || k == Replaced }
