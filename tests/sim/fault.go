package sim

import "github.com/rdma-netstack/rdma-netstack/simnic"

// startFaults sets timers for all faults, and for the end of the network's own harm.
func (w *world) startFaults() {
	w.net.change(func() { w.net.plan.Harm = w.plan.Net.Harm })
	w.clock.AfterFunc(w.plan.Net.FallsAt, func() {
		w.net.change(func() { w.net.plan.PathMTU = w.plan.Net.PathMTU })
	})
	w.clock.AfterFunc(w.plan.Net.HarmFor, func() {
		w.net.change(func() { w.net.plan.Harm = Harm{} })
	})
	w.calm = w.clock.now() + w.plan.Net.HarmFor
	for i, f := range w.plan.Faults {
		if f.Off {
			continue
		}
		begin := w.faultOf(f)
		w.clock.AfterFunc(f.At, func() {
			w.logf("fault %d: %v", i, f)
			end := begin()
			w.clock.AfterFunc(f.For, func() {
				end()
				w.logf("fault %d ends", i)
			})
		})
		w.calm = max(w.calm, w.clock.now()+f.At+f.For+f.settling())
	}
	if w.plan.has(TakenBack, Moved) {
		w.calm += leaseSettling
		h, want := w.hosts[0].(*ourHost), address(0)
		if w.plan.moves() {
			want = otherAddress(0)
		}
		w.clock.AfterFunc(w.calm-w.clock.now()-1, func() { w.note(h.leased(want)) })
	}
}

// faultOf returns what begins a fault, which returns what ends it.
func (w *world) faultOf(f FaultPlan) (begin func() (end func())) {
	p := w.net.ports[f.Host]
	switch f.Kind {
	case Wire:
		return func() func() {
			w.net.change(func() { p.harm = p.harm.add(f.Harm) })
			return func() { w.net.change(func() { p.harm = Harm{} }) }
		}
	case Unplugged:
		return func() func() {
			w.net.change(func() { p.cut = true })
			return func() { w.net.change(func() { p.cut = false }) }
		}
	}
	if f.Kind == Upgraded {
		return func() func() {
			w.spawn("upgrade", func(t *task) error {
				return w.hosts[f.Host].(*upgradedHost).upgrade(t, f)
			})
			return func() {}
		}
	}
	if f.Kind >= numFaults {
		return w.deviceFault(f)
	}
	h := w.ours(f.Host)
	ofNIC := faultOfNIC(h.slot.card(), w.plan.Seed, f)
	if f.Kind != LinkDown || !h.plan.Sockets {
		return ofNIC
	}
	return func() func() { // the netdev is all that tells such a host
		end := ofNIC()
		h.netdev.setDown(true)
		return func() {
			end()
			h.netdev.setDown(false)
		}
	}
}

// queueFaults are the faults of queues, by the name that the software NIC has for them.
var queueFaults = map[FaultKind]simnic.QueueFaultKind{
	SendErrors: simnic.FaultSendError, ReceiveErrors: simnic.FaultReceiveError,
	Starved: simnic.FaultStarve, LostCompletion: simnic.FaultLoseCompletion,
	LateCompletion: simnic.FaultLateCompletion, LostDoorbell: simnic.FaultLoseDoorbell,
	WrongCounter: simnic.FaultWrongCounter, Paused: simnic.FaultPause,
	HeldWithoutLink: simnic.FaultHoldWithoutLink,
}

// faultOfNIC is faultOf for faults of a software NIC.
func faultOfNIC(nic *simnic.NIC, seed uint64, f FaultPlan) (begin func() (end func())) {
	if f.Kind == LinkDown {
		return func() func() {
			nic.SetLink(false)
			return func() { nic.SetLink(true) }
		}
	}
	q := simnic.QueueFault{Kind: queueFaults[f.Kind], Seed: seed}
	if f.Kind != Paused && f.Kind != HeldWithoutLink {
		q.Rate, q.Count, q.Skip, q.Delay = f.Rate, f.Count, f.Skip, f.Delay
		q.Syndrome, q.Vendor = f.Syndrome, 0x51
	}
	return func() func() {
		i := nic.Inject(q)
		if f.Kind == HeldWithoutLink {
			nic.SetLink(false)
			return func() {
				nic.SetLink(true)
				i.Remove()
			}
		}
		return i.Remove
	}
}
