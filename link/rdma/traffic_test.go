package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// data is n bytes in which an exchange of any two parts is detected.
func data(n int, stream uint64) []byte { return tcpframe.Data(n, stream) }

// exchange sends want over conn, which echoes, and compares what comes back.
func exchange(conn net.Conn, want []byte) error {
	return exchangeAmong(conn, want, new(moving.Meter), moving.Limit)
}

// exchangeAmong is exchange with others that share meter; it fails when none of them moves for
// limit.
func exchangeAmong(c net.Conn, want []byte, meter *moving.Meter, limit time.Duration) error {
	conn := moving.Conn(c, meter, limit)
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(want)
		sent <- err
	}()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		return errors.New("what came back differs")
	}
	return <-sent
}

// TestBulk sends data both ways at once through wires that lose, repeat, reorder and break frames.
func TestBulk(t *testing.T) {
	need.Long(t, "bulk transfers on bad wires, 11 s")
	for _, tc := range []struct {
		name   string
		faults wire.FaultConfig
		size   int
	}{
		{"perfect", wire.FaultConfig{}, 4 << 20},
		{"loss 1 %", wire.FaultConfig{Drop: 0.01, Reorder: 0.01, Duplicate: 0.01}, 256 << 10},
		{"loss 5 %", wire.FaultConfig{Drop: 0.05, Reorder: 0.05, Duplicate: 0.02}, 64 << 10},
		{"loss 15 %", wire.FaultConfig{Drop: 0.15, Reorder: 0.05, Duplicate: 0.02}, 8 << 10},
		{"reordered", wire.FaultConfig{Reorder: 0.2}, 1 << 20},
		{"repeated", wire.FaultConfig{Duplicate: 0.3}, 1 << 20},
		{"corrupt 2 %", wire.FaultConfig{Corrupt: 0.02}, 256 << 10},
	} {
		for _, opts := range []Options{{}, {NoMerge: true, NoSegmentation: true}} {
			t.Run(fmt.Sprintf("%s/merge %v", tc.name, !opts.NoMerge), func(t *testing.T) {
				if tc.faults != (wire.FaultConfig{}) {
					tc.faults.Seed = seed(t).Uint64()
				}
				a, b := pair(t, setup{faults: tc.faults, opts: opts,
					dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{DelayDrop: true}}}})
				var wg sync.WaitGroup
				meter := new(moving.Meter)
				for i, address := range []netip.Addr{a.v4, a.v6} {
					ln := a.listen(t, address, 80)
					go echo(ln)
					conn := b.dial(t, address, 80)
					wg.Go(func() {
						limit := moving.Limit
						if tc.faults.Drop > 0.1 { // five losses in a row are common
							limit *= 6
						}
						err := exchangeAmong(conn, data(tc.size, uint64(i)), meter, limit)
						if err != nil {
							t.Errorf("%v: %v", address, err)
						}
					})
				}
				wg.Wait()
				s := a.ep.Stats()
				t.Logf("%+v", s)
				if opts.NoMerge != (s.RxMerged == 0) || opts.NoSegmentation != (s.TxLSO == 0) {
					t.Errorf("merging or segmentation is not as asked: %+v", s)
				}
				if s.TxDropped != 0 || s.TxErrors != 0 {
					t.Errorf("dropped on sending: %+v", s)
				}
				// 19 expected
				if bad := s.RxBadChecksum +
					b.ep.Stats().RxBadChecksum; (bad > 0) != (tc.faults.Corrupt > 0) {
					t.Errorf("%d bad checksums", bad)
				}
			})
		}
	}
}

