package rdma

import (
	"bytes"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/racing"
)

// TestUnshared: only a view without other references counts as unshared, and the check has no side
// effect on others.
func TestUnshared(t *testing.T) {
	v := buffer.NewView(buffer.MaxChunkSize)
	defer v.Release()
	want := data(1000, 1)
	for range 3 {
		if !unshared(v) {
			t.Fatal("a view alone is taken for shared")
		}
		v.Reset()
		v.Write(want)
		one := v.Clone()
		another := one.Clone()
		for _, other := range []*buffer.View{one, another} {
			for range 2 {
				if unshared(v) {
					t.Error("a shared view is taken for the only one")
				}
			}
			if !bytes.Equal(other.AsSlice(), want) {
				t.Error("what others see has changed")
			}
			n := testing.AllocsPerRun(100, func() { unshared(v) })
			if n != 0 && !racing.Detector {
				t.Errorf("looking costs %v allocations", n)
			}
			other.Release()
		}
	}
}

// TestChunksAllInUse: a worker keeps a limited number, and works without when the stack holds all.
func TestChunksAllInUse(t *testing.T) {
	var c chunks
	defer c.release()
	var held []*buffer.View
	for i := range maxChunks {
		v := c.get()
		if v == nil {
			t.Fatalf("none after %d", i)
		}
		held = append(held, v.Clone())
	}
	if c.get() != nil {
		t.Fatal("one too many")
	}
	for _, i := range []int{7, maxChunks - 1, 0} { // any that is released is found, if not at once
		held[i].Release()
		var v *buffer.View
		for range maxChunks {
			if v = c.get(); v != nil {
				break
			}
		}
		if v == nil {
			t.Fatalf("chunk %d came back unnoticed", i)
		}
		held[i] = v.Clone()
	}
	for _, v := range held {
		v.Release()
	}
	for range 10 * maxChunks {
		if c.get() == nil {
			t.Fatal("none, although all came back")
		}
	}
}

