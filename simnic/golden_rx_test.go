package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// tcpFrame72 carries the datagram of the published RSS vector, tagged with TCI
// 0x6064: 76 bytes, of which 72 are left when the tag is stripped.
var tcpFrame72 = append(dump(`02000000 00020200 00000001 81006064 0800`),
	dump(`4500003a 00014000 40065d1a 420995bb a18e6450 0aea06e6 00000001 00000002
	50182000 464e0000 68656c6c 6f2c206d 6c783520 72696e67 7321`)...)

var macTwo = [6]byte{2, 0, 0, 0, 0, 2}

// recvRig is a NIC with one receive queue behind a rule for MAC 02:..:02.
type recvRig struct {
	nic  *NIC
	wire *recorder
	cq   *testCQ
	rq   *testRQ
	tir  *TIR
	buf  []byte
	key  *MKey
	addr uint64
}

type recvOptions struct {
	cfg       Config
	cq        func(*CQAttr)
	rq        func(*RQAttr)
	tir       TIRAttr
	logCQ     int
	logStride int
}

func newRecvRig(t testing.TB, o recvOptions) *recvRig {
	t.Helper()
	if o.logCQ == 0 {
		o.logCQ = 6
	}
	if o.logStride == 0 {
		o.logStride = 4
	}
	r := &recvRig{nic: newNIC(t, o.cfg), wire: &recorder{}}
	if err := r.nic.ConnectWire(r.wire); err != nil {
		t.Fatal(err)
	}
	r.cq = newCQ(t, r.nic, o.logCQ, o.cq)
	r.rq = newRQ(t, r.nic, r.cq, 5, o.logStride, o.rq)
	o.tir.RQ = r.rq.RQ
	r.tir = newTIR(t, r.nic, o.tir)
	flowTo(t, r.nic, macTwo, r.tir)
	m := mem(t, 1<<18)
	r.buf, r.addr = m.Bytes(), m.Addr()
	r.key = newKey(t, r.nic, m, nil)
	return r
}

// give makes the wire deliver frames in one batch.
func (r *recvRig) give(frames ...[]byte) {
	var fs []frame.Frame
	for _, f := range frames {
		fs = append(fs, frame.Frame{Data: f})
	}
	r.wire.recv(fs)
}

// hashTIR is a TIR that hashes four fields of one kind of packet.
func hashTIR(v6, udp bool) TIRAttr {
	return TIRAttr{Hash: HashToeplitz, Key: DefaultHashKey,
		Selection: HashSelection{IPv6: v6, UDP: udp,
			Fields: HashSrcIP | HashDstIP | HashSrcPort | HashDstPort}}
}

func TestGoldenReceive(t *testing.T) {
	rx1 := dump(`
0000: 00000000 00000000 00000000 51ccc178
0010: 55000000 22300000 00000000 07496064
0020: 00000009 00000000 00000000 00000048
0030: 00000011 22334466 00000000 01030020`)
	rx2 := dump(`
0000: 00000000 00000000 00000000 74c4cb08
0010: a5000000 ebd10000 00000000 07280000
0020: 00000009 00000000 00000000 0000003c
0030: 00000011 22334477 00000000 01040021`)
	now := uint64(0x1122334466)
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(&now)}, tir: hashTIR(false, false),
		cq: func(a *CQAttr) { a.StartIndex = 0x3f },
		rq: func(a *RQAttr) { a.VLANStrip, a.StartIndex = true, 0x103 }})
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	r.rq.post(seg(2048, r.key.Key(), r.addr+4096))
	r.give(tcpFrame72)
	expect(t, "RX 1", r.cq.mustPoll(t), rx1)
	expect(t, "data", r.buf[:73], append(append(append([]byte(nil), tcpFrame72[:12]...),
		tcpFrame72[16:]...), 0xa5))

	now = 0x1122334477
	a := r.tir.Attr()
	a.Selection.UDP = true
	if err := r.tir.Modify(a); err != nil {
		t.Fatal(err)
	}
	r.give(frame60)
	expect(t, "RX 2", r.cq.mustPoll(t), rx2)
	expect(t, "data", r.buf[4096:4096+61], append(append([]byte(nil), frame60...), 0xa5))
	clean(t, r.nic)
}

