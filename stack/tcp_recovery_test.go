package stack

import (
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// recovering represents netstack's sender of a connection, made of its fields, with segments of
// 1,000 bytes.
type recovering struct {
	t       *testing.T
	fields  tcpFields
	snd     reflect.Value // tcp.sender
	board   *tcp.SACKScoreboard
	last    reflect.Value // tcp.segment
	una     seqnum.Value
	counter *recoveryCount
}

const lostSize = 1000

// newRecovering makes one that recovers, with a threshold, and the window of netstack's for it.
func newRecovering(t *testing.T, una seqnum.Value, threshold int) *recovering {
	ep, _ := newEndpoint(t)
	r := &recovering{t: t, una: una, fields: findTCPFields(reflect.TypeFor[tcp.Endpoint]())}
	if len(r.fields.missing) > 0 {
		t.Fatal(r.fields.missing)
	}
	f, v := &r.fields, reflect.ValueOf(ep).Elem()
	at := writable(f.snd.in(v))
	at.Set(reflect.New(at.Type().Elem()))
	r.snd = at.Elem()
	t.Cleanup(at.SetZero) // netstack purges lists of its own only
	writable(fieldOf(r.snd, "ep", reflect.Pointer)).Set(reflect.ValueOf(ep))
	writable(f.sack.in(v)).SetBool(true)
	r.board = tcp.NewSACKScoreboard(lostSize, una)
	writable(f.scoreboard.in(v)).Set(reflect.ValueOf(r.board))
	r.set(f.sndUna, uint32(una))
	writable(f.ssthresh.in(r.snd)).SetInt(int64(threshold))
	writable(f.cwnd.in(r.snd)).SetInt(int64(threshold + 3))
	r.recover(tcpip.SACKRecovery)
	r.counter = newRecoveryCount(ep, f, nil)
	return r
}

func (r *recovering) set(p fieldPlace, v uint32) { writable(p.in(r.snd)).SetUint(uint64(v)) }

// recover sets the state, and whether the recovery is RFC 6675's.
func (r *recovering) recover(s tcpip.CongestionControlState) {
	writable(r.fields.state.in(r.snd)).Set(reflect.ValueOf(s))
	writable(r.fields.active.in(r.fields.recovery.in(r.snd))).SetBool(s == tcpip.SACKRecovery)
}

// add appends a segment of so many packets, which was sent so many times.
func (r *recovering) add(packets, times int, lost bool) (start seqnum.Value) {
	f := &r.fields
	start = seqnum.Value(f.sndNxt.int(r.snd))
	if !r.last.IsValid() {
		start = r.una
	}
	seg := reflect.New(f.firstSegment.pointsTo())
	writable(f.packet.in(seg.Elem())).Set(reflect.ValueOf(gstack.NewPacketBuffer(
		gstack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, packets*lostSize))})))
	writable(f.seq.in(seg.Elem())).SetUint(uint64(start))
	writable(f.sentTimes.in(seg.Elem())).SetUint(uint64(times))
	writable(f.lost.in(seg.Elem())).SetBool(lost)
	writable(fieldOf(seg.Elem(), "flags", reflect.Uint8)).SetUint(uint64(header.TCPFlagAck))
	at := f.firstSegment.in(f.segments.in(f.writeList.in(r.snd)))
	if r.last.IsValid() {
		at = f.nextSegment.in(r.last)
	}
	writable(at).Set(seg)
	r.last = seg.Elem()
	r.set(f.sndNxt, uint32(start)+uint32(packets*lostSize))
	return start
}

// sackUp notes that the peer has what so many packets from start on hold.
func (r *recovering) sackUp(start seqnum.Value, packets int) {
	r.board.Insert(header.SACKBlock{Start: start,
		End: start.Add(seqnum.Size(packets * lostSize))})
}

// countUp sets HighRxt, which is RFC 6675's.
func (r *recovering) countUp(seq seqnum.Value) {
	writable(r.fields.highRxt.in(r.fields.recovery.in(r.snd))).SetUint(uint64(seq))
}

// pipe returns netstack's own count.
func (r *recovering) pipe() int {
	writable(r.fields.snd.in(reflect.ValueOf(r.counter.ep).Elem())).
		MethodByName("SetPipe").Call(nil)
	return r.fields.outstanding.int(r.snd)
}

func (r *recovering) window() int { return r.fields.cwnd.int(r.snd) }

