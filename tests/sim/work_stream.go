package sim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// bytes are how many go each way in a connection.
func (j *job) bytes() (there, back int) {
	switch j.plan.Kind {
	case Short:
		return j.plan.Bytes % 2000, j.plan.Back % 2000
	case SlowReader:
		return 2 * j.plan.Bytes, j.plan.Back
	}
	return j.plan.Bytes, j.plan.Back
}

// connection is connection n of a job as its client has it.
func (j *job) connection(t *task, n int) error {
	c, err := t.dial(j.plan.Client, j.reach)
	if err != nil {
		return err
	}
	s := j.dialled(t, c)
	there, _ := j.bytes()
	switch j.plan.Kind {
	case Reset:
		err = j.reset(t, c, s)
	case Bulk:
		err = t.both(c, s.there, there, s.back, 0)
	case Deadline:
		err = errors.Join(j.deadline(t, c), t.ask(c, s, there))
	default:
		err = t.ask(c, s, there)
	}
	t.calls("close")
	c.Close()
	return err
}

// serve is the server's end of a connection.
func (j *job) serve(t *task, c net.Conn) error {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok { // reset before it was accepted
		return c.Close()
	}
	s := j.servedSession(remote.Port)
	there, back := j.bytes()
	var err error
	switch j.plan.Kind {
	case Reset:
		// the reset may get lost, and a peer that only reads never learns of it
		timer := j.w.clock.AfterFunc(resetLimit, func() { c.Close() })
		err = t.both(c, s.back, back, s.there, 0)
		timer.Stop()
		s.there.toldOnce(s.back.sendErr)
	case Bulk:
		err = t.both(c, s.back, back, s.there, 0)
	case Short:
		if err = t.receive(c, s.there, there, 0); err == nil && t.send(c, s.back, back) {
			t.end(c, s.back)
		}
		err = errors.Join(err, t.receive(c, s.there, -1, 0))
	case SlowReader:
		err = t.answer(c, s, back, j.plan.Pause)
	default:
		err = t.answer(c, s, back, 0)
	}
	t.calls("close")
	c.Close()
	return err
}

// toldOnce takes the end of a direction for what it is if the connection was reset: netstack tells
// that once, as Linux does, here to the writer, and the reader reads the end.
func (f *flow) toldOnce(writeErr error) {
	if f.eof && f.got < f.sent && writeErr != nil {
		f.eof, f.recvErr = false, writeErr
	}
}

// ask sends, ends its direction, and reads what comes back.
func (t *task) ask(c net.Conn, s *session, n int) error {
	if t.send(c, s.there, n) {
		t.end(c, s.there)
	}
	return t.receive(c, s.back, -1, 0)
}

// answer reads to the end, and sends then.
func (t *task) answer(c net.Conn, s *session, n int, pause time.Duration) error {
	err := t.receive(c, s.there, -1, pause)
	if s.there.eof && t.send(c, s.back, n) {
		t.end(c, s.back)
	}
	return err
}

// both sends and receives at the same time.
func (t *task) both(c net.Conn, out *flow, n int, in *flow, pause time.Duration) error {
	sent := make(chan struct{})
	t.w.spawn(t.name+", writer", func(t *task) error {
		defer close(sent)
		if t.send(c, out, n) {
			t.end(c, out)
		}
		return nil
	})
	err := t.receive(c, in, -1, pause)
	t.calls("wait for the writer")
	<-sent
	return err
}

// resetLimit is how long the peer of a connection that is reset keeps it.
const resetLimit = 30 * time.Second

var errReset = errors.New("reset by ourselves")

// reset sends, and then resets the connection.
func (j *job) reset(t *task, c net.Conn, s *session) error {
	t.send(c, s.there, j.plan.Bytes)
	err := t.receive(c, s.back, min(j.plan.Back, t.dice.IntN(10000)), 0)
	t.sleep(j.plan.Pause)
	if s.back.recvErr == nil && !s.back.eof {
		s.back.recvErr = errReset
	}
	s.there.sendErr = errReset
	if l, ok := c.(interface{ SetLinger(int) error }); ok && !j.broken(s.port) {
		return errors.Join(err, l.SetLinger(0))
	}
	return err
}

// deadlineSlack is how late a deadline may be noticed.
const deadlineSlack = time.Millisecond

// deadline reads before anything can come, until a deadline. It is for hosts whose deadlines are on
// the clock of the run.
func (j *job) deadline(t *task, c net.Conn) error {
	if j.w.plan.Hosts[j.plan.Client].Kind != Ours {
		return nil
	}
	wait := max(j.plan.Pause, 1)
	at := j.w.clock.Now().Add(wait)
	if err := c.SetReadDeadline(at); err != nil {
		return nil // reset meanwhile
	}
	t.calls(fmt.Sprintf("read until %v", wait))
	n, err := c.Read(make([]byte, 1))
	late := j.w.clock.Now().Sub(at)
	switch {
	case n > 0:
		return errors.New("read something that was not sent")
	case errors.Is(err, os.ErrDeadlineExceeded) && (late < 0 || late > deadlineSlack):
		return fmt.Errorf("a deadline was noticed %v late", late)
	}
	_ = c.SetReadDeadline(time.Time{})
	return nil
}