// holdPackets checks packets against what they should hold, in an order of its own and some of them
// late.
func holdPackets(t *testing.T, packets <-chan heldPacket) {
	var held []heldPacket
	check := func(h heldPacket) {
		view := h.data.Flatten()
		if !bytes.Equal(view, h.want) {
			t.Errorf("a packet held holds other bytes: %s", firstDifference(view, h.want))
		}
		h.data.Release()
	}
	for h := range packets {
		held = append(held, h)
		for len(held) > 20 {
			i := int(h.want[0]) % len(held)
			check(held[i])
			held[i] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	for _, h := range held {
		check(h)
	}
}

type heldPacket struct {
	data buffer.Buffer
	want []byte
}

// holdPacket takes references as the stack does: a clone of the packet, of its bytes, or of its
// views.
func holdPacket(pkt *gstack.PacketBuffer, headers, way int, want []byte) heldPacket {
	h := heldPacket{want: want}
	switch way % 3 {
	case 0:
		clone := pkt.Clone()
		h.data = clone.ToBuffer()
		clone.DecRef()
	case 1:
		h.data = pkt.ToBuffer()
	case 2:
		list, _ := pkt.AsViewList()
		for v := list.Front(); v != nil; v = v.Next() {
			h.data.Append(v.Clone())
		}
	}
	h.data.TrimFront(int64(headers))
	return h
}

// TestHeldPayload: the bytes of a packet are unchanged for as long as a reference exists, also
// while other packets are released.
func TestHeldPayload(t *testing.T) {
	const size, rounds = 1448, 400
	rng := seed(t)
	w := testWorker()
	defer w.chunks.release()
	var holders sync.WaitGroup
	packets := make(chan heldPacket)
	for range 3 {
		holders.Go(func() { holdPackets(t, packets) })
	}
	for range rounds {
		var frames [][]byte
		var want []byte
		n, each := 20+rng.IntN(26), size // below and above 32 KiB
		if rng.IntN(3) == 0 {
			n, each = 1, n*size // as one frame
		}
		for n := range n {
			f := segment(0)
			f.Seq, f.Payload = uint32(n*each), data(each, rng.Uint64())
			want = append(want, f.Payload...)
			frames = append(frames, f.Bytes())
		}
		w.classifyAndMerge(w.load(dv.RxL3OK|dv.RxL4OK, frames...))
		pkt := w.buildPackets()[0]
		h := holdPacket(pkt, hdr.EthLen+hdr.IPv4Len+hdr.TCPLen, rng.IntN(3), want)
		pkt.DecRef()
		packets <- h
	}
	close(packets)
	holders.Wait()
}

// TestLargeFrame: a frame that the kernel has merged, of up to 64 KiB, is copied into memory that
// is used again once the stack has let go of it, and arrives whole.
func TestLargeFrame(t *testing.T) {
	w := testWorker()
	defer w.chunks.release()
	for i, size := range []int{chunkMin, chunkMin + 1, 40000, 65495, 65495} {
		f := segment(0)
		f.Seq, f.Payload = uint32(i), data(size, uint64(i))
		w.classifyAndMerge(w.load(dv.RxL3OK|dv.RxL4OK, f.Bytes()))
		pkt := w.buildPackets()[0]
		got := pkt.ToBuffer()
		if view := got.Flatten(); !bytes.Equal(view, f.Bytes()) {
			t.Errorf("%d bytes: %s", size, firstDifference(view, f.Bytes()))
		}
		got.Release()
		pkt.DecRef()
		want := 1
		if size <= chunkMin {
			want = 0
		}
		if c := &w.chunks; len(c.free)+int(c.head-c.tail) != want {
			t.Errorf("%d bytes: %d chunks, want %d", size, len(c.free)+int(c.head-c.tail), want)
		}
	}
}

// TestChunksRelease: the stack's references stay valid when the worker ends.
func TestChunksRelease(t *testing.T) {
	var c chunks
	want := data(1000, 1)
	v := c.get()
	v.Write(want)
	theirs := v.Clone()
	c.get()
	c.release()
	c.release()
	if c.head != c.tail || len(c.free) > 0 || !bytes.Equal(theirs.AsSlice(), want) {
		t.Error("something is left, or nothing of what was given")
	}
	theirs.Release()
}

// TestBufferCheck: with the gVisor of our go.mod everything works. Where package buffer does not
// say who shares memory, or panics, the endpoint goes without what relies on that.
func TestBufferCheck(t *testing.T) {
	if c := checkBuffers(unshared, marked); c.chunks != nil || c.marks != nil {
		t.Fatalf("with the version in go.mod: %v, %v", c.chunks, c.marks)
	}
	always := func(*buffer.View) bool { return true }
	never := func(*buffer.View) bool { return false }
	fails := func(*buffer.View) bool { panic("no such state") }
	writes := func(v *buffer.View) bool { // into what others see
		alone := unshared(v)
		if !alone {
			v.Reset()
			v.Grow(1)
			v.AsSlice()[0] = 99
		}
		return alone
	}
	for name, broken := range map[string]func(*buffer.View) bool{
		"always": always, "never": never, "panics": fails, "writes": writes,
	} {
		if c := checkBuffers(broken, marked); c.chunks == nil || c.marks == nil {
			t.Errorf("unshared that %s: %v, %v", name, c.chunks, c.marks)
		}
	}
	for name, broken := range map[string]func(v, mark *buffer.View) buffer.Buffer{
		"drops the mark": func(v, mark *buffer.View) buffer.Buffer {
			mark.Release()
			return buffer.MakeWithView(v)
		},
		"shows the mark": func(v, mark *buffer.View) buffer.Buffer {
			b := buffer.MakeWithView(v)
			b.Append(mark)
			return b
		},
		"panics": func(v, mark *buffer.View) buffer.Buffer { panic("no such view") },
	} {
		if c := checkBuffers(unshared, broken); c.chunks != nil || c.marks == nil {
			t.Errorf("marked that %s: %v, %v", name, c.chunks, c.marks)
		}
	}
	off := chunks{off: true}
	if off.get() != nil {
		t.Error("a chunk although it is off")
	}
	q := waiting{off: true}
	b := q.add(buffer.NewViewSize(4))
	if b.Release(); q.head != 0 || q.samples != nil {
		t.Error("a sample although it is off")
	}
}
