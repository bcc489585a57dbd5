package dv_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// pacedRate sends a frame of 1000 bytes per millisecond.
var pacedRate = dv.TxRate{BitsPerSecond: 8e6}

// paced holds a NIC on virtual time, whose table has room for so many rates, with a device of two
// send queues.
func paced(t *testing.T, rates int) (*sim, *dv.Device, *clocktest.Clock) {
	c := clocktest.New()
	caps := simnic.DefaultCaps()
	caps.Pacing.Rates = rates
	s := newSim(t, simnic.Config{Clock: c.Clock(), Caps: caps}, kernel.Config{})
	d := s.open(t, dv.Config{NIC: dv.NIC{TxQueues: 2, Rings: dv.Rings{TxQueueSize: 64}},
		Clock: c.Clock(), Tuning: dv.Tuning{NoMultiPacketSend: true}})
	return s, d, c
}

// postBurst posts and flushes n frames of 1000 bytes on queue i.
func postBurst(t *testing.T, d *dv.Device, i, n int) {
	t.Helper()
	q := d.Tx(i)
	q.Lock()
	defer q.Unlock()
	q.Reclaim()
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 1000)}}
	for range n {
		if err := q.Post(&p); err != nil {
			t.Fatal(err)
		}
	}
	q.Flush()
}

// The NIC spaces the frames of the queue that has a rate, and of no other.
func TestTxRate(t *testing.T) {
	s, d, c := paced(t, 2)
	want := dv.PacingCaps{MinKbps: 1, MaxKbps: 100_000_000, Burst: true}
	if got := d.Caps().Pacing; got != want {
		t.Errorf("capabilities %+v, want %+v", got, want)
	}
	if err := d.LimitTxRate(1, pacedRate); err != nil {
		t.Fatal(err)
	}
	if d.TxRate(1) != pacedRate || d.TxRate(0) != (dv.TxRate{}) {
		t.Errorf("rates %+v and %+v", d.TxRate(0), d.TxRate(1))
	}
	postBurst(t, d, 0, 20)
	if n := len(s.wire.drain()); n != 20 {
		t.Errorf("%d of 20 frames left the queue without a rate", n)
	}
	postBurst(t, d, 1, 20)
	for ms, want := range []int{1, 1, 1, 1} { // the first leaves at once
		if n := len(s.wire.drain()); n != want {
			t.Errorf("%d frames after %d ms, want %d", n, ms, want)
		}
		c.Advance(time.Millisecond)
	}
	if err := d.LimitTxRate(1, dv.TxRate{}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.wire.drain()); n != 20-4 {
		t.Errorf("%d frames left when the limit ended, want 16", n)
	}
	if err := d.LimitTxRate(1, dv.TxRate{BitsPerSecond: 8e6, Burst: 4000}); err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Second)
	postBurst(t, d, 1, 20)
	if n := len(s.wire.drain()); n != 5 {
		t.Errorf("%d frames of 20 left at once, want the burst of 4 and one", n)
	}
}

// A rate that cannot be is refused, and the one before stays.
func TestTxRateRefused(t *testing.T) {
	_, d, _ := paced(t, 1)
	if err := d.LimitTxRate(0, pacedRate); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		rate dv.TxRate
		want error
	}{
		"below 1 kbit/s":     {dv.TxRate{BitsPerSecond: 999}, unix.EINVAL},
		"above the highest":  {dv.TxRate{BitsPerSecond: 100_000_001_000}, unix.EINVAL},
		"beyond 32 bits":     {dv.TxRate{BitsPerSecond: (1<<32 + 5000) * 1000}, unix.EINVAL},
		"burst without rate": {dv.TxRate{Burst: 1}, unix.EINVAL},
		"negative burst":     {dv.TxRate{BitsPerSecond: 1e6, Burst: -1}, unix.EINVAL},
		"long packets":       {dv.TxRate{BitsPerSecond: 1e6, TypicalPacket: 65536}, unix.EINVAL},
		"table full":         {dv.TxRate{BitsPerSecond: 1e6}, unix.ENOSPC},
	} {
		if err := d.LimitTxRate(0, tc.rate); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if d.TxRate(0) != pacedRate {
			t.Errorf("%s: the rate is %+v", name, d.TxRate(0))
		}
	}
	if err := d.LimitTxRate(1, pacedRate); err != nil {
		t.Errorf("an equal rate takes no entry: %v", err)
	}
	s := newSim(t, simnic.Config{Caps: func() simnic.Caps {
		c := simnic.DefaultCaps()
		c.Pacing = simnic.PacingCap{}
		return c
	}()}, kernel.Config{})
	d = s.open(t, dv.Config{})
	if err := d.LimitTxRate(0, pacedRate); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a device without pacing: %v", err)
	}
	if err := d.LimitTxRate(0, dv.TxRate{}); err != nil {
		t.Errorf("no limit on a device without pacing: %v", err)
	}
}

