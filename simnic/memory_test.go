package simnic

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// scattered is n pages of size bytes whose order in memory is not their order in
// the list.
func scattered(t *testing.T, n, size int) []*mmio.Region {
	all := mem(t, n*size)
	pages := make([]*mmio.Region, n)
	for i := range pages {
		pages[i] = all.Sub((i*7+3)%n*size, size)
	}
	return pages
}

func TestPagedMemory(t *testing.T) {
	m, err := NewPagedMemory(scattered(t, 8, 4096), 1000, 20000)
	if err != nil {
		t.Fatal(err)
	}
	rnd := testRand(t)
	shadow := make([]byte, 20000)
	m.Gather(0, shadow)
	for range 500 {
		off, n := rnd.IntN(20000), rnd.IntN(9000)
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(rnd.Uint32())
		}
		fits := off+n <= 20000
		if got := m.Scatter(uint64(off), src); got != fits {
			t.Fatalf("scatter %d bytes at %d: %v", n, off, got)
		}
		copy(shadow[off:], src)
		got := make([]byte, 20000)
		if !m.Gather(0, got) || !bytes.Equal(got, shadow) {
			t.Fatalf("after %d bytes at %d memory differs", n, off)
		}
	}
	if m.Gather(19999, make([]byte, 2)) || m.Slice(20000, 1) != nil ||
		len(m.Slice(0, 9999)) != 3096 {
		t.Error("bounds")
	}
	m.StoreBE32(3096, 0x01020304) // first word of the second page
	var b [4]byte
	if m.Gather(3096, b[:]); b != [4]byte{1, 2, 3, 4} || m.LoadBE32(3096) != 0x01020304 {
		t.Errorf("word is % x", b)
	}
}

func TestPagedMemoryRefusals(t *testing.T) {
	pages := scattered(t, 2, 4096)
	for _, tc := range []struct {
		name           string
		pages          []*mmio.Region
		offset, length int
	}{
		{"no pages", nil, 0, 0},
		{"negative offset", pages, -1, 10},
		{"negative length", pages, 0, -1},
		{"too long", pages, 1, 8192},
		{"offset past the first page", pages, 4096, 10},
		{"page of another size", []*mmio.Region{pages[0], pages[1].Sub(0, 2048)}, 0, 10},
		{"size no power of two", []*mmio.Region{pages[0].Sub(0, 3000)}, 0, 10},
	} {
		if _, err := NewPagedMemory(tc.pages, tc.offset,
			tc.length); StatusOf(err) != StatusBadParam || err == nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestBankedMemory(t *testing.T) {
	a, b := mem(t, 4096), mem(t, 8192)
	m, err := NewBankedMemory([]Bank{{1 << 32, b}, {0, a}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Len() != 1<<32+8192 {
		t.Errorf("length %#x", m.Len())
	}
	if !m.Scatter(1<<32+100, []byte{1, 2, 3}) || b.Bytes()[100] != 1 {
		t.Error("write to the upper bank")
	}
	if m.Scatter(4095, []byte{1, 2}) || m.Slice(4096, 1) != nil || m.Slice(1<<33, 1) != nil {
		t.Error("a hole was written")
	}
	if _, err := NewBankedMemory([]Bank{{0, a}, {4095, b}}); StatusOf(err) != StatusBadParam {
		t.Errorf("overlap: %v", err)
	}
}

// TestGuestMemory is a NIC whose rings and buffers are pages of a guest, with
// keys over a page list and over physical memory.
func TestGuestMemory(t *testing.T) {
	n := newNIC(t, Config{})
	w := &recorder{}
	if err := n.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	cq := newCQ(t, n, 4, nil)
	pages := scattered(t, 4, 4096)
	paged, err := NewPagedMemory(pages, 0, 4*4096)
	if err != nil {
		t.Fatal(err)
	}
	user, err := n.CreateMKey(MKeyAttr{PD: 1, Start: 0x7000_0000_0000, Len: 4 * 4096,
		Mem: paged, LocalWrite: true})
	if err != nil {
		t.Fatal(err)
	}
	banks, err := NewBankedMemory([]Bank{{0x1000, pages[0]}, {0x100000, pages[1]}})
	if err != nil {
		t.Fatal(err)
	}
	variant := uint8(0x42)
	physical, err := n.CreateMKey(MKeyAttr{PD: 1, Mem: banks, Variant: &variant})
	if err != nil {
		t.Fatal(err)
	}
	if physical.Key()&0xff != 0x42 {
		t.Errorf("key %#x", physical.Key())
	}
	f := flowFrame(1, 1000)
	paged.Scatter(4096-100, f)
	sq := newSQ(t, n, cq, 4, nil)
	sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0),
		seg(1000, user.Key(), 0x7000_0000_0000+4096-100)))
	pages[0].Bytes()[0x10] = 2
	sq.post(concat(ctrl(0x0a, 4), ethSeg(0, 0, 0), seg(100, physical.Key(), 0x1010),
		seg(100, physical.Key(), 0x100000)))
	sq.doorbell()
	got := w.drain()
	if len(got) != 2 {
		t.Fatalf("%d frames, completion %x", len(got), cq.poll())
	}
	expect(t, "across pages", got[0].Data, f)
	expect(t, "physical", got[1].Data,
		concat(pages[0].Bytes()[0x10:0x10+100], pages[1].Bytes()[:100]))
	sq.post(concat(ctrl(0x0a, 3), ethSeg(0, 0, 0), seg(100, physical.Key(), 0x1fff)))
	sq.doorbell()
	cq.mustPoll(t)
	cq.mustPoll(t)
	if e := cq.mustPoll(t); e[0x37] != 4 {
		t.Errorf("read from a hole: %x", e)
	}
}
