package simnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// hostile is a driver whose actions come from the input, on a NIC with guards around all memory
// that the driver registered.
type hostile struct {
	t     testing.TB
	nic   *NIC
	wire  *recorder
	cq    *testCQ
	sq    *testSQ
	rqs   []*testRQ
	key   *MKey
	all   *mmio.Region // guard, registered memory, guard
	input []byte
}

const (
	guard      = 4096
	registered = 8192
)

func newHostile(t testing.TB, compress bool) *hostile {
	caps := DefaultCaps()
	caps.VLANInsert = true
	h := &hostile{t: t, nic: newNIC(t, Config{Caps: caps, MTU: 9000}), wire: &recorder{}}
	if err := h.nic.ConnectWire(h.wire); err != nil {
		t.Fatal(err)
	}
	h.cq = newCQ(t, h.nic, 4, func(a *CQAttr) { a.Compress = compress })
	h.sq = newSQ(t, h.nic, h.cq, 4, nil)
	h.all = mem(t, registered+2*guard)
	h.key = newKey(t, h.nic, h.all.Sub(guard, registered), nil)
	h.rqs = []*testRQ{
		newRQ(t, h.nic, h.cq, 4, 5, nil),
		newRQ(t, h.nic, h.cq, 4, 5,
			func(a *RQAttr) { a.Striding = &Striding{LogStrideBytes: 6, LogStrides: 3} }),
		newRQ(t, h.nic, h.cq, 4, 6, nil),
		newRQ(t, h.nic, h.cq, 4, 5, func(a *RQAttr) {
			a.LinkedList, a.VLANStrip, a.ScatterFCS,
				a.EndPad = true, true, true, true
		}),
	}
	for i, rq := range h.rqs {
		a := hashTIR(i == 1, i == 3)
		a.RQ, a.LRO = rq.RQ, LROAttr{IPv4: true, IPv6: true, MaxPayload: 4096}
		flowTo(t, h.nic, [6]byte{2, 0, 0, 0, 0, byte(2 + i)}, newTIR(t, h.nic, a))
	}
	return h
}

// next is the next n bytes of the input, fewer at its end.
func (h *hostile) next(n int) []byte {
	n = min(n, len(h.input))
	b := h.input[:n:n]
	h.input = h.input[n:]
	return b
}

