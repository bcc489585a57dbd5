package dv

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// BenchmarkRings is the table of "make bench": nanoseconds per packet of the
// driver alone, by path, frame size, features and batch. The NIC costs nothing:
// receive completions are written ahead, outside the timed parts. Those of sends
// cost one copy of 64 bytes per batch, which is in the figures.
//
// Names are path/size/features/batch, which the table is made of.
func BenchmarkRings(b *testing.B) {
	for _, batch := range []int{1, 8, 32, 128} {
		for _, size := range []int{64, 1514} {
			for _, f := range rxFeatures {
				b.Run(benchName("rx", size, f.name, batch),
					func(b *testing.B) { benchRx(b, f.fill, size, batch) })
			}
			for _, f := range txFeatures {
				b.Run(benchName("tx", size, f.name, batch),
					func(b *testing.B) { benchTx(b, f.limits, f.blueFlame, size, batch) })
			}
			b.Run(benchName("floor", size, "swap,copy", batch),
				func(b *testing.B) { benchFloor(b, size, batch) })
			for _, x := range xFeatures {
				b.Run(benchName("xconnect", size, x.name, batch),
					func(b *testing.B) { benchCross(b, x, size, batch) })
			}
		}
	}
}

func benchName(path string, size int, features string, batch int) string {
	return fmt.Sprintf("%s/%dB/%s/%d", path, size, features, batch)
}

// Sizes of the default configuration.
const (
	benchEntries = 1024
	benchFrames  = benchEntries + 256
)

// feed is a receive queue and a NIC that fills its ring.
type feed struct {
	*rxRig
	fill func(r *rxRig, n, size int)
}

var rxFeatures = []struct {
	name string
	fill func(testing.TB) feed
}{
	{"plain", plainFeed},
	{"compressed", zipFeed},
	{"multi-segment", func(b testing.TB) feed {
		return feed{newSegRig(b, benchEntries, benchEntries*rigSegs+256).rxRig, (*rxRig).receive}
	}},
	{"striding", func(b testing.TB) feed { return strideFeed(b, false) }},
	{"striding,compressed", func(b testing.TB) feed { return strideFeed(b, true) }},
}

func plainFeed(b testing.TB) feed {
	return feed{newRxRigOf(b, benchEntries, benchFrames, 1600), (*rxRig).receive}
}

func zipFeed(b testing.TB) feed {
	r := newRxRigOf(b, benchEntries, benchFrames, 1600)
	r.q.cq.compressed = true
	return feed{r, func(r *rxRig, n, size int) {
		for ; n > 0; n -= 64 {
			r.receiveCompressed(min(n, 64), func(int) int { return size })
		}
	}}
}

// strideFeed fills slabs.
func strideFeed(b testing.TB, compressed bool) feed {
	s := newStrideRig(b, 2*rigSlabs)
	return feed{s.rxRig, func(_ *rxRig, _, size int) {
		for n := 1024; n > 0; {
			took := 0
			if compressed {
				took = s.deliverCompressed(0, min(64, n), func(uint32) int { return size })
			}
			if took == 0 && s.deliver(0, size, s.nic.put) {
				took = 1
			}
			if n -= took; took == 0 {
				return
			}
		}
	}}
}

var txFeatures = []struct {
	name      string
	limits    txLimits
	blueFlame uint32 // size of the doorbell register, for descriptors flushed alone
}{
	{"send+inline", txLimits{frame: 1518}, 0},
	{"send+inline+BlueFlame", txLimits{frame: 1518}, 256},
	{"send+pointer", txLimits{frame: 1518, inline: 1}, 0},
	{"eMPW+inline", txLimits{frame: 1518, mpw: 60}, 0},
	{"eMPW+pointer", txLimits{frame: 1518, inline: 1, mpw: 60}, 0},
}

// meter adds up the timed parts of a benchmark, in processor time of this
// thread: what others do on the machine costs caches, but no time.
type meter struct{ spent time.Duration }

func newMeter(b *testing.B) meter {
	runtime.LockOSThread()
	b.ReportAllocs()
	b.ResetTimer()
	return meter{}
}

