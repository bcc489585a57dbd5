package mmio

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutLast returns memory of which the last page is not mapped.
func withoutLast(t *testing.T, pages int) *Region {
	t.Helper()
	page := os.Getpagesize()
	r := alloc(t, pages*page)
	munmap := func(off, size int) {
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(r.Addr())+uintptr(off),
			uintptr(size), 0); errno != 0 {
			t.Error(errno)
		}
	}
	for i := range r.Bytes() {
		r.Bytes()[i] = byte(i / page)
	}
	munmap((pages-1)*page, page)
	r.unmap = nil // the hole may be somebody else's by the time the rest goes
	t.Cleanup(func() { munmap(0, (pages-1)*page) })
	return r
}

// holed returns five pages of memory of which the second cannot be read, the
// fourth not be written and the fifth not be found.
func holed(t *testing.T) *Region {
	t.Helper()
	page := os.Getpagesize()
	r := withoutLast(t, 5)
	for number, prot := range map[int]int{1: unix.PROT_NONE, 3: unix.PROT_READ} {
		if err := unix.Mprotect(r.Slice(number*page, page), prot); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestUserMemory(t *testing.T) {
	page := os.Getpagesize()
	r := holed(t)
	at := func(off int) uint64 { return r.Addr() + uint64(off) }
	for _, tt := range []struct {
		name        string
		addr        uint64
		n           int
		read, write error
	}{
		{"a page", at(0), page, nil, nil},
		{"a byte", at(page - 1), 1, nil, nil},
		{"nothing", at(0), 0, nil, nil},
		{"nothing nowhere", 0, 0, nil, nil},
		{"into the unreadable", at(page - 8), 16, unix.EFAULT, unix.EFAULT},
		{"the unreadable", at(page), 8, unix.EFAULT, unix.EFAULT},
		{"out of the unreadable", at(2*page - 8), 16, unix.EFAULT, unix.EFAULT},
		{"read only", at(3 * page), 8, nil, unix.EFAULT},
		{"into the read only", at(3*page - 8), 16, nil, unix.EFAULT},
		{"into the hole", at(4*page - 8), 16, unix.EFAULT, unix.EFAULT},
		{"the hole", at(4 * page), 8, unix.EFAULT, unix.EFAULT},
		{"null", 0, 8, unix.EFAULT, unix.EFAULT},
		{"kernel half", 1 << 63, 8, unix.EFAULT, unix.EFAULT},
		{"end of the address space", ^uint64(0) - 3, 8, unix.EFAULT, unix.EFAULT},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := bytes.Repeat([]byte{0xa5}, tt.n)
			if err := ReadUser(tt.addr, got); !errors.Is(err, tt.read) {
				t.Errorf("read: %v, want %v", err, tt.read)
			}
			if tt.read == nil && tt.n > 0 &&
				!bytes.Equal(got, r.Slice(int(tt.addr-r.Addr()), tt.n)) {
				t.Errorf("read % x", got)
			}
			if err := WriteUser(tt.addr, bytes.Repeat([]byte{0x5a}, tt.n)); !errors.Is(err,
				tt.write) {
				t.Errorf("write: %v, want %v", err, tt.write)
			}
			if tt.write == nil && tt.n > 0 {
				if err := ReadUser(tt.addr, got); err != nil ||
					!bytes.Equal(got, bytes.Repeat([]byte{0x5a}, tt.n)) {
					t.Errorf("read back % x, %v", got, err)
				}
			}
		})
	}
}

func TestMapped(t *testing.T) {
	page := os.Getpagesize()
	r := holed(t)
	at := func(off int) uint64 { return r.Addr() + uint64(off) }
	big := withoutLast(t, 3001) // more pages than one question to the kernel has room for
	for _, tt := range []struct {
		name string
		addr uint64
		size int
		want bool
	}{
		{"all", at(0), 4 * page, true},
		{"across pages, unaligned", at(page - 1), page + 2, true},
		{"to the hole", at(4*page - 1), 1, true},
		{"over the edge of the hole", at(4*page - 1), 2, false},
		{"the hole", at(4 * page), 1, false},
		{"nothing", at(4 * page), 0, true},
		{"negative", at(0), -1, false},
		{"null", 0, 1, false},
		{"wraps", ^uint64(0), 2, false},
		{"kernel half", 1 << 63, page, false},
		{"many pages", big.Addr(), 3000 * page, true},
		{"many pages, unaligned", big.Addr() + 1, 3000*page - 1, true},
		{"many pages and a hole", big.Addr(), 3000*page + 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Mapped(tt.addr, tt.size); got != tt.want {
				t.Errorf("Mapped(%#x, %d) = %v", tt.addr, tt.size, got)
			}
		})
	}
}

// TestCopyInPieces has the kernel copy a byte at a time, and then nothing.
func TestCopyInPieces(t *testing.T) {
	var pieces []int
	b := make([]byte, 3)
	piecewise := func(_ int, local []unix.Iovec, remote []unix.RemoteIovec, _ uint) (int, error) {
		if remote[0].Base != uintptr(1000+len(pieces)) || local[0].Base != &b[len(pieces)] {
			t.Errorf("piece %d: from %d", len(pieces), remote[0].Base)
		}
		pieces = append(pieces, remote[0].Len)
		return 1, nil
	}
	if err := copyUser("read", 1000, b, piecewise); err != nil ||
		!slices.Equal(pieces, []int{3, 2, 1}) {
		t.Errorf("pieces %v, %v", pieces, err)
	}
	nothing := func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error) { return 0, nil }
	if err := copyUser("read", 1000, b, nothing); !errors.Is(err, unix.EFAULT) {
		t.Errorf("no progress: %v", err)
	}
}
