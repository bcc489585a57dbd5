package sim

import (
	"slices"
	"time"
)

// The kinds of faults of the interface that a host falls back to.
const (
	NetdevGone FaultKind = TakenBack + 1 + iota // it is removed, and made again
	NetdevDown                                  // it has no carrier
	Upgraded                                    // a process takes the place of the one before
)

// addFallback gives hosts an interface with packet sockets, to which they fall back while their
// devices are away: half of the worlds with such outages, and some without, which get outages.
func (p *Plan) addFallback(d dice) {
	some, alone := d.chance(0.5), d.chance(0.15)
	outages := drawOutages(d, p.Hosts)
	room := one(d, 0, 0, 1, 8, 100)
	netdev := NetdevPlan{Room: room, Drain: d.within(time.Microsecond, 2*time.Millisecond),
		Backlog: one(d, 0, 0, 0, 64, 512)}
	switch leaves := p.leaves(); {
	case p.leased() || p.has(TakenBack) || leaves && !some || !leaves && !alone:
		return
	case !leaves && slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Kind == Plain }):
		return // it is for networks that lose nothing
	case !leaves:
		p.Faults = append(p.Faults, outages...)
	}
	for i := range p.Hosts {
		if h := &p.Hosts[i]; h.Kind == Ours {
			h.Fallback, h.Netdev = true, netdev
		}
	}
	for _, f := range p.Faults {
		if f.away() && d.chance(0.3) {
			p.Faults = append(p.Faults, FaultPlan{Kind: one(d, NetdevGone, NetdevDown),
				Host: f.Host, At: f.At + d.within(0, f.For),
				For: one(d, time.Millisecond, 100*time.Millisecond, 2*time.Second)})
		}
	}
}

// addUpgrades has the first host of some worlds be on packet sockets, and processes take each
// other's places there.
func (p *Plan) addUpgrades(d dice) {
	wanted, messages := d.chance(0.2), one(d, 2, 16, 300)
	netdev := NetdevPlan{Room: one(d, 0, 0, 4, 100), Backlog: one(d, 0, 0, 64, 512),
		Drain: d.within(time.Microsecond, 2*time.Millisecond)}
	if !wanted || p.leased() || p.Hosts[0].Fallback || p.has(TakenBack) ||
		slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Memory != MemoryPlan{} }) {
		return
	}
	if slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Kind == Plain }) {
		netdev = NetdevPlan{} // what waits for room when a process ends is lost
	}
	h := &p.Hosts[0]
	h.Late = one(d, 0, 10*time.Microsecond, time.Millisecond, 20*time.Millisecond)
	h.Upgraded, h.Messages, h.Netdev, h.Refusals = true, messages, netdev, 0
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Host == 0 && f.Kind >= LinkDown {
			f.Off = true // it has no NIC
		}
	}
	for at, n := time.Duration(0), 1+d.IntN(3); n > 0; n-- {
		at += d.within(0, one(d, 2*time.Millisecond, 100*time.Millisecond, time.Second))
		p.Faults = append(p.Faults, FaultPlan{Kind: Upgraded, At: at, For: time.Second,
			Count: one(d, 0, 0, 1, 2)})
	}
}

// onlyUpgrades reports whether processes take each other's places, and nothing goes wrong.
func (p *Plan) onlyUpgrades() bool {
	return p.Hosts[0].Upgraded && p.Hosts[0].Netdev.Backlog == 0 && p.Net.Harm == (Harm{
		LateBy: p.Net.Harm.LateBy}) && !slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return f.Kind != Upgraded && !f.Off
	})
}

// Has reports whether a plan has what is called so: "fallback" or "upgrades".
func (p *Plan) Has(what string) bool {
	return slices.ContainsFunc(p.Hosts, func(h HostPlan) bool {
		return what == "fallback" && h.Fallback || what == "upgrades" && h.Upgraded
	})
}

// leaves reports whether devices are away at times.
func (p *Plan) leaves() bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool { return f.away() && !f.Off })
}

// carried reports whether frames of a host pass all the time, but for its own faults: it falls back
// to an interface that is there.
func (p *Plan) carried(host int) bool {
	return p.Hosts[host].Fallback && !slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return f.Host == host && (f.Kind == NetdevGone || f.Kind == NetdevDown) && !f.Off
	})
}
