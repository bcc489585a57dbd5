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

// session holds one test: its control connection and its streams.
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

// arrival holds a data connection or flow whose test may not have its parameters yet.
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

// serverClock returns the server's.
func (s *session) serverClock() clock.Clock { return s.srv.clock }

// conductTest conducts the test. The control connection is closed when it returns.
func (s *session) conductTest() error {
	defer s.ctl.Close()
	defer s.finishStreams()
	told := make(chan struct{})
	unhook := context.AfterFunc(s.ctx, func() {
		defer close(told)
		s.ctl.SetDeadline(s.serverClock().Now().Add(finalWriteTime))
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
	if err := s.exchangeParams(); err != nil {
		if s.ctx.Err() == nil {
			s.ctl.SetWriteDeadline(s.serverClock().Now().Add(finalWriteTime))
			writeState(s.ctl, serverError)
		}
		return err
	}
	return s.measureStreams()
}

// exchangeParams exchanges parameters and collects the streams.
func (s *session) exchangeParams() error {
	if err := s.requestJSON(paramExchange, &s.params); err != nil {
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
			s.offerArrival(arrival{stream: func(p *params) *stream {
				return udpStream(f, p,
					s.serverClock())
			},
				close: f.Close})
		})
		defer s.srv.udp.setAccept(nil)
	}
	if err := s.sendState(createStreams); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(time.Time{})
	go s.awaitClientByte()
	return s.collectStreams()
}

// awaitClientByte waits for the next byte of the client, or the end of its connection.
func (s *session) awaitClientByte() {
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
	s.ctl.SetWriteDeadline(s.serverClock().Now().Add(stepTime))
	return writeState(s.ctl, st)
}

// requestJSON sends a state byte and reads the JSON that it requests.
func (s *session) requestJSON(st state, v any) error {
	if err := s.sendState(st); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(s.serverClock().Now().Add(stepTime))
	err := readJSON(s.ctl, v)
	s.markActive()
	return err
}

// offerArrival passes an arrival to the session; one that is too late is closed.
func (s *session) offerArrival(a arrival) {
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

// collectStreams waits until all streams have arrived, and assigns their roles in the order of
// arrival.
func (s *session) collectStreams() error {
	n, sends := s.params.streamPlan()
	late := s.serverClock().NewTimer(streamTime)
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

// measureStreams runs the streams until the client ends the test, and exchanges results.
func (s *session) measureStreams() error {
	if err := errors.Join(s.sendState(testStart), s.sendState(testRunning)); err != nil {
		return err
	}
	s.running.Store(true)
	begin, cpu := s.serverClock().Now(), readCPU()
	for _, st := range s.streams {
		s.pumps.Go(func() { st.run(st, s.stop) })
	}
	err := s.untilEnd(&begin)
	s.running.Store(false)
	s.markActive()
	if err != nil {
		return err
	}
	took := s.serverClock().Since(begin)
	s.settleCounts()
	mine := results{HasRetransmits: 0}
	mine.CPUUser, mine.CPUSystem = cpu.percentSince(took)
	mine.CPUTotal = mine.CPUUser + mine.CPUSystem
	for _, st := range s.streams {
		mine.Streams = append(mine.Streams, st.resultAfter(took))
	}
	return s.exchangeResults(&mine)
}

// untilEnd waits for the client's end of the test; meanwhile the omitted time may pass. It does not
// wait for a client that exceeds its own time.
func (s *session) untilEnd(begin *time.Time) error {
	var omitted <-chan time.Time
	if s.params.Omit > 0 {
		t := s.serverClock().NewTimer(time.Duration(s.params.Omit) * time.Second)
		defer t.Stop()
		omitted = t.C
	}
	late := s.serverClock().NewTimer(s.params.timeLimit())
	defer late.Stop()
	look := s.serverClock().NewTimer(progressInterval)
	defer look.Stop()
	for seen := int64(0); ; {
		select {
		case <-omitted:
			for _, st := range s.streams {
				st.discardCounts()
			}
			*begin = s.serverClock().Now()
		case <-look.C:
			look.Reset(progressInterval)
			if now := s.bytesMoved(); now != seen {
				seen = now
				s.markActive()
			}
		case <-late.C:
			return fmt.Errorf("the client did not end the test in %v", s.params.timeLimit())
		case err := <-s.clientEnd:
			return err
		}
	}
}

// Data that the client sent before the end may still be in flight: settleCounts waits until nothing
// has arrived for quiet, at most settleTime.
const quiet, settleTime = 20 * time.Millisecond, 500 * time.Millisecond

func (s *session) settleCounts() {
	end := s.serverClock().Now().Add(settleTime)
	for seen := s.bytesReceived(); s.serverClock().Now().Before(end); {
		<-s.serverClock().NewTimer(quiet).C
		now := s.bytesReceived()
		if now == seen {
			return
		}
		seen = now
	}
}

// bytesReceived returns the number of bytes received on all streams together.
func (s *session) bytesReceived() (n int64) {
	for _, st := range s.streams {
		if !st.sends {
			n += st.bytes.Load()
		}
	}
	return n
}

// bytesMoved returns the number of bytes sent and received.
func (s *session) bytesMoved() (n int64) {
	for _, st := range s.streams {
		n += st.bytes.Load()
	}
	return n
}

// exchangeResults sends our results to the client and reads the client's. The streams end first: a
// client that reads whole blocks reads nothing else before it has the rest of a block, or the end.
func (s *session) exchangeResults(mine *results) error {
	s.hangUp()
	var his json.RawMessage // nothing in them changes ours
	if err := s.requestJSON(exchangeResults, &his); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := writeJSON(s.ctl, mine); err != nil {
		return err
	}
	if err := s.sendState(displayResults); err != nil {
		return err
	}
	s.ctl.SetReadDeadline(s.serverClock().Now().Add(stepTime))
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

// finishStreams closes the streams and waits for them.
func (s *session) finishStreams() {
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
