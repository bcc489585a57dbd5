//go:build linux

package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenNodeErrors(t *testing.T) {
	_, err := OpenNode(filepath.Join(t.TempDir(), "uverbs0"))
	var e *Error
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("no such node: %v", err)
	}
}

// TestNodeIsNotUverbs runs the real system calls on a node that is not a uverbs node.
func TestNodeIsNotUverbs(t *testing.T) {
	k, err := OpenNode("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Mmap(0x300000, os.Getpagesize(), true); err != unix.ENODEV && err != nil {
		t.Errorf("mmap: %v", err)
	}
	if _, err := Open(k, Options{}); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("open: %v", err)
	}
	if _, err := Open(k, Options{}); !errors.Is(err, unix.EBADF) {
		t.Errorf("open left the node open: %v", err)
	}
}

// TestNodeMmap maps shared memory of the zero device.
func TestNodeMmap(t *testing.T) {
	before := descriptors(t)
	k, err := OpenNode("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	p, err := k.Mmap(0, os.Getpagesize(), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(k.Close()); err != nil {
		t.Error(err)
	}
	p.Store64(8, 0x0102030405060708) // the mapping outlives the descriptor
	same(t, "page", p.Mem.Slice(0, 16), []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := k.Close(); err != unix.EBADF {
		t.Errorf("second close: %v", err)
	}
	if err := k.Ioctl(make([]byte, 24)); err != unix.EBADF {
		t.Errorf("ioctl after close: %v", err)
	}
	if _, err := k.Mmap(0, os.Getpagesize(), true); err != unix.EBADF {
		t.Errorf("mmap after close: %v", err)
	}
	if d := descriptors(t) - before; d != 0 {
		t.Errorf("%d descriptors leaked", d)
	}
}

func TestNodeConcurrent(t *testing.T) {
	k, err := OpenNode("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	scratch := region(t, 4096)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if err := k.Ioctl(scratch.Slice(0, 24)); err != unix.ENOTTY && err != unix.EBADF {
					t.Errorf("ioctl: %v", err)
				}
			}
		})
	}
	wg.Go(func() { k.Close() })
	wg.Wait()
}
