package simnic

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// cutRig receives into buffers of 2048 bytes, each in one segment, which packets are cut
// straight into, or each in two.
func cutRig(t *testing.T, v6, udp bool, split bool, change func(*RQAttr),
	wqe func(i int, lkey uint32) (uint32, int), wqes int) *recvRig {
	now := uint64(77)
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(&now)},
		tir: hashTIR(v6, udp), rq: change, logStride: 5,
		cq: func(a *CQAttr) { a.Compress, a.MiniFormat = true, MiniChecksum }})
	for i := range wqes {
		lkey, room := wqe(i, r.key.Key())
		at := r.addr + uint64(i)*2048
		w := concat(seg(room, lkey, at), seg(0, 0, 0))
		if split {
			w = concat(seg(20, lkey, at), seg(room-20, lkey, at+20))
		}
		r.rq.post(w)
	}
	return r
}

// TestCutInPlace: packets that are segmented directly into a queue's memory equal those that are
// assembled first and then scattered, with the same completions, counters and errors.
func TestCutInPlace(t *testing.T) {
	type change func(*RQAttr)
	good := func(_ int, lkey uint32) (uint32, int) { return lkey, 2048 }
	tests := []struct {
		name string
		rq   change
		wqe  func(i int, lkey uint32) (uint32, int)
		wqes int
	}{
		{"plenty of buffers", nil, good, 32},
		{"too few buffers", nil, good, 3},
		{"no buffer", nil, good, 0},
		{"a tag to be stripped", func(a *RQAttr) { a.VLANStrip = true }, good, 32},
		{"with FCS", func(a *RQAttr) { a.ScatterFCS = true }, good, 32},
		{"padded to the cache line", func(a *RQAttr) { a.EndPad = true }, good, 32},
		{"another's key", nil, func(i int, lkey uint32) (uint32,
			int) {
			return lkey + uint32(i/2), 2048
		}, 32},
		{"a buffer too small", nil,
			func(i int, lkey uint32) (uint32, int) { return lkey, 2048 - i%3*1990 }, 32},
		{"a buffer out of its memory", nil,
			func(i int, lkey uint32) (uint32, int) { return lkey, 2048 + i*16<<10 }, 32},
	}
	for _, tt := range tests {
		for _, kind := range []struct {
			v6, udp bool
			tags    int
		}{{false, false, 1}, {false, true, 0}, {true, false, 0}, {true, true, 1}} {
			for _, n := range []int{1, 501, 9999} {
				name := fmt.Sprintf("%s: v6 %v udp %v, %d tags, %d bytes", tt.name,
					kind.v6, kind.udp, kind.tags, n)
				testCutInPlace(t, name, kind.v6, kind.udp, kind.tags, n, func(split bool) *recvRig {
					return cutRig(t, kind.v6, kind.udp, split, tt.rq, tt.wqe, tt.wqes)
				})
			}
		}
	}
}

func testCutInPlace(t *testing.T, name string, v6, udp bool, tags, n int,
	rig func(split bool) *recvRig) {
	t.Helper()
	header, _, l4 := simtest.Header(v6, udp, tags, n)
	copy(header, macTwo[:])
	f := frame.Frame{Data: header, NeedsCsum: true, CsumStart: uint16(l4), CsumOffset: 16,
		GSO: gsoOf(v6, udp), HdrLen: uint16(len(header)), MSS: 500}
	if udp {
		f.CsumOffset = 6
	}
	for i := range n {
		f.Data = append(f.Data, byte(i*i>>2))
	}
	a, b := rig(false), rig(true)
	for _, r := range []*recvRig{a, b} {
		r.wire.recv([]frame.Frame{f, f})
	}
	if !bytes.Equal(a.buf, b.buf) {
		at := 0
		for a.buf[at] == b.buf[at] {
			at++
		}
		t.Fatalf("%s: memory differs at %#x:\n%s\n%s", name, at, hex.Dump(a.buf[at&^15:][:64]),
			hex.Dump(b.buf[at&^15:][:64]))
	}
	if !bytes.Equal(a.cq.ring.Bytes(), b.cq.ring.Bytes()) {
		t.Errorf("%s: completions\n%s, one by one\n%s", name, hex.Dump(a.cq.ring.Bytes()[:512]),
			hex.Dump(b.cq.ring.Bytes()[:512]))
	}
	if a.nic.Counters() != b.nic.Counters() {
		t.Errorf("%s: counters\n%+v, one by one\n%+v", name, a.nic.Counters(), b.nic.Counters())
	}
}

// TestCutIntoResetQueue: a frame that was steered before its queue was reset does not look at the
// queue's memory, which may be gone.
func TestCutIntoResetQueue(t *testing.T) {
	r := cutRig(t, false, false, false, nil,
		func(_ int, lkey uint32) (uint32, int) { return lkey, 2048 }, 4)
	r.rq.mu.Lock()
	r.rq.state, r.rq.attr.Record = StateReset, nil
	r.rq.mu.Unlock()
	header, _, l4 := simtest.Header(false, false, 0, 1000)
	copy(header, macTwo[:])
	before := r.nic.Counters()
	r.wire.recv([]frame.Frame{{Data: append(header, make([]byte, 1000)...), NeedsCsum: true,
		CsumStart: uint16(l4), CsumOffset: 16, GSO: frame.GSOTCPv4, HdrLen: uint16(len(header)),
		MSS: 500}})
	if r.nic.Counters() == before {
		t.Error("the frame was counted nowhere")
	}
}

func gsoOf(v6, udp bool) frame.GSO {
	switch {
	case udp:
		return frame.GSOUDP
	case v6:
		return frame.GSOTCPv6
	}
	return frame.GSOTCPv4
}
