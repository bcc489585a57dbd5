package tcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// row is one behaviour. Its script has a step per line, which begins with its time:
//
//	0      listen
//	       < S 0 win 65535 mss 1000
//	       > SA 0 ack 1 mss own
//	+10ms  < A 1 ack 1
//	       accept
//	       read 100 ...
//	250ms  < PA 1+100 ack 1
//	       done read
//	255ms  > A 1 ack 101
//
// A line without a time is at that of the line before; +10ms is that much later. "<" is a segment
// of the peer's, "<+" one that arrives together with the next, "< icmp" a router's message, ">" a
// segment of ours, which has to come at that very time. Between the lines nothing may be sent. The
// other steps are the application's calls, see calls_test.go: each must return at once, with the
// outcome behind "=" or without an error. "..." behind a call has it wait, and "done" is where it
// returns. "open" stands for a connection that the peer has opened, with a round trip of 10 ms, or
// as said with "rtt"; the time is 0 then. "connect" is one that we have opened. Their further
// fields are options of the peer's SYN.
type row struct {
	name   string
	source string // the RFC, or the topic of a suite
	linux  string // how Linux differs, and where that is written; "": in nothing
	only   int    // 4 or 6: the IP version; 0: both
	config func(*stack.Config)
	script string
}

// script is a row being run.
type script struct {
	*host
	*peer
	origin time.Duration // when the script's time was 0
	last   time.Duration // of the step before, in the script's time
	line   int
	held   [][]byte // frames that arrive with the next
	trace  []string
	failed bool
	wrong  []string // why
}

// interrupted is how often a row is played anew that went wrong while the test was interrupted.
const interrupted = 10

// run plays a row. One that goes wrong counts if nothing has come between the frames of a batch.
func (r row) run(t *testing.T, v6 bool) {
	for range interrupted {
		s := r.play(t, v6)
		if s.failed && s.slow {
			t.Log("the test was interrupted; once more")
			continue
		}
		for _, wrong := range s.wrong {
			t.Error(wrong)
		}
		if s.failed {
			t.Logf("what happened:\n\t%s", strings.Join(s.trace, "\n\t"))
		}
		return
	}
	t.Error("the test was interrupted again and again")
}

// play plays a row once.
func (r row) play(t *testing.T, v6 bool) *script {
	s := &script{host: newHost(t, v6, r.config), peer: newPeer(v6)}
	s.origin = s.clock.now()
	for i, line := range strings.Split(strings.Trim(r.script, "\n"), "\n") {
		s.line = i + 1
		line, _, _ = strings.Cut(line, "#")
		if s.step(strings.Fields(line)); s.failed {
			break
		}
	}
	s.nothingSent()
	return s
}

// now is the script's time.
func (s *script) now() time.Duration { return s.clock.now() - s.origin }

func (s *script) fail(format string, args ...any) {
	s.failed = true
	s.wrong = append(s.wrong, fmt.Sprintf("line %d: %s", s.line, fmt.Sprintf(format, args...)))
}

func (s *script) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%-10v ", s.now())+fmt.Sprintf(format, args...))
}

// step does what one line says.
func (s *script) step(words []string) {
	at := s.last
	if len(words) > 0 && strings.ContainsAny(words[0][:1], "+0123456789") {
		var err error
		if at, err = s.time(words[0]); err != nil {
			s.fail("%v", err)
			return
		}
		words = words[1:]
	}
	s.last = at
	if len(words) == 0 {
		s.advance(at)
		return
	}
	if words[0] == ">" {
		s.expect(at, words[1:])
		return
	}
	s.advance(at)
	if s.nothingSent(); s.failed {
		return
	}
	switch words[0] {
	case "<", "<+":
		s.arrive(words)
	case "open":
		s.open(words[1:])
	case "connect":
		s.connect(words[1:])
	default:
		s.call(words)
	}
	s.quiet.settle()
}

// time reads the time of a line.
func (s *script) time(word string) (time.Duration, error) {
	if after, ok := strings.CutPrefix(word, "+"); ok {
		d, err := time.ParseDuration(after)
		return s.last + d, err
	}
	return time.ParseDuration(word)
}

// advance lets the time pass until at.
func (s *script) advance(at time.Duration) {
	for {
		s.quiet.settle()
		if next, ok := s.clock.next(); !ok || next > s.origin+at {
			break
		}
		s.clock.Step()
	}
	s.clock.set(s.origin + at)
}

// got is the oldest segment that we have sent and that no line has named.
func (s *script) got() (seg segment, at time.Duration, ok bool) {
	for {
		f, ok := s.take()
		if !ok {
			return seg, 0, false
		}
		seg, ok, err := s.peer.read(f.data)
		if err != nil {
			s.fail("a bad frame was sent: %v: %x", err, f.data)
		}
		if ok {
			s.trace = append(s.trace, fmt.Sprintf("%-10v > %v", f.at-s.origin, seg))
			return seg, f.at - s.origin, true
		}
	}
}

