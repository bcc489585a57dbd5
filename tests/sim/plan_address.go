package sim

import (
	"slices"
	"time"
)

// Moved is a fault of addresses: the first host's DHCP server gives it another one.
const Moved FaultKind = 20

// LeaseChange is how a host comes to another address.
type LeaseChange uint8

// The ways to another address. In the first two the host asks because its link went down and came
// up, in the others because its lease is to be renewed.
const (
	refusedLease   LeaseChange = iota // a refusal, and the other one when the fault ends
	answeredOther                     // the answer has the other one
	refusedRenewal                    // a refusal
	renewedOther                      // the answer has the other one
	leaseRunsOut                      // no answer until the lease is over
	numLeaseChanges
)

// movingLease is how many seconds a lease lasts where it moves: the least that a client keeps to.
const movingLease = 120

// addMove has the address of the first host move in a few worlds whose hosts all are ours, and adds
// a connection that is used all the time.
func (p *Plan) addMove(d dice) {
	wanted, how := d.chance(0.15), LeaseChange(d.IntN(int(numLeaseChanges)))
	f := FaultPlan{Kind: Moved, At: d.within(0, 2*time.Second), Lease: how,
		For: one(d, 100*time.Millisecond, time.Second, 5*time.Second)}
	lasting := WorkPlan{Kind: Lasting, Client: 1, Start: d.within(0, time.Second),
		Pause: one(d, 100*time.Millisecond, time.Second, 5*time.Second), Bytes: 1 + d.IntN(3000)}
	if d.chance(0.5) {
		lasting.Server, lasting.Client = 1, 0
	}
	if !wanted || p.leased() || p.Hosts[0].Fallback || !p.allOurs() {
		return
	}
	switch how {
	case refusedRenewal, renewedOther:
		f.For += movingLease / 2 * time.Second
	case leaseRunsOut:
		f.For += movingLease * time.Second
	}
	p.Hosts = append(p.Hosts, HostPlan{Kind: Leases})
	p.Hosts[0].Leased = true
	p.Faults = append(p.Faults, f)
	p.Work = append(p.Work, lasting)
}

// allOurs reports whether all hosts are ours.
func (p *Plan) allOurs() bool {
	return !slices.ContainsFunc(p.Hosts, func(h HostPlan) bool { return h.Kind != Ours })
}

// moves reports whether the first host comes to another address of IPv4.
func (p *Plan) moves() bool { return p.has(Moved) }
