package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// task is a program on a host: a goroutine that makes calls which wait.
type task struct {
	w    *world
	name string
	dice dice

	dialled time.Duration // when it began to dial last, its own
	harmed  uint64        // how many frames were lost or late before that

	// Guarded by w.mu.
	call  string        // under way
	since time.Duration // when it began
	done  bool
	// patient: it waits for others, so that it may well be that nothing moves
	patient bool
}

// spawn starts a task. An error that f returns is a violated invariant.
func (w *world) spawn(name string, f func(t *task) error) {
	w.mu.Lock()
	t := &task{w: w, name: name, dice: newDice(w.plan.Seed, 100+uint64(len(w.tasks)))}
	t.call, t.since = "start", w.clock.now()
	w.tasks = append(w.tasks, t)
	w.mu.Unlock()
	go func() {
		err := f(t)
		w.mu.Lock()
		defer w.mu.Unlock()
		t.done = true
		if err != nil {
			w.failed = append(w.failed, fmt.Errorf("%s: %w", name, err))
		}
	}()
}

// calls notes which call the task makes.
func (t *task) calls(what string) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.call, t.since = what, t.w.clock.now()
}

// be makes the task one that waits for others, or no longer.
func (t *task) be(patient bool) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.patient = patient
}

// logf notes something for the log of the run.
func (w *world) logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%v ", w.clock.now())+fmt.Sprintf(format, args...))
}

// sleep waits for d of virtual time, on purpose.
func (t *task) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t.calls(fmt.Sprintf("sleep %v", d))
	over := make(chan struct{})
	t.w.mu.Lock()
	t.w.sleeping++
	t.w.mu.Unlock()
	t.w.clock.AfterFunc(d, func() { close(over) })
	<-over
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.sleeping--
	t.w.awake = t.w.clock.now()
}

// dialTries is how often a task dials: address resolution fails after three lost requests.
const dialTries = 12

// dialPause is between them.
const dialPause = 500 * time.Millisecond

// dial connects a host to where another is at that time. It tries again until the work must be
// over.
func (t *task) dial(from int, where func() netip.AddrPort) (net.Conn, error) {
	var last error
	for n := 0; n < dialTries; {
		to := where()
		t.calls(fmt.Sprintf("dial %v", to))
		t.dialled, t.harmed = t.w.clock.now(), t.w.net.losses()
		ctx, cancel := context.WithCancel(context.Background())
		c, err := t.w.hosts[from].dial(ctx, to)
		cancel()
		if err == nil {
			return c, nil
		}
		t.w.logf("%s: dial: %v", t.name, err)
		last = err
		if !t.w.plan.loses() || t.w.clock.now() > t.w.calm {
			n++
		}
		t.sleep(dialPause)
	}
	return nil, fmt.Errorf("dial %d times: %w", dialTries, last)
}

// flow is one direction of a connection: what went in and came out.
type flow struct {
	pattern
	sent, got int
	sendErr   error // of Write or of the end
	ended     bool  // the sender has ended its direction without an error
	recvErr   error
	eof       bool // the receiver has read the end
	pace      pace
}

// check says what is wrong with a direction after both ends have returned. Errors are right only if
// the run may have some.
func (f *flow) check(allowed bool) error {
	switch {
	case f.got > f.sent:
		return fmt.Errorf("%d bytes sent, %d received", f.sent, f.got)
	case f.eof && f.got != f.sent:
		return fmt.Errorf("the stream ended after %d of %d bytes without an error", f.got, f.sent)
	case f.eof && !f.ended && !allowed:
		return fmt.Errorf("the stream ended, its sender did not end it (%v)", f.sendErr)
	case (f.sendErr != nil || f.recvErr != nil) && !allowed:
		return fmt.Errorf("error with nothing to blame, after %d of %d bytes: write: %v, read: %v",
			f.got, f.sent, f.sendErr, f.recvErr)
	case f.ended && !f.eof && f.recvErr == nil:
		return errors.New("the end was sent and neither it nor an error came")
	}
	return nil
}

// send writes n bytes, in pieces of random size.
func (t *task) send(c net.Conn, f *flow, n int) bool {
	f.pace.begin(t.w)
	buf := make([]byte, min(n, 64<<10))
	for end := f.sent + n; f.sent < end && f.sendErr == nil; {
		b := buf[:min(end-f.sent, 1+t.dice.IntN(len(buf)))]
		f.fill(b, f.sent)
		t.calls(fmt.Sprintf("write %d bytes at %d", len(b), f.sent))
		var k int
		k, f.sendErr = c.Write(b)
		f.sent += k
	}
	return f.sendErr == nil
}

// end ends the sender's direction.
func (t *task) end(c net.Conn, f *flow) {
	if f.sendErr != nil {
		return
	}
	t.calls("CloseWrite")
	f.sendErr = c.(interface{ CloseWrite() error }).CloseWrite()
	f.ended = f.sendErr == nil
}

// maxPauses bounds how long a slow reader takes.
const maxPauses = 30

// receive reads n bytes, or to the end if n is negative, with a pause after each of the first
// reads.
func (t *task) receive(c net.Conn, f *flow, n int, pause time.Duration) error {
	buf, pauses := make([]byte, 1+t.dice.IntN(64<<10)), 0
	for end := f.got + n; (n < 0 || f.got < end) && f.recvErr == nil && !f.eof; {
		b := buf
		if n >= 0 {
			b = buf[:min(len(buf), end-f.got)]
		}
		t.calls(fmt.Sprintf("read at %d", f.got))
		k, err := c.Read(b)
		if i := f.wrong(b[:k], f.got); i >= 0 {
			return fmt.Errorf("byte %d of the stream is wrong", f.got+i)
		}
		f.got += k
		if f.note(err); f.eof {
			f.pace.end(t.w)
		}
		if pauses++; pauses <= maxPauses {
			t.sleep(pause)
		}
	}
	return nil
}

// note takes the error of a read.
func (f *flow) note(err error) {
	switch {
	case errors.Is(err, io.EOF):
		f.eof = true
	case err != nil:
		f.recvErr = err
	}
}
