package dv_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// A device that may delay drops holds the frame for which there is no buffer until
// there is one; any other drops it.
func TestDelayDrop(t *testing.T) {
	fill := func(cfg dv.Config) (*sim, *dv.Device) {
		cfg.Rings.RxQueueSize, cfg.Tuning.SpareFrames = 64, 1
		s, d := usual(t, cfg)
		for i := range 64 {
			s.wire.send(t, frame(ourMAC, peerMAC, 0x88b5, 100+i))
		}
		return s, d
	}
	late := frame(ourMAC, peerMAC, 0x88b5, 99)
	s, d := fill(dv.Config{})
	s.wire.send(t, late)
	if n := s.nic.Counters().Drops.OutOfBuffer; n != 1 || len(poll(d.Rx(0))) != 64 {
		t.Errorf("without: %d dropped", n)
	}
	held := func() bool { // the frame waits 100 ms, which a busy machine may take longer for
		s, d := fill(dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}})
		var sender sync.WaitGroup
		sender.Go(func() { s.wire.send(t, late) })
		got := poll(d.Rx(0))
		sender.Wait()
		got = append(got, poll(d.Rx(0))...)
		return s.nic.Counters().Drops.OutOfBuffer == 0 && len(got) == 65 &&
			bytes.Equal(got[64].Data, late)
	}
	eventually(t, "a frame that waits for a buffer", held)
	without := simnic.DefaultCaps()
	without.DelayDrop = false
	for _, c := range []struct {
		nic   simnic.Config
		linux kernel.Config
		want  error
	}{
		{simnic.Config{}, kernel.Config{NoRawIO: true}, unix.EPERM},
		{simnic.Config{Caps: without}, kernel.Config{}, unix.EOPNOTSUPP},
	} {
		s := newSim(t, c.nic, c.linux)
		if _, err := dv.Open(t.Context(),
			s.config(dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}})); !errors.Is(err,
			c.want) {
			t.Errorf("opened: %v, want %v", err, c.want)
		}
	}
}

// Time stamps are those of the NIC's clock, also in compressed completions, and
// Clock turns them into time: those of the free-running clock where the device has them, and real
// time, which needs no known moment, where it has nothing else.
func TestTimestamps(t *testing.T) {
	for name, has := range map[string]simnic.TimestampCap{"free-running": simnic.StampsFreeRunning,
		"real time": simnic.StampsRealTime, "both": simnic.StampsBoth} {
		t.Run(name, func(t *testing.T) { testTimestamps(t, has) })
	}
}

func testTimestamps(t *testing.T, has simnic.TimestampCap) {
	var mu sync.Mutex
	now := time.Unix(1700000000, 0)
	caps := simnic.DefaultCaps()
	caps.Timestamps = has
	s := newSim(t, simnic.Config{Caps: caps, Clock: clocktest.Showing(func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	})}, kernel.Config{})
	d := s.open(t, dv.Config{NIC: dv.NIC{RxQueues: 2}})
	clock, ok := d.Clock()
	if real := has == simnic.StampsRealTime; !ok || d.Caps().RealTimeStamps != real {
		t.Fatalf("a clock: %v; capabilities %+v", ok, d.Caps())
	}
	f := flows(1)["UDP over IPv4"]
	for i, burst := range []int{1, 1, 8, 1} {
		mu.Lock()
		now = now.Add(time.Duration(i) * 1500 * time.Microsecond)
		want := now
		mu.Unlock()
		s.sendBurst(t, slicesOf(packet(f.Src, f.Dst, f.Proto, 100), burst))
		got := poll(d.Rx(d.QueueFor(f)))
		if len(got) != burst {
			t.Fatalf("%d frames", len(got))
		}
		if i == 0 && has != simnic.StampsRealTime {
			clock.Set(got[0].Timestamp, want)
		}
		for _, p := range got {
			if at := clock.Time(p.Timestamp); at.Sub(want).Abs() > time.Microsecond {
				t.Errorf("burst %d: stamped %v, was %v", i, at, want)
			}
		}
	}
	if n := d.Stats().Rx[d.QueueFor(f)].Compressed; n != 8 {
		t.Errorf("%d compressed", n)
	}
}

// taken represents a Stamper that notes what it is told.
type taken struct {
	name  string
	ticks uint64
	calls int
	order *[]string
}

func (s *taken) Stamp(ticks uint64) {
	s.ticks, s.calls, *s.order = ticks, s.calls+1, append(*s.order, s.name)
}

