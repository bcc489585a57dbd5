package simnic

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// A rig is a minimal driver: it writes descriptors and reads completions as bytes, with its own
// implementation of the rules.

// mem is page-backed memory poisoned with 0xa5.
func mem(t testing.TB, n int) *mmio.Region {
	t.Helper()
	r, err := mmio.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for i := range r.Bytes() {
		r.Bytes()[i] = 0xa5
	}
	return r.Sub(0, n) // a page may be larger
}

// record is a doorbell record, zeroed.
func record(t testing.TB) *mmio.Region {
	r := mem(t, 4096)
	clear(r.Bytes())
	return r
}

// fixedClock makes NIC.Now return the given tick.
func fixedClock(now *uint64) clock.Clock {
	base := time.Unix(1000, 0)
	first := true
	return clocktest.Showing(func() time.Time {
		if first {
			first = false
			return base
		}
		return base.Add(time.Duration(*now))
	})
}

func testRand(t testing.TB) *rand.Rand { return rand.New(rand.NewPCG(simtest.Seed(t), 1)) }

func newNIC(t testing.TB, cfg Config) *NIC {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Close()
		if err := checkCounters(n); err != nil {
			t.Error(err)
		}
	})
	return n
}

func checkCounters(n *NIC) error {
	c := n.Counters()
	return c.Check()
}

// recorder is a wire that records the frames sent and lets a test inject frames.
type recorder struct {
	mu     sync.Mutex
	can    frame.Offload
	frames []frame.Frame
	recv   func([]frame.Frame)
}

func (w *recorder) Start(recv func([]frame.Frame)) error { w.recv = recv; return nil }
func (w *recorder) Offloads() frame.Offload              { return w.can }
func (w *recorder) Close() error                         { return nil }
func (w *recorder) Send(fs []frame.Frame) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range fs {
		f.Data = append([]byte(nil), f.Data...)
		w.frames = append(w.frames, f)
	}
	return len(fs), nil
}

// drain returns and removes the frames sent.
func (w *recorder) drain() []frame.Frame {
	w.mu.Lock()
	defer w.mu.Unlock()
	fs := w.frames
	w.frames = nil
	return fs
}

// dump parses the project's hex form: optional "0000:" offsets, groups, spaces.
func dump(s string) []byte {
	var out []byte
	for _, word := range strings.Fields(s) {
		if strings.HasSuffix(word, ":") {
			continue
		}
		b, err := hex.DecodeString(word)
		if err != nil {
			panic(err)
		}
		out = append(out, b...)
	}
	return out
}

func expect(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if string(got) != string(want) {
		t.Errorf("%s:\ngot\n%swant\n%s", what, hex.Dump(got), hex.Dump(want))
	}
}

// testCQ is a completion queue as its driver sees it.
type testCQ struct {
	*CQ
	ring, rec *mmio.Region
	log       int
	size      int
	ci        uint32
}

func newCQ(t testing.TB, n *NIC, log int, change func(*CQAttr)) *testCQ {
	t.Helper()
	c := &testCQ{rec: record(t), log: log, size: 64}
	a := CQAttr{LogSize: log, Record: NewMemory(c.rec)}
	if change != nil {
		change(&a)
	}
	if a.EntrySize != 0 {
		c.size = a.EntrySize
	}
	c.ring = mem(t, c.size<<log)
	a.Ring = NewMemory(c.ring)
	c.ci = a.StartIndex
	for i := range 1 << log { // as the creator of a queue does
		c.ring.Bytes()[i*c.size+c.size-1] = 0xf0 | byte(^(a.StartIndex>>log))&1
	}
	c.rec.StoreBE32(0, a.StartIndex&0xffffff)
	cq, err := n.CreateCQ(a)
	if err != nil {
		t.Fatal(err)
	}
	c.CQ = cq
	return c
}

// entry is the raw slot of an index.
func (c *testCQ) entry(index uint32) []byte {
	at := int(index&(1<<c.log-1))*c.size + c.size - 64
	return c.ring.Bytes()[at : at+64]
}

// poll returns a copy of the next completion, or nil, and publishes the index.
func (c *testCQ) poll() []byte {
	at := int(c.ci&(1<<c.log-1))*c.size + c.size - 64
	own := byte(c.ring.LoadBE32(at + 60))
	if own>>4 == 15 || uint32(own&1) != c.ci>>c.log&1 {
		return nil
	}
	e := append([]byte(nil), c.ring.Bytes()[at:at+64]...)
	c.ci++
	c.rec.StoreBE32(0, c.ci&0xffffff)
	return e
}

