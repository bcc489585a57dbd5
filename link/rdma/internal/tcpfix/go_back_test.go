package tcpfix

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// echoed has the peer acknowledge what came before ack, and returns the timestamp echo that
// netstack gets.
func (r *resending) echoed(ack, echo uint32) uint32 {
	f := tcpframe.Frame{V6: r.v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
		Ports: [2]uint16{4000, 80}, TTL: 64, Ack: ack, Flags: header.TCPFlagAck,
		Options: tcpframe.Stamped(9, echo)}
	frame := f.Bytes()
	s := hdr.Received(frame, hdrtest.Parse(frame), r.seed)
	aged := r.received(&s)&EchoAged != 0
	got := binary.BigEndian.Uint32(s.Options().Timestamp[6:])
	if aged != (got != echo) {
		panic("changed, and not said so, or the other way round")
	}
	return got
}

// TestEchoAged: echoes are older from when the link works again until what was sent before that is
// acknowledged: older than what netstack sent before what is acknowledged, be it by one of several
// acknowledgements. The first is older than netstack's own copy of the segment.
func TestEchoAged(t *testing.T) {
	r := newResending()
	defer r.close()
	netstack := func(seq uint32, stamp uint32) {
		f := ours(seq, 1000)
		f.Options = tcpframe.Stamped(stamp, 1)
		r.write(f, 0)
	}
	check := func(ack, echo, want uint32) {
		t.Helper()
		if got := r.echoed(ack, echo); got != want {
			t.Errorf("an ACK of %d echoes %d, netstack gets %d, want %d", ack, echo, got, want)
		}
	}
	for seq := uint32(0); seq < 5000; seq += 1000 {
		netstack(seq, 5000)
	}
	check(0, 5000, 5000)
	netstack(0, 6000) // its timeout
	check(0, 6000, 6000)
	r.wait(700 * time.Millisecond) // we send it, too, with a later timestamp
	r.repeat()
	r.repeat() // once for the backend, once for the link
	if n := len(r.frames); n != 2 {
		t.Fatalf("%d segments sent by the link", n)
	}
	check(1000, 6700, 6000-maxEchoAge-echoAge)
	netstack(1000, 6710)
	check(2000, 6710, 6710-maxEchoAge-echoAge)
	r.wait(20 * time.Millisecond)
	netstack(2000, 6730)
	r.wait(5 * time.Millisecond)
	netstack(3000, 6735)
	check(3500, 6735, 6710-echoAge) // the first of the two is among it
	check(4000, 6735, 6730-echoAge)
	netstack(4000, 6740)
	check(5000, 6740, 6740)
	netstack(5000, 6750)
	check(6000, 6750, 6750)
}

// TestEchoHidden: once something was sent again, an acknowledgement of nothing new with SACK echoes
// nothing, and one of new data, or without SACK, what it has.
func TestEchoHidden(t *testing.T) {
	r := newResending()
	defer r.close()
	report := func(ack, from, to uint32) (echo uint32, said bool) {
		f := tcpframe.Frame{Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 2, To: 1,
			Ports: [2]uint16{4000, 80}, TTL: 64, Ack: ack, Flags: header.TCPFlagAck,
			Options: append(tcpframe.Stamped(9, 5000), tcpframe.Sacked(from, to)...)}
		frame := f.Bytes()
		s := hdr.Received(frame, hdrtest.Parse(frame), r.seed)
		said = r.received(&s)&EchoAged != 0
		return binary.BigEndian.Uint32(s.Options().Timestamp[6:]), said
	}
	for seq := uint32(0); seq < 20000; seq += 1000 {
		r.write(ours(seq, 1000), 0)
	}
	if echo, said := report(1000, 5000, 10000); echo != 5000 || said {
		t.Errorf("nothing was sent again, and netstack gets %d (%v)", echo, said)
	}
	r.write(ours(1000, 1000), 0)
	for _, tt := range []struct {
		ack, from, to, want uint32
	}{{1000, 5000, 12000, 5000}, // the first since: it may be of new data
		{1000, 5000, 12000, 0}, {2000, 5000, 12000, 5000}, {2000, 5000, 13000, 0}} {
		echo, said := report(tt.ack, tt.from, tt.to)
		if echo != tt.want || said != (tt.want == 0) {
			t.Errorf("an ACK of %d: netstack gets %d (%v), want %d", tt.ack, echo, said, tt.want)
		}
	}
	if got := r.echoed(2000, 5000); got != 5000 {
		t.Errorf("without SACK netstack gets %d", got)
	}
}

// TestTailStaysYoung: where netstack has sent something other than the first segment again, as its
// tail loss probe does, the echo tells it of the loss.
func TestTailStaysYoung(t *testing.T) {
	r := newResending()
	defer r.close()
	r.write(ours(0, 1000), 0)
	r.write(ours(1000, 1000), 0)
	r.echoed(500, 5000)
	r.write(ours(1000, 1000), 0)
	r.repeat()
	if got := r.echoed(500, 5001); got != 5001 {
		t.Errorf("netstack gets %d", got)
	}
}

