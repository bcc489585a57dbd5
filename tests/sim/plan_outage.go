package sim

import (
	"cmp"
	"slices"
	"time"
)

// The kinds of faults of a device as a whole.
const (
	Removed         FaultKind = numFaults + iota // it is away, and comes back
	Replaced                                     // a card of another kind comes in its place
	Flapping                                     // its link goes down and comes up, many times
	numDeviceFaults = iota
	TakenBack       = numFaults + iota - 1 // a host's lease is refused, and given again
)

// newOutages draws faults of devices as a whole for some worlds, one after the other.
// MaxOutage is 5 or 13 s where it is not the default: each outage is over well before, or well
// after.
func newOutages(d dice, hosts []HostPlan) (all []FaultPlan) {
	if !d.chance(0.15) {
		return nil
	}
	return drawOutages(d, hosts)
}

func drawOutages(d dice, hosts []HostPlan) (all []FaultPlan) {
	at := d.within(0, 300*time.Millisecond)
	for range 1 + d.IntN(3) {
		f := FaultPlan{
			Kind: numFaults + FaultKind(d.IntN(numDeviceFaults)), Host: d.IntN(len(hosts)), At: at,
			For: one(d, 10*time.Millisecond, 300*time.Millisecond, 2*time.Second, 8*time.Second,
				25*time.Second),
			Count: one(d, 0, 0, 0, 1, 3), Delay: d.within(time.Millisecond, 200*time.Millisecond),
		}
		if hosts[f.Host].Kind != Ours {
			f.Host = 0
		}
		if f.Kind == Flapping {
			f.For = min(f.For, 2*time.Second)
			f.Delay = max(f.Delay, f.For/100)
		}
		all = append(all, f)
		at += f.For + f.settling() + d.within(0, 3*time.Second)
	}
	return all
}

// linkPause is how long the link of a host is down whose lease is taken back.
const linkPause = 2 * time.Millisecond

// leaseSettling is how long after the last fault a host may be without address: it asks after 1,
// 2, 4 and 8 s, several times if messages got lost, and looks whether others have the address.
const leaseSettling = 30 * time.Second

// addLeases adds a DHCP server to a few worlds, which takes the lease of the first host back in
// half of them. That host has no other address of IPv4.
func (p *Plan) addLeases(d dice) {
	if !d.chance(0.08) {
		return
	}
	p.Hosts = append(p.Hosts, HostPlan{Kind: Leases})
	p.Hosts[0].Leased = true
	f := FaultPlan{Kind: TakenBack, At: d.within(0, 2*time.Second),
		For: one(d, 100*time.Millisecond, time.Second, 5*time.Second)}
	if d.chance(0.5) && p.harmful() {
		p.Faults = append(p.Faults, f)
	}
}

// away reports whether the device is away during the fault.
func (f FaultPlan) away() bool { return f.Kind == Removed || f.Kind == Replaced }

// settling is how long after the fault its device may be away: it is looked for after a pause,
// and once more for each time that memory cannot be locked. A host that asks for its lease when
// its link comes up, and whose four questions or their answers are lost, keeps the lease until it
// renews it (RFC 2131 section 3.2).
func (f FaultPlan) settling() time.Duration {
	switch {
	case f.away(), f.Kind == Remade:
		return time.Duration(1+f.Count)*2*time.Second + f.configured()
	case f.Kind == Moved && f.Lease <= answeredOther:
		return movingLease / 2 * time.Second
	}
	return 0
}

// configured returns how long after its return a netdev lacks addresses.
func (f FaultPlan) configured() time.Duration {
	if f.Kind == Remade {
		return f.Delay
	}
	return 0
}

// defaultMaxOutage is that of package stack.
const defaultMaxOutage = 2 * time.Minute

// leased reports whether a host's address comes from a DHCP server. The network does no harm then
// until all hosts are up: it could take longer than any limit to get an address.
func (p *Plan) leased() bool { return p.Hosts[0].Leased }

// maxOutage is for how long connections of a host wait.
func (p *Plan) maxOutage(host int) time.Duration {
	return cmp.Or(p.Hosts[host].MaxOutage, defaultMaxOutage)
}

// loses reports whether devices leave, with nothing in their place, or addresses.
func (p *Plan) loses() bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return (f.away() && !p.carried(f.Host) || f.Kind == TakenBack || f.Kind == Moved ||
			f.Kind == Remade || f.Kind == AddressLost) && !f.Off
	})
}

// cuts reports whether a device is away for longer than connections wait, with nothing in its
// place, or an address.
func (p *Plan) cuts() bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return !f.Off && (f.away() && !p.carried(f.Host) && f.For > p.maxOutage(f.Host) ||
			f.Kind == AddressLost)
	})
}

// vary draws what does not change the rest of the plan.
func (p *Plan) vary(d dice) {
	limit := one(d, 0, 0, 5*time.Second, 13*time.Second)
	for i := range p.Faults {
		if f := &p.Faults[i]; f.away() && limit > 0 {
			p.Hosts[f.Host].MaxOutage, f.Count = limit, 0
		}
	}
	dual := d.chance(0.8)
	for i := range p.Hosts {
		h := &p.Hosts[i]
		h.IPv6 = dual && (h.Kind == Ours || h.Kind == Plain)
		if d.chance(0.05) && h.Kind == Ours {
			h.Refusals = 1 + d.IntN(2)
		}
	}
	if d.chance(0.1) {
		p.Work = append(p.Work, WorkPlan{Kind: Names, Client: 1, Count: 1 + d.IntN(12),
			Start: d.within(0, time.Second),
			Pause: one(d, 0, 10*time.Millisecond, 400*time.Millisecond)})
	}
	for i := range p.Work {
		w := &p.Work[i]
		w.IPv6 = d.chance(0.7) && p.Hosts[w.Server].IPv6 && p.Hosts[w.Client].IPv6
	}
	p.addLeases(d)
}
