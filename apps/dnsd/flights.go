package dnsd

import (
	"context"
	"net/netip"
	"sync"

	"github.com/miekg/dns"
)

// Bounds of forwarding.
const (
	maxForwards    = 256  // questions in progress
	maxWaiting     = 4096 // waiters of all of them
	maxWaitingEach = 256  // waiters of one client
)

// question holds the part of a query that determines the answer of a resolver.
type question struct {
	name                     string // canonical
	qtype                    uint16
	dnssec, checkingDisabled bool
	network                  string // that the query came over
}

// flight holds a forwarded question in progress. It belongs to the client that asked first; others
// with the same question wait for the same answer.
type flight struct {
	question question
	client   netip.Prefix
	number   uint64
	cancel   context.CancelFunc
	waiting  []waiter
}

// waiter describes a query that waits for the answer; deliver is called once, with nil when there
// is none.
type waiter struct {
	client  netip.Prefix
	deliver func(*dns.Msg)
}

// flights holds the questions in progress, shared among clients: a single client may use all, but
// when another one arrives, the client with the most loses one.
type flights struct {
	mu      sync.Mutex
	all     map[question]*flight
	owned   map[netip.Prefix]int // flights by client
	waiting map[netip.Prefix]int // waiters by client
	waiters int
	number  uint64
}

func newFlights() *flights {
	return &flights{
		all: map[question]*flight{}, owned: map[netip.Prefix]int{}, waiting: map[netip.Prefix]int{},
	}
}

// joinOrStart lets w wait for q, and returns the flight if it is a new one, which the caller must
// forward.
// False: there is no room, and w is not called.
func (f *flights) joinOrStart(q question, w waiter, cancel context.CancelFunc) (fresh *flight,
	ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiters >= maxWaiting || f.waiting[w.client] >= maxWaitingEach {
		return nil, false
	}
	fl := f.all[q]
	if fl == nil {
		if len(f.all) >= maxForwards && !f.makeRoom(w.client) {
			return nil, false
		}
		f.number++
		fl = &flight{question: q, client: w.client, number: f.number, cancel: cancel}
		f.all[q] = fl
		f.owned[w.client]++
		fresh = fl
	}
	fl.waiting = append(fl.waiting, w)
	f.waiting[w.client]++
	f.waiters++
	return fresh, true
}

// makeRoom drops the oldest flight of the client that has the most, if that is more than client
// would have.
func (f *flights) makeRoom(client netip.Prefix) bool {
	var greedy netip.Prefix
	most := f.owned[client] + 1
	for c, n := range f.owned {
		if n > most {
			greedy, most = c, n
		}
	}
	var oldest *flight
	for _, fl := range f.all {
		if fl.client == greedy && (oldest == nil || fl.number < oldest.number) {
			oldest = fl
		}
	}
	if oldest == nil {
		return false
	}
	f.forgetFlight(oldest)
	oldest.cancel()
	return true
}

// forgetFlight removes a flight, once; it needs mu.
func (f *flights) forgetFlight(fl *flight) {
	if f.all[fl.question] == fl {
		delete(f.all, fl.question)
		decrement(f.owned, fl.client)
	}
}

// decrement decrements a count, and deletes the entry at zero.
func decrement(counts map[netip.Prefix]int, client netip.Prefix) {
	if counts[client]--; counts[client] <= 0 {
		delete(counts, client)
	}
}

// completeFlight ends a flight: all waiters get the same answer, which none may change.
func (f *flights) completeFlight(fl *flight, answer *dns.Msg) {
	f.mu.Lock()
	f.forgetFlight(fl)
	all := fl.waiting
	fl.waiting = nil
	for _, w := range all {
		decrement(f.waiting, w.client)
	}
	f.waiters -= len(all)
	f.mu.Unlock()
	for _, w := range all {
		w.deliver(answer)
	}
}