func (r *recovering) mustHave(what string, want int) {
	r.t.Helper()
	if got := r.window(); got != want {
		r.t.Errorf("%s: the window is %d, want %d", what, got, want)
	}
}

// TestRecoveryRoom: where a flight is lost whole its first five segments are sent again, and as
// many more as are acknowledged, whatever netstack counts.
func TestRecoveryRoom(t *testing.T) {
	for _, una := range []seqnum.Value{1000, 1<<32 - 5000} {
		r := newRecovering(t, una, 2)
		r.add(1, 2, false)
		r.add(40, 1, true)
		r.countUp(una + lostSize - 1)
		pipe := r.pipe()
		r.counter.CountResend(uint32(una) + lostSize)
		// One segment counts twice. Five more may leave.
		if got := r.window() - pipe; got != firstResends {
			t.Errorf("from %d: %d in flight by netstack, window %d", una, pipe, r.window())
		}
		r.counter.CountResend(uint32(una) + lostSize) // not looked at
		r.mustHave("the next", pipe+firstResends)
		r.set(r.fields.sndUna, uint32(una)+10*lostSize)
		for range 40/looksShare - 1 {
			r.counter.CountResend(uint32(una) + lostSize)
		}
		r.mustHave("not looked at yet", pipe+firstResends)
		r.counter.CountResend(uint32(una) + lostSize)
		r.mustHave("ten acknowledged", pipe+firstResends+10)
	}
}

// TestRecoveryRoomOfThreshold: the threshold is the bound where it is larger than half of what was
// lost.
func TestRecoveryRoomOfThreshold(t *testing.T) {
	r := newRecovering(t, 1, 4)
	r.add(1, 2, false)
	r.add(9, 1, true)
	r.add(20, 1, false) // sent later: in flight
	r.countUp(1)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("in a flight", 7+10)
}

// TestNoRecoveryRoom: the window stays netstack's where SACK tells what is lost, where nothing is,
// and outside of a recovery.
func TestNoRecoveryRoom(t *testing.T) {
	r := newRecovering(t, 1, 10)
	r.add(1, 2, false)
	r.add(9, 1, true)
	r.sackUp(r.add(5, 1, false), 5)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("told by SACK", 13)

	r = newRecovering(t, 1, 10)
	r.add(1, 2, false)
	r.add(9, 1, false)
	r.countUp(0)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("nothing lost", 13)

	r = newRecovering(t, 1, 10)
	r.add(1, 2, false)
	r.add(9, 1, true)
	r.recover(tcpip.Disorder)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("outside", 13)
}

// TestRecoveryRoomAfterTimeout: a timeout takes all for lost that was not sent again since, and the
// recovery that begins behind it looks anew.
func TestRecoveryRoomAfterTimeout(t *testing.T) {
	r := newRecovering(t, 1, 2)
	r.add(1, 2, false)
	r.add(1, 1, true)
	r.add(29, 1, false)
	r.countUp(1)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("before", 5+1+1)
	for range 2 {
		r.recover(tcpip.RTORecovery)
		writable(r.fields.cwnd.in(r.snd)).SetInt(1)
		r.counter.CountResend(1 + lostSize)
		r.mustHave("by the timeout", 1)
		r.recover(tcpip.SACKRecovery)
		writable(r.fields.cwnd.in(r.snd)).SetInt(5)
		r.counter.CountResend(1 + lostSize)
		r.mustHave("behind it", firstResends+1+30+1)
	}
	r.set(r.fields.sndUna, 1+31*lostSize) // all that the timeout took for lost is acknowledged
	r.recover(tcpip.Disorder)
	r.counter.CountResend(1 + lostSize)
	r.recover(tcpip.SACKRecovery)
	r.counter.CountResend(1 + lostSize)
	r.mustHave("all acknowledged", 5+1+1)
}

// TestRecoveryRoomLongAfterTimeout: a timeout 3 GiB ago takes nothing for lost.
func TestRecoveryRoomLongAfterTimeout(t *testing.T) {
	r := newRecovering(t, 1, 2)
	r.recover(tcpip.RTORecovery)
	r.counter.CountResend(1)
	r.una += 3 << 30
	r.set(r.fields.sndUna, uint32(r.una))
	r.recover(tcpip.SACKRecovery)
	r.add(1, 2, false)
	r.add(9, 1, false)
	r.countUp(r.una - 1)
	r.counter.CountResend(uint32(r.una) + lostSize)
	r.mustHave("3 GiB later", 5)
}

