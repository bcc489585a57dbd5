package simnic

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"runtime"
	"testing"
	"time"
)

func TestScatterList(t *testing.T) {
	r := newRecvRig(t, recvOptions{cfg: Config{MTU: 9000}, logStride: 6})
	k := r.key.Key()
	list := concat(seg(2048, k, r.addr), seg(4096, k, r.addr+0x2000), seg(4096, k, r.addr+0x4000),
		dump("00000000 00000100 00000000 00000000"))
	r.rq.post(list)
	r.rq.post(list)
	f := append(to(macTwo, macThird), make([]byte, 9000)...)[:9014]
	for i := 60; i < len(f); i++ {
		f[i] = byte(i * 31)
	}
	r.give(f)
	e := r.cq.mustPoll(t)
	if n := binary.BigEndian.Uint32(e[0x2c:]); n != 9014 {
		t.Errorf("%d bytes", n)
	}
	got := concat(r.buf[:2048], r.buf[0x2000:0x3000], r.buf[0x4000:0x4000+9014-6144])
	if !bytes.Equal(got, f) || r.buf[2048] != 0xa5 || r.buf[0x4000+9014-6144] != 0xa5 {
		t.Error("scattered frame differs")
	}
	r.nic.SetMTU(12000)
	r.give(append(f, make([]byte, 10241-9014)...)) // one byte more than the list holds
	if e := r.cq.mustPoll(t); e[0x37] != 1 || binary.BigEndian.Uint32(e[0x2c:]) != 10241 {
		t.Errorf("completion %x", e)
	}
}

// An invalid entry of a scatter list is refused when a frame reaches it, and not before.
func TestScatterListMisuse(t *testing.T) {
	for _, tc := range []struct {
		name     string
		frame    int // bytes
		third    func(r *recvRig) []byte
		syndrome byte // 0: delivered
		vendor   byte
		state    State
	}{
		{"ends too early", 3000, func(*recvRig) []byte { return seg(0, 0x100, 0) }, 1, 0,
			StateReady},
		{"ends too early, not reached", 2000, func(*recvRig) []byte { return seg(0, 0x100, 0) }, 0,
			0, StateReady},
		{"no such key", 3000, func(r *recvRig) []byte { return seg(1024, 0xdead00, r.addr) }, 4,
			0x32, StateError},
		{"the key of an end, with a length", 3000,
			func(r *recvRig) []byte { return seg(1024, 0x100, r.addr) }, 4, 0x32, StateError},
		{"outside", 3000, func(r *recvRig) []byte { return seg(1024, r.key.Key(), r.addr-1024) }, 4,
			0x34, StateError},
		{"start padding is none of it", 3000,
			func(r *recvRig) []byte { return seg(1<<31|1024, r.key.Key(), r.addr) }, 0, 0,
			StateReady},
	} {
		r := newRecvRig(t, recvOptions{cfg: Config{MTU: 9000}, logStride: 6})
		k := r.key.Key()
		r.rq.post(concat(seg(1024, k, r.addr), seg(1024, k, r.addr+1024), tc.third(r),
			seg(1024, k, r.addr+3072)))
		r.give(append(to(macTwo, macThird), make([]byte, 9000)...)[:tc.frame])
		e := r.cq.mustPoll(t)
		got := byte(0)
		if e[0x3f]>>4 != 2 {
			got = e[0x37]
		}
		if got != tc.syndrome || tc.syndrome != 0 && tc.vendor != 0 && e[0x36] != tc.vendor ||
			r.rq.State() != tc.state {
			t.Errorf("%s: completion %x, state %v", tc.name, e, r.rq.State())
		}
	}
}

func TestUnusedSegmentsAreNotLookedAt(t *testing.T) {
	r := newRecvRig(t, recvOptions{logStride: 5})
	r.rq.post(concat(seg(60, r.key.Key(), r.addr), seg(2048, 0xdead00, 0)))
	r.give(frame60)
	if e := r.cq.mustPoll(t); e[0x3f]>>4 != 2 {
		t.Errorf("completion %x", e)
	}
}

