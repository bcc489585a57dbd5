package stack

import (
	"reflect"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	// orphanRate is what a peer has to take of a closed connection's send buffer at least, in bytes
	// per second.
	orphanRate = 4 << 10
	// orphanSweep is how often orphans are looked at while there are some.
	orphanSweep = time.Second
)

// orphans are connections that the program has closed and whose peer has not acknowledged all that
// was sent. Each has a time by which that must be done: the user timeout, which netstack keeps,
// begins again whenever the peer takes something, be it a byte.
type orphans struct {
	clock clock.Clock

	mu     sync.Mutex // guards what follows; held during a sweep
	all    []orphan
	timer  clock.Timer // nil: not needed yet
	armed  bool
	closed bool
}

// orphan is one of them. A connection that is done is kept until the next sweep.
type orphan struct {
	ep    tcpip.Endpoint
	until time.Time
}

// add has a connection reset if it has not delivered what is left after d.
func (o *orphans) add(ep tcpip.Endpoint, d time.Duration) {
	if !unflushed(ep) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.all = append(o.all, orphan{ep, o.clock.Now().Add(d)})
	o.arm()
}

// arm sets the timer, unless it is set. mu is held.
func (o *orphans) arm() {
	switch {
	case o.armed:
	case o.timer == nil:
		o.timer = o.clock.AfterFunc(orphanSweep, o.sweep)
	default:
		o.timer.Reset(orphanSweep)
	}
	o.armed = true
}

// sweep resets those that are late and forgets those that are done.
func (o *orphans) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, left := o.clock.Now(), o.all[:0]
	for _, x := range o.all {
		switch {
		case !unflushed(x.ep):
		case waitsForNothing(x.ep):
			x.ep.Abort()
		case now.Before(x.until):
			left = append(left, x)
		default:
			x.ep.Abort()
		}
	}
	clear(o.all[len(left):])
	o.all, o.armed = left, false
	if len(left) == 0 {
		o.all = nil // as large as the most there have been
	} else if !o.closed {
		o.arm()
	}
}

// waitsForNothing says whether a connection is in CLOSING although its FIN is acknowledged: after
// both ends have closed at once, netstack may wait there, without a timer, for an acknowledgement
// that has come (world 1291 of make sim).
func waitsForNothing(ep tcpip.Endpoint) bool {
	t, ok := ep.(*tcp.Endpoint)
	if !ok || tcp.EndpointState(ep.State()) != tcp.StateClosing {
		return false
	}
	acked := false
	readSender(t, func(snd, _ reflect.Value) {
		acked = snd.FieldByName("SndUna").Uint() == snd.FieldByName("SndNxt").Uint()
	})
	return acked
}

// end forgets all of them. No sweep runs any more when it returns.
func (o *orphans) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.all = true, nil
	if o.timer != nil {
		o.timer.Stop()
	}
}

// orphaned bounds how long a connection that was just closed goes on.
func (s *Stack) orphaned(ep tcpip.Endpoint) {
	slow := time.Duration(ep.SocketOptions().GetSendBufferSize()) * time.Second
	s.orphans.add(ep, s.cfg.TCP.OrphanTimeout+slow/time.Duration(s.cfg.orphanRate))
}