// TestCountFlight: what is in flight, and what netstack counts without that being so, are its own
// count together.
func TestCountFlight(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRecovering(t, seqnum.Value(random.Uint32()), 2)
		behind := random.IntN(2) == 0 // of a SACK
		flight, lost, segments := 0, 0, 0
		for range 1 + random.IntN(20) {
			n := 1 + random.IntN(45)
			if segments += n; random.IntN(2) == 0 {
				r.add(n, 1, true)
				lost += n
				continue
			}
			r.add(n, 1, behind)
			if flight += n; behind {
				flight, lost = flight-n, lost+n
			}
		}
		if behind {
			r.sackUp(r.add(4, 1, false), 4)
			segments += 4
		}
		r.countUp(r.una - 1)
		n, ok := r.counter.countFlight(r.snd, r.fields.recovery.in(r.snd))
		if !ok || n.inFlight != flight || n.lost != lost || n.segments != segments ||
			r.pipe() != n.inFlight+n.excess || behind && n.excess > 0 {
			t.Fatalf("seed %d: %+v, %v; netstack's count is %d; in flight are %d, %d lost",
				seed, n, ok, r.pipe(), flight, lost)
		}
	}
}

// TestCountResends: what is sent again counts up to its end, and stays counted where what comes
// before it is sent again.
func TestCountResends(t *testing.T) {
	r := newRecovering(t, 1, 2)
	owner := fieldOf(reflect.ValueOf(r.counter.ep).Elem(), "owner", reflect.Interface)
	if owner.Elem().Pointer() != reflect.ValueOf(r.counter).Pointer() {
		t.Error("it does not own the connection's packets")
	}
	highest := r.fields.highRxt.in(r.fields.recovery.in(r.snd))
	if r.counter.CountResend(1000); highest.Uint() != 0 {
		t.Errorf("a connection that is not to count counts up to %d", highest.Uint())
	}
	r.counter.countSent()
	for _, step := range [][2]uint32{{5000, 4999}, {4000, 4999}, {9000, 8999}} {
		if r.counter.CountResend(step[0]); uint32(highest.Uint()) != step[1] {
			t.Errorf("%d is counted up to %d, want %d", step[0], highest.Uint(), step[1])
		}
	}
}

// TestSentBefore: a connection's owner tells up to where it has sent data.
func TestSentBefore(t *testing.T) {
	r := newRecovering(t, 7, 2)
	for n := range uint32(2) {
		r.add(3, 1, false)
		want := 7 + (n+1)*3*lostSize
		if end, known := r.counter.SentBefore(); end != want || !known {
			t.Errorf("sent up to %d, %v; want %d", end, known, want)
		}
	}
	none := &recoveryCount{ep: r.counter.ep, fields: new(tcpFields)}
	if end, known := none.SentBefore(); end != 0 || known {
		t.Errorf("without the field: %d, %v", end, known)
	}
	none.CountResend(1000)
	none.countSent()
	none.CountResend(1000)
	if c := newRecoveryCount(nil, &r.fields, nil); c != nil {
		t.Error("an endpoint that is not of TCP has a count")
	}
}

// TestUnread: what a connection has received counts until netstack has looked at it.
func TestUnread(t *testing.T) {
	r := newDirectRig(t, false)
	ln, err := r.receiver.Listen("tcp4", "192.0.2.2:80")
	must(t, err)
	defer ln.Close()
	from, err := r.sender.DialTCP("tcp4", nil, ln.Addr().(*net.TCPAddr))
	must(t, err)
	defer from.Close()
	to, err := ln.Accept()
	must(t, err)
	defer to.Close()
	conn := to.(*TCPConn)
	ep := conn.ep.(*tcp.Endpoint)
	ep.LockUser()
	const writes, size = 3, 100
	for range writes {
		_, err := from.Write(make([]byte, size))
		must(t, err)
	}
	for conn.recovery.Unread(writes) == 0 { // they may come as one
		runtime.Gosched()
	}
	if n := conn.recovery.Unread(0); n != 0 {
		t.Errorf("%d of at most none are unread", n)
	}
	ep.UnlockUser()
	_, err = io.ReadFull(to, make([]byte, writes*size))
	must(t, err)
	if n := conn.recovery.Unread(writes); n != 0 {
		t.Errorf("%d are unread after all was read", n)
	}
}
