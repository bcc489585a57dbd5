package delack

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// ackScript is a sequence of segments in four bytes each, the fuzzer's input:
//
//	byte 0  bits 0-1: the connection; bit 2: IPv6; bits 3-7: 200 us each that pass before it
//	byte 1  what its ACK number is beyond the connection's last one, in steps of 32 bytes, signed
//	byte 2  its flags, with ACK inverted: 0 is a pure ACK
//	byte 3  bits 0-1: window as before, one more, zero, small; bits 2-3: options none, timestamp,
//	        SACK, malformed; bit 4: payload; bit 5: segment size unknown
type ackScript []byte

// ackModel is a connection according to RFC 1122 section 4.2.3.2, RFC 5681 section 4.2 and the
// documentation of Coalescer: the segments written and those sent.
type ackModel struct {
	written []ackWritten
	sent    int // how many of written are settled: sent, or made needless by one that was sent
	last    int // the one of written that went out last; -1: none
}

// ackWritten is a segment that the stack has written.
type ackWritten struct {
	ack, mss uint32
	window   uint16
	valid    bool // has an ACK number
	pure     bool // an ACK and nothing else
	sack     bool // or options that make no sense
	again    bool // the number of the segment before it in the same connection
	ends     bool // what comes next is of another connection
	when     time.Time
}

// ackRig runs a script.
type ackRig struct {
	t        *testing.T
	c        *Coalescer
	made     int
	released atomic.Int64

	mu    sync.Mutex  // guards what follows: the coalescer's timer writes segments, too
	flows [8]ackModel // IPv6 in the upper half
}

// WritePacket finds the segment by its sequence number, which is its index. A timer calls it, too.
func (r *ackRig) WritePacket(_ *gstack.PacketBuffer, s hdr.Segment) tcpip.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	tcp := header.TCP(s.TCP())
	m, i := &r.flows[tcp.SourcePort()-1], int(tcp.SequenceNumber())
	if i < m.sent {
		r.t.Errorf("segment %d is sent behind %d", i, m.last)
		return nil
	}
	w := m.written[i]
	for j, before := range m.written[m.sent:i] {
		if !before.pure || !w.valid || int32(w.ack-before.ack) < 0 {
			r.t.Errorf("segment %d (%+v) is left out, %d (%+v) does not say as much", m.sent+j,
				before, i, w)
		}
	}
	m.sent, m.last = i+1, i
	return nil
}

// Answers returns false: nothing has come twice.
func (r *ackRig) Answers(uint64) bool { return false }

func (r *ackRig) WriteBurst(pkts []*gstack.PacketBuffer) {
	for _, pkt := range pkts {
		r.WritePacket(pkt, hdr.ParseSent(pkt, r.c.key))
	}
}

// write passes one segment of the script to the coalescer.
func (r *ackRig) write(op []byte) {
	time.Sleep(time.Duration(op[0]>>3) * 200 * time.Microsecond)
	synctest.Wait()
	r.inTime()
	pkt, m := r.make(op)
	if err := r.c.WritePacket(pkt); err != nil {
		r.t.Fatal(err)
	}
	pkt.DecRef()
	r.atOnce(m)
}

// make makes a segment as the script has it, and adds it to its connection.
func (r *ackRig) make(op []byte) (*gstack.PacketBuffer, *ackModel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := tcpframe.Segment(0)
	f.V6, f.Payload, f.Flags = op[0]&4 != 0, nil, header.TCPFlags(op[2])^header.TCPFlagAck
	flow := op[0] & 7
	m := &r.flows[flow]
	f.Ports, f.Seq = [2]uint16{uint16(flow) + 1, 80}, uint32(len(m.written))
	f.Ack = ^uint32(5000) // soon it wraps
	if n := len(m.written); n > 0 {
		f.Ack = m.written[n-1].ack
	}
	again := op[1] == 0 && len(m.written) > 0 && m.written[len(m.written)-1].valid &&
		!m.written[len(m.written)-1].ends
	f.Ack += uint32(int32(int8(op[1])) * 32)
	f.Window += [4]uint16{0, 1, -f.Window, 1 - f.Window}[op[3]&3]
	f.Options = [4][]byte{nil, {1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 5},
		{1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0}, {8, 0, 0, 0}}[op[3]>>2&3]
	if op[3]&16 != 0 {
		f.Payload = []byte("data")
	}
	w := ackWritten{ack: f.Ack, window: f.Window, mss: 1000, when: time.Now(),
		again: again,
		valid: f.Flags&header.TCPFlagAck != 0,
		ends:  f.Flags&(header.TCPFlagSyn|header.TCPFlagRst) != 0, sack: op[3]&8 != 0,
		pure: f.Flags == header.TCPFlagAck && f.Payload == nil}
	r.made++
	pkt := f.ReleasedPacket(func() { r.released.Add(1) })
	if op[3]&32 != 0 {
		pkt.GSOOptions.MSS, w.mss = 0, smallMSS
	}
	m.written = append(m.written, w)
	return pkt, m
}