// nothingSent fails if we have sent a segment.
func (s *script) nothingSent() {
	s.quiet.settle()
	for got, at, ok := s.got(); ok; got, at, ok = s.got() {
		s.fail("at %v came %v", at, got)
	}
}

// expect waits for a segment.
func (s *script) expect(at time.Duration, words []string) {
	want, err := parseSegment(words, s.ownMSS())
	if err != nil {
		s.fail("%v: %v", words, err)
		return
	}
	for {
		s.quiet.settle()
		got, when, ok := s.got()
		if ok {
			s.compare(at, when, &want, &got)
			return
		}
		if next, ok := s.clock.next(); !ok || next > s.origin+at {
			break
		}
		s.clock.Step()
	}
	s.fail("nothing came until %v, want %v", at, want)
}

// compare fails unless a segment is the one expected, and came when it was expected.
func (s *script) compare(at, when time.Duration, want, got *segment) {
	differs := want.differs(got)
	if s.peer.lacksStamp(want, got) {
		differs = append(differs, "timestamp")
	}
	if at != when {
		differs = append(differs, "time")
	}
	if len(differs) > 0 {
		s.fail("%s:\n\tcame %v %v\n\twant %v %v", strings.Join(differs, ", "), when, got, at, want)
	}
}

// ownMSS is what we announce.
func (s *script) ownMSS() int {
	if s.host.v6 {
		return s.stack.MTU() - 60
	}
	return s.stack.MTU() - 40
}

// arrive has a segment or message of the peer's arrive.
func (s *script) arrive(words []string) {
	var f []byte
	if words[1] == "icmp" {
		var err error
		if f, err = s.peer.icmp(words[2:]); err != nil {
			s.fail("%v", err)
			return
		}
	} else {
		seg, err := parseSegment(words[1:], s.ownMSS())
		if err != nil {
			s.fail("%v: %v", words, err)
			return
		}
		f = s.peer.frame(seg, s.clock.now())
	}
	s.note("%s", strings.Join(words, " "))
	if s.held = append(s.held, f); words[0] == "<" {
		s.deliver(s.held)
		s.held = nil
	}
}

// handshake is the fields of "open" and "connect".
type handshake struct {
	rtt     time.Duration
	options segment
	text    string
}

func (s *script) handshake(words []string) (h handshake) {
	h.rtt = 10 * time.Millisecond
	var fields []string
	for i := 0; i < len(words); i++ {
		if words[i] == "rtt" && i+1 < len(words) {
			var err error
			if h.rtt, err = time.ParseDuration(words[i+1]); err != nil {
				s.fail("%v", err)
			}
			i++
			continue
		}
		fields = append(fields, words[i])
	}
	var err error
	h.text = strings.Join(fields, " ")
	h.options, err = parseSegment(append([]string{"S", "0"}, fields...), s.ownMSS())
	if err != nil {
		s.fail("%v", err)
	}
	return h
}

// agreed are the options with which we answer those of the peer's SYN.
func (h *handshake) agreed() string {
	text := "mss own"
	if h.options.sackOK {
		text += " sackok"
	}
	if h.options.stamp.there {
		text += " ts"
	}
	if h.options.ws >= 0 {
		text += fmt.Sprint(" ws ", ourScale)
	}
	return text
}

// ourScale is the window scale that we offer: 8 MiB are 65,535 times 2 to the 8th at most.
const ourScale = 8

// open has the peer open a connection, and the application accept it.
func (s *script) open(words []string) {
	h := s.handshake(words)
	last := fmt.Sprintf("+%v < A 1 ack 1", h.rtt)
	if h.options.win >= 0 {
		last += fmt.Sprint(" win ", h.options.win)
	}
	s.play("listen", "< S 0 "+h.text, "> SA 0 ack 1 "+h.agreed(), last, "accept")
	s.restart()
}

// connect has the application open a connection.
func (s *script) connect(words []string) {
	h := s.handshake(words)
	s.play("dial ...", fmt.Sprint("> S 0 mss own sackok ts ws ", ourScale),
		fmt.Sprintf("+%v < SA 0 ack 1 %s", h.rtt, h.text), "> A 1 ack 1", "done dial")
	s.restart()
}

// play does steps at the present time.
func (s *script) play(steps ...string) {
	for _, step := range steps {
		if s.step(strings.Fields(step)); s.failed {
			return
		}
	}
}

// restart makes the present time 0.
func (s *script) restart() {
	s.quiet.settle()
	s.note("the time is 0 now")
	s.origin, s.last = s.clock.now(), 0
}
