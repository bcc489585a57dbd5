package mmio

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// alloc returns memory that the test's end unmaps.
func alloc(t testing.TB, size int) *Region {
	t.Helper()
	r, err := Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestBytesAreBigEndian(t *testing.T) {
	r := alloc(t, 1)
	for _, tt := range []struct {
		name  string
		store func()
		want  []byte
	}{
		{"StoreBE32", func() { r.StoreBE32(8, 0x01020304) },
			[]byte{1, 2, 3, 4, 0xa5, 0xa5, 0xa5, 0xa5}},
		{"StoreBE64", func() { r.StoreBE64(8, 0x0102030405060708) },
			[]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{"Doorbell64", func() { r.Doorbell64(8, 0x1112131415161718) },
			[]byte{0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := r.Bytes()
			copy(b, bytes.Repeat([]byte{0xa5}, 24))
			tt.store()
			if !bytes.Equal(b[8:16], tt.want) {
				t.Errorf("wrote % x, want % x", b[8:16], tt.want)
			}
			if b[7] != 0xa5 || b[16] != 0xa5 {
				t.Error("wrote beyond the word")
			}
		})
	}
	copy(r.Bytes()[16:], []byte{0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8})
	if got := r.LoadBE32(20); got != 0xf5f6f7f8 {
		t.Errorf("LoadBE32 = %#x", got)
	}
	if got := r.LoadBE64(16); got != 0xf1f2f3f4f5f6f7f8 {
		t.Errorf("LoadBE64 = %#x", got)
	}
}

func TestOffsetsAreChecked(t *testing.T) {
	r := alloc(t, 1)
	size := r.Len()
	closed := alloc(t, 1)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		do      func()
		numbers []string // nil: no panic
	}{
		{"last word", func() { r.LoadBE32(size - 4) }, nil},
		{"last 8 bytes", func() { r.Doorbell64(size-8, 1) }, nil},
		{"empty slice at the end", func() { r.Slice(size, 0) }, nil},
		{"load beyond", func() { r.LoadBE32(size) }, []string{"4 bytes", fmt.Sprint(size)}},
		{"store half beyond", func() { r.StoreBE64(size-4, 1) },
			[]string{"8 bytes", fmt.Sprint(size - 4)}},
		{"negative", func() { r.LoadBE64(-8) }, []string{"-8"}},
		{"doorbell beyond", func() { r.Doorbell64(size, 1) }, []string{fmt.Sprint(size)}},
		{"misaligned word", func() { r.LoadBE32(2) }, []string{"offset 2", "not aligned"}},
		{"misaligned 8 bytes", func() { r.Doorbell64(4, 1) }, []string{"offset 4", "not aligned"}},
		{"slice beyond", func() { r.Slice(1, size) }, []string{fmt.Sprint(size), "offset 1"}},
		{"slice of negative length", func() { r.Slice(0, -1) }, []string{"-1 bytes"}},
		{"slice with overflow", func() { r.Slice(1<<62, 1<<62) }, []string{fmt.Sprint(1 << 62)}},
		{"sub beyond", func() { r.Sub(size-1, 2) }, []string{"2 bytes"}},
		{"sub's own end", func() { r.Sub(0, 8).LoadBE32(8) }, []string{"region of 8 bytes"}},
		{"view of negative size", func() { View(r.Addr(), -1) }, []string{"-1 bytes"}},
		{"after close", func() { closed.LoadBE32(0) }, []string{"region of 0 bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg := panicOf(tt.do)
			if (msg == "") != (tt.numbers == nil) {
				t.Fatalf("panic %q", msg)
			}
			for _, n := range tt.numbers {
				if !strings.Contains(msg, n) {
					t.Errorf("panic %q does not say %q", msg, n)
				}
			}
		})
	}
}

// panicOf is what f panicked with, "" if it did not.
func panicOf(f func()) (msg string) {
	defer func() {
		if p := recover(); p != nil {
			msg = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestBorrowedMemory(t *testing.T) {
	r := alloc(t, 1)
	view := View(r.Addr(), r.Len())
	sub := r.Sub(64, 8)
	sub.StoreBE64(0, 0x0102030405060708)
	if got := view.LoadBE64(64); got != 0x0102030405060708 {
		t.Errorf("the view reads %#x", got)
	}
	if got, want := sub.Addr(), r.Addr()+64; got != want {
		t.Errorf("sub is at %#x, want %#x", got, want)
	}
	for _, borrowed := range []*Region{view, sub, sub.Sub(0, 4)} {
		for range 2 {
			if err := borrowed.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if got := sub.LoadBE64(0); got != 0x0102030405060708 {
		t.Errorf("after closing what was borrowed: %#x", got)
	}
	if s := r.Slice(8, 4); len(s) != 4 || cap(s) != 4 {
		t.Errorf("slice of 4 has length %d, capacity %d", len(s), cap(s))
	}
}

// TestPublish has one goroutine write a payload and then publish its number,
// while another waits for the number and reads the payload: what StoreBE32 and
// LoadBE32 promise each other.
func TestPublish(t *testing.T) {
	const rounds, last = 200000, 1 << 31
	r := alloc(t, 1)
	payload, seen := r.Slice(256, 8), r.Sub(128, 4)
	var reader sync.WaitGroup
	reader.Go(func() {
		for n := uint32(0); n != last; {
			now := r.LoadBE32(0)
			if now == n {
				continue
			}
			n = now
			FromDevice()
			for _, b := range payload {
				if b != byte(n) {
					t.Errorf("round %d: payload % x", n, payload)
					break
				}
			}
			seen.StoreBE32(0, n)
		}
	})
	publish := func(n uint32) {
		for i := range payload {
			payload[i] = byte(n)
		}
		ToDevice()
		r.StoreBE32(0, n)
		for seen.LoadBE32(0) != n {
		}
	}
	n := uint32(1)
	// each takes long where others want the processors
	for end := time.Now().Add(5 * time.Second); n <= rounds && time.Now().Before(end); n++ {
		publish(n)
	}
	publish(last)
	reader.Wait()
	t.Logf("%d rounds", n)
}

// TestWordsDoNotTear has several goroutines store values whose halves are equal
// and several load them: no load may see halves of two stores.
func TestWordsDoNotTear(t *testing.T) {
	const rounds = 50000
	r := alloc(t, 1)
	halves := func(n uint64) uint64 { return n<<32 | n }
	var wg sync.WaitGroup
	for id := range uint64(2) {
		wg.Go(func() {
			for i := range uint64(rounds) {
				r.StoreBE64(0, halves(i<<1|id))
				r.Doorbell64(64, halves(i<<1|id))
				FlushWC()
			}
		})
		wg.Go(func() {
			for range rounds {
				for _, off := range []int{0, 64} {
					if v := r.LoadBE64(off); v>>32 != v&0xffffffff {
						t.Errorf("torn at %d: %#x", off, v)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkAccess(b *testing.B) {
	r := alloc(b, 1)
	var sink uint32
	for _, bm := range []struct {
		name string
		do   func()
	}{
		{"LoadBE32", func() { sink += r.LoadBE32(0) }},
		{"StoreBE32", func() { r.StoreBE32(0, 1) }},
		{"Doorbell64", func() { r.Doorbell64(0, 1) }},
		{"ToDevice", ToDevice},
		{"FromDevice", FromDevice},
		{"FlushWC", FlushWC},
	} {
		b.Run(bm.name, func(b *testing.B) {
			for b.Loop() {
				bm.do()
			}
		})
	}
}

func TestAccessDoesNotAllocate(t *testing.T) {
	r := alloc(t, 1)
	if n := testing.AllocsPerRun(100, func() {
		r.StoreBE32(0, r.LoadBE32(4))
		r.StoreBE64(8, r.LoadBE64(16))
		r.Doorbell64(24, 1)
		r.Slice(0, 8)[0] = 1
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Lines arrive whole and in place, and nothing beside them changes; what is not
// a line is refused before a byte is written.
func TestCopyLines(t *testing.T) {
	r := alloc(t, 1)
	src := make([]byte, 256)
	for i := range src {
		src[i] = byte(i ^ 0x3c)
	}
	for n := 64; n <= 256; n += 64 {
		b := r.Bytes()
		copy(b, bytes.Repeat([]byte{0xa5}, 1024))
		r.CopyLines(256, src[:n])
		if !bytes.Equal(b[256:256+n], src[:n]) || bytes.Count(b[:256], []byte{0xa5}) != 256 ||
			bytes.Count(b[256+n:1024], []byte{0xa5}) != 768-n {
			t.Errorf("%d bytes: % x", n, b[192:256+n+64])
		}
	}
	for name, bad := range map[string]func(){
		"nothing":       func() { r.CopyLines(0, nil) },
		"half a line":   func() { r.CopyLines(0, src[:32]) },
		"line and more": func() { r.CopyLines(0, src[:65]) },
		"misaligned":    func() { r.CopyLines(8, src[:64]) },
		"outside":       func() { r.CopyLines(r.Len()-64, src[:128]) },
		"negative":      func() { r.CopyLines(-64, src[:64]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			bad()
		}()
	}
	if n := testing.AllocsPerRun(100, func() { r.CopyLines(0, src) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
