package pcie

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// An interrupt of a vector that has no eventfd at the moment comes, once, when it has one again;
// but not after a reset.
func TestInterruptPending(t *testing.T) {
	q := newIRQs()
	defer q.reset()
	with := func(vector int) (count uint64) {
		t.Helper()
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		q.set(vector, fd)
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err == nil {
			count = binary.NativeEndian.Uint64(b[:])
		}
		q.clear()
		return count
	}
	if n := with(3); n != 0 {
		t.Errorf("%d interrupts before the first", n)
	}
	q.fire(3)
	q.fire(3)
	if n, other := with(3), with(4); n != 1 || other != 0 {
		t.Errorf("%d interrupts, of another vector %d; want 1 and 0", n, other)
	}
	if n := with(3); n != 0 {
		t.Errorf("the interrupt came %d times more", n)
	}
	q.fire(3)
	q.reset()
	if n := with(3); n != 0 {
		t.Errorf("%d interrupts of before the reset", n)
	}
}