// TestManyTxRates: as many different rates as the device's table has entries are kept, one more is
// refused and its queue goes on as before; an equal one takes no entry, and one that ends leaves
// its own.
func TestManyTxRates(t *testing.T) {
	const rates = 128
	c := clocktest.New()
	caps := simnic.DefaultCaps()
	caps.Pacing.Rates = rates
	s := newSim(t, simnic.Config{Clock: c.Clock(), Caps: caps}, kernel.Config{})
	d := s.open(t, dv.Config{NIC: dv.NIC{TxQueues: rates + 1, Rings: dv.Rings{TxQueueSize: 64}},
		Clock: c.Clock(), Tuning: dv.Tuning{NoMultiPacketSend: true}})
	// Queue i sends a frame in (i + 1) * 10 us.
	rate := func(i int) dv.TxRate { return dv.TxRate{BitsPerSecond: 8e8 / uint64(i+1)} }
	for i := range rates {
		if err := d.LimitTxRate(i, rate(i)); err != nil {
			t.Fatalf("rate %d: %v", i, err)
		}
	}
	if err := d.LimitTxRate(rates, rate(rates)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more rate: %v, want %v", err, unix.ENOSPC)
	}
	if err := d.LimitTxRate(rates, rate(7)); err != nil {
		t.Errorf("a rate of another queue: %v", err)
	}
	for i := range rates + 1 {
		postBurst(t, d, i, 20)
	}
	s.wire.drain()  // the first of each leaves at once
	const span = 10 // times 10 us
	c.Advance(span*10*time.Microsecond - time.Microsecond)
	want := (span - 1) / (7 + 1) // of the queue that shares a rate
	for i := range rates {
		want += (span - 1) / (i + 1)
	}
	if n := len(s.wire.drain()); n != want {
		t.Errorf("%d frames within %d us, want %d", n, 10*span, want)
	}
	if err := d.LimitTxRate(3, dv.TxRate{}); err != nil {
		t.Fatal(err)
	}
	if err := d.LimitTxRate(rates, rate(rates)); err != nil {
		t.Errorf("a rate in place of one that ended: %v", err)
	}
}

// fullTable refuses the extended MODIFY_QP while full is set, as a device does whose table of rates
// is full.
type fullTable struct {
	uverbs.Kernel
	full *atomic.Bool
}

func (k fullTable) Ioctl(buf []byte) error {
	const header, attribute, writeCommand = 24, 16, 2 // struct ib_uverbs_ioctl_hdr, ib_uverbs_attr
	const exModifyQP = 0x8000001a
	ne := binary.NativeEndian
	for a := buf[header:]; k.full.Load() && len(a) >= attribute; a = a[attribute:] {
		if ne.Uint32(buf[2:]) == 0 && ne.Uint16(a) == writeCommand &&
			ne.Uint64(a[8:]) == exModifyQP {
			return unix.ENOSPC
		}
	}
	return k.Kernel.Ioctl(buf)
}

// failQueue makes queue i fail and be made anew.
func failQueue(t *testing.T, s *sim, d *dv.Device, i int) {
	t.Helper()
	s.nic.SetHooks(&simnic.Hooks{SendWQE: func(*simnic.SQ, uint16) (uint8, uint8) {
		return 0x04, 0
	}})
	postBurst(t, d, i, 1)
	s.nic.SetHooks(nil)
	q := d.Tx(i)
	q.Lock()
	defer q.Unlock()
	if q.Reclaim(); q.Stats().Resets == 0 {
		t.Fatal("no reset")
	}
}

// A queue that is made anew keeps its rate; one whose entry of the table went to another user
// goes on without, and the log says so.
func TestTxRateAfterReset(t *testing.T) {
	var log bytes.Buffer
	var full atomic.Bool
	c := clocktest.New()
	s := newSim(t, simnic.Config{Clock: c.Clock()}, kernel.Config{})
	d := s.open(t, dv.Config{Clock: c.Clock(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Tuning:    dv.Tuning{NoMultiPacketSend: true},
		Interpose: func(k uverbs.Kernel) uverbs.Kernel { return fullTable{k, &full} }})
	if err := d.LimitTxRate(0, pacedRate); err != nil {
		t.Fatal(err)
	}
	failQueue(t, s, d, 0)
	c.Advance(time.Second)
	s.wire.drain()
	postBurst(t, d, 0, 5)
	if n := len(s.wire.drain()); n != 1 || d.TxRate(0) != pacedRate {
		t.Errorf("%d of 5 frames left at once, rate %+v", n, d.TxRate(0))
	}
	c.Advance(time.Second)
	s.wire.drain()
	if strings.Contains(log.String(), "without its rate") {
		t.Errorf("log: %s", log.String())
	}

	full.Store(true)
	failQueue(t, s, d, 0)
	postBurst(t, d, 0, 5)
	if n := len(s.wire.drain()); n != 5 || d.TxRate(0) != (dv.TxRate{}) {
		t.Errorf("%d of 5 frames left, rate %+v: want no limit", n, d.TxRate(0))
	}
	if !strings.Contains(log.String(), "send queue goes on without its rate") {
		t.Errorf("log: %s", log.String())
	}
}

// A ring that stands still since its rate is low is no stall; without a rate it is.
func TestTxRateIsNoStall(t *testing.T) {
	s, d, c := paced(t, 1)
	if err := d.LimitTxRate(0, dv.TxRate{BitsPerSecond: 1000}); err != nil { // a frame in 8 s
		t.Fatal(err)
	}
	q := d.Tx(0)
	postBurst(t, d, 0, q.Free()/2)
	p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 1000)}}
	for range 10 {
		c.Advance(10 * time.Second)
		for q.Post(&p) == nil { // until the ring is full, which looks for a stall
		}
		q.Flush()
		q.Reclaim()
	}
	if n := q.Stats().Resets; n != 0 {
		t.Errorf("%d resets of a queue that waits for its rate", n)
	}
	if n := len(s.wire.drain()); n < 12 || n > 14 {
		t.Errorf("%d frames in 100 s, want one in 8 s", n)
	}
}