// goBackRun is a bulk transfer over a path that is dark for a while.
type goBackRun struct {
	lossyRun
	got atomic.Int64 // bytes
}

const (
	goBackStart  = 1500 * time.Millisecond // of the outage
	goBackDelay  = 20 * time.Millisecond
	goBackWindow = 256 << 10 // bytes
)

// goBackControl has no other end of slow start than a loss, so that the window is the peer's.
const goBackControl = tcpip.CongestionControlOption("reno")

// rates are the bytes that came in the last second before an outage, and in the second that begins
// a time after its end. atEnd is called at its end; with plain netstack gets acknowledgements as
// they are.
func rates(outage, later time.Duration, atEnd func(*goBackRun), plain bool) (before, after int64) {
	end := goBackStart + outage
	r := &goBackRun{lossyRun: lossyRun{settler: newSettler(), rand: rand.New(rand.NewPCG(1, 1)),
		lossy: lossy{gso: true, delay: goBackDelay,
			dark: func(now time.Duration) bool { return now >= goBackStart && now < end }}}}
	r.ends = [2]*lossyEnd{r.newLossyEnd(&r.clock, 1), r.newLossyEnd(&r.clock, 2)}
	if plain {
		r.ends[0].plain = true
		resend := &r.ends[0].flows.resend
		resend.sackOK = func(uint64) bool { return false }
		resend.path = func(uint64) time.Duration { return 0 }
	}
	reno, window := goBackControl, tcpip.TCPReceiveBufferSizeRangeOption{Min: goBackWindow,
		Default: goBackWindow, Max: goBackWindow}
	must(r.ends[0].stack.SetTransportProtocolOption(tcp.ProtocolNumber, &reno))
	must(r.ends[1].stack.SetTransportProtocolOption(tcp.ProtocolNumber, &window))
	stop := r.transfer()
	r.clock.AfterFunc(end, func() { atEnd(r) })
	at := func(t time.Duration) int64 {
		for r.settle(); r.clock.now < t && r.clock.step(); r.settle() {
		}
		return r.got.Load()
	}
	before = -at(goBackStart-time.Second) + at(goBackStart)
	after = -at(end+later) + at(end+later+time.Second)
	stop()
	for _, e := range r.ends {
		e.flows.Close()
		e.stack.Close()
	}
	for n := 0; n < 200 && r.clock.step(); n++ {
		r.settle()
	}
	return before, after
}

// transfer has the first end send without end.
func (r *goBackRun) transfer() (stop func()) {
	addr := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 80}
	ln, err := gonet.ListenTCP(r.ends[0].stack, addr, ipv4.ProtocolNumber)
	if err != nil {
		panic(err)
	}
	go func() {
		c, err := ln.Accept()
		for b := make([]byte, 64<<10); err == nil; {
			_, err = c.Write(b)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		c, err := gonet.DialContextTCP(ctx, r.ends[1].stack, addr, ipv4.ProtocolNumber)
		if err != nil {
			return
		}
		context.AfterFunc(ctx, func() { _ = c.Close() })
		_, _ = io.Copy(writerFunc(func(b []byte) { r.got.Add(int64(len(b))) }), c)
	}()
	return func() { cancel(); _ = ln.Close() }
}

type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// lightUp does what is done for connections once the link works again.
func (r *goBackRun) lightUp() {
	e, control := r.ends[0], goBackControl
	for _, ep := range e.stack.RegisteredEndpoints() {
		if c, ok := ep.(*tcp.Endpoint); ok && tcp.EndpointState(c.State()) == tcp.StateEstablished {
			must(c.SetSockOpt(&control))
		}
	}
	e.flows.Repeat()
}

// TestGoBackOfNetstack: a second after an outage of the link a transfer has half of its rate again,
// and some seconds after one elsewhere on the path. It has not where netstack gets the
// acknowledgements as they are.
func TestGoBackOfNetstack(t *testing.T) {
	if racing.Detector {
		need.That(t, "race detector", errors.New("takes minutes with it; make test has it without"))
	}
	oneProcessor(t)
	link := (*goBackRun).lightUp
	path := func(*goBackRun) {}
	for _, tt := range []struct {
		name          string
		outage, later time.Duration
		atEnd         func(*goBackRun)
	}{
		{"link, 1 s", time.Second, time.Second, link},
		{"path, 1 s", time.Second, 4 * time.Second, path},
		{"path, only the tail loss probe comes", 50 * time.Millisecond, time.Second, path},
		{"path, one timeout", 150 * time.Millisecond, time.Second, path},
	} {
		before, after := rates(tt.outage, tt.later, tt.atEnd, false)
		_, plain := rates(tt.outage, tt.later, tt.atEnd, true)
		t.Logf("%s: %d bytes in a second before, %d after, %d with plain ACKs", tt.name, before,
			after, plain)
		if after < before/2 {
			t.Errorf("%s: %d bytes in a second, before %d", tt.name, after, before)
		}
		if plain >= before/2 {
			t.Errorf("%s: %d bytes in a second with plain ACKs, before %d: the mend can go",
				tt.name, plain, before)
		}
	}
}