// TestTxStamps: each packet that asks for it has the NIC's stamp of when it was sent, once and in
// order, among others, in a shared doorbell, segmented and over the end of the ring; one that is
// lost in a reset has 0.
func TestTxStamps(t *testing.T) {
	for name, has := range map[string]simnic.TimestampCap{"free-running": simnic.StampsFreeRunning,
		"real time": simnic.StampsRealTime, "both": simnic.StampsBoth} {
		t.Run(name, func(t *testing.T) { testTxStamps(t, has) })
	}
}

func testTxStamps(t *testing.T, has simnic.TimestampCap) {
	now := time.Unix(1700000000, 0)
	caps := simnic.DefaultCaps()
	caps.Timestamps = has
	s := newSim(t, simnic.Config{Caps: caps, Clock: clocktest.Showing(func() time.Time {
		return now
	})}, kernel.Config{})
	d := s.open(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}}})
	q := d.Tx(0)
	clock, ok := q.Clock()
	if !ok {
		t.Fatal("no clock")
	}
	f := flows(1)["UDP over IPv4"]
	plain := dv.TxPacket{Bufs: [][]byte{packet(f.Src, f.Dst, f.Proto, 40)}}
	cut := dv.TxPacket{Bufs: [][]byte{packet(f.Src, f.Dst, f.Proto, 2500)}, HdrLen: 42, MSS: 1000,
		UDP: true}
	for round := range 30 { // several times around the ring
		now = now.Add(1500 * time.Microsecond)
		var order []string
		first, second, third := taken{name: "1", order: &order}, taken{name: "2", order: &order},
			taken{name: "3", order: &order}
		for _, p := range []struct {
			packet dv.TxPacket
			stamp  *taken
		}{{plain, nil}, {plain, &first}, {plain, nil}, {cut, &second}, {plain, &third},
			{plain, nil}} {
			if p.stamp != nil {
				p.packet.Flags, p.packet.Stamper = dv.TxStamp, p.stamp
			}
			if err := q.Post(&p.packet); err != nil {
				t.Fatal(err)
			}
			if p.stamp != nil && p.packet.Flags != dv.TxStamp {
				t.Errorf("flags are %#x afterwards", p.packet.Flags)
			}
		}
		if len(order) != 0 {
			t.Fatalf("%q are stamped before the doorbell", order)
		}
		q.Flush()
		if n := q.Reclaim(); n != 6 {
			t.Fatalf("%d of 6 packets sent", n)
		}
		if !slices.Equal(order, []string{"1", "2", "3"}) {
			t.Fatalf("stamped %q", order)
		}
		if round == 0 && has != simnic.StampsRealTime {
			clock.Set(first.ticks, now)
		}
		for _, s := range []*taken{&first, &second, &third} {
			if at := clock.Time(s.ticks); at.Sub(now).Abs() > time.Microsecond {
				t.Errorf("round %d: %s is stamped %v, was sent %v", round, s.name, at, now)
			}
		}
		if n := len(s.wire.drain()); n != 8 {
			t.Errorf("%d frames on the wire", n)
		}
	}
}

func slicesOf(b []byte, n int) (all [][]byte) {
	for range n {
		all = append(all, b)
	}
	return all
}

// Many senders share a queue by its lock: every frame leaves once, those of each
// sender in order, and few completions are asked for.
func TestManySenders(t *testing.T) {
	s, d := usual(t, dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 64}}})
	const senders, each = 6, 400
	var wg sync.WaitGroup
	for id := range senders {
		wg.Go(func() {
			b := frame(peerMAC, ourMAC, 0x88b5, 60+id)
			p, q := dv.TxPacket{Bufs: [][]byte{b}}, d.Tx(0)
			b[14] = byte(id)
			for n := 0; n < each; {
				binary.BigEndian.PutUint32(b[15:], uint32(n))
				q.Lock()
				if q.Post(&p) == nil {
					n++
				}
				if n%4 == 0 || q.Free() < dv.MaxBlocks {
					q.Flush()
					q.Reclaim()
				}
				q.Unlock()
			}
			q.Lock()
			q.Flush()
			q.Reclaim()
			q.Unlock()
		})
	}
	wg.Wait()
	var next [senders]uint32
	for _, g := range s.wire.drain() {
		id := g[14]
		if n := binary.BigEndian.Uint32(g[15:]); int(id) >= senders ||
			n != next[id] || len(g) != 60+int(id) {
			t.Fatalf("frame %d of sender %d where %d was due", n, id, next[id])
		}
		next[id]++
	}
	for id, n := range next {
		if n != each {
			t.Errorf("sender %d: %d frames", id, n)
		}
	}
	if st := d.Tx(0).Stats(); st.Completions > st.Packets/2 || st.Resets != 0 {
		t.Errorf("stats %+v", st)
	}
}