func TestGoldenReceiveErrors(t *testing.T) {
	t.Run("protection", func(t *testing.T) {
		r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.StartIndex = 0x103 }})
		r.rq.post(seg(2048, 0x1200, r.addr))
		r.rq.post(seg(2048, r.key.Key(), r.addr))
		r.give(frame60)
		expect(t, "error", r.cq.mustPoll(t), dump(`
0000: 00000000 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000009 00000000 00000000 00000000
0030: 00000000 92003204 00000000 0103afe2`))
		e := r.cq.mustPoll(t)
		if e[0x37] != 5 || e[0x36] != 0xf9 || be16(e[0x3c:]) != 0x104 {
			t.Errorf("flush %x", e)
		}
		if r.rq.State() != StateError {
			t.Errorf("state %v", r.rq.State())
		}
		r.rq.post(seg(2048, r.key.Key(), r.addr)) // posted later: flushed too
		r.give(frame60)
		if e := r.cq.mustPoll(t); e[0x37] != 5 || be16(e[0x3c:]) != 0x105 {
			t.Errorf("late flush %x", e)
		}
	})
	t.Run("length", func(t *testing.T) {
		r := newRecvRig(t, recvOptions{cfg: Config{MTU: 9000},
			rq: func(a *RQAttr) { a.StartIndex = 0x103 }})
		r.rq.post(seg(2048, r.key.Key(), r.addr))
		r.rq.post(seg(2048, r.key.Key(), r.addr))
		r.give(append(append([]byte(nil), frame60...), make([]byte, 9014-60)...))
		expect(t, "error", r.cq.mustPoll(t), dump(`
0000: 00000000 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000009 00000000 00000000 00002336
0030: 00000000 00000001 00000000 01031fe2`))
		r.give(frame60) // the queue stays ready
		if e := r.cq.mustPoll(t); e[0x3f]>>4 != 2 || be16(e[0x3c:]) != 0x104 {
			t.Errorf("completion %x", e)
		}
	})
	t.Run("length, dropped", func(t *testing.T) {
		r := newRecvRig(t, recvOptions{cfg: Config{MTU: 9000, DropTooLong: true}})
		r.rq.post(seg(64, r.key.Key(), r.addr))
		r.give(append(append([]byte(nil), frame60...), 1, 2, 3, 4, 5))
		if e := r.cq.poll(); e != nil {
			t.Errorf("completion %x", e)
		}
		if c := r.nic.Counters(); c.Drops.TooLong != 1 {
			t.Errorf("counters %+v", c.Drops)
		}
	})
}

