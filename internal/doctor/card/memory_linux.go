package card

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// readMemory copies n bytes at addr of this process. The rings that the driver shares with the card
// are outside the Go heap, and what the card wrote there is looked at without the driver's help. On
// the own process the call needs no privilege.
func readMemory(addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	return b, vmCopy(addr, b, unix.ProcessVMReadv)
}

// writeMemory writes b to addr of this process.
func writeMemory(addr uint64, b []byte) error { return vmCopy(addr, b, unix.ProcessVMWritev) }

func vmCopy(addr uint64, b []byte,
	do func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	n, err := do(unix.Getpid(), []unix.Iovec{local},
		[]unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = unix.EFAULT
	}
	if err != nil {
		return fmt.Errorf("reach %d bytes of a ring at %#x: %w", len(b), addr, err)
	}
	return nil
}
