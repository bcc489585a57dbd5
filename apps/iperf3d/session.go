package iperf3d

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Time limits of a client for each step while no other client waits.
const (
	stepTime       = 10 * time.Second
	streamTime     = 20 * time.Second
	finalWriteTime = 100 * time.Millisecond // to read the final byte
)

// session is one test: its control connection and its streams.
type session struct {
	srv    *Server
	ctl    net.Conn
	cookie cookie
	params params

	incoming  chan arrival // data connections and flows
	streams   []*stream
	stop      chan struct{} // closed: senders stop
	pumps     sync.WaitGroup
	ended     chan struct{} // closed: the session takes no more streams
	over      chan struct{} // closed: the next test may begin
	ctx       context.Context
	cancel    context.CancelCauseFunc // the cause is why the test ends early
	clientEnd chan error              // what the client sent meanwhile; nil is TEST_END

	lastActive atomic.Int64 // ns of Unix time: the client's last action
	running    atomic.Bool  // the streams are running
}

// arrival is a data connection or flow whose test may not have its parameters yet.
type arrival struct {
	at     uint64 // place in the order of arrival: the client assigns its streams in that order
	stream func(p *params) *stream
	close  func()
}

func newSession(srv *Server, ctl net.Conn, k cookie) *session {
	s := &session{
		srv: srv, ctl: ctl, cookie: k, incoming: make(chan arrival, 2*maxStreams),
		stop: make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{}),
		clientEnd: make(chan error, 1),
	}
	s.ctx, s.cancel = context.WithCancelCause(srv.ctx)
	s.markActive()
	return s
}

// clock returns the server's.
func (s *session) clock() clock.Clock { return s.srv.clock }