func TestGoldenStriding(t *testing.T) {
	now := uint64(0)
	r := newRecvRig(t, recvOptions{cfg: Config{MTU: 16000, Clock: fixedClock(&now)},
		tir: hashTIR(false, true), logStride: 5,
		rq: func(a *RQAttr) {
			a.StartIndex = 3
			a.Striding = &Striding{LogStrideBytes: 11,
				LogStrides: 4}
		}})
	for i := range 2 {
		r.rq.post(append(make([]byte, 16), seg(16*2048, r.key.Key(), r.addr+uint64(i)*16*2048)...))
	}
	for range 5 {
		r.give(frame60)
		r.cq.mustPoll(t)
	}
	r.give(frame60)
	expect(t, "stride 5", r.cq.mustPoll(t), dump(`
0000: 00000003 00000000 00000000 74c4cb08
0010: a5000000 ebd10000 00000000 07280000
0020: 00000009 00000000 00000000 0001003c
0030: 00000000 00000000 00000000 00050020`))
	expect(t, "data", r.buf[5*2048:5*2048+61], append(append([]byte(nil), frame60...), 0xa5))

	a := r.tir.Attr()
	a.Selection.UDP = false
	if err := r.tir.Modify(a); err != nil {
		t.Fatal(err)
	}
	jumbo := jumboFrame(9014)
	r.give(jumbo)
	e := r.cq.mustPoll(t)
	binary.BigEndian.PutUint16(e[0x14:], 0) // the vector leaves the checksum out
	expect(t, "jumbo", e, dump(`
0000: 00000003 00000000 00000000 51ccc178
0010: 55000000 00000000 00000000 07480000
0020: 00000009 00000000 00000000 00052336
0030: 00000000 00000000 00000000 00060020`))
	expect(t, "jumbo data", r.buf[6*2048:6*2048+9014], jumbo)
	longer := jumboFrame(5*2048 + 1)
	r.give(longer)
	expect(t, "filler", r.cq.mustPoll(t), dump(`
0000: 00000003 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000009 00000000 00000000 80050000
0030: 00000000 00000000 00000000 000b0020`))
	e = r.cq.mustPoll(t)
	if be16(e[2:]) != 4 || be16(e[0x3c:]) != 0 || be16(e[0x2c:]) != 6 {
		t.Errorf("behind the filler: %x", e)
	}
	expect(t, "data behind the filler", r.buf[16*2048:16*2048+len(longer)], longer)
	clean(t, r.nic)
}

// TestStridesFillExactly is a WQE whose last stride is used: the next frame
// starts another one, without a filler.
func TestStridesFillExactly(t *testing.T) {
	r := newRecvRig(t, recvOptions{logStride: 5,
		rq: func(a *RQAttr) {
			a.Striding = &Striding{LogStrideBytes: 6,
				LogStrides: 3, TwoByteShift: true}
		}})
	for i := range 2 {
		r.rq.post(append(make([]byte, 16), seg(8*64, r.key.Key(), r.addr+uint64(i)*8*64)...))
	}
	for i := range 12 { // 60 + 2 bytes: one stride each
		r.give(frame60)
		e := r.cq.mustPoll(t)
		if int(be16(e[2:])) != i/8 || int(be16(e[0x3c:])) != i%8 || be16(e[0x2c:]) != 1 {
			t.Errorf("frame %d: %x", i, e)
		}
		expect(t, "data behind the two bytes", r.buf[i*64:i*64+62],
			append([]byte{0xa5, 0xa5}, frame60...))
	}
	r.give(flowFrame(1, 8*64-1)) // with the two bytes more than any WQE
	if c := r.nic.Counters(); c.Drops.TooLong != 1 {
		t.Errorf("%+v", c.Drops)
	}
	clean(t, r.nic)
}

// jumboFrame is a TCP segment of the published RSS flow, n bytes with headers.
func jumboFrame(n int) []byte {
	f := append(append([]byte(nil), tcpFrame72[:12]...), tcpFrame72[16:]...)
	f = append(f, make([]byte, n-len(f))...)
	for i := 54; i < n; i++ {
		f[i] = byte(i * 13)
	}
	binary.BigEndian.PutUint16(f[16:], uint16(n-14))
	fixChecksums(f)
	return f
}

// fixChecksums recomputes IPv4 and L4 checksums of an untagged frame without
// options, in the plain way.
func fixChecksums(f []byte) {
	slow := func(s uint32, b []byte) uint32 {
		for i, v := range b {
			s += uint32(v) << (8 * (1 - i&1))
		}
		return s
	}
	fold := func(s uint32) uint16 {
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		return ^uint16(s)
	}
	ip, l4 := f[14:34], f[34:14+int(be16(f[16:]))]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], fold(slow(0, ip)))
	at := 16
	if ip[9] == 17 {
		at = 6
	}
	l4[at], l4[at+1] = 0, 0
	s := slow(slow(uint32(ip[9])+uint32(len(l4)), ip[12:20]), l4)
	binary.BigEndian.PutUint16(l4[at:], fold(s))
}
