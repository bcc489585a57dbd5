package dv_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// lent returns memory for WithSendMemory, mapped as long as the test runs.
func lent(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// lending returns a Config that lends b.
func lending(b []byte) dv.Config {
	return dv.Config{}.WithSendMemory(func(n int) ([]byte, error) {
		return b[:min(n, len(b))], nil
	})
}

// holder counts its references.
type holder struct{ refs atomic.Int32 }

func (h *holder) DecRef() { h.refs.Add(-1) }

// lendingPacket returns a packet of 30,000 bytes of payload at several places of b, and all of its
// bytes.
func lendingPacket(b []byte, h dv.Holder) (p *dv.TxPacket, all []byte, header int) {
	const payload = 30000
	f := flows(1)["TCP over IPv4"]
	all = packet(f.Src, f.Dst, 6, payload)
	copy(all, peerMAC)
	header = len(all) - payload
	all[header-20+13] |= 0x09 // PSH, FIN
	p = &dv.TxPacket{Bufs: [][]byte{bytes.Clone(all[:header])}, HdrLen: header, MSS: 1440,
		Holder: h}
	for at, rest := 100, all[header:]; len(rest) > 0; at += 20000 {
		n := copy(b[at:at+9000], rest)
		p.Bufs, rest = append(p.Bufs, b[at:at+n]), rest[n:]
	}
	return p, all, header
}

// TestSendMemory: payload to be segmented goes out from memory of the caller's, which is the NIC's
// until it is sent, and is copied where that cannot be.
func TestSendMemory(t *testing.T) {
	b := lent(t, 1<<20)
	s := newSim(t, simnic.Config{}, kernel.Config{})
	d := s.open(t, lending(b))
	if n, err := d.SendMemory(); n != 1<<20 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	q, h := d.Tx(0), new(holder)
	long := append(make([][]byte, 0, 20), nil)
	for i := range 17 {
		long = append(long, b[2000*i:2000*i+1500])
	}
	for _, tt := range []struct {
		name   string
		change func(p *dv.TxPacket)
		held   bool
	}{
		{"in four pieces", func(*dv.TxPacket) {}, true},
		{"with a tag", func(p *dv.TxPacket) { p.Flags, p.VLAN = dv.TxVLAN, 0x0123 }, true},
		{"headers and payload in one piece", func(p *dv.TxPacket) {
			p.Bufs = [][]byte{b[:copy(b, bytes.Join(p.Bufs, nil))]}
		}, true},
		{"16 pieces", func(p *dv.TxPacket) { p.Bufs = append(p.Bufs[:1], long[1:17]...) }, true},
		{"17 pieces", func(p *dv.TxPacket) { p.Bufs = append(p.Bufs[:1], long[1:18]...) }, false},
		{"nobody holds it", func(p *dv.TxPacket) { p.Holder = nil }, false},
		{"one piece elsewhere", func(p *dv.TxPacket) { p.Bufs[2] = bytes.Clone(p.Bufs[2]) }, false},
		{"a piece over the end", func(p *dv.TxPacket) {
			p.Bufs[1] = b[len(b)-10 : len(b) : len(b)]
			p.Bufs[2] = bytes.Clone(b[:10])
		}, false},
		{"one segment", func(p *dv.TxPacket) { p.Bufs = [][]byte{p.Bufs[0], b[100:1000]} }, false},
	} {
		p, _, header := lendingPacket(b, h)
		tt.change(p)
		all := bytes.Join(p.Bufs, nil)
		before := q.Stats().InPlace
		if err := q.Post(p); err != nil || p.Held != tt.held {
			t.Errorf("%s: %v, held: %t", tt.name, err, p.Held)
			continue
		}
		if p.Held {
			h.refs.Add(1)
		}
		q.Flush()
		if len(all) > 1514 {
			checkSegments(t, s.wire.drain(), all, header, 1440, p.Flags)
		}
		s.wire.drain()
		q.Reclaim()
		st := q.Stats()
		if want := map[bool]uint64{true: 1}[tt.held]; h.refs.Load() != 0 || st.Held != 0 ||
			st.InPlace-before != want {
			t.Errorf("%s: %d references left, %d held, %d in place", tt.name, h.refs.Load(),
				st.Held, st.InPlace-before)
		}
	}
}

// TestSendMemoryReleased: every reference comes back once, when the NIC has read the bytes and not
// before, also when it never will.
func TestSendMemoryReleased(t *testing.T) {
	b := lent(t, 1<<20)
	for _, tt := range []struct {
		name string
		end  func(t *testing.T, s *sim, d *dv.Device)
	}{
		{"sent", func(_ *testing.T, _ *sim, d *dv.Device) {
			d.Tx(0).Flush()
			d.Tx(0).Reclaim()
		}},
		{"queue in error", func(t *testing.T, s *sim, d *dv.Device) {
			_, qp := d.TxHandles(0)
			d.Tell(uverbs.AsyncEvent{Type: uverbs.EventQPFatal, Element: qp})
			d.Tx(0).Reclaim()
			if n := d.Tx(0).Stats().Resets; n != 1 {
				t.Errorf("%d resets", n)
			}
		}},
		{"device closed", func(t *testing.T, _ *sim, d *dv.Device) {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}},
		{"device removed", func(_ *testing.T, s *sim, d *dv.Device) {
			d.Tell(uverbs.AsyncEvent{Type: uverbs.EventDeviceFatal})
			_ = d.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t, simnic.Config{}, kernel.Config{})
			d := s.open(t, lending(b))
			h := new(holder)
			q := d.Tx(0)
			for range 20 {
				p, _, _ := lendingPacket(b, h)
				if err := q.Post(p); err != nil || !p.Held {
					t.Fatalf("%v, held: %t", err, p.Held)
				}
				h.refs.Add(1)
			}
			if q.Reap(); h.refs.Load() != 20 {
				t.Errorf("%d references before the doorbell, want 20", h.refs.Load())
			}
			tt.end(t, s, d)
			if st := q.Stats(); h.refs.Load() != 0 || st.Held != 0 || st.InPlace != 20 {
				t.Errorf("%d references left, %d held of %d", h.refs.Load(), st.Held, st.InPlace)
			}
			if d.Close(); h.refs.Load() != 0 {
				t.Errorf("%d references after Close", h.refs.Load())
			}
		})
	}
}

