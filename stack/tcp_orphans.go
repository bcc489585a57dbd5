package stack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

const (
	// orphanSweep says how often orphans are looked at while there are some.
	orphanSweep = time.Second
	// flushPoll says how often Shutdown looks whether closing connections have delivered their
	// data.
	flushPoll = 2 * time.Millisecond
)

// orphans are connections that the program has closed and whose peer has not acknowledged all that
// was sent. Each has a time by which that must be done: the user timeout, which netstack keeps,
// begins again whenever the peer takes something, be it a byte.
type orphans struct {
	clock  clock.Clock
	fields *tcpFields // of netstack

	mu     sync.Mutex // guards what follows; held during a sweep
	all    []orphan
	timer  clock.Timer // nil: not needed yet
	armed  bool
	closed bool
}

// orphan is one of them. A connection that is done is kept until the next sweep.
type orphan struct {
	ep     tcpip.Endpoint
	until  time.Time
	probed bool // its peer is asked for an acknowledgement
}

// add has a connection reset if it has not delivered what is left after d. It reports whether
// there is something left; until there is not, TCP keepalive stays on if it is.
func (o *orphans) add(ep tcpip.Endpoint, d time.Duration) bool {
	if !unflushed(ep) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.all = append(o.all, orphan{ep: ep, until: o.clock.Now().Add(d)})
	o.arm()
	return true
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

// sweep resets those that are late, forgets those that are done, and has the peers of those asked
// that wait for nothing.
func (o *orphans) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, left := o.clock.Now(), o.all[:0]
	for _, x := range o.all {
		switch {
		case !unflushed(x.ep):
			endKeepAlive(x.ep)
		case now.Before(x.until):
			x.probe(o.fields)
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

// probe has netstack ask the peer of a connection in FIN-WAIT-1 or CLOSING whose FIN is
// acknowledged for one more acknowledgement, each second. Nothing else need come that ends these
// states: the acknowledgement came in a segment behind a gap, or has overtaken the peer's FIN.
// netstack looks for it in segments that it takes in order (transport/tcp/rcv.go, consumeSegment),
// not at what has been acknowledged (RFC 9293 section 3.10.7.4, fifth, FIN-WAIT-1, and eighth), and
// has no timer in these states. Keepalive must have stayed on since the connection was closed: a
// keepalive timer that expires while it is off never starts again (transport/tcp/connect.go,
// keepaliveTimerExpired, does not ask the timer then).
func (x *orphan) probe(f *tcpFields) {
	if x.probed || !waitsForNothing(x.ep, f) {
		return
	}
	x.probed = true
	idle, interval := tcpip.KeepaliveIdleOption(orphanSweep),
		tcpip.KeepaliveIntervalOption(orphanSweep)
	for _, option := range []tcpip.SettableSocketOption{&idle, &interval} {
		if x.ep.SetSockOpt(option) != nil {
			return // it has ended meanwhile
		}
	}
	x.ep.SocketOptions().SetKeepAlive(true)
}

// endKeepAlive ends keepalive of a closed connection: netstack would probe a peer that has closed,
// too, for as long as TIME-WAIT lasts.
func endKeepAlive(ep tcpip.Endpoint) { ep.SocketOptions().SetKeepAlive(false) }

// waitsForNothing says whether a connection is in FIN-WAIT-1 or CLOSING although its FIN is
// acknowledged. It may be in these states with data, and the FIN behind it, not sent yet.
func waitsForNothing(ep tcpip.Endpoint, f *tcpFields) bool {
	t, ok := ep.(*tcp.Endpoint)
	if !ok {
		return false
	}
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateFinWait1, tcp.StateClosing:
	default:
		return false
	}
	return f.finAcked(t)
}

// resetThose resets those that match, and returns how many.
func (o *orphans) resetThose(matches func(tcpip.Endpoint) bool) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.all {
		if unflushed(x.ep) && matches(x.ep) {
			x.ep.Abort()
			n++
		}
	}
	return n
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

// addClosed bounds how long a connection that was just closed goes on, and reports whether it does.
func (o *orphans) addClosed(ep tcpip.Endpoint, cfg *Config) bool {
	slow := time.Duration(ep.SocketOptions().GetSendBufferSize()) * time.Second
	return o.add(ep, cfg.TCP.OrphanTimeout+slow/time.Duration(cfg.orphanRate))
}

// unflushed reports whether data or our FIN may be on its way in ep's state.
func unflushed(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		return true
	}
	return false
}
