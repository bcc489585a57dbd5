package stack

import (
	"context"
	"net"
	"net/http/httptrace"
	"time"
)

// attemptDelay is RFC 8305's recommended connection attempt delay.
const attemptDelay = 250 * time.Millisecond

// race dials list. With several TCP addresses each has a head start on the next, and the first to
// connect wins; else one is tried after the other. The error is the first address's.
func (d *Dialer) race(ctx context.Context, network string, list targets) (net.Conn, error) {
	if len(list) == 1 || d.FallbackDelay < 0 || network[0] == 'u' {
		return d.oneByOne(ctx, network, list)
	}
	return d.staggered(ctx, network, interleave(list))
}

// interleave alternates families, keeping the order within each (RFC 8305 section 4).
func interleave(list targets) targets {
	var same, other, out targets
	for _, t := range list {
		if t.ip.Is4() == list[0].ip.Is4() {
			same = append(same, t)
		} else {
			other = append(other, t)
		}
	}
	for i := range max(len(same), len(other)) {
		if i < len(same) {
			out = append(out, same[i])
		}
		if i < len(other) {
			out = append(out, other[i])
		}
	}
	return out
}

type outcome struct {
	i    int
	conn net.Conn
	err  error
}

// staggered starts an attempt whenever one has failed or the delay has passed, and returns the
// first success. It returns only when every attempt has ended.
func (d *Dialer) staggered(ctx context.Context, network string, list targets) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan outcome, len(list))
	delay := d.stack.clock.NewTimer(0)
	defer delay.Stop()

	errs := make([]error, len(list))
	started, running := 0, 0
	start := func() {
		i := started
		started, running = started+1, running+1
		go func() {
			c, err := d.dialOne(ctx, network, list[i])
			results <- outcome{i, c, err}
		}()
		delay.Reset(orDefault(d.FallbackDelay, attemptDelay))
	}
	var winner net.Conn
	for winner == nil && (running > 0 || started < len(list)) {
		select {
		case <-delay.C:
			if started < len(list) {
				start()
			}
		case r := <-results:
			running--
			winner, errs[r.i] = r.conn, r.err
			if winner == nil && started < len(list) && ctx.Err() == nil {
				start()
			} else if ctx.Err() != nil {
				started = len(list)
			}
		}
	}
	cancel()
	for range running {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
	if winner != nil {
		return winner, nil
	}
	return nil, errs[0]
}

// shortestShare is what an address is given at least, if there is that much time, before the next
// one is tried: net.Dialer's figure.
const shortestShare = 2 * time.Second

// oneByOne dials the addresses in turn, each with an equal share of the time left.
func (d *Dialer) oneByOne(ctx context.Context, network string, list targets) (net.Conn, error) {
	var first error
	for i, t := range list {
		c, err := d.withShare(ctx, network, t, len(list)-i)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (d *Dialer) withShare(ctx context.Context, network string, t target,
	remaining int) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Source: d.LocalAddr,
			Addr: t.addr(network), Err: d.stack.orClosed(fromContext(ctx.Err(), false))}
	}
	if end, ok := ctx.Deadline(); ok && remaining > 1 {
		left := d.stack.clock.Until(end)
		share := max(left/time.Duration(remaining), min(left, shortestShare))
		var cancel context.CancelFunc
		ctx, cancel = d.stack.clock.WithTimeout(ctx, share)
		defer cancel()
	}
	return d.dialOne(ctx, network, t)
}

func (t target) addr(network string) net.Addr {
	if network[0] == 'u' {
		return t.udp()
	}
	return t.tcp()
}

// traceConnect calls the hooks of net/http/httptrace, if ctx has any; the returned function is
// called with the outcome.
func traceConnect(ctx context.Context, network string, raddr *net.TCPAddr) func(error) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return func(error) {}
	}
	if trace.ConnectStart != nil {
		trace.ConnectStart(network, raddr.String())
	}
	return func(err error) {
		if trace.ConnectDone != nil {
			trace.ConnectDone(network, raddr.String(), err)
		}
	}
}