// regMRs notes the access rights that memory is registered with.
type regMRs struct {
	uverbs.Kernel
	mu     sync.Mutex
	access []uint32
}

func (r *regMRs) Ioctl(buf []byte) error {
	const header, attribute = 24, 16 // struct ib_uverbs_ioctl_hdr, ib_uverbs_attr
	ne := binary.NativeEndian
	command, in := uint64(0), uint64(0)
	for i := range int(ne.Uint16(buf[6:])) {
		a := buf[header+attribute*i:]
		switch ne.Uint16(a) {
		case 0: // UVERBS_ATTR_CORE_IN
			in = ne.Uint64(a[8:])
		case 2: // UVERBS_ATTR_WRITE_CMD
			command = ne.Uint64(a[8:])
		}
	}
	if command == 9 { // IB_USER_VERBS_CMD_REG_MR: struct ib_uverbs_reg_mr
		var req [48]byte
		if err := mmio.ReadUser(in, req[:]); err != nil {
			return err
		}
		r.mu.Lock()
		r.access = append(r.access, ne.Uint32(req[36:]))
		r.mu.Unlock()
	}
	return r.Kernel.Ioctl(buf)
}

// TestSendMemoryAccess: the NIC may read the memory and not write to it.
func TestSendMemoryAccess(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	r := new(regMRs)
	cfg := lending(lent(t, 1<<20))
	cfg.Interpose = func(k uverbs.Kernel) uverbs.Kernel {
		r.Kernel = k
		return r
	}
	s.open(t, cfg)
	if len(r.access) != 2 || r.access[0]&uverbs.AccessLocalWrite == 0 || r.access[1] != 0 {
		t.Errorf("memory registered with rights %#x", r.access)
	}
}

// TestSendMemoryRefused: without the memory packets are copied, and one line of the log says why.
func TestSendMemoryRefused(t *testing.T) {
	refusal := errors.New("no such buffers")
	for _, tt := range []struct {
		name string
		get  func(int) ([]byte, error)
		want string
	}{
		{"an error", func(int) ([]byte, error) { return nil, refusal }, "no such buffers"},
		{"nothing", func(int) ([]byte, error) { return nil, nil }, "got 0 bytes"},
		{"too much", func(n int) ([]byte, error) { return lent(t, n+4096), nil },
			"WithSendMemory: got"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			s := newSim(t, simnic.Config{}, kernel.Config{})
			d := s.open(t, dv.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}.
				WithSendMemory(tt.get))
			checkCopies(t, s, d, tt.want)
			if n := strings.Count(log.String(), "packets are copied to be sent"); n != 1 {
				t.Errorf("%d lines of the log:\n%s", n, log.String())
			}
		})
	}
}

// checkCopies checks that a device sends by copying, and says why.
func checkCopies(t *testing.T, s *sim, d *dv.Device, want string) {
	t.Helper()
	if n, err := d.SendMemory(); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%d bytes, %v, want %q", n, err, want)
	}
	p, all, header := lendingPacket(lent(t, 1<<20), new(holder))
	if err := d.Tx(0).Post(p); err != nil || p.Held {
		t.Fatalf("%v, held: %t", err, p.Held)
	}
	d.Tx(0).Flush()
	checkSegments(t, s.wire.drain(), all, header, 1440, 0)
	for _, f := range d.Features() {
		if f.Name == "send without a copy" && (f.On || !strings.Contains(f.Why, want)) {
			t.Errorf("%+v, want %q", f, want)
		}
	}
}

// TestSendMemoryMemlock: where the kernel locks no more for it, packets are copied.
func TestSendMemoryMemlock(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{Memlock: 8 << 20})
	checkCopies(t, s, s.open(t, lending(lent(t, 16<<20))), "register memory region")
}
