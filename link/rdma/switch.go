package rdma

import (
	"bytes"
	"fmt"
	"net"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// What is under an endpoint may change while the stack above keeps its connections. Checksum
// offload and segmentation are those of the first backend for good: netstack has them in its
// connections. The MTU is that of the backend in use.

// current is the backend in use.
type current struct {
	backend
	outOfBuffer uint64 // of the backend, when it came into use
}

// Switch puts to's queues in the place of those in use, which are not used any more when it
// returns: their owner may close them. Connections and what waits to be sent stay. Frames that have
// been received are delivered before any that the new queues receive, and a flow's segments go out
// in order; what the old queues had not sent is lost like frames on a wire. A later Switch may put
// the old queues back. to must outlive its time in the endpoint. The new queues do not know our
// groups before [Endpoint.Regroup].
//
// Rules of host mode move along: see AddRule.
//
// MTU is that of the new queues afterwards, see FollowMTU.
//
// Queues with another MAC address or VLAN, or with fewer offloads than those the endpoint was made
// with, are refused, and nothing changes. The error is dv.ErrClosed after Close.
// Switch waits for receive workers, so it must not be called from inside a delivery, nor with a
// lock that one may want. Calls at the same time take turns.
func (e *Endpoint) Switch(to Backend) error {
	next := to.queues
	if next == nil {
		next = noQueues{}
	}
	e.switching.Lock()
	defer e.switching.Unlock()
	return e.switchTo(next)
}

// SwitchFrom is Switch if from's queues are in use, and reports whether they were.
func (e *Endpoint) SwitchFrom(from, to Backend) (bool, error) {
	e.switching.Lock()
	defer e.switching.Unlock()
	if from.queues != e.queues.Load().backend {
		return false, nil
	}
	return true, e.switchTo(to.queues)
}

// switchTo is Switch, with switching held.
func (e *Endpoint) switchTo(next backend) error {
	if e.closed.Load() {
		return dv.ErrClosed
	}
	old := e.queues.Load()
	if next == old.backend {
		return nil
	}
	if err := e.fits(next); err != nil {
		return err
	}
	e.addCounters(next.NumRx()) // first: Attach starts workers of what queues has
	rules := e.rules.switchTo(next, func() {
		e.queues.Store(&current{next, next.OutOfBuffer()})
	})
	e.offload.leaveUnused(next)
	e.FollowMTU()
	for i, s := range e.tx {
		s.swap(next.txQueue(i%next.NumTx()), sendKindOf(next))
	}
	e.swapped = e.opts.Clock.Now()
	replaced := e.replaceWorkers(next)
	e.pastOutOfBuffer.Add(old.OutOfBuffer() - old.outOfBuffer)
	e.switches.Add(1)
	if next.kind() != BackendNone {
		e.flows.Repeat()
	}
	if replaced != nil {
		replaced.wait()
	}
	e.rules.follow(next, rules)
	return nil
}

// SendsSince says when the queues in use began to send: before they received, which waits until
// what the queues before had received is delivered. The zero time before the first Switch.
func (e *Endpoint) SendsSince() time.Time {
	e.switching.Lock()
	defer e.switching.Unlock()
	return e.swapped
}

// Regroup tells the queues in use our groups, after Switch. It is a step of its own because it may
// take a second while a device is removed: the kernel changes the lists of its netdevs with the
// lock held (RTNL) with which it removes one. Frames pass meanwhile.
func (e *Endpoint) Regroup() error {
	e.switching.Lock()
	defer e.switching.Unlock()
	if e.groups == nil || e.closed.Load() {
		return nil
	}
	queues := e.queues.Load()
	if err := queues.SetGroups(e.groups); err != nil {
		return fmt.Errorf("tell %s our groups: %w", queues.Name(), err)
	}
	return nil
}

// Repeat sends the first unacknowledged segment of each connection whose segments have not been
// acknowledged in time, for a link that carries frames again: netstack would wait for its own
// timer, which after a minute may take another. Switch does so by itself.
func (e *Endpoint) Repeat() { e.flows.Repeat() }

// fits says in one sentence why the endpoint cannot work on queues, or nil.
func (e *Endpoint) fits(queues backend) error {
	csum, maxTSO := queues.offloads()
	switch {
	case queues.kind() == BackendNone:
		return nil
	case !bytes.Equal(queues.MAC(), e.steered):
		return fmt.Errorf("%s takes frames for %v, this link has %v: open it with that address",
			queues.Name(), queues.MAC(), e.steered)
	case queues.VLAN() != e.vlan:
		return fmt.Errorf("%s is in VLAN %d, this link in %d: open it with that VLAN",
			queues.Name(), queues.VLAN(), e.vlan)
	case e.csum && !csum:
		return fmt.Errorf("%s computes no checksums, which connections here rely on",
			queues.Name())
	case maxTSO < int(e.gsoMax):
		return fmt.Errorf("%s segments %d bytes at most, connections here rely on %d",
			queues.Name(), maxTSO, e.gsoMax)
	}
	return nil
}

// replaceWorkers has the workers of the present backend deliver what there is and end, and starts
// those of the next behind them. It returns the former, which are to be waited for; nil if there
// are none.
func (e *Endpoint) replaceWorkers(next backend) (old *workerGroup) {
	e.mu.Lock()
	old = e.workers
	if e.attachment != nil {
		e.startWorkers(e.attachment, next)
	}
	e.mu.Unlock()
	if old != nil {
		old.replace()
	}
	return old
}

// setGroups is SetGroups, with switching held.
func (e *Endpoint) setGroups(groups []net.HardwareAddr) error {
	e.groups = append([]net.HardwareAddr{}, groups...)
	return e.queues.Load().SetGroups(groups)
}

// Backend returns the kind of queues in use.
func (e *Endpoint) Backend() BackendKind { return e.queues.Load().kind() }