func (c *testCQ) mustPoll(t testing.TB) []byte {
	t.Helper()
	e := c.poll()
	if e == nil {
		t.Fatalf("no completion at index %d: % x", c.ci, c.entry(c.ci))
	}
	return e
}

// testSQ is a send queue as its driver sees it.
type testSQ struct {
	*SQ
	ring, rec *mmio.Region
	log       int
	pc        uint16
	last      uint64
}

func newSQ(t testing.TB, n *NIC, cq *testCQ, log int, change func(*SQAttr)) *testSQ {
	t.Helper()
	s := &testSQ{ring: mem(t, 64<<log), rec: record(t), log: log}
	a := SQAttr{PD: 1, TD: 1, CQ: cq.CQ, Ring: NewMemory(s.ring), LogSize: log,
		Record: NewMemory(s.rec), UserIndex: 7, MPW: true, LegacyMPW: true}
	if change != nil {
		change(&a)
	}
	s.pc = a.StartIndex
	s.rec.StoreBE32(4, uint32(s.pc))
	sq, err := n.CreateSQ(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := sq.Modify(StateReset, StateReady); err != nil {
		t.Fatal(err)
	}
	s.SQ = sq
	return s
}

// post copies a WQE into the ring, with index and queue number filled in.
func (s *testSQ) post(wqe []byte) {
	w := append([]byte(nil), wqe...)
	binary.BigEndian.PutUint16(w[1:], s.pc)
	binary.BigEndian.PutUint32(w[4:], s.Number()<<8|uint32(w[7]))
	s.postRaw(w)
}

// postRaw copies a WQE into the ring as it is.
func (s *testSQ) postRaw(w []byte) {
	s.last = binary.BigEndian.Uint64(w)
	for i := 0; i < len(w); i += 64 {
		at := int(s.pc) & (1<<s.log - 1) * 64
		copy(s.ring.Bytes()[at:at+64], w[i:])
		s.pc++
	}
}

// ring publishes the posted WQEs and rings the doorbell.
func (s *testSQ) doorbell() {
	s.rec.StoreBE32(4, uint32(s.pc))
	s.Doorbell(s.last)
}

// testRQ is a receive queue as its driver sees it.
type testRQ struct {
	*RQ
	ring, rec *mmio.Region
	stride    int
	log       int
	pc        uint16
}

func newRQ(t testing.TB, n *NIC, cq *testCQ, log, logStride int, change func(*RQAttr)) *testRQ {
	t.Helper()
	r := &testRQ{ring: mem(t, 1<<(log+logStride)), rec: record(t), stride: 1 << logStride, log: log}
	a := RQAttr{PD: 1, CQ: cq.CQ, Ring: NewMemory(r.ring), LogSize: log, LogStride: logStride,
		Record: NewMemory(r.rec), UserIndex: 9}
	if change != nil {
		change(&a)
	}
	r.pc = a.StartIndex
	r.rec.StoreBE32(0, uint32(r.pc))
	rq, err := n.CreateRQ(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := rq.Modify(StateReset, StateReady); err != nil {
		t.Fatal(err)
	}
	r.RQ = rq
	return r
}

// post writes one receive WQE and publishes it.
func (r *testRQ) post(w []byte) {
	at := int(r.pc) & (1<<r.log - 1) * r.stride
	copy(r.ring.Bytes()[at:at+r.stride], w)
	r.pc++
	r.rec.StoreBE32(0, uint32(r.pc))
}

// seg is a data segment.
func seg(n int, lkey uint32, addr uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	b = binary.BigEndian.AppendUint32(b, lkey)
	return binary.BigEndian.AppendUint64(b, addr)
}

// newKey registers r at its own address for protection domain 1.
func newKey(t testing.TB, n *NIC, r *mmio.Region, change func(*MKeyAttr)) *MKey {
	t.Helper()
	a := MKeyAttr{PD: 1, Start: r.Addr(), Len: uint64(r.Len()), Mem: NewMemory(r), LocalWrite: true}
	if change != nil {
		change(&a)
	}
	k, err := n.CreateMKey(a)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// newTIR creates a TIR of transport domain 2, so that frames of newSQ reach it.
func newTIR(t testing.TB, n *NIC, a TIRAttr) *TIR {
	t.Helper()
	if a.TD == 0 {
		a.TD = 2
	}
	tir, err := n.CreateTIR(a)
	if err != nil {
		t.Fatal(err)
	}
	return tir
}

// flowTo directs a destination MAC to a TIR.
func flowTo(t testing.TB, n *NIC, mac [6]byte, tir *TIR) *Flow {
	t.Helper()
	a := FlowAttr{TIR: tir}
	a.Match.SetDstMAC(mac, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f, err := n.CreateFlow(a)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
