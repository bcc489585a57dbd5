package sim

import (
	"fmt"
	"time"
)

// WorkKind is what a piece of work does.
type WorkKind uint8

// The kinds of work. The first host of each is the server.
const (
	Bulk       WorkKind = iota // one connection, data one way, and the other
	Web                        // requests of net/http over kept connections
	Short                      // many connections, one after the other, a few bytes each
	HalfClose                  // the client ends its direction before the server begins
	Reset                      // the client resets in the middle
	Deadline                   // reads that run into their deadlines, and go on
	Datagrams                  // UDP questions, asked again until answered
	SlowReader                 // the server reads in pauses, so that the window closes
	numWork
	Script = numWork     // a peer without a stack leaves a gap in its data
	Names  = numWork + 1 // questions to dnsd, over UDP and TCP
	// Kinds that only some worlds have; see plan_address.go and plan_memory.go.
	Lasting WorkKind = 20 // a connection that is used all the time
	Burst   WorkKind = 21 // connections all at once, to a listener that accepts slowly
	Flood   WorkKind = 22 // datagrams all at once, to a reader that is slow
	Refused WorkKind = 23 // connections to a port that nobody has; see plan_beside.go
)

var workNames = [...]string{"bulk", "web", "short", "half-close", "reset", "deadline", "datagrams",
	"slow reader", "script", "names", Lasting: "lasting", Burst: "burst", Flood: "flood",
	Refused: "refused"}

// String is the kind's name.
func (k WorkKind) String() string { return workNames[k] }

// WorkPlan is one piece of work.
type WorkPlan struct {
	Kind           WorkKind
	Server, Client int
	Start          time.Duration // after all hosts are up
	Bytes          int           // to the server, or in each request
	Back           int           // to the client
	Count          int           // connections or requests
	Pause          time.Duration
	IPv6           bool
	DF             bool // questions are not fragmented, but made shorter until they pass
	Off            bool // left out
}

// String describes the work.
func (w WorkPlan) String() string {
	return fmt.Sprintf("%v: host %d serves host %d after %v, %d bytes there, %d back, %d times, "+
		"pause %v, IPv6 %v", w.Kind, w.Server, w.Client, w.Start, w.Bytes, w.Back, w.Count, w.Pause,
		w.IPv6)
}

// newWorkPlans draws up to four pieces of work. Our first host takes part in all.
func newWorkPlans(d dice, hosts []HostPlan) []WorkPlan {
	var all []WorkPlan
	if last := len(hosts) - 1; hosts[last].Kind == Scripted {
		all = append(all, WorkPlan{Kind: Script, Client: last, Count: 1 + d.IntN(3),
			Start: d.within(0, 2*time.Second)})
		hosts = hosts[:last]
	}
	for range 1 + d.IntN(4) {
		w := WorkPlan{
			Kind: WorkKind(d.IntN(int(numWork))), Client: 1 + d.IntN(len(hosts)-1),
			Start: d.within(0, 100*time.Millisecond), Count: 1 + d.IntN(6),
			Pause: one(d, 0, time.Millisecond, 30*time.Millisecond, 400*time.Millisecond),
			Bytes: size(d), Back: size(d),
		}
		if d.chance(0.3) || w.Kind == Reset && hosts[w.Client].Kind != Ours {
			w.Server, w.Client = w.Client, 0
		}
		all = append(all, w)
	}
	return all
}

// size is a number of bytes: often few, sometimes more than windows and buffers hold.
func size(d dice) int {
	switch d.IntN(6) {
	case 0:
		return d.IntN(3)
	case 1:
		return 1 + d.IntN(1500)
	case 2:
		return 1 + d.IntN(64<<10)
	case 3:
		return 1400 * (1 + d.IntN(50))
	case 4:
		return 1 + d.IntN(300<<10)
	}
	return 1 + d.IntN(10<<10)
}