// run conducts the test. The control connection is closed when it returns.
func (s *session) run() error {
	defer s.ctl.Close()
	defer s.finish()
	told := make(chan struct{})
	unhook := context.AfterFunc(s.ctx, func() {
		defer close(told)
		s.ctl.SetDeadline(s.clock().Now().Add(finalWriteTime))
		writeState(s.ctl, serverTerminate)
		s.ctl.Close()
	})
	err := s.runTest()
	if !unhook() {
		<-told
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

func (s *session) runTest() error {
	if err := s.prepare(); err != nil {
		if s.ctx.Err() == nil {
			s.ctl.SetWriteDeadline(s.clock().Now().Add(finalWriteTime))
			writeState(s.ctl, serverError)
		}
		return err
	}
	return s.measure()
}

// prepare exchanges parameters and collects the streams.
func (s *session) prepare() error {
	if err := s.expect(paramExchange, &s.params); err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	if err := s.params.normalise(); err != nil {
		return err
	}
	if s.params.UDP {
		if s.srv.udp == nil {
			return errors.New("UDP asked for, and the server has no UDP port")
		}
		s.srv.udp.setAccept(func(f *udpFlow) {
			s.offer(arrival{stream: func(p *params) *stream { return udpStream(f, p, s.clock()) },
				close: f.Close})
		})
		defer s.srv.udp.setAccept(nil)
	}
	if err := s.sendState(createStreams); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(time.Time{})
	go s.listen()
	return s.collect()
}

// listen waits for the next byte of the client, or the end of its connection.
func (s *session) listen() {
	st, err := readState(s.ctl)
	switch {
	case err != nil:
		err = fmt.Errorf("the client hung up: %w", err)
	case st != testEnd:
		err = fmt.Errorf("the client ended the test with state %d", st)
	}
	s.clientEnd <- err
}

// sendState sends a state byte in time.
func (s *session) sendState(st state) error {
	s.ctl.SetWriteDeadline(s.clock().Now().Add(stepTime))
	return writeState(s.ctl, st)
}

// expect sends a state byte and reads the JSON that it requests.
func (s *session) expect(st state, v any) error {
	if err := s.sendState(st); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(s.clock().Now().Add(stepTime))
	err := readJSON(s.ctl, v)
	s.markActive()
	return err
}

// offer passes an arrival to the session; one that is too late is closed.
func (s *session) offer(a arrival) {
	select {
	case s.incoming <- a:
	case <-s.ended:
		a.close()
	}
}

var errTooEarly = errors.New("the client ended the test before its streams were there")

func closeAll(all []arrival) {
	for _, a := range all {
		a.close()
	}
}

// collect waits until all streams have arrived, and assigns their roles in the order of arrival.
func (s *session) collect() error {
	n, sends := s.params.streams()
	late := s.clock().NewTimer(streamTime)
	defer late.Stop()
	var here []arrival
	for len(here) < n {
		select {
		case a := <-s.incoming:
			here = append(here, a)
			s.markActive()
			continue
		case err := <-s.clientEnd:
			closeAll(here)
			return cmp.Or(err, errTooEarly)
		case <-s.ctx.Done():
		case <-late.C:
		}
		closeAll(here)
		return fmt.Errorf("%d of %d streams came in %v", len(here), n, streamTime)
	}
	slices.SortStableFunc(here, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	for i, a := range here {
		st := a.stream(&s.params)
		st.id, st.sends = streamID(i), sends(i)
		s.streams = append(s.streams, st)
	}
	return nil
}

// measure runs the streams until the client ends the test, and exchanges results.
func (s *session) measure() error {
	if err := errors.Join(s.sendState(testStart), s.sendState(testRunning)); err != nil {
		return err
	}
	s.running.Store(true)
	begin, cpu := s.clock().Now(), readCPU()
	for _, st := range s.streams {
		s.pumps.Go(func() { st.run(st, s.stop) })
	}
	err := s.untilEnd(&begin)
	s.running.Store(false)
	s.markActive()
	if err != nil {
		return err
	}
	took := s.clock().Since(begin)
	s.settle()
	mine := results{HasRetransmits: 0}
	mine.CPUUser, mine.CPUSystem = cpu.percent(took)
	mine.CPUTotal = mine.CPUUser + mine.CPUSystem
	for _, st := range s.streams {
		mine.Streams = append(mine.Streams, st.result(took))
	}
	return s.exchange(&mine)
}

// untilEnd waits for the client's end of the test; meanwhile the omitted time may pass. It does not
// wait for a client that exceeds its own time.
func (s *session) untilEnd(begin *time.Time) error {
	var omitted <-chan time.Time
	if s.params.Omit > 0 {
		t := s.clock().NewTimer(time.Duration(s.params.Omit) * time.Second)
		defer t.Stop()
		omitted = t.C
	}
	late := s.clock().NewTimer(s.params.longest())
	defer late.Stop()
	look := s.clock().NewTimer(progressInterval)
	defer look.Stop()
	for seen := int64(0); ; {
		select {
		case <-omitted:
			for _, st := range s.streams {
				st.omit()
			}
			*begin = s.clock().Now()
		case <-look.C:
			look.Reset(progressInterval)
			if now := s.moved(); now != seen {
				seen = now
				s.markActive()
			}
		case <-late.C:
			return fmt.Errorf("the client did not end the test in %v", s.params.longest())
		case err := <-s.clientEnd:
			return err
		}
	}
}

// Data that the client sent before the end may still be in flight: settle waits until nothing has
// arrived for quiet, at most settleTime.
const quiet, settleTime = 20 * time.Millisecond, 500 * time.Millisecond

func (s *session) settle() {
	end := s.clock().Now().Add(settleTime)
	for seen := s.received(); s.clock().Now().Before(end); {
		<-s.clock().NewTimer(quiet).C
		now := s.received()
		if now == seen {
			return
		}
		seen = now
	}
}

// received returns the number of bytes received on all streams together.
func (s *session) received() (n int64) {
	for _, st := range s.streams {
		if !st.sends {
			n += st.bytes.Load()
		}
	}
	return n
}

// moved returns the number of bytes sent and received.
func (s *session) moved() (n int64) {
	for _, st := range s.streams {
		n += st.bytes.Load()
	}
	return n
}

// exchange sends our results to the client and reads the client's. The streams end first: a client
// that reads whole blocks reads nothing else before it has the rest of a block, or the end.
func (s *session) exchange(mine *results) error {
	s.hangUp()
	var his json.RawMessage // nothing in them changes ours
	if err := s.expect(exchangeResults, &his); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := writeJSON(s.ctl, mine); err != nil {
		return err
	}
	if err := s.sendState(displayResults); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(s.clock().Now().Add(stepTime))
	readState(s.ctl) // IPERF_DONE, or the connection's end
	return nil
}

// hangUp stops and closes the streams; it may be called again.
func (s *session) hangUp() {
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	for _, st := range s.streams {
		st.close()
	}
}

// finish closes the streams and waits for them.
func (s *session) finish() {
	s.hangUp()
	close(s.ended)
	for {
		select {
		case a := <-s.incoming:
			a.close()
		default:
			s.pumps.Wait()
			return
		}
	}
}