func TestReceiveProtection(t *testing.T) {
	r := newRecvRig(t, recvOptions{})
	m := r.key.Attr().Mem
	key := func(a MKeyAttr) uint32 {
		a.Mem = m
		k, err := r.nic.CreateMKey(a)
		if err != nil {
			t.Fatal(err)
		}
		return k.Key()
	}
	tests := []struct {
		name   string
		seg    []byte
		vendor byte
	}{
		{"other domain",
			seg(2048, key(MKeyAttr{PD: 3, Start: r.addr, Len: 4096, LocalWrite: true}), r.addr),
			0x32},
		{"no write right", seg(2048, key(MKeyAttr{PD: 1, Start: r.addr, Len: 4096}), r.addr), 0x33},
		{"outside", seg(2048, key(MKeyAttr{PD: 1, Start: r.addr, Len: 59, LocalWrite: true}),
			r.addr), 0x34},
		{"address overflow", seg(2048, r.key.Key(), 1<<64-8), 0x34},
	}
	for _, tc := range tests {
		before := append([]byte(nil), r.buf...)
		r.rq.post(tc.seg)
		r.give(frame60)
		if e := r.cq.mustPoll(t); e[0x37] != 4 || e[0x36] != tc.vendor || e[0x3f] != 0xe2 {
			t.Errorf("%s: completion %x", tc.name, e)
		}
		if !bytes.Equal(before, r.buf) {
			t.Errorf("%s: memory was written", tc.name)
		}
		for _, s := range []State{StateReset, StateReady} {
			if err := r.rq.Modify(r.rq.State(), s); err != nil {
				t.Fatal(err)
			}
		}
		r.rq.pc = 0
		r.rq.rec.StoreBE32(0, 0)
	}
	if c := r.nic.Counters(); c.Drops.Protection != 4 || c.RespErrors != 4 {
		t.Errorf("%+v", c)
	}
	r.rq.post(seg(2048, key(MKeyAttr{PD: 1, Start: r.addr, Len: 100, LocalWrite: true}), r.addr))
	r.give(frame60) // fits, though the segment runs out of the region
	if e := r.cq.mustPoll(t); e[0x3f]>>4 != 2 || len(r.nic.Violations()) != 1 {
		t.Errorf("completion %x, violations %q", e, r.nic.Violations())
	}
}

func TestEmptyQueue(t *testing.T) {
	r := newRecvRig(t, recvOptions{})
	r.give(frame60, frame60)
	if c := r.nic.Counters(); c.Drops.OutOfBuffer != 2 || r.cq.poll() != nil ||
		r.rq.State() != StateReady {
		t.Errorf("%+v", c.Drops)
	}
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	r.give(frame60)
	r.cq.mustPoll(t)
	if err := r.rq.Modify(StateReady, StateReset); err != nil {
		t.Fatal(err)
	}
	r.give(frame60)
	if c := r.nic.Counters(); c.Drops.NotReady != 1 {
		t.Errorf("%+v", c.Drops)
	}
}

// TestDelayedDrop delivers packets to a queue that delays drops, before it has WQEs.
func TestDelayedDrop(t *testing.T) {
	r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.DelayDrop = true }})
	given := make(chan struct{})
	go func() {
		defer close(given)
		r.give(frame60, frame60)
	}()
	for range 2 { // the second is processed once the first has its WQE
		r.rq.post(seg(2048, r.key.Key(), r.addr))
	}
	<-given
	if c := r.nic.Counters(); c.Drops.OutOfBuffer != 0 || c.Slice.RxPackets != 2 {
		t.Errorf("with WQEs in time: %+v", c)
	}
	start := time.Now()
	r.give(frame60)
	if waited := time.Since(start); waited < delayDrop {
		t.Errorf("dropped after %s", waited)
	}
	r.give(frame60, frame60) // no packet waits again for the same driver
	if c := r.nic.Counters(); c.Drops.OutOfBuffer != 3 || c.Slice.RxPackets != 2 {
		t.Errorf("without: %+v", c)
	}
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	r.give(frame60)
	if c := r.nic.Counters(); c.Slice.RxPackets != 3 {
		t.Errorf("with a WQE again: %+v", c)
	}
}

