package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// call is a step of the application:
//
//	listen          accept          dial
//	read 100        write 100       close
//	closewrite      closeread       reset           (close with SO_LINGER of 0)
//	linger 2        nodelay off     keepalive 10s 5s 3
//	rcvbuf 4096     sndbuf 4096     deadline 5s
//	use 2           (calls are about the second connection from now on)
//	unlisten        (close the listener)
//	count merged 2  (a counter of the link's)
//
// What is read must be the peer's stream, to the byte.
func (s *script) call(words []string) {
	name := words[0]
	var want string
	waits := false
	for i, w := range words {
		if w == "=" && i+1 < len(words) {
			words, want = words[:i], words[i+1]
			break
		}
		if w == "..." {
			words, waits = words[:i], true
			break
		}
	}
	if name == "done" {
		s.done(words[1:], want)
		return
	}
	s.note("%s", strings.Join(words, " "))
	if name == "count" {
		s.count(words[1:])
		return
	}
	f := s.application(name, words[1:])
	if f == nil {
		s.fail("no step %q", words)
		return
	}
	s.start(name, f)
	if s.quiet.settle(); waits {
		return
	}
	s.done([]string{name}, want)
}

// done compares the outcome of the oldest call.
func (s *script) done(words []string, want string) {
	if want == "" {
		want = "ok"
	}
	s.quiet.settle()
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	if len(s.calls) == 0 {
		s.fail("no call waits")
		return
	}
	c := s.calls[0]
	s.calls = s.calls[1:]
	at := c.at - s.origin
	switch {
	case len(words) != 1 || words[0] != c.name:
		s.fail("the oldest call is %s", c.name)
	case c.result == "":
		s.fail("%s has not returned", c.name)
	case c.result != want:
		s.fail("%s returned %s, want %s", c.name, c.result, want)
	case at != s.now():
		s.fail("%s returned at %v", c.name, at)
	}
	s.note("%s returned %s", c.name, c.result)
}

// application is what a call does.
func (s *script) application(name string, args []string) func() error {
	c, n := s.conn, 0
	if len(args) > 0 {
		n, _ = strconv.Atoi(args[0])
	}
	switch name {
	case "listen":
		return s.listen
	case "unlisten":
		return func() error { return s.listener.Close() }
	case "accept":
		return s.accept
	case "dial":
		s.peer.usual = dialPort
		return s.dial
	case "use":
		return func() error { s.conn = s.conns[n-1]; return nil }
	}
	if c == nil {
		return nil
	}
	switch name {
	case "read":
		return func() error { return s.readStream(c, n) }
	case "write":
		return func() error { return s.writeStream(c, n) }
	case "close":
		return c.Close
	case "closewrite":
		return c.CloseWrite
	case "closeread":
		return c.CloseRead
	case "reset":
		return func() error { return errors.Join(c.SetLinger(0), c.Close()) }
	}
	return option(s, c, name, args, n)
}

// option is a call that sets something.
func option(s *script, c *stack.TCPConn, name string, args []string, n int) func() error {
	durations := make([]time.Duration, 2)
	for i := range min(len(args), len(durations)) {
		durations[i], _ = time.ParseDuration(args[i])
	}
	switch name {
	case "linger":
		return func() error { return c.SetLinger(n) }
	case "nodelay":
		return func() error { return c.SetNoDelay(args[0] == "on") }
	case "keepalive":
		count, _ := strconv.Atoi(args[2])
		return func() error {
			return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: durations[0],
				Interval: durations[1], Count: count})
		}
	case "rcvbuf":
		return func() error { return c.SetReadBuffer(n) }
	case "sndbuf":
		return func() error { return c.SetWriteBuffer(n) }
	case "deadline":
		return func() error {
			return c.SetDeadline(s.clock.Now().Add(durations[0]))
		}
	}
	return nil
}

func (s *script) listen() error {
	l, err := s.stack.ListenTCP("tcp", &net.TCPAddr{Port: ourPort})
	s.listener = l
	return err
}

func (s *script) accept() error {
	c, err := s.listener.AcceptTCP()
	s.opened(c, err)
	return err
}

func (s *script) dial() error {
	to := net.JoinHostPort(net.IP(address(s.host.v6, 2)).String(), strconv.Itoa(dialPort))
	c, err := s.stack.DialContext(context.Background(), "tcp", to)
	if err == nil {
		s.opened(c.(*stack.TCPConn), nil)
	}
	return err
}

// opened has the calls that follow use a connection.
func (s *script) opened(c *stack.TCPConn, err error) {
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	if err == nil {
		s.conns, s.conn = append(s.conns, c), c
	}
}

// readStream reads n bytes of the peer's stream.
func (s *script) readStream(c *stack.TCPConn, n int) error {
	b := make([]byte, n)
	n, err := io.ReadFull(c, b)
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	at := s.host.read[c]
	s.host.read[c] += uint32(n)
	if !bytes.Equal(b[:n], stream(false, at, n)) {
		return fmt.Errorf("wrong data at %d", at)
	}
	return err
}

// writeStream writes n bytes of ours.
func (s *script) writeStream(c *stack.TCPConn, n int) error {
	s.host.mu.Lock()
	at := s.written[c]
	s.written[c] += uint32(n)
	s.host.mu.Unlock()
	_, err := c.Write(stream(true, at, n))
	return err
}

// count compares a counter.
func (s *script) count(words []string) {
	link, acks := s.stack.LinkStats(), s.stack.ACKStats()
	counters := map[string]uint64{
		"merged": link.RxMerged, "badsum": link.RxBadChecksum, "resent": link.TxResent,
		"synrtt": link.RxSYNRTTFixed, "sackremoved": link.RxSACKRemoved,
		"zerowindow": link.RxZeroWindow, "lso": link.TxLSO, "pathmtu": link.RxPathMTU,
		"forged": link.RxForged, "superseded": link.RxSupersededACKs,
		"held": acks.Held, "saved": acks.Saved, "timed": acks.Timed,
		"established": s.stack.Stats().TCPCurrentEstablished,
	}
	if len(words) != 2 {
		s.fail("count has a name and a number")
		return
	}
	if got, ok := counters[words[0]]; !ok || strconv.FormatUint(got, 10) != words[1] {
		s.fail("the counter %s is %d, want %s", words[0], got, words[1])
	}
}
