package uverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// descriptors counts the open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestOpenConversation(t *testing.T) {
	k, c := openFake(t, Options{})
	if want := []string{"native GET_CONTEXT", "ASYNC_EVENT_ALLOC",
		"QUERY_DEVICE"}; !slices.Equal(k.names(), want) {
		t.Errorf("commands %v, want %v", k.names(), want)
	}
	var want []mmapCall
	for i := range 8 {
		want = append(want, mmapCall{int64(0x300+i) * fakePages, fakePages, true})
	}
	if !slices.Equal(k.mmaps, want) {
		t.Errorf("mapped %v, want %v", k.mmaps, want)
	}
	if len(c.uars) != 8 {
		t.Errorf("%d doorbell pages", len(c.uars))
	}
}

func TestOpenOldKernel(t *testing.T) {
	k := newFake(t)
	k.refuseWith("native GET_CONTEXT", unix.EPROTONOSUPPORT)
	c, err := Open(k, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if want := []string{"native GET_CONTEXT", "GET_CONTEXT",
		"QUERY_DEVICE"}; !slices.Equal(k.names(), want) {
		t.Errorf("commands %v, want %v", k.names(), want)
	}
	call := k.last("GET_CONTEXT")
	same(t, "driver part", call.in[0x1000], k.last("native GET_CONTEXT").in[0x1000])
	if caps := c.Caps(); caps.CompVectors != 8 || caps.CQEVersion != 1 || caps.OptionalMRAccess {
		t.Errorf("capabilities %+v", caps)
	}
	if _, err := unix.Write(k.peers[0], asyncRecord(9, 1)); err != nil {
		t.Fatal(err)
	}
	if e, err := c.AsyncEvents().ReadEvent(); err != nil || e.Type != EventPortActive {
		t.Errorf("event %v, %v", e, err)
	}
}

func TestOpenRetriesOnce(t *testing.T) {
	k := newFake(t)
	tries := 0
	k.refuse = func(c *call) error {
		if tries++; tries == 1 {
			return unix.EAGAIN
		}
		return nil
	}
	c, err := Open(k, Options{retryDelay: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()

	k = newFake(t)
	k.refuseWith("native GET_CONTEXT", unix.EAGAIN)
	if _, err := Open(k, Options{retryDelay: time.Nanosecond}); !errors.Is(err, unix.EAGAIN) ||
		len(k.calls) != 2 {
		t.Errorf("%v after %d tries", err, len(k.calls))
	}
}

// TestOpenFailures: whichever step fails, nothing is left open and the node is closed once.
func TestOpenFailures(t *testing.T) {
	for _, step := range []string{"native GET_CONTEXT",
		"ASYNC_EVENT_ALLOC", "QUERY_DEVICE", "mmap"} {
		t.Run(step, func(t *testing.T) {
			k := newFake(t)
			k.refuseWith(step, unix.ENOMEM)
			if step == "mmap" {
				k.mmapErr = unix.ENOMEM
			}
			fds := descriptors(t)
			c, err := Open(k, Options{})
			var e *Error
			if c != nil || !errors.Is(err, unix.ENOMEM) || !errors.As(err, &e) {
				t.Errorf("%v, %v", c, err)
			}
			for _, fd := range k.peers {
				unix.Close(fd)
			}
			k.peers = nil
			if d := descriptors(t) - fds; d != 0 {
				t.Errorf("%d descriptors leaked", d)
			}
			if k.closed != 1 {
				t.Errorf("node closed %d times", k.closed)
			}
		})
	}
}

// TestOpenClosesDescriptors counts them over many opens.
func TestOpenClosesDescriptors(t *testing.T) {
	before := descriptors(t)
	for range 5 {
		f := newFixture(t)
		f.c.Close()
		for _, fd := range f.k.peers {
			unix.Close(fd)
		}
		f.k.peers = nil
	}
	if d := descriptors(t) - before; d != 0 {
		t.Errorf("%d descriptors leaked", d)
	}
}

// TestCloseUnmaps: no page of registers, which would keep the node alive, and no scratch memory is
// left.
func TestCloseUnmaps(t *testing.T) {
	k := newFake(t)
	k.mem = []*mmio.Region{}
	c, err := Open(k, Options{pageSize: fakePages})
	if err != nil {
		t.Fatal(err)
	}
	scratch := c.scratch
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(k.mem) != 8 {
		t.Errorf("%d pages were mapped", len(k.mem))
	}
	for i, m := range append(k.mem, scratch) {
		if m.Len() != 0 {
			t.Errorf("region %d is still mapped", i)
		}
	}
}

// TestOpenBadAsyncDescriptor: the kernel returns an invalid descriptor.
func TestOpenBadAsyncDescriptor(t *testing.T) {
	k := newFake(t)
	k.refuseWith("native GET_CONTEXT", unix.EPROTONOSUPPORT)
	k.patch = func(c *call) {
		if c.name == "GET_CONTEXT" {
			p32(c.out[1], 1<<20)
		}
	}
	if _, err := Open(k, Options{}); !errors.Is(err, unix.EBADF) {
		t.Errorf("%v", err)
	}
}

func TestOpenLargePages(t *testing.T) {
	k := newFake(t)
	k.patch = func(c *call) {
		if c.name == "native GET_CONTEXT" {
			p32(c.out[0x1001][60:], 16)
		}
	}
	c, err := Open(k, Options{pageSize: 65536, TxQPs: 40})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if want := []mmapCall{{0x3000000, 65536, true},
		{0x3010000, 65536, true}}; !slices.Equal(k.mmaps, want) {
		t.Errorf("mapped %v, want %v", k.mmaps, want)
	}
}

func TestQueryPort(t *testing.T) {
	k, c := openFake(t, Options{})
	p, err := c.QueryPort(1)
	if err != nil || !p.Active() || !p.Ethernet() || p.SpeedMbps != 100000 || p.PhysState != 5 {
		t.Errorf("%+v, %v", p, err)
	}
	same(t, "core", k.last("QUERY_PORT").in[0],
		[]byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
}

// TestRelaxedOrdering: the bit is sent only if it cannot fail, and a refusal is retried without it.
func TestRelaxedOrdering(t *testing.T) {
	f := newFixture(t)
	access := func() uint32 { return u32(f.k.last("REG_MR").in[0][36:]) }
	mem := region(t, 4096)
	must[*MR](t)(f.pd.RegMR(mem, AccessLocalWrite|AccessRelaxedOrdering))
	if access() != 0x100001 {
		t.Errorf("access %#x", access())
	}
	first := true
	f.k.refuse = func(c *call) error {
		if first {
			first = false
			return unix.EINVAL
		}
		return nil
	}
	must[*MR](t)(f.pd.RegMR(mem, AccessLocalWrite|AccessRelaxedOrdering))
	if access() != 1 || first {
		t.Errorf("access after a refusal %#x", access())
	}
	f.c.caps.OptionalMRAccess = false
	must[*MR](t)(f.pd.RegMR(mem, AccessLocalWrite|AccessRelaxedOrdering))
	if access() != 1 {
		t.Errorf("access on a kernel without optional bits %#x", access())
	}
}

// TestMemlockFigures: the error of a registration has the bytes needed, the bytes pinned before and
// the limit.
func TestMemlockFigures(t *testing.T) {
	k := newFake(t)
	c, err := Open(k, Options{Environment: func() (Environment,
		error) {
		return Environment{Memlock: 1 << 20}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pd := must[*PD](t)(c.AllocPD())
	must[*MR](t)(pd.RegMR(region(t, 3<<18), AccessLocalWrite))
	k.refuseWith("REG_MR", unix.ENOMEM)
	_, err = pd.RegMR(region(t, 1<<19), AccessLocalWrite)
	for _, figure := range []string{"512 KiB", "768 KiB already", "limit is 1 MiB"} {
		if err == nil || !strings.Contains(err.Error(), figure) {
			t.Errorf("%v lacks %q", err, figure)
		}
	}
}

func TestPageStoreIsBigEndian(t *testing.T) {
	mem := region(t, 4096)
	p := &Page{Mem: mem}
	p.Store64(0x20, 0x10000123_00000086)
	same(t, "arm cell", mem.Slice(0x20, 8), vec(t, "10000123 00000086"))
	if err := errors.Join(p.Close(), p.Close(), (*Page)(nil).Close()); err != nil {
		t.Error(err)
	}
}

// A copy writes unchanged bytes: to memory, to a model with TrapCopy, and to one with only Trap.
func TestPageCopy(t *testing.T) {
	mem, b := region(t, 4096), make([]byte, 128)
	for i := range b {
		b[i] = byte(i)
	}
	(&Page{Mem: mem, WriteCombining: true}).Copy(0x800, b)
	same(t, "register", mem.Slice(0x800, 128), b)
	var got []byte
	(&Page{TrapCopy: func(off int, b []byte) { got = append(got, b...) }}).Copy(0x800, b)
	same(t, "copy", got, b)
	got = nil
	(&Page{Trap: func(off int, v uint64) {
		if off != 0x800+len(got) {
			t.Errorf("store at %#x", off)
		}
		got = binary.BigEndian.AppendUint64(got, v)
	}}).Copy(0x800, b)
	same(t, "stores", got, b)
}

// TestWriteCombining: all doorbell pages are write-combining if that is requested and supported;
// only then do queue pairs with their own register accept copies.
func TestWriteCombining(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options Options
		refuse  error
		regSize uint32
		on      bool
		mmaps   []int64 // the first two
	}{
		{"by default", Options{}, nil, 512, false, []int64{0x300000, 0x301000}},
		{"asked for", Options{WriteCombining: true}, nil, 512, true, []int64{0x200000, 0x201000}},
		{"refused by the machine", Options{WriteCombining: true}, unix.EPERM, 512, false,
			[]int64{0x200000, 0x300000}},
		{"no use for it", Options{WriteCombining: true}, nil, 0, false,
			[]int64{0x300000, 0x301000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newFake(t)
			k.wcErr = tc.refuse
			if tc.regSize == 0 {
				k.patch = func(c *call) {
					if out, ok := c.out[AttrUHWOut]; ok && c.name == "native GET_CONTEXT" {
						clear(out[4:8])
					}
				}
			}
			tc.options.pageSize = fakePages
			c, err := Open(k, tc.options)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.WriteCombining() != tc.on || k.mmaps[0].offset != tc.mmaps[0] ||
				k.mmaps[1].offset != tc.mmaps[1] {
				t.Errorf("write-combining %v, mapped %+v", c.WriteCombining(), k.mmaps[:2])
			}
			for i, p := range c.uars {
				if p.WriteCombining != tc.on {
					t.Errorf("page %d: %v", i, p.WriteCombining)
				}
			}
			for index, own := range map[uint32]bool{0: false, 1: true, 5: true} {
				qp := &QP{object: object{c: c}}
				if err := qp.bindDoorbell(index); err != nil ||
					(qp.BlueFlameSize == 256) != (own && tc.on) {
					t.Errorf("register %d takes copies of %d bytes, %v",
						index, qp.BlueFlameSize, err)
				}
			}
		})
	}
	k := newFake(t)
	k.wcErr = unix.ENOMEM
	if _, err := Open(k, Options{WriteCombining: true}); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("another error: %v", err)
	}
}
