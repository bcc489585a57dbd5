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

// Resized is a fault of the network: the ports and netdevs of all hosts get another MTU, and their
// own when it ends.
const Resized FaultKind = 21

// addResize has the MTU change in some worlds whose hosts with a stack all are ours, and whose
// devices stay. It rises only where no datagrams are long: rings take a larger MTU as far as their
// buffers go, and those of different hosts go to different ones.
func (p *Plan) addResize(d dice) {
	f := FaultPlan{Kind: Resized, MTU: one(d, 1280, 1500, 4000, 9000), At: d.within(0, time.Second),
		For: one(d, 10*time.Millisecond, 300*time.Millisecond, 2*time.Second, 8*time.Second)}
	wanted := d.chance(0.5)
	others := slices.ContainsFunc(p.Hosts, func(h HostPlan) bool {
		return h.Kind != Ours && h.Kind != Leases || h.Upgraded
	})
	long := slices.ContainsFunc(p.Work, func(w WorkPlan) bool {
		return w.Kind == Datagrams || w.Kind == Flood
	})
	if !wanted || others || !p.harmful() || p.leaves() || f.MTU == p.Net.MTU ||
		f.MTU > p.Net.MTU && long {
		return
	}
	p.Faults = append(p.Faults, f)
}

// Readdressed names a fault of a host whose MAC address is that of its netdev: that gets another
// one, and its own when the fault ends.
const Readdressed FaultKind = 22

// leastReaddressed gives the least time for which a netdev has another MAC. A stack looks at it
// each hostmode.FollowPause: of less it may learn nothing, while the kernel, which announces
// nothing, has answered a peer's question; the peer goes by that for a minute, be it Linux.
const leastReaddressed = 50 * time.Millisecond

// addReaddressing changes the MAC address of a host's netdev in some worlds whose hosts with a
// stack all are ours, and whose devices stay.
func (p *Plan) addReaddressing(d dice) {
	f := FaultPlan{Kind: Readdressed, Host: d.IntN(len(p.Hosts)), At: d.within(0, time.Second),
		For: one(d, leastReaddressed, 300*time.Millisecond, 2*time.Second, 8*time.Second)}
	others := slices.ContainsFunc(p.Hosts, func(h HostPlan) bool {
		return h.Kind != Ours && h.Kind != Leases || h.Upgraded || h.Fallback
	})
	if wanted := d.chance(0.5); !wanted || others || !p.harmful() || p.leaves() {
		return
	}
	if p.Hosts[f.Host].Kind != Ours {
		f.Host = 0
	}
	p.Hosts[f.Host].NetdevMAC = true
	p.Faults = append(p.Faults, f)
}

// largestMTU is the largest that hosts have at any time.
func (p *Plan) largestMTU() int {
	mtu := p.Net.MTU
	for _, f := range p.Faults {
		mtu = max(mtu, f.MTU)
	}
	return mtu
}

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

// leaves reports whether devices are away at times.
func (p *Plan) leaves() bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool { return f.away() && !f.Off })
}

// carried reports whether frames of a host pass all the time, but for its own faults: it falls back
// to an interface that is there.
func (p *Plan) carried(host int) bool {
	h := &p.Hosts[host]
	return (h.Fallback || h.OnHost) && !slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return f.Host == host && (f.Kind == NetdevGone || f.Kind == NetdevDown ||
			f.Kind == Remade) && !f.Off
	})
}
