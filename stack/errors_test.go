package stack

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// TestErrno checks every error of netstack's endpoints that servers depend on.
func TestErrno(t *testing.T) {
	for _, c := range []struct {
		from tcpip.Error
		to   syscall.Errno
	}{
		{&tcpip.ErrClosedForSend{}, syscall.EPIPE},
		{&tcpip.ErrAborted{}, syscall.EPIPE},
		{&tcpip.ErrConnectionReset{}, syscall.ECONNRESET},
		{&tcpip.ErrConnectionRefused{}, syscall.ECONNREFUSED},
		{&tcpip.ErrConnectionAborted{}, syscall.ECONNABORTED},
		{&tcpip.ErrTimeout{}, syscall.ETIMEDOUT},
		{&tcpip.ErrNotConnected{}, syscall.ENOTCONN},
		{&tcpip.ErrClosedForReceive{}, syscall.ENOTCONN},
		{&tcpip.ErrAlreadyConnected{}, syscall.EISCONN},
		{&tcpip.ErrAlreadyConnecting{}, syscall.EALREADY},
		{&tcpip.ErrConnectStarted{}, syscall.EINPROGRESS},
		{&tcpip.ErrWouldBlock{}, syscall.EAGAIN},
		{&tcpip.ErrPortInUse{}, syscall.EADDRINUSE},
		{&tcpip.ErrNoPortAvailable{}, syscall.EADDRINUSE},
		{&tcpip.ErrBadLocalAddress{}, syscall.EADDRNOTAVAIL},
		{&tcpip.ErrHostUnreachable{}, syscall.EHOSTUNREACH},
		{&tcpip.ErrHostDown{}, syscall.EHOSTDOWN},
		{&tcpip.ErrNetworkUnreachable{}, syscall.ENETUNREACH},
		{&tcpip.ErrNoNet{}, syscall.ENETUNREACH},
		{&tcpip.ErrAddressFamilyNotSupported{}, syscall.EAFNOSUPPORT},
		{&tcpip.ErrDestinationRequired{}, syscall.EDESTADDRREQ},
		{&tcpip.ErrMessageTooLong{}, syscall.EMSGSIZE},
		{&tcpip.ErrNoBufferSpace{}, syscall.ENOBUFS},
		{&tcpip.ErrBroadcastDisabled{}, syscall.EACCES},
		{&tcpip.ErrNotPermitted{}, syscall.EPERM},
		{&tcpip.ErrNotSupported{}, syscall.EOPNOTSUPP},
		{&tcpip.ErrUnknownNICID{}, syscall.ENODEV},
		{&tcpip.ErrUnknownProtocolOption{}, syscall.ENOPROTOOPT},
		{&tcpip.ErrInvalidEndpointState{}, syscall.EINVAL},
		{&tcpip.ErrInvalidOptionValue{}, syscall.EINVAL},
	} {
		if got := env.Errno(c.from); got != c.to {
			t.Errorf("%T is %v, want %v", c.from, got, c.to)
		}
		if err := env.AsError("try", c.from); !errors.Is(err, c.to) ||
			!strings.HasPrefix(err.Error(), "try: ") {
			t.Errorf("%T: %v", c.from, err)
		}
	}
	if env.AsError("try", nil) != nil {
		t.Error("no error becomes one")
	}
}

func TestDialErrors(t *testing.T) {
	for _, c := range []struct {
		err      error
		is, isnt error
		timeout  bool
	}{
		{fromContext(context.DeadlineExceeded, false), context.DeadlineExceeded,
			os.ErrDeadlineExceeded, true},
		{fromContext(context.DeadlineExceeded, true),
			os.ErrDeadlineExceeded, context.Canceled, true},
		{fromContext(context.Canceled, true), context.Canceled, context.DeadlineExceeded, false},
		{fromContext(io.EOF, true), io.EOF, context.Canceled, false},
		{endedError{io.ErrNoProgress}, net.ErrClosed, io.EOF, false},
		{endedError{io.ErrNoProgress}, io.ErrNoProgress, io.EOF, false},
	} {
		err := &net.OpError{Op: "dial", Net: "tcp", Err: c.err}
		if !errors.Is(err, c.is) || errors.Is(err, c.isnt) || err.Timeout() != c.timeout ||
			err.Temporary() != c.timeout {
			t.Errorf("%v: is %v %t, is %v %t, timeout %t", err, c.is, errors.Is(err, c.is), c.isnt,
				errors.Is(err, c.isnt), err.Timeout())
		}
	}
}

// TestNoFile: there is no descriptor, and the error says so.
func TestNoFile(t *testing.T) {
	s, _ := onSink(t)
	l, err := s.ListenTCP("tcp", nil)
	must(t, err)
	u, err := s.ListenUDP("udp", nil)
	must(t, err)
	c := &TCPConn{laddr: l.laddr, raddr: l.laddr, network: "tcp"}
	for _, f := range []interface{ File() (*os.File, error) }{l, u, c} {
		_, err := f.File()
		var op *net.OpError
		if !errors.Is(err, ErrNoDescriptor) || !errors.Is(err, errors.ErrUnsupported) ||
			!errors.As(err, &op) || op.Op != "file" {
			t.Errorf("%T: %v", f, err)
		}
	}
}

// TestKeepAliveFields follows the two fields of net.Dialer and net.ListenConfig.
func TestKeepAliveFields(t *testing.T) {
	s, _ := onSink(t)
	minute := net.KeepAliveConfig{Enable: true, Idle: time.Minute}
	for _, c := range []struct {
		name      string
		keepAlive time.Duration
		config    net.KeepAliveConfig
		want      net.KeepAliveConfig
	}{
		{"default", 0, net.KeepAliveConfig{}, net.KeepAliveConfig{Enable: true,
			Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}},
		{"off", -1, net.KeepAliveConfig{}, net.KeepAliveConfig{}},
		{"period", time.Minute, net.KeepAliveConfig{}, minute},
		{"config wins", -1, minute, minute},
	} {
		if got := mergeKeepAlive(c.keepAlive, c.config, *s.cfg.TCP.KeepAlive); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// FuzzParseAddress: an accepted address is a host's, and its text parses to the same address.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.10/24", "2001:db8::10/64", "192.0.2.10", "10.0.0.0/31",
		"::ffff:192.0.2.10/120", "fe80::1%eth0", "", "0.0.0.0/0", "ff02::1/64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseAddress(s)
		if err != nil {
			return
		}
		if a := p.Addr(); a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.Is4In6() ||
			a.Zone() != "" || p.Bits() > a.BitLen() {
			t.Errorf("%q is %v", s, p)
		}
		again, err := ParseAddress(p.String())
		if !addrconf.LacksLength(p) && (err != nil || again != p) {
			t.Errorf("%q is %v, and that %v, %v", s, p, again, err)
		}
	})
}