// TestManyFlows runs connections over several queues.
func TestManyFlows(t *testing.T) {
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{RxQueues: 4, TxQueues: 4,
		Rings: dv.Rings{DelayDrop: true}}}})
	go echo(a.listen(t, a.v4, 80))
	var wg sync.WaitGroup
	meter := new(moving.Meter)
	for i := range 32 {
		conn := b.dial(t, a.v4, 80)
		wg.Go(func() {
			for range 4 {
				err := exchangeAmong(conn, data(64<<10, uint64(i)), meter, moving.Limit)
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	used := 0
	for _, q := range a.dev.Stats().Rx {
		if q.Packets > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("%d receive queues used", used)
	}
	used = 0
	for _, q := range b.dev.Stats().Tx {
		if q.Packets > 0 {
			used++
		}
	}
	if used < 2 {
		t.Errorf("%d send queues used", used)
	}
}

// TestUDPSizes sends datagrams up to the largest, which are fragmented from 1472 bytes on, over a
// wire that breaks bits: some may be lost, but what arrives must be right. Of fragments only the
// stack can know.
func TestUDPSizes(t *testing.T) {
	for _, corrupt := range []float64{0, 0.02} {
		t.Run(fmt.Sprint("corrupt ", corrupt), func(t *testing.T) { udpSizes(t, corrupt) })
	}
}

func udpSizes(t *testing.T, corrupt float64) {
	var faults wire.FaultConfig
	wait := 20 * time.Second
	if corrupt > 0 {
		faults = wire.FaultConfig{Corrupt: corrupt, Seed: seed(t).Uint64()}
		wait = 50 * time.Millisecond
	}
	a, b := pair(t, setup{faults: faults})
	for _, address := range []netip.Addr{a.v4, a.v6} {
		from := b.v4
		if address.Is6() {
			from = b.v6
		}
		server := a.udp(t, netip.AddrPortFrom(address, 7), netip.AddrPort{})
		client := b.udp(t, netip.AddrPortFrom(from, 9), netip.AddrPortFrom(address, 7))
		buf := make([]byte, 65536)
		var sent [][]byte // the latest last; those before may come late
		for i, size := range []int{0, 1, 17, 18, 500, 1452, 1472, 1473, 2000, 3000, 8000, 20000,
			30000, 5000, 5001, 5002, 5003, 5004} {
			want := data(size, uint64(i))
			if _, err := client.Write(want); err != nil {
				t.Fatalf("%v: write %d bytes: %v", address, size, err)
			}
			sent = append(sent, want)
			server.SetReadDeadline(time.Now().Add(wait))
			n, _, err := server.ReadFrom(buf)
			same := func(b []byte) bool {
				return bytes.Equal(buf[:n], b) ||
					corrupt > 0 && unseen(buf[:n], b)
			}
			var timeout net.Error
			switch {
			case err == nil && !slices.ContainsFunc(sent, same):
				t.Errorf("%v: after a datagram of %d bytes, one of %d came that was not sent",
					address, size, n)
			case err != nil && (corrupt == 0 || !errors.As(err, &timeout)):
				t.Fatalf("%v: read %d bytes: %v", address, size, err)
			}
		}
	}
	if s := a.ep.Stats(); s.RxFragments == 0 {
		t.Errorf("no fragments seen: %+v", s)
	}
}

// unseen is true of two bits broken such that no checksum can know: one set, one cleared, in the
// same place of two 16-bit words.
func unseen(got, want []byte) bool {
	if len(got) != len(want) || checksum.Checksum(got, 0) != checksum.Checksum(want, 0) {
		return false
	}
	broken := 0
	for i := range got {
		broken += bits.OnesCount8(got[i] ^ want[i])
	}
	return broken == 2
}

// TestFullRing delays completions, so that the ring fills: packets wait, are refused and counted,
// urgent ones still find room and do not wait; after the completions, a waiting packet is sent.
func TestFullRing(t *testing.T) {
	nics, devs := devices(t, setup{dv: dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 256}}}})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	held := hold(nics[0])
	ordinary, urgent := udpPacket(), tcpframe.ResetPacket()
	defer ordinary.DecRef()
	defer urgent.DecRef()
	sent := 0
	var refused tcpip.Error
	for ; refused == nil; sent++ {
		if sent > 1000 {
			t.Fatal("the ring does not fill")
		}
		refused = e.writeOne(ordinary)
	}
	if _, ok := refused.(*tcpip.ErrNoBufferSpace); !ok {
		t.Errorf("full ring: %v", refused)
	}
	if s := e.Stats(); s.TxWaits != 1 || s.TxDropped != 1 || s.TxPackets != uint64(sent-1) {
		t.Errorf("after filling: %+v", s)
	}
	spare := 0
	for ; e.writeOne(urgent) == nil; spare++ {
	}
	if spare < 8 {
		t.Errorf("only %d urgent packets found room", spare)
	}
	held.release()
	if err := e.writeOne(ordinary); err != nil {
		t.Errorf("after the completions: %v", err)
	}
	if s := e.Stats(); s.TxWaits != 2 || s.TxDropped != 2 {
		t.Errorf("at the end: %+v", s)
	}
}

// TestAllocs: a frame from the wire to the stack, and a packet from the stack to the wire, allocate
// nothing.
func TestAllocs(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &attachment{dispatcher: newSink()}
	w := e.lone(s)
	f := segment(0)
	f.Dst, f.Src = "\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02"
	frame := dv.TxPacket{Bufs: [][]byte{f.Bytes()}}
	q := devs[1].Tx(0)
	n := testing.AllocsPerRun(200, func() {
		q.Lock()
		for range 8 {
			if q.Post(&frame) != nil {
				t.Fatal("ring full")
			}
		}
		q.Flush()
		q.Reclaim()
		q.Unlock()
		for got := w.count.packets.Load() + 8; w.count.packets.Load() < got; {
			if !w.poll() {
				t.Fatal("frames do not arrive")
			}
		}
	})
	if n != 0 && !racing.Detector {
		t.Errorf("receiving 8 frames: %v allocations", n)
	}
	pkt := tcpframe.ACKPacket(1)
	defer pkt.DecRef()
	n = testing.AllocsPerRun(200, func() { e.writeOne(pkt) })
	if n != 0 && !racing.Detector {
		t.Errorf("sending: %v allocations", n)
	}
	e.Close()
}

// TestIdle: workers without traffic sleep: no poll is counted while the link is idle.
func TestIdle(t *testing.T) {
	_, devs := devices(t, setup{})
	e, err := New(devs[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s := newSink()
	e.Attach(s)
	for range 3 {
		post(t, devs[1].Tx(0), arpFrame())
		s.await(t, 1)
	}
	last, still := devs[0].Stats().Rx[0].Polls, 0
	for deadline := time.Now().Add(20 * time.Second); still < 20 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond) // time passes; nothing waits for this
		if now := devs[0].Stats().Rx[0].Polls; now == last {
			still++
		} else {
			last, still = now, 0
		}
	}
	if still < 20 {
		t.Error("the worker goes on polling without traffic")
	}
}
