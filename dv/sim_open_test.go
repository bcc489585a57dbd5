package dv_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

func TestOpenFacts(t *testing.T) {
	_, d := usual(t, dv.Config{NIC: dv.NIC{RxQueues: 3, TxQueues: 2}})
	if d.Name() != "mlx5_sim0" || d.Netdev() != "sim0" ||
		d.MAC().String() != ourMAC.String() || d.MTU() != 1500 ||
		d.NumRx() != 3 || d.NumTx() != 2 || d.Rx(2).Index() != 2 || d.Tx(1).Index() != 1 ||
		!d.LinkUp() || d.Err() != nil {
		t.Errorf("%s %s %s %d %d %d %v", d.Name(), d.Netdev(), d.MAC(), d.MTU(),
			d.NumRx(), d.NumTx(), d.Err())
	}
	c := d.Caps()
	if c.Firmware != "22.43.2026" || c.MaxTSO != 1<<18 || !c.TxCsum || !c.RxCsum || !c.VLANStrip ||
		!c.SharedMulticast || c.MinInline != 0 || c.MaxRxQueues != 2048 {
		t.Errorf("caps %+v", c)
	}
	if p := d.Pool(); p.FrameSize() != 1600 || p.Frames() != 3*1024+256 || p.Free() != 256 {
		t.Errorf("pool of %d frames of %d bytes, %d free", p.Frames(), p.FrameSize(), p.Free())
	}
}

// A segmented packet has to fit the staging memory, whatever the device takes.
func TestMaxTSO(t *testing.T) {
	_, d := usual(t, dv.Config{Tuning: dv.Tuning{TxBufferSize: 128 << 10}})
	if n := d.Caps().MaxTSO; n != 64<<10 {
		t.Errorf("MaxTSO %d, want %d", n, 64<<10)
	}
	p := dv.TxPacket{Bufs: [][]byte{make([]byte, 54+64<<10)}, HdrLen: 54, MSS: 1460}
	if err := d.Tx(0).Post(&p); err != nil {
		t.Error(err)
	}
}

// Close twice, at once and in turn, with the owner of a queue parked; then
// everything still answers, and nothing is held any more.
func TestClose(t *testing.T) {
	before := resources(t)
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d, err := dv.Open(t.Context(), s.config(dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}}))
	if err != nil {
		t.Fatal(err)
	}
	var owners, closers sync.WaitGroup
	for i := range d.NumRx() {
		owners.Go(func() {
			for d.Rx(i).Wait() == nil {
			}
			if err := d.Rx(i).Wait(); !errors.Is(err, dv.ErrClosed) ||
				!errors.Is(err, os.ErrClosed) {
				t.Errorf("Wait: %v", err)
			}
		})
	}
	d.Stop()
	d.Stop()
	owners.Wait()
	<-d.Done()
	for range 4 {
		closers.Go(func() {
			if err := d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	closers.Wait()
	if err := d.Close(); err != nil || !errors.Is(d.Err(), dv.ErrClosed) {
		t.Errorf("closed again: %v, Err %v", err, d.Err())
	}
	useClosed(t, d)
	s.nic.Close()
	s.wire.wire.Close()
	s.netdev.wire.Close()
	sameResources(t, before)
}

// useClosed calls everything on a device that is closed.
func useClosed(t *testing.T, d *dv.Device) {
	t.Helper()
	rx, tx := d.Rx(0), d.Tx(0)
	pkts := make([]dv.Packet, 4)
	for i := range pkts {
		pkts[i].Frame = dv.Frame(i)
	}
	if n := rx.Poll(pkts); n != 0 {
		t.Errorf("%d packets", n)
	}
	rx.Release(pkts)
	rx.Refill()
	rx.Arm()
	rx.Wake()
	if err := tx.Post(&dv.TxPacket{Bufs: [][]byte{make([]byte, 60)}}); !errors.Is(err,
		dv.ErrClosed) {
		t.Errorf("Post: %v", err)
	}
	if err := tx.PostFrame(0, 0, 60, 0); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("PostFrame: %v", err)
	}
	tx.Lock()
	tx.Flush()
	tx.Reclaim()
	tx.Unlock()
	d.Stats()
	d.Stop()
}

// A Post under the queue's lock and a Close go well together.
func TestCloseWhileSending(t *testing.T) {
	for range 20 {
		s := newSim(t, simnic.Config{}, kernel.Config{})
		d, err := dv.Open(t.Context(), s.config(dv.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		var senders sync.WaitGroup
		started := make(chan struct{}, 3)
		for range 3 {
			senders.Go(func() {
				p := dv.TxPacket{Bufs: [][]byte{frame(peerMAC, ourMAC, 0x88b5, 200)}}
				q := d.Tx(0)
				for first := true; ; first = false {
					q.Lock()
					err := q.Post(&p)
					q.Flush()
					q.Reclaim()
					q.Unlock()
					if first {
						started <- struct{}{}
					}
					if errors.Is(err, dv.ErrClosed) {
						return
					}
				}
			})
		}
		for range 3 {
			<-started
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		senders.Wait()
	}
}

// failing is a kernel that refuses one call.
type failing struct {
	uverbs.Kernel
	errno unix.Errno
	in    atomic.Int64 // calls until then; below 0: refused, or never to be
}

// failIn returns a kernel that refuses its n'th call, counted from 0.
func failIn(s *sim, n int, errno unix.Errno) (*failing, func() (uverbs.Kernel, error)) {
	f := &failing{errno: errno}
	f.in.Store(int64(n))
	return f, func() (k uverbs.Kernel, err error) {
		f.Kernel, err = s.linux.OpenNode()
		return f, err
	}
}

func (f *failing) Ioctl(buf []byte) error {
	if f.in.Add(-1) == -1 {
		return f.errno
	}
	return f.Kernel.Ioctl(buf)
}

func (f *failing) Mmap(offset int64, length int, writable bool) (*uverbs.Page, error) {
	if f.in.Add(-1) == -1 {
		return nil, f.errno
	}
	return f.Kernel.Mmap(offset, length, writable)
}

// spare ends the refusing, and reports whether it has not come to it.
func (f *failing) spare() bool { return f.in.Swap(-1) >= 0 }

// Whichever call of the bring-up the kernel refuses, the error has the errno,
// and nothing is held afterwards.
func TestFailAtEveryStep(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	before := resources(t)
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EIO} {
		for n := 0; ; n++ {
			cfg := s.config(dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}})
			var k *failing
			k, cfg.Model.Kernel = failIn(s, n, errno)
			d, err := dv.Open(t.Context(), cfg)
			if k.spare() {
				if err != nil {
					t.Fatalf("nothing was refused, and Open says: %v", err)
				}
				t.Logf("%v: %d calls refused one by one", errno, n)
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				sameResources(t, before)
				break
			}
			if d != nil || !errors.Is(err, errno) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("call %d refused with %v: %v", n, errno, err)
			}
			sameResources(t, before)
		}
	}
}

