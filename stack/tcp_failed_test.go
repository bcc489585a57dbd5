package stack_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/netpair"
)

// TestReadAfterFailedWrite: when a Write has been told that the peer has reset the connection, Read
// says so, too, and again. io.EOF would say that all that was sent has come (world 2856 of make
// sim).
func TestReadAfterFailedWrite(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	s, c := pair(t, server, client)
	must(t, c.SetLinger(0))
	must(t, c.Close())
	var err error
	eventually(t, "a write fails", func() bool {
		_, err = s.Write([]byte("x"))
		return err != nil
	})
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("write: %v, want ECONNRESET", err)
	}
	for range 2 {
		if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %d, %v, want ECONNRESET", n, err)
		}
	}
	if n, err := io.Copy(io.Discard, s); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("copy: %d, %v, want ECONNRESET", n, err)
	}
}
