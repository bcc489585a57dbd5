package sim

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// moveLimit is how long after its peer's address has moved a connection may last: netstack gives it
// up when nothing has come of 15 timeouts.
const moveLimit = 16 * longestRTO

// move has host h come to another address.
func (w *world) move(h *ourHost, how LeaseChange) (end func()) {
	l := w.leases()
	l.strict.Store(true)
	switch how {
	case refusedLease:
		refused := w.takeBack(h)
		return func() {
			l.moved.Store(true)
			refused()
		}
	case leaseRunsOut:
		l.silent.Store(true)
		return func() {
			l.moved.Store(true)
			l.silent.Store(false)
		}
	case answeredOther:
		l.strict.Store(false)
		w.blink(h)
	case renewedOther:
		l.strict.Store(false)
	}
	l.moved.Store(true)
	return func() {}
}

// moves reports whether the address of an end of the job's connections moves.
func (j *job) moves() bool { return j.w.plan.moves() && !j.plan.IPv6 }

// bind is where the job's sockets on a host are bound: to any address if that moves.
func (j *job) bind(host int) netip.AddrPort {
	if j.moves() && j.w.plan.Hosts[host].Leased {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), j.port)
	}
	return j.at(host)
}

// reach is where the job's server is at present.
func (j *job) reach() netip.AddrPort {
	at := j.at(j.plan.Server)
	if h, ok := j.w.hosts[j.plan.Server].(*ourHost); ok && j.moves() && h.plan.Leased {
		if other := otherAddress(h.index); slices.Contains(h.stack.Addrs(),
			netip.PrefixFrom(other, 24)) {
			return netip.AddrPortFrom(other, j.port)
		}
	}
	return at
}

// lastingTail is for how long after the last fault a lasting connection is used.
const lastingTail = 20 * time.Second

// lasting has bytes go there and back all the time, over one connection, or over another once that
// was lost.
func (j *job) lasting() {
	j.serving(func(t *task) error {
		t.sleep(j.plan.Start)
		for j.w.clock.now() < j.w.calm+lastingTail {
			born := j.w.clock.now()
			switch err := j.pings(t); {
			case err == nil:
				return nil
			case !j.cutOff(born) && !j.w.handshakeLost(born):
				return fmt.Errorf("a connection made after %v: %w", born, err)
			default:
				j.w.logf("%s: a connection made after %v: %v", t.name, born, err)
			}
			t.sleep(dialPause)
		}
		return nil
	}, func(ln net.Listener) {
		j.acceptAll(ln, 0, func(t *task, c net.Conn) error {
			defer c.Close()
			way := &j.w.plan.Net // the client made it before its ACK came
			born := j.w.clock.now() - way.Delay - way.Jitter - way.Quantum
			t.calls("echo")
			_, err := io.Copy(c, c)
			if err != nil && !j.cutOff(born) {
				return fmt.Errorf("a connection accepted after %v: %w", born, err)
			}
			return nil
		})
	})
}

// pings makes a connection, and uses it until some time after the last fault.
func (j *job) pings(t *task) error {
	c, err := t.dial(j.plan.Client, j.reach)
	if err != nil {
		return err
	}
	defer c.Close()
	out, in := make([]byte, j.plan.Bytes), make([]byte, j.plan.Bytes)
	for n := 0; j.w.clock.now() < j.w.calm+lastingTail; n++ {
		j.request().fill(out, n)
		t.calls(fmt.Sprintf("ping %d", n))
		if _, err := c.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return err
		}
		if i := j.request().wrong(in, n); i >= 0 {
			j.w.note(fmt.Errorf("%s: byte %d of ping %d is wrong", j.name, i, n))
		}
		t.sleep(j.plan.Pause)
	}
	return nil
}
