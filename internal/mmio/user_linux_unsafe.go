//go:build linux

package mmio

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadUser copies len(dst) bytes at addr of this process into dst, as the
// kernel's copy_from_user does: memory that is not there, or not readable, is
// an error that is unix.EFAULT, not a crash. dst is then partly written.
func ReadUser(addr uint64, dst []byte) error {
	return copyUser("read", addr, dst, unix.ProcessVMReadv)
}

// WriteUser copies src to addr of this process, as the kernel's copy_to_user does: memory that is
// not there, or not writable, is an error that is unix.EFAULT. A part may have been written then.
func WriteUser(addr uint64, src []byte) error {
	return copyUser("write", addr, src, unix.ProcessVMWritev)
}

// vmCopy is process_vm_readv or process_vm_writev. Nobody needs a privilege to
// use them on the own process.
type vmCopy func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

func copyUser(verb string, addr uint64, b []byte, do vmCopy) error {
	for done := 0; done < len(b); {
		local := unix.Iovec{Base: &b[done]}
		local.SetLen(len(b) - done)
		remote := unix.RemoteIovec{Base: uintptr(addr) + uintptr(done), Len: len(b) - done}
		n, err := do(unix.Getpid(), []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
		if err != nil {
			return fmt.Errorf("%s %d bytes at %#x: %w", verb, len(b), addr, err)
		}
		if n == 0 {
			return fmt.Errorf("%s %d bytes at %#x: %w", verb, len(b), addr, unix.EFAULT)
		}
		done += n
	}
	return nil
}

// Mapped reports whether every page of size bytes at addr is mapped in this
// process, resident or not, whatever its protection. No bytes are mapped.
func Mapped(addr uint64, size int) bool {
	if size < 0 || addr+uint64(size) < addr {
		return false
	}
	page := uint64(unix.Getpagesize())
	var residency [1024]byte // one byte per page, asked for piecewise
	end := addr + uint64(size)
	for at := addr &^ (page - 1); at < end && size > 0; {
		n := min(end-at, page*uint64(len(residency)))
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(at), uintptr(n),
			uintptr(unsafe.Pointer(&residency[0])))
		if errno != 0 {
			return false
		}
		at += n
	}
	return true
}