// TestDelayedDropShowsCompletions: a packet waits for a WQE behind two whose completions are
// compressed. The driver sees these meanwhile, and posts the WQE for them.
func TestDelayedDropShowsCompletions(t *testing.T) {
	r := newRecvRig(t, recvOptions{tir: hashTIR(false, true),
		cq: func(a *CQAttr) { a.Compress = true }, rq: func(a *RQAttr) { a.DelayDrop = true }})
	for range 2 {
		r.rq.post(seg(2048, r.key.Key(), r.addr))
	}
	given := make(chan struct{})
	go func() {
		defer close(given)
		r.give(flowFrame(0, 60), flowFrame(1, 60), flowFrame(2, 60))
	}()
	for waits := true; waits && r.cq.poll() == nil; {
		select {
		case <-given:
			waits = false
		default:
			runtime.Gosched()
		}
	}
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	<-given
	if c := r.nic.Counters(); c.Drops.OutOfBuffer != 0 || c.Slice.RxPackets != 3 {
		t.Errorf("%d packets dropped, %d received", c.Drops.OutOfBuffer, c.Slice.RxPackets)
	}
}

// TestDelayedDropEndsWithACommand: the driver modifies a queue at which a packet waits, while no
// time passes.
func TestDelayedDropEndsWithACommand(t *testing.T) {
	var now uint64
	r := newRecvRig(t, recvOptions{cfg: Config{Clock: fixedClock(&now)},
		rq: func(a *RQAttr) { a.DelayDrop = true }})
	given := make(chan struct{})
	go func() {
		defer close(given)
		r.give(frame60)
	}()
	for r.rq.mu.TryLock() {
		r.rq.mu.Unlock()
		runtime.Gosched()
	}
	if err := r.rq.Modify(StateReady, StateError); err != nil {
		t.Error(err)
	}
	<-given
	if c := r.nic.Counters(); c.Drops.OutOfBuffer+c.Drops.NotReady != 1 {
		t.Errorf("%+v", c.Drops)
	}
}

// TestDelayedDropEndsWithTheDevice closes the NIC while a packet waits.
func TestDelayedDropEndsWithTheDevice(t *testing.T) {
	r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.DelayDrop = true }})
	given := make(chan struct{})
	go func() {
		defer close(given)
		r.give(frame60)
	}()
	if err := r.nic.Close(); err != nil {
		t.Error(err)
	}
	<-given
	if c := r.nic.Counters(); c.Drops.OutOfBuffer+c.Drops.LinkDown != 1 {
		t.Errorf("%+v", c.Drops)
	}
}

func TestFrameCheckSequence(t *testing.T) {
	r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.ScatterFCS, a.VLANStrip = true, true }})
	r.rq.post(seg(2048, r.key.Key(), r.addr))
	r.give(tcpFrame72)
	e := r.cq.mustPoll(t)
	want := binary.LittleEndian.AppendUint32(concat(tcpFrame72[:12], tcpFrame72[16:]),
		crc32.ChecksumIEEE(tcpFrame72))
	if n := int(binary.BigEndian.Uint32(e[0x2c:])); n != 76 {
		t.Errorf("%d bytes", n)
	}
	expect(t, "frame", r.buf[:77], append(want, 0xa5))
}