// Whichever call of Close the kernel refuses, everything is given back.
func TestFailAtEveryStepOfClose(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	before := resources(t)
	for n := 0; ; n++ {
		cfg := s.config(dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}})
		var k *failing
		k, cfg.Model.Kernel = failIn(s, 1<<30, unix.EBUSY)
		d, err := dv.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		k.in.Store(int64(n))
		err = d.Close()
		sameResources(t, before)
		if k.spare() {
			if err != nil {
				t.Errorf("nothing was refused, and Close says: %v", err)
			}
			t.Logf("%d calls refused one by one", n)
			return
		}
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("call %d refused: %v", n, err)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	noCopies := simnic.DefaultCaps()
	noCopies.MultiPathFlows = false
	noStrip := simnic.DefaultCaps()
	noStrip.VLANStrip = false
	small := simnic.DefaultCaps()
	small.LogMaxQueue = 9
	for _, c := range []struct {
		name  string
		nic   simnic.Config
		linux kernel.Config
		cfg   dv.Config
		want  error
		says  string
	}{
		{"no CAP_NET_RAW", simnic.Config{}, kernel.Config{NoNetRaw: true}, dv.Config{},
			dv.ErrPermission, "CAP_NET_RAW"},
		{"memlock", simnic.Config{}, kernel.Config{Memlock: 1 << 20}, dv.Config{}, dv.ErrMemlock,
			"register memory region"},
		{"memlock of nothing", simnic.Config{}, kernel.Config{Memlock: -1}, dv.Config{},
			dv.ErrMemlock, "register memory region"},
		{"InfiniBand", simnic.Config{}, kernel.Config{InfiniBand: true}, dv.Config{},
			dv.ErrInfiniBand, "LINK_TYPE_P1=ETH"},
		{"other driver", simnic.Config{}, kernel.Config{DriverID: uverbs.DriverRXE},
			dv.Config{}, unix.EINVAL, "mlx5"},
		{"multicast cannot be shared", simnic.Config{Caps: noCopies}, kernel.Config{}, dv.Config{},
			dv.ErrNotSupported, "TakeMulticast"},
		{"no stripping", simnic.Config{Caps: noStrip}, kernel.Config{},
			dv.Config{Tuning: dv.Tuning{StripVLAN: true}},
			dv.ErrNotSupported, "StripVLAN"},
		{"ring beyond the device", simnic.Config{Caps: small}, kernel.Config{},
			dv.Config{NIC: dv.NIC{Rings: dv.Rings{RxQueueSize: 1024}}}, dv.ErrConfig,
			"at most 512"},
		{"own MAC", simnic.Config{}, kernel.Config{}, dv.Config{NIC: dv.NIC{MAC: netdevMAC}},
			dv.ErrMAC, "AllowNetdevMAC"},
		{"multicast MAC", simnic.Config{}, kernel.Config{},
			dv.Config{NIC: dv.NIC{MAC: net.HardwareAddr{1, 0, 0, 0, 0, 0}}}, dv.ErrMAC,
			"multicast"},
		{"MTU beyond the port", simnic.Config{}, kernel.Config{},
			dv.Config{NIC: dv.NIC{MTU: 9000}}, dv.ErrConfig, "MTU"},
		{"ring size", simnic.Config{}, kernel.Config{},
			dv.Config{NIC: dv.NIC{Rings: dv.Rings{TxQueueSize: 100}}},
			dv.ErrConfig, "power of two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := resources(t)
			s := newSim(t, c.nic, c.linux)
			_, err := dv.Open(t.Context(), s.config(c.cfg))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			t.Log(err)
			if text := err.Error(); !strings.Contains(text, c.says) ||
				strings.Contains(text, "\n") || !strings.Contains(text, "mlx5_sim0") {
				t.Errorf("%q does not say %q and the device in one line", text, c.says)
			}
			s.nic.Close()
			s.wire.wire.Close()
			s.netdev.wire.Close()
			sameResources(t, before)
		})
	}
}

