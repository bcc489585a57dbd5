package sim

import (
	"slices"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// addUpgrades has processes take each other's places on the first host of some worlds: over packet
// sockets, or on the rings of its card. Of some of them the one before is killed.
func (p *Plan) addUpgrades(d, more dice) {
	wanted, messages := d.chance(0.2), one(d, 2, 16, 300)
	netdev := NetdevPlan{Room: one(d, 0, 0, 4, 100), Backlog: one(d, 0, 0, 64, 512),
		Drain: d.within(time.Microsecond, 2*time.Millisecond)}
	wanted = more.chance(0.15) || wanted
	rings, kills := more.chance(0.5), more.chance(0.4)
	if !wanted || p.leased() || p.Hosts[0].Fallback || p.has(TakenBack) ||
		slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Memory != MemoryPlan{} }) {
		return
	}
	plain := slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Kind == Plain })
	if plain { // it is for networks that lose nothing
		netdev = NetdevPlan{} // what waits for room when a process ends is lost
		kills = false
	}
	switch { // on rings, each frame of the process before is one
	case rings && plain:
		messages = 1 << 20
	case rings:
		messages = max(messages, 16)
	}
	h := &p.Hosts[0]
	h.Late = one(d, 0, 10*time.Microsecond, time.Millisecond, 20*time.Millisecond)
	h.Upgraded, h.Rings, h.Messages, h.Refusals = true, rings, messages, 0
	if !rings {
		h.Netdev = netdev
	}
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Host == 0 && f.Kind >= LinkDown && (!rings || f.Kind >= numFaults) {
			f.Off = true // it has no NIC, or one that stays
		}
	}
	for at, n := time.Duration(0), 1+d.IntN(3); n > 0; n-- {
		at += d.within(0, one(d, 2*time.Millisecond, 100*time.Millisecond, time.Second))
		f := FaultPlan{Kind: Upgraded, At: at, For: time.Second, Count: one(d, 0, 0, 1, 2)}
		if kills && more.chance(0.7) {
			f.Kill = 1 + more.within(0, one(more, h.Late, 8*h.Late, 100*time.Millisecond,
				time.Second))
		}
		p.Faults = append(p.Faults, f)
	}
}

// addCookies has a few of these hosts complete handshakes with SYN cookies, and adds one connection
// after the other at that time. Nothing else goes wrong then: a client whose ACK does not come
// first is reset, and one whose SYN was answered before the meeting and whose ACK comes after the
// change.
func (p *Plan) addCookies(d dice) {
	h := &p.Hosts[0]
	wanted, late := d.chance(0.15), one(d, 4*time.Millisecond, 20*time.Millisecond)
	count := one(d, 20, 100)
	if !wanted || !h.Upgraded || p.kills() || h.Buffers != (stack.BufferRange{}) {
		return
	}
	h.Memory.Cookies, h.Netdev.Backlog, h.Late, h.Messages = true, 0, late, 1<<20
	p.Net.Harm, p.Net.Delay = Harm{}, min(p.Net.Delay, 500*time.Microsecond)
	p.Net.Jitter = min(p.Net.Jitter, p.Net.Delay/2)
	begin := time.Duration(0)
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Kind == Upgraded {
			begin = f.At
		} else {
			f.Off = true
		}
	}
	p.Work = append(p.Work, WorkPlan{Kind: Short, Client: 1, Count: count, Start: begin,
		Bytes: 10, Back: 10})
}

// slowReaders has the interfaces of some worlds merge segments as GRO does, and those who read from
// them run late: frames wait there, among other times when a device comes back, or a process takes
// another's place.
func (p *Plan) slowReaders(d dice) {
	lag := one(d, 0, 0, 100*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond)
	most := one(d, 0, 0, 2, 17, 64)
	for i := range p.Hosts {
		if h := &p.Hosts[i]; h.Fallback || h.Upgraded && !h.Rings {
			if h.Netdev.Merge = most; !h.Memory.Cookies {
				h.Netdev.Lag = lag
			}
		}
	}
}

// onlyUpgrades reports whether processes take each other's places, and nothing goes wrong.
func (p *Plan) onlyUpgrades() bool {
	return p.Hosts[0].Upgraded && p.Hosts[0].Netdev.Backlog == 0 && p.Net.Harm == (Harm{
		LateBy: p.Net.Harm.LateBy}) && !slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return (f.Kind != Upgraded || f.Kill > 0) && !f.Off
	})
}

// kills reports whether a process is killed.
func (p *Plan) kills() bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool { return f.Kill > 0 && !f.Off })
}

// Has reports whether a plan has what is called so: "fallback", "upgrades", those of them on
// "rings", those in which a process is "killed", readers are "late", segments "merged" by an
// interface, the MTU is "resized", or a netdev is "readdressed".
func (p *Plan) Has(what string) bool {
	return what == "killed" && p.kills() || what == "resized" && p.has(Resized) ||
		what == "readdressed" && p.has(Readdressed) ||
		slices.ContainsFunc(p.Hosts, func(h HostPlan) bool {
			return what == "fallback" && h.Fallback || what == "upgrades" && h.Upgraded ||
				what == "rings" && h.Rings || what == "late" && h.Netdev.Lag > 0 ||
				what == "merged" && h.Netdev.Merge > 1 || what == "paced" && h.Rate > 0
		})
}

// slowest is how long a frame takes at most that nothing holds up but its reader.
func (n *NetPlan) slowest(reader time.Duration) time.Duration {
	return n.Delay + n.Jitter + n.Quantum + reader + time.Millisecond
}