func TestVLANStrip(t *testing.T) {
	ctag := []byte{0x81, 0, 0xa0, 7}
	stag := []byte{0x88, 0xa8, 0, 9}
	head, tail := frame60[:12], frame60[12:]
	tests := []struct {
		name  string
		in    []byte
		strip bool
		want  []byte
		cv    byte
		tci   uint16
	}{
		{"C-tag", concat(head, ctag, tail), true, frame60, 1, 0xa007},
		{"C-tag, no strip", concat(head, ctag, tail), false, concat(head, ctag, tail), 0, 0},
		{"two C-tags", concat(head, ctag, []byte{0x81, 0, 0, 3}, tail), true,
			concat(head, []byte{0x81, 0, 0, 3}, tail), 1, 0xa007},
		{"S-tag", concat(head, stag, tail), true, concat(head, stag, tail), 0, 0},
		{"no tag", frame60, true, frame60, 0, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newRecvRig(t, recvOptions{})
			if err := r.rq.SetVLANStrip(tc.strip); err != nil {
				t.Fatal(err)
			}
			r.rq.post(seg(2048, r.key.Key(), r.addr))
			r.give(tc.in)
			e := r.cq.mustPoll(t)
			expect(t, "frame", r.buf[:len(tc.want)+1],
				append(append([]byte(nil), tc.want...), 0xa5))
			if e[0x1d]&1 != tc.cv || be16(e[0x1e:]) != tc.tci || e[0x1d]&^1 != 0x28 ||
				be16(e[0x14:]) != 0xebd1 {
				t.Errorf("completion %x", e)
			}
		})
	}
}

func TestEndPadding(t *testing.T) {
	for _, on := range []bool{false, true} {
		r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.EndPad = on }, logStride: 5})
		// no room for padding
		r.rq.post(concat(seg(60, r.key.Key(), r.addr), dump("00000000 00000100 00000000 00000000")))
		r.rq.post(concat(seg(128, r.key.Key(), r.addr+4096),
			dump("00000000 00000100 00000000 00000000")))
		r.give(frame60, frame60)
		padded := r.buf[4096+60]
		if r.buf[60] != 0xa5 || r.buf[4096+64] != 0xa5 || (padded == 0) != on {
			t.Errorf("padding %v: %x %x", on, r.buf[60], r.buf[4096+60:4096+65])
		}
	}
}

func TestLinkedList(t *testing.T) {
	r := newRecvRig(t, recvOptions{logStride: 5, rq: func(a *RQAttr) { a.LinkedList = true }})
	order := []uint16{0, 5, 2, 9}
	for i, slot := range order {
		next := make([]byte, 16)
		if i+1 < len(order) {
			binary.BigEndian.PutUint16(next[2:], order[i+1])
		}
		copy(r.rq.ring.Bytes()[int(slot)*32:],
			concat(next, seg(2048, r.key.Key(), r.addr+uint64(slot)*2048)))
	}
	r.rq.rec.StoreBE32(0, 4)
	r.give(frame60, frame60, frame60, frame60, frame60)
	for _, slot := range order {
		if e := r.cq.mustPoll(t); be16(e[0x3c:]) != slot {
			t.Errorf("completion of %d, want %d", be16(e[0x3c:]), slot)
		}
		expect(t, "frame", r.buf[int(slot)*2048:int(slot)*2048+60], frame60)
	}
	if c := r.nic.Counters(); c.Drops.OutOfBuffer != 1 {
		t.Errorf("%+v", c.Drops)
	}
}

func TestReceiveRingWraps(t *testing.T) {
	r := newRecvRig(t, recvOptions{rq: func(a *RQAttr) { a.StartIndex = 65000 }})
	var want uint16 = 65000
	for i := range 3000 {
		for int(r.rq.pc-want) < 1+i%32 {
			r.rq.post(seg(2048, r.key.Key(), r.addr))
		}
		r.give(frame60)
		if e := r.cq.mustPoll(t); be16(e[0x3c:]) != want {
			t.Fatalf("completion of %d, want %d", be16(e[0x3c:]), want)
		}
		want++
	}
	r.rq.rec.StoreBE32(0, uint32(want)+33)
	r.give(frame60)
	if v := r.nic.Violations(); len(v) != 1 {
		t.Errorf("violations %q", v)
	}
}