func (h *hostile) byte() byte {
	if b := h.next(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (h *hostile) step() {
	switch op := h.byte(); op % 9 {
	case 0: // a WQE with the right index and number, so that it gets further
		w := make([]byte, 64)
		copy(w, h.next(64))
		binary.BigEndian.PutUint16(w[1:], h.sq.pc)
		binary.BigEndian.PutUint32(w[4:], h.sq.Number()<<8|uint32(w[7]))
		h.realise(w, int(op/9)%4)
		h.sq.postRaw(w)
	case 1: // raw bytes in the ring
		copy(h.sq.ring.Bytes()[int(h.byte())%1000:], h.next(24))
	case 2:
		h.sq.doorbell()
	case 3: // any counter, any register value, or a copy of what may be a WQE
		if op/9%2 == 1 {
			at := int(h.byte()) % 16 * 64
			h.sq.rec.StoreBE32(4, uint32(h.byte()))
			h.nic.UARCopy(0, 0x800+int(h.byte())*16,
				h.sq.ring.Bytes()[at:min(at+int(op/18)*64, 1024)], op/9%4 == 1)
			return
		}
		h.sq.rec.StoreBE32(4, uint32(h.byte()))
		h.nic.UARWrite(0, int(h.byte())*16,
			uint64(h.sq.Number())<<8|uint64(h.byte())<<40|uint64(h.byte()))
	case 4:
		rq := h.rqs[int(h.byte())%len(h.rqs)]
		w := make([]byte, 1<<rq.attr.LogStride)
		copy(w, h.next(len(w)))
		h.realise(w, int(op/9)%5)
		rq.post(w)
	case 5:
		f := append(to(macTwo, macThird), make([]byte, int(h.byte())*8)...)
		f[5] = 2 + h.byte()%byte(len(h.rqs))
		copy(f[12:], h.next(40))
		fr := frame.Frame{Data: f, NeedsCsum: op&16 != 0, CsumStart: uint16(h.byte()),
			CsumOffset: uint16(h.byte()), GSO: frame.GSO(op / 64),
			HdrLen: uint16(h.byte()), MSS: uint16(h.byte())}
		h.wire.recv([]frame.Frame{fr, fr})
	case 6:
		h.cq.rec.StoreBE32(0, uint32(h.byte()))
		h.cq.ArmWord(uint32(h.byte())<<24 | uint32(h.byte()))
	case 7: // recover, as a driver that resets too much
		h.sq.Modify(h.sq.State(), StateReset)
		h.sq.Modify(StateReset, StateReady)
		h.sq.pc = 0
		for _, rq := range h.rqs {
			rq.Modify(rq.State(), StateReset)
			rq.Modify(StateReset, StateReady)
			rq.pc = 0
		}
	case 8:
		for h.cq.poll() != nil {
		}
	}
}

// realise writes the real key and an address close to the real one into the last n data segments.
func (h *hostile) realise(w []byte, n int) {
	for i := 1; i <= n && i*16 <= len(w); i++ {
		s := w[len(w)-i*16:]
		binary.BigEndian.PutUint32(s[4:], h.key.Key())
		binary.BigEndian.PutUint64(s[8:], h.all.Addr()+uint64(binary.BigEndian.Uint16(s[14:])))
		binary.BigEndian.PutUint16(s, binary.BigEndian.Uint16(s)&0x8000)
	}
}

// check tests the invariants that hold for every driver.
func (h *hostile) check() {
	all := h.all.Bytes()
	poison := bytes.Repeat([]byte{0xa5}, guard)
	if !bytes.Equal(all[:guard], poison) || !bytes.Equal(all[guard+registered:], poison) {
		h.t.Error("memory outside the registered region was written")
	}
	if err := checkCounters(h.nic); err != nil {
		h.t.Error(err)
	}
	for _, f := range h.wire.drain() {
		if len(f.Data) < 14 {
			h.t.Errorf("runt of %d bytes sent", len(f.Data))
		}
	}
}

func FuzzHostileDriver(f *testing.F) {
	send := append([]byte{0}, concat(ctrl(0x0a, 3), ethSeg(0xc0, 0, 0),
		seg(60, 0, guard), make([]byte, 16))...)
	lso := append([]byte{27}, concat(ctrl(0x0e, 4), ethSeg(0xc0, 100, 2),
		seg(600, 0, guard), seg(60, 0, guard))...)
	mpw := append([]byte{27}, concat(ctrl(0x29, 4), ethSeg(0, 0, 0),
		seg(60, 0, guard), seg(1000, 0, guard))...)
	blueFlame := append([]byte{0}, append(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(60, 0, guard),
		make([]byte, 16)), 30, 0, 1, 0)...)
	f.Add(blueFlame)
	f.Add(concat(blueFlame, []byte{30, 0, 1, 16, 30, 1, 2, 16, 48, 15, 1, 3}))
	post := append([]byte{22, 0}, concat(seg(64, 0, guard), seg(2048, 0, guard))...)
	scattered := append([]byte{40, 2}, concat(seg(64, 0, guard), seg(512, 0, guard+64),
		seg(512, 0, guard+1024), seg(512, 0, guard+2048))...)
	f.Add(concat(send, []byte{2}, lso, []byte{2}, mpw, []byte{2, 8}))
	f.Add(concat(post, post, []byte{5, 20, 0}, frame60[12:52], []byte{0, 0, 0, 0, 8}))
	f.Add(concat(scattered, scattered, []byte{5, 150, 2}, frame60[12:52], []byte{0, 0, 0, 0, 8}))
	f.Add(concat([]byte{4, 2}, seg(64, 0, guard), seg(1<<31|64, 0, guard), seg(0, 0x100, 0),
		seg(64, 0, guard), []byte{5, 150, 2}, frame60[12:52], []byte{0, 0, 0, 0, 8}))
	f.Add(concat(post, []byte{69, 200, 0}, tcpFrame72[16:56],
		[]byte{34, 16, 54, 100}, []byte{7, 6, 1, 2, 3}))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := newHostile(t, len(data)%2 == 1)
		h.input = data[:min(len(data), 4096)] // more input finds nothing new
		for len(h.input) > 0 {
			h.step()
		}
		h.check()
	})
}

// FuzzFrame is hostile frames from the wire, delivered and switched.
func FuzzFrame(f *testing.F) {
	f.Add(frame60, uint8(0), uint8(34), uint8(6), uint8(42), uint8(8))
	f.Add(tcpFrame72, uint8(1), uint8(38), uint8(16), uint8(58), uint8(9))
	f.Add(tcpSegment(0, 200, 0x18), uint8(5), uint8(34), uint8(16), uint8(66), uint8(50))
	f.Fuzz(func(t *testing.T, data []byte, flags, start, offset, header, mss uint8) {
		w := newWorld(t, Config{})
		s := w.sink(1)
		w.flow(FlowAttr{TIR: s.tir, DontTrap: true})
		fr := frame.Frame{Data: data, NeedsCsum: flags&1 != 0, CsumStart: uint16(start),
			CsumOffset: uint16(offset), GSO: frame.GSO(flags >> 2 & 3),
			HdrLen: uint16(header), MSS: uint16(mss)}
		w.wire.recv([]frame.Frame{fr})
		w.netdev.recv([]frame.Frame{fr})
	})
}

