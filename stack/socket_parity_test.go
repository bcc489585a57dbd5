package stack_test

import (
	"net"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// TestMethodParity requires every method of net's types on ours, with the same parameters and
// results.
func TestMethodParity(t *testing.T) {
	for _, c := range []struct{ net, ours any }{
		{(*net.TCPConn)(nil), (*stack.TCPConn)(nil)},
		{(*net.TCPListener)(nil), (*stack.TCPListener)(nil)},
		{(*net.UDPConn)(nil), (*stack.UDPConn)(nil)},
	} {
		theirs, ours := reflect.TypeOf(c.net), reflect.TypeOf(c.ours)
		for i := range theirs.NumMethod() {
			m := theirs.Method(i)
			if m.Name == "SyscallConn" {
				continue // see TestNoSyscallConn
			}
			o, ok := ours.MethodByName(m.Name)
			if !ok {
				t.Errorf("%v has no %s", ours, m.Name)
				continue
			}
			if want, got := signature(m), signature(o); want != got {
				t.Errorf("%v.%s is %s, want %s", ours, m.Name, got, want)
			}
		}
	}
}

// signature is a method's type without its receiver, and with our types called as net's.
func signature(m reflect.Method) string {
	s := m.Type.String()
	_, s, _ = strings.Cut(s, m.Type.In(0).String())
	return strings.ReplaceAll(strings.TrimPrefix(s, ", "), "*stack.", "*net.")
}

// TestNoSyscallConn: libraries take the method's presence as proof of a kernel socket and fail when
// it fails, so it must not be there.
func TestNoSyscallConn(t *testing.T) {
	for _, c := range []any{(*stack.TCPConn)(nil), (*stack.UDPConn)(nil),
		(*stack.TCPListener)(nil)} {
		if _, ok := c.(syscall.Conn); ok {
			t.Errorf("%T is a syscall.Conn", c)
		}
	}
}
