package mmio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// memfd returns a file of size bytes in memory.
func memfd(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("mmio", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// openers are the ways to get memory of one's own, each with the alignment and
// least size it promises for a request of openSize bytes.
const openSize = 3<<20 + 1

func openers(t *testing.T) map[string]struct {
	open        func() (*Region, error)
	align, size int
} {
	page := os.Getpagesize()
	return map[string]struct {
		open        func() (*Region, error)
		align, size int
	}{
		"Alloc":     {func() (*Region, error) { return Alloc(openSize) }, page, 3<<20 + page},
		"AllocHuge": {func() (*Region, error) { return AllocHuge(openSize) }, 2 << 20, 4 << 20},
		"MapShared": {func() (*Region, error) {
			return MapShared(int(memfd(t, openSize).Fd()), 0, openSize, true)
		}, page, openSize},
	}
}

func TestOpenUseCloseTwice(t *testing.T) {
	for name, tt := range openers(t) {
		t.Run(name, func(t *testing.T) {
			r, err := tt.open()
			if err != nil {
				t.Fatal(err)
			}
			addr := r.Addr()
			if r.Len() != tt.size || addr == 0 || addr%uint64(tt.align) != 0 {
				t.Errorf("%d bytes at %#x, want %d, a multiple of %#x",
					r.Len(), addr, tt.size, tt.align)
			}
			if i := slices.IndexFunc(r.Bytes(), func(b byte) bool { return b != 0 }); i >= 0 {
				t.Errorf("byte %d is not zero", i)
			}
			r.Bytes()[r.Len()-1] = 1
			if !Mapped(addr, openSize) {
				t.Error("not mapped while open")
			}
			for range 2 {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
			unmapped(t, addr, tt.open)
			if r.Addr() != 0 || r.Len() != 0 || r.Bytes() != nil {
				t.Errorf("closed region has %d bytes at %#x", r.Len(), r.Addr())
			}
		})
	}
}

// unmapped wants a closed region's address to be free. Other threads of the process, the race
// detector's above all, may map memory there at once; so what is mapped is an error only if it is
// again after each of more regions, closed likewise.
func unmapped(t *testing.T, addr uint64, open func() (*Region, error)) {
	t.Helper()
	for range 20 {
		if !Mapped(addr, openSize) {
			return
		}
		r, err := open()
		if err != nil {
			t.Fatal(err)
		}
		addr = r.Addr()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("mapped after Close, 20 times")
}

func TestToHugePage(t *testing.T) {
	for addr, want := range map[uint64]int{0: 0, 4 << 20: 0,
		4<<20 + 4096: 2<<20 - 4096, 6<<20 - 4096: 4096} {
		if got := toHugePage(addr); got != want {
			t.Errorf("%#x: %#x, want %#x", addr, got, want)
		}
	}
}

func TestCloseConcurrently(t *testing.T) {
	for name, tt := range openers(t) {
		t.Run(name, func(t *testing.T) {
			r, err := tt.open()
			if err != nil {
				t.Fatal(err)
			}
			addr := r.Addr()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			unmapped(t, addr, tt.open)
		})
	}
}

func TestRefusals(t *testing.T) {
	fd := int(memfd(t, 1<<20).Fd())
	for _, tt := range []struct {
		name string
		open func() (*Region, error)
		want unix.Errno
		says string
	}{
		{"no bytes", func() (*Region, error) { return Alloc(0) }, unix.EINVAL, "map 0 bytes"},
		{"negative", func() (*Region, error) { return Alloc(-1) }, unix.EINVAL, "map -1 bytes"},
		{"huge, no bytes", func() (*Region, error) { return AllocHuge(0) },
			unix.EINVAL, "map 0 bytes"},
		{"too much", func() (*Region, error) { return Alloc(1 << 50) }, unix.ENOMEM,
			"map 1125899906842624 bytes"},
		{"huge, too much", func() (*Region, error) { return AllocHuge(1 << 50) },
			unix.ENOMEM, "map 1125899906842624"},
		{"wraps", func() (*Region, error) { return Alloc(math.MaxInt) }, unix.EINVAL, "map"},
		{"no file", func() (*Region, error) { return MapShared(-1, 0, 4096, true) },
			unix.EBADF, "descriptor -1"},
		{"file, no bytes", func() (*Region, error) { return MapShared(fd, 0, 0, true) },
			unix.EINVAL, "map 0 bytes"},
		{"offset", func() (*Region, error) { return MapShared(fd, 8, 4096, true) },
			unix.EINVAL, "offset 0x8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := tt.open()
			if r != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, %v: want %v that says %q", r, err, tt.want, tt.says)
			}
		})
	}
}

func TestMapSharedSharesTheFile(t *testing.T) {
	page := os.Getpagesize()
	f := memfd(t, int64(2*page))
	w, err := MapShared(int(f.Fd()), int64(page), page, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := MapShared(int(f.Fd()), 0, 2*page, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := f.Close(); err != nil { // mappings outlive the descriptor
		t.Fatal(err)
	}
	w.StoreBE32(8, 0xcafef00d)
	if got := r.LoadBE32(page + 8); got != 0xcafef00d {
		t.Errorf("the other mapping reads %#x", got)
	}
	if err := WriteUser(r.Addr(), []byte{1}); !errors.Is(err, unix.EFAULT) {
		t.Errorf("write to the read-only mapping: %v", err)
	}
}

// TestMemoryIsPresent counts the page faults of touching fresh memory: a device
// cannot take any.
func TestMemoryIsPresent(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, open := range map[string]func(int) (*Region,
		error){"Alloc": Alloc, "AllocHuge": AllocHuge} {
		r, err := open(8 << 20)
		if err != nil {
			t.Fatal(err)
		}
		before := faults(t)
		for i := 0; i < r.Len(); i += os.Getpagesize() {
			r.Bytes()[i] = 1
		}
		if n, pages := faults(t)-before, int64(r.Len()/os.Getpagesize()); n > pages/10 {
			t.Errorf("%s: %d faults in %d pages", name, n, pages)
		}
		if flags := vmFlags(t, r.Addr()); !slices.Contains(flags, "dc") {
			t.Errorf("%s: children inherit it: flags %v", name, flags)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Memory of the huge page pool is not stored to before the kernel says that it is there: where a
// cgroup allows none of it, mmap succeeds and a store is SIGBUS. The pool is memory that faults.
func TestHugePagesAreNotTouched(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for name, refusal := range map[string]unix.Errno{
		"kernel before 5.14": unix.EINVAL, "cgroup's limit of 0": unix.EFAULT} {
		t.Run(name, func(t *testing.T) {
			var pool *Region
			mmap := func(size, flags int) (r *Region, err error) {
				pool, err = mapMemory(-1, 0, size, unix.PROT_NONE,
					unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags&^(unix.MAP_HUGETLB|unix.MAP_HUGE_2MB))
				return pool, err
			}
			r, err := allocHuge(openSize, mmap, func(b []byte, advice int) error {
				if advice != unix.MADV_POPULATE_WRITE {
					return unix.Madvise(b, advice)
				}
				if pool.Bytes() == nil { // given up: this is other memory
					return unix.EINVAL
				}
				return refusal
			})
			if err != nil {
				t.Fatal(err)
			}
			if pool.Bytes() != nil {
				t.Error("the pool's memory is still mapped")
			}
			for i := range r.Bytes() {
				r.Bytes()[i] = 1
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func faults(t *testing.T) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return u.Minflt
}

// vmFlags are the kernel's flags of the mapping at addr.
func vmFlags(t *testing.T, addr uint64) []string {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for s := bufio.NewScanner(bytes.NewReader(smaps)); s.Scan(); {
		var lo, hi uint64
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= addr && addr < hi
		}
		if flags, ok := strings.CutPrefix(s.Text(), "VmFlags:"); ok && inside {
			return strings.Fields(flags)
		}
	}
	t.Fatalf("no mapping at %#x", addr)
	return nil
}