// TestHostileDriver runs random drivers that are correct most of the time, so that they make
// progress before they fail.
func TestHostileDriver(t *testing.T) {
	rnd := testRand(t)
	frames := [][]byte{frame60, tcpSegment(0, 1400, 0x10), tcpSegment(1400, 1400, 0x18),
		flowFrame(1, 300), tcpFrame72}
	for range 200 {
		h := newHostile(t, rnd.IntN(2) == 0)
		base := h.all.Addr() + guard
		random := func(n int) uint64 { return base + uint64(rnd.IntN(n)) }
		k := h.key.Key()
		for range 80 {
			var w []byte
			switch rnd.IntN(8) {
			case 0:
				w = concat(ctrl(0x0a, 4), ethSeg(0xc0, 0, uint16(rnd.IntN(3))),
					seg(20+rnd.IntN(2000), k, random(6000)), seg(1+rnd.IntN(500), k, random(6000)))
			case 1:
				hdr := tcpSegment(0, 0, 0x18)
				e := append(ethSeg(0xc0, uint16(1+rnd.IntN(1500)), uint16(len(hdr)))[:14], hdr...)
				w = concat(ctrl(0x0e, 7), e, seg(1+rnd.IntN(5000), k, base))
			case 2:
				w = concat(ctrl(0x29, 4), ethSeg(0xc0, 0, 0),
					seg(19+rnd.IntN(2000), k, random(6000)),
					seg(19+rnd.IntN(2000), k, random(6000)))
			case 3:
				w = concat(ctrl(0x0a, 3), ethSeg(0, 0, 0x8000), seg(60, k, random(6000)))
			case 4, 5:
				rq := h.rqs[rnd.IntN(len(h.rqs))]
				l := concat(make([]byte, 16), seg(64+rnd.IntN(4000), k, random(4000)))
				if rq.attr.Striding == nil && !rq.attr.LinkedList {
					l = concat(seg(64, k, random(6000)), seg(rnd.IntN(4000), k, random(4000)))
				}
				if rq.attr.LogStride == 6 {
					l = concat(l, seg(rnd.IntN(2000), k, random(6000)),
						seg(rnd.IntN(2000), k, random(6000)))
				}
				binary.BigEndian.PutUint16(l[2:], uint16(rnd.IntN(17))*btou(rq.attr.LinkedList))
				if rnd.IntN(20) == 0 {
					l[rnd.IntN(len(l))] = byte(rnd.Uint32())
				}
				rq.post(l)
			case 6:
				var batch []frame.Frame
				for range 1 + rnd.IntN(10) {
					f := append([]byte(nil), frames[rnd.IntN(len(frames))]...)
					f[5] = byte(2 + rnd.IntN(len(h.rqs)))
					if rnd.IntN(10) == 0 {
						f[12+rnd.IntN(len(f)-12)] = byte(rnd.Uint32())
					}
					fr := frame.Frame{Data: f}
					if rnd.IntN(3) == 0 {
						fr = frame.Frame{Data: f, NeedsCsum: true, CsumStart: 34, CsumOffset: 16,
							GSO: frame.GSO(rnd.IntN(4)), MSS: uint16(rnd.IntN(1500))}
					}
					batch = append(batch, fr)
				}
				h.wire.recv(batch)
			case 7:
				for h.cq.poll() != nil {
				}
			}
			if len(w) > 0 {
				binary.BigEndian.PutUint16(w[1:], h.sq.pc)
				binary.BigEndian.PutUint32(w[4:], h.sq.Number()<<8|uint32(w[7]))
				if rnd.IntN(30) == 0 {
					w[rnd.IntN(len(w))] = byte(rnd.Uint32())
				}
				h.sq.postRaw(w)
				h.sq.doorbell()
			}
			if rnd.IntN(40) == 0 {
				h.input = []byte{7}
				h.step()
			}
		}
		h.check()
		if t.Failed() {
			return
		}
	}
}

func btou(b bool) uint16 { return uint16(boolToInt(b)) }
