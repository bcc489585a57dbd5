package mmio

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func nonBlockingPair(t *testing.T) (a, b int) {
	fds, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func TestFDNow(t *testing.T) {
	a, b := nonBlockingPair(t)
	buf, oob := make([]byte, 16), make([]byte, 64)
	if _, err := ReadNow(b, buf); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("nothing to read: %v", err)
	}
	if _, _, _, err := ReceiveNow(b, buf, oob); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("nothing to receive: %v", err)
	}
	for _, word := range []string{"one", "other"} {
		if n, err := WriteNow(a, []byte("the "), []byte(word)); n != 4+len(word) || err != nil {
			t.Fatalf("wrote %d bytes: %v", n, err)
		}
	}
	if n, err := ReadNow(b, buf); err != nil || string(buf[:n]) != "the one" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if n, oobn, flags, err := ReceiveNow(b, buf[:5], oob); err != nil ||
		string(buf[:n]) != "the o" || oobn != 0 || flags&unix.MSG_TRUNC == 0 {
		t.Errorf("received %q, %d bytes of control messages, flags %#x: %v",
			buf[:n], oobn, flags, err)
	}
	if n, err := WriteNow(a, []byte("head"), nil); n != 4 || err != nil {
		t.Errorf("wrote %d bytes without a rest: %v", n, err)
	}
	for n := 0; ; n++ {
		if _, err := WriteNow(a, buf, buf); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil || n > 1<<20 {
			t.Fatalf("write %d: %v", n, err)
		}
	}
}

// TestReceiveNowControl receives a control message, with the sender's rights in it.
func TestReceiveNowControl(t *testing.T) {
	a, b := nonBlockingPair(t)
	if err := unix.SetsockoptInt(b, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteNow(a, []byte("x"), []byte("y")); err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 16), make([]byte, 64)
	n, oobn, _, err := ReceiveNow(b, buf, oob)
	if err != nil || string(buf[:n]) != "xy" {
		t.Fatalf("received %q, %v", buf[:n], err)
	}
	h, data, _, err := unix.ParseOneSocketControlMessage(oob[:oobn])
	if err != nil || h.Type != unix.SCM_CREDENTIALS || len(data) != unix.SizeofUcred {
		t.Errorf("control message %+v of %d bytes, %v", h, len(data), err)
	}
}

func TestFDNowAllocatesNothing(t *testing.T) {
	a, b := nonBlockingPair(t)
	buf, oob := make([]byte, 16), make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = WriteNow(a, buf[:1], buf[1:])
		_, _ = ReadNow(b, buf)
		_, _ = WriteNow(a, buf[:1], buf[1:])
		_, _, _, _ = ReceiveNow(b, buf, oob)
		_, _ = ReadNow(b, buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