func TestOpenCancelled(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	before := resources(t)
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := dv.Open(ctx, s.config(dv.Config{})); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	sameResources(t, before)
}

// Kernels old and new, devices with little and with much.
func TestOpenVariants(t *testing.T) {
	inline := simnic.DefaultCaps()
	inline.MinInline = simnic.InlineL2
	inlineL4 := simnic.DefaultCaps()
	inlineL4.MinInline = simnic.InlineL4
	noCopies := simnic.DefaultCaps()
	noCopies.MultiPathFlows = false
	for _, c := range []struct {
		name  string
		nic   simnic.Config
		linux kernel.Config
		cfg   dv.Config
	}{
		{"linux 5.4", simnic.Config{}, kernel.Config{Release: kernel.Linux54}, dv.Config{}},
		{"linux 7.2", simnic.Config{}, kernel.Config{Release: kernel.Linux72}, dv.Config{}},
		{"no write combining", simnic.Config{},
			kernel.Config{NoWriteCombining: true}, dv.Config{NIC: dv.NIC{TxQueues: 3}}},
		{"inline L2", simnic.Config{Caps: inline}, kernel.Config{}, dv.Config{}},
		{"inline L4", simnic.Config{Caps: inlineL4}, kernel.Config{}, dv.Config{}},
		{"many queues", simnic.Config{}, kernel.Config{}, dv.Config{NIC: dv.NIC{RxQueues: 16,
			TxQueues: 40}}},
		{"jumbo", simnic.Config{MTU: 9000}, kernel.Config{}, dv.Config{}},
		{"multicast taken", simnic.Config{Caps: noCopies}, kernel.Config{},
			dv.Config{TakeMulticast: true}},
		{"memlock enough", simnic.Config{}, kernel.Config{Memlock: 8 << 20}, dv.Config{}},
		{"own MAC allowed", simnic.Config{}, kernel.Config{},
			dv.Config{NIC: dv.NIC{MAC: netdevMAC, Steering: dv.Steering{AllowNetdevMAC: true}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, c.nic, c.linux)
			d := s.open(t, c.cfg)
			for i := range d.NumTx() {
				exchange(t, s, d, d.Tx(i))
			}
		})
	}
}

// exchange sends and receives frames of several sizes, and compares bytes.
func exchange(t *testing.T, s *sim, d *dv.Device, q *dv.TxQueue) {
	t.Helper()
	for _, n := range []int{60, 64, 98, 99, 128, 1000, d.MTU() + 14} {
		want := frame(peerMAC, d.MAC(), 0x88b5, n)
		if err := q.Post(&dv.TxPacket{Bufs: [][]byte{want[:7], want[7:]}}); err != nil {
			t.Fatal(err)
		}
		q.Flush()
		q.Reclaim()
		if got := s.wire.drain(); len(got) != 1 || string(got[0]) != string(want) {
			t.Fatalf("frame of %d bytes: the wire carried %d frames", n, len(got))
		}
		want = frame(d.MAC(), peerMAC, 0x88b5, n)
		s.wire.send(t, want)
		if got := poll(d.Rx(0)); len(got) != 1 || string(got[0].Data) != string(want) {
			t.Fatalf("frame of %d bytes: %d frames received", n, len(got))
		}
	}
	if q.Free() != 1024 && q.Free() != 512 && q.Free() != 256 {
		t.Errorf("%d blocks free after all is sent", q.Free())
	}
}
