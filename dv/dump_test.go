package dv

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// lines is a dump as text, a line for each slot. Addresses are those of staging memory or buffers.
func (d *Dump) lines(base uint64) (all []string) {
	for _, w := range d.WQEs() {
		for i := range w.Segments {
			w.Segments[i].Addr -= min(base, w.Segments[i].Addr)
		}
		all = append(all, fmt.Sprintf("wqe %d %s %s %d %+v", w.Slot, w.State, w.Opcode, w.DS,
			w.Segments))
	}
	for _, c := range d.CQEs() {
		all = append(all, fmt.Sprintf("cqe %d %s %s %s %d", c.Slot, c.State, c.Opcode, c.Syndrome,
			c.WQECounter))
	}
	return all
}

func sameLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// TestTxDump: a send queue that fails tells what was in its rings then: descriptors that are
// completed, posted and not rung for, around the end of the ring, and the completion that failed.
func TestTxDump(t *testing.T) {
	for _, pc := range []uint32{0, 62, 1<<32 - 2} {
		r := newTxRig(t, 64, 128<<10, defaultLimits).at(pc)
		clock := newFakeClock()
		r.q.recovery.now = clock.now
		var told []Dump
		r.q.dumped = func(d Dump) { told = append(told, d) }
		long := &TxPacket{Bufs: [][]byte{make([]byte, 200)}}
		short := &TxPacket{Bufs: [][]byte{make([]byte, 60)}}
		r.post(t, short) // blocks 0 and 1
		r.nic.put(sent(uint16(pc)))
		r.q.Reclaim()
		r.post(t, long) // block 2
		must(t, r.q.Post(long))
		r.nic.put(failed(0xd0, 0x04, uint16(pc+2)))
		r.q.Reclaim()
		if len(told) != 1 || told[0].Queue != "tx0" || told[0].Time != clock.at ||
			!strings.Contains(told[0].Err.Error(), "local protection error") {
			t.Fatalf("told %+v", told)
		}
		staged := "[{Inline:false ByteCount:200 LKey:4772 Addr:"
		sameLines(t, told[0].lines(r.stage.Addr()),
			fmt.Sprintf("wqe %d completed SEND 6 []", pc),
			fmt.Sprintf("wqe %d posted SEND 3 %s0}]", pc+2, staged),
			fmt.Sprintf("wqe %d unpublished SEND 3 %s256}]", pc+3, staged),
			fmt.Sprintf("cqe 0 completed REQ  %d", uint16(pc)),
			fmt.Sprintf("cqe 1 new REQ_ERR local protection error %d", uint16(pc+2)))
		r.post(t, short)
		r.nic.put(failed(0xd0, 0x02, 0))
		r.q.Reclaim()
		if clock.add(time.Second); len(told) != 1 {
			t.Errorf("told %d times within a second", len(told))
		}
		r.post(t, short)
		r.nic.put(failed(0xd0, 0x02, 0))
		r.q.Reclaim()
		if len(told) != 2 {
			t.Errorf("told %d times after a second", len(told))
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTxDumpIsBounded: of a ring that is full the last slots are there, half of them outstanding,
// and of a descriptor that is still open nothing.
func TestTxDumpIsBounded(t *testing.T) {
	r := newTxRig(t, 256, 128<<10, defaultLimits)
	for range 256 {
		must(t, r.q.Post(&TxPacket{Bufs: [][]byte{make([]byte, 200)}}))
	}
	r.q.Flush()
	d := r.q.takeDump(nil)
	if all := d.WQEs(); len(all) != DumpSlots || all[0].Slot != 0 || all[31].Slot != 31 ||
		all[31].State != dumpPosted || all[32].Slot != 224 || all[32].State != dumpPosted {
		t.Errorf("%d, of which %+v and %+v", len(all), all[0], all[32])
	}
	limits := defaultLimits
	limits.mpw = 32
	r = newTxRig(t, 64, 128<<10, limits)
	must(t, r.q.Post(&TxPacket{Bufs: [][]byte{make([]byte, 60)}}))
	d = r.q.takeDump(nil)
	sameLines(t, d.lines(0))
	r.q.Flush()
	d = r.q.takeDump(nil)
	sameLines(t, d.lines(0),
		"wqe 0 posted ENHANCED_MPW 6 [{Inline:true ByteCount:60 LKey:0 Addr:0}]")
}

// TestRxDump: a receive queue that fails tells what was in its rings before it is reset.
func TestRxDump(t *testing.T) {
	r := newRxRig(t, 64, 70)
	var told []Dump
	r.q.dumped = func(d Dump) { told = append(told, d) }
	r.receive(2, 60)
	r.nic.put(failed(0xe0, 0x04, 2))
	r.nic.put(failed(0xe0, 0x05, 3))
	pkts := make([]Packet, 16)
	r.q.Release(pkts[:r.q.Poll(pkts)])
	if len(told) != 1 || told[0].Queue != "rx0" ||
		!strings.Contains(told[0].Err.Error(), "local protection error") {
		t.Fatalf("told %+v", told)
	}
	wqes := told[0].WQEs()
	if len(wqes) != DumpSlots || wqes[0].Slot != 0 || wqes[0].State != dumpCompleted ||
		wqes[2].State != dumpPosted || len(wqes[2].Segments) != 1 ||
		wqes[2].Segments[0].LKey != 0x12a4 || wqes[2].Segments[0].ByteCount != 2048 {
		t.Errorf("%d descriptors: %+v", len(wqes), wqes)
	}
	told[0].wqes.mem = nil
	sameLines(t, told[0].lines(0), "cqe 0 completed RESP_SEND  0", "cqe 1 completed RESP_SEND  1",
		"cqe 2 new RESP_ERR local protection error 2", "cqe 3 new RESP_ERR work request flushed 3")
}

// TestRxDumpOfStridingRing: the head of a descriptor is no segment.
func TestRxDumpOfStridingRing(t *testing.T) {
	r := newStrideRig(t, rigSlabs)
	d := r.q.takeDump(nil)
	all := d.WQEs()
	if len(all) != rigSlabs || len(all[0].Segments) != 1 || all[0].DS != 1 ||
		all[0].Segments[0].ByteCount != slabSize {
		t.Errorf("%+v", all)
	}
}