func (m *meter) time(f func()) {
	start := threadTime()
	f()
	m.spent += threadTime() - start
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func (m *meter) report(b *testing.B, packets int) {
	b.ReportMetric(float64(m.spent.Nanoseconds())/float64(packets), "ns/op")
	b.ReportMetric(float64(packets)/m.spent.Seconds(), "pkts/s")
}

func benchRx(b *testing.B, build func(testing.TB) feed, size, batch int) {
	f, done := build(b), 0
	pkts := make([]Packet, batch)
	take := func() {
		for n := f.q.Poll(pkts); n > 0; n = f.q.Poll(pkts) {
			f.q.Release(pkts[:n])
			done += n
		}
	}
	m := newMeter(b)
	for done < b.N {
		f.fill(f.rxRig, int(uint16(f.posted()-f.next)), size)
		m.time(take)
	}
	m.report(b, done)
}

func newBenchTx(b *testing.B, limits txLimits) (*txRig, func()) {
	r := newTxRig(b, benchEntries, 1<<20, limits)
	r.q.page = &uverbs.Page{Mem: memory(b, 4096)}
	return r, cqePrinter(b, r)
}

func benchTx(b *testing.B, limits txLimits, blueFlame uint32, size, batch int) {
	r, complete := newBenchTx(b, limits)
	r.q.blueFlame.size = blueFlame
	bufs := [1][]byte{make([]byte, size)}
	p := TxPacket{Bufs: bufs[:], Flags: TxL3Csum | TxL4Csum}
	m := newMeter(b)
	m.time(func() {
		for n := 0; n < b.N; n += batch {
			for range batch {
				if err := r.q.Post(&p); err != nil {
					b.Fatal(err)
				}
			}
			r.q.Flush()
			complete()
			r.q.Reclaim()
		}
	})
	m.report(b, b.N)
}

// cross is a way to send on what was received.
type cross struct {
	name   string
	fill   func(testing.TB) feed
	limits txLimits
	send   func(q *TxQueue, p *Packet, out *TxPacket) error
}

var xFeatures = []cross{
	{"plain,send,pointer", plainFeed, txLimits{frame: 1518}, sendOn},
	{"compressed,eMPW,pointer", zipFeed, txLimits{frame: 1518, mpw: 60}, sendOn},
	{"compressed,eMPW,copy", zipFeed, txLimits{frame: 1518, mpw: 60}, sendCopy},
}

// sendOn sends the received frame itself.
func sendOn(q *TxQueue, p *Packet, _ *TxPacket) error {
	err := q.PostFrame(p.Frame, 0, len(p.Data), 0)
	if err == nil {
		p.Frame = NoFrame
	}
	return err
}

// sendCopy copies it.
func sendCopy(q *TxQueue, p *Packet, out *TxPacket) error {
	out.Bufs[0] = p.Data
	return q.Post(out)
}

// benchCross is a layer 2 cross-connect, addresses swapped.
func benchCross(b *testing.B, x cross, size, batch int) {
	f, done := x.fill(b), 0
	r, complete := newBenchTx(b, x.limits)
	r.q.pool = f.pool
	pkts, out := make([]Packet, batch), TxPacket{Bufs: make([][]byte, 1)}
	forward := func() {
		for n := f.q.Poll(pkts); n > 0; n = f.q.Poll(pkts) {
			for i := range pkts[:n] {
				swap(pkts[i].Data)
				if err := x.send(r.q, &pkts[i], &out); err != nil {
					b.Fatal(err)
				}
			}
			r.q.Flush()
			f.q.Release(pkts[:n])
			complete()
			r.q.Reclaim()
			done += n
		}
	}
	m := newMeter(b)
	for done < b.N {
		f.fill(f.rxRig, int(uint16(f.posted()-f.next)), size)
		m.time(forward)
	}
	m.report(b, done)
}

// benchFloor is what a cross-connect that copies cannot do without: addresses
// swapped, and the bytes copied from frame buffers to a ring, with no descriptor
// read or written.
func benchFloor(b *testing.B, size, batch int) {
	frames, ring := memory(b, benchFrames*1600).Bytes(), memory(b, benchEntries*64).Bytes()
	room := (size + 4 + 15) &^ 15
	from, to := 0, 0
	m := newMeter(b)
	m.time(func() {
		for n := 0; n < b.N; n += batch {
			for range batch {
				if to+room > len(ring) {
					to = 0
				}
				if from++; from == benchEntries {
					from = 0
				}
				f := frames[from*1600 : from*1600+size]
				swap(f)
				copy(ring[to:], f)
				to += room
			}
		}
	})
	m.report(b, b.N)
}

// swap exchanges a frame's addresses.
func swap(f []byte) {
	a, c := binary.LittleEndian.Uint64(f), binary.LittleEndian.Uint32(f[8:])
	binary.LittleEndian.PutUint64(f, a>>48|uint64(c)<<16|a<<48)
	binary.LittleEndian.PutUint32(f[8:], uint32(a>>16))
}
