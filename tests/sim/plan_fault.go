package sim

import (
	"fmt"
	"slices"
	"time"
)

// FaultKind is what goes wrong.
type FaultKind uint8

// The kinds of faults: of the switch, of the network port, and of the software NIC of a host.
const (
	Wire            FaultKind = iota // Harm to all frames from and to a host
	Unplugged                        // the switch drops them all, and nobody is told
	LinkDown                         // the port loses its link, and gets it back
	SendErrors                       // simnic.FaultSendError
	ReceiveErrors                    // simnic.FaultReceiveError
	Starved                          // simnic.FaultStarve
	LostCompletion                   // simnic.FaultLoseCompletion
	LateCompletion                   // simnic.FaultLateCompletion
	LostDoorbell                     // simnic.FaultLoseDoorbell
	WrongCounter                     // simnic.FaultWrongCounter
	Paused                           // simnic.FaultPause
	HeldWithoutLink                  // simnic.FaultHoldWithoutLink, and the link is down
	numFaults
)

var faultNames = [...]string{"wire", "unplugged", "link down", "send errors", "receive errors",
	"starved", "lost completion", "late completion", "lost doorbell", "wrong counter", "paused",
	"held without link", "removed", "replaced", "flapping", "lease taken back", "netdev gone",
	"netdev down", "upgraded", Moved: "lease moved", Resized: "resized",
	Readdressed: "readdressed", Remade: "remade", Renamed: "renamed",
	AddressAdded: "address added", AddressLost: "address lost", Rerouted: "rerouted"}

// String is the kind's name.
func (k FaultKind) String() string { return faultNames[k] }

// FaultPlan is one fault.
type FaultPlan struct {
	Kind        FaultKind
	Host        int
	At          time.Duration // after all hosts are up
	For         time.Duration
	Harm        Harm
	Rate        float64       // of the events that could be hit
	Count, Skip int           // of them, as in simnic.QueueFault
	Delay       time.Duration // of late completions
	Syndrome    uint8
	Lease       LeaseChange   // of Moved
	MTU         int           // of Resized, for as long as it lasts
	Kill        time.Duration // after an upgrade began, the process before is killed; 0: it is not
	Off         bool          // left out
}

// String describes the fault.
func (f FaultPlan) String() string {
	s := fmt.Sprintf("%v at host %d after %v for %v", f.Kind, f.Host, f.At, f.For)
	if f.Kind == Wire {
		return fmt.Sprintf("%s: %+v", s, f.Harm)
	}
	if f.Kind == Moved {
		return fmt.Sprintf("%s, way %d", s, f.Lease)
	}
	if f.Kind == Resized {
		return fmt.Sprintf("%s, to an MTU of %d", s, f.MTU)
	}
	if f.Kind == Upgraded {
		return fmt.Sprintf("%s, %d newcomers give up, killed after %v", s, f.Count, f.Kill)
	}
	if f.Kind >= numFaults {
		return fmt.Sprintf("%s, %d refusals, pause %v", s, f.Count, f.Delay)
	}
	if f.Kind >= SendErrors && f.Kind <= WrongCounter {
		s += fmt.Sprintf(", rate %v, count %d, skip %d, delay %v, syndrome %#x", f.Rate, f.Count,
			f.Skip, f.Delay, f.Syndrome)
	}
	return s
}

// newFaultPlans draws up to four faults.
func newFaultPlans(d dice, hosts []HostPlan) []FaultPlan {
	var all []FaultPlan
	for range d.IntN(5) {
		f := FaultPlan{
			Kind: FaultKind(d.IntN(int(numFaults))), Host: d.IntN(len(hosts)),
			At:   d.within(0, 500*time.Millisecond),
			For:  one(d, 10*time.Millisecond, 100*time.Millisecond, time.Second, 5*time.Second),
			Harm: newHarm(d), Rate: one(d, 0, 0.01, 0.1, 0.5), Count: one(d, 1, 1, 3, 20),
			Skip:  one(d, 0, 0, 1, 10, 100),
			Delay: one(d, 50*time.Microsecond, time.Millisecond, 20*time.Millisecond),
			// local length, local operation, protection, flushed, remote access
			Syndrome: one[uint8](d, 1, 2, 4, 5, 0x13),
		}
		if hosts[f.Host].Kind != Ours && f.Kind >= LinkDown {
			f.Host = 0
		}
		all = append(all, f)
	}
	showErrors(all, hosts)
	return all
}

// showErrors lets one completion of a striding ring be lost, not all, where receptions fail. Such a
// ring has few descriptors: with all that tell of the error nothing would, as the NIC reports none
// of its own accord that a completion tells of.
func showErrors(faults []FaultPlan, hosts []HostPlan) {
	fails := make([]bool, len(hosts))
	for _, f := range faults {
		fails[f.Host] = fails[f.Host] || f.Kind == ReceiveErrors
	}
	for i := range faults {
		if f := &faults[i]; f.Kind == LostCompletion && fails[f.Host] &&
			hosts[f.Host].Device.Rings.Striding {
			f.Count = 1
		}
	}
}

// faulty reports whether a fault is in the NIC of host i.
func (p *Plan) faulty(i int) bool {
	return slices.ContainsFunc(p.Faults, func(f FaultPlan) bool {
		return (f.Host == i || f.Kind == Resized) && f.Kind >= LinkDown && !f.Off
	})
}