// atOnce requires the segment just written to be sent if no rule allows holding it, and what is
// held to be less than two segments.
func (r *ackRig) atOnce(m *ackModel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(m.written) - 1
	if m.sent > i {
		return
	}
	w := m.written[i]
	if !w.pure || w.sack || w.window == 0 || w.again || m.last < 0 {
		r.t.Fatalf("segment %d (%+v) is held", i, w)
	}
	last := m.written[m.last]
	fresh := int32(w.ack - last.ack)
	if last.window == 0 || fresh <= 0 || uint32(fresh) >= 2*w.mss {
		r.t.Fatalf("segment %d (%+v) is held behind %+v", i, w, last)
	}
	if last.pure && (last.sack || last.again) {
		r.t.Fatalf("segment %d is held, but ends a loss", i)
	}
}

// inTime requires that no connection waits for an ACK longer than the delay, which is the longer
// one at most for what acknowledges no more than one segment.
func (r *ackRig) inTime() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.flows {
		m := &r.flows[i]
		for j := m.sent; j < len(m.written); j++ {
			w, limit := &m.written[j], defaultDelay
			if m.last >= 0 && w.ack-m.written[m.last].ack <= w.mss {
				limit = patientDelay
			}
			if time.Since(w.when) > limit {
				r.t.Fatalf("segment %d of %d has waited for %v", j, i, time.Since(w.when))
			}
		}
	}
}

// settled wants nothing to wait.
func (r *ackRig) settled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.flows {
		if m := &r.flows[i]; m.sent != len(m.written) {
			r.t.Fatalf("connection %d: %d of %d segments settled in the end", i, m.sent,
				len(m.written))
		}
	}
}

// run gives a script to a coalescer, waits until nothing is held and looks at the counts.
func (s ackScript) run(t *testing.T) {
	r := &ackRig{t: t}
	r.c = New(r, testKey, Options{})
	for i := range r.flows {
		r.flows[i].last = -1
	}
	for ; len(s) >= 4; s = s[4:] {
		r.write(s)
	}
	held := r.c.Stats()
	time.Sleep(patientDelay)
	synctest.Wait()
	r.settled()
	got := r.c.Stats()
	if got.Waiting != 0 || got.WaitingBytes != 0 || got.Held < got.Saved+got.Timed ||
		got.Timed != held.Timed+held.Waiting {
		t.Fatalf("%+v, before the delay %+v", got, held)
	}
	r.c.Close()
	if int(r.released.Load()) != r.made {
		t.Fatalf("%d packets released, %d made", r.released.Load(), r.made)
	}
}

// FuzzACK compares the segments sent with those that may be held, see ackModel.
func FuzzACK(f *testing.F) {
	const sack, payload, zero, unknown, later = 8, 16, 2, 32, 25 << 3
	const v6, fin, syn, reset, noACK = 4, 1, 2, 4, 16
	for _, script := range []ackScript{
		// held until its time
		{0, 0, 0, 0, 0, 4, 0, 0},
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, payload},                            // rides on data
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0},                      // duplicate
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 70, 0, 0},                     // two segments
		{0, 0, 0, unknown, 0, 34, 0, unknown, 0, 4, 0, unknown},               // of unknown size
		{0, 0, 0, 0, 0, 4, 0, sack, 0, 4, 0, 0, 0, 4, 0, 0},                   // SACK
		{0, 0, 0, 0, 0, 4, 0, zero, 0, 4, 0, 0},                               // zero window
		{0, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 0, 1, 4, 0, 0, v6, 0, 0, 0},         // three connections
		{0, 0, syn | noACK, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, reset, 0},        // a short one
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 4, fin, 0, later, 1, 0, 0},                // FIN
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 0xfc, 0, 0, later, 120, 0, 0},             // backwards
		{0, 0, 0, 0, 15 << 3, 4, 0, 0, 15 << 3, 4, 0, 0, 15 << 3, 4, 0, 0},    // deadlines
		{0, 0, 0, 0, 0, 4, 0, 0, 0, 0, noACK | reset, 0, 0, 4, 0, 0, 0, 4, 0}, // reset
		{0, 0, 0, 0, 0, 4, 0, 0, 31 << 3, 0, 0, payload, 0, 4, 0, 0, 31 << 3, 0, 0, payload,
			0, 4, 0, 0, 31 << 3, 34, 0, 0, 31 << 3, 0, 0, 0}, // trusted, then more than a segment
	} {
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) { ackScript(script[:min(len(script), 1024)]).run(t) })
	})
}
