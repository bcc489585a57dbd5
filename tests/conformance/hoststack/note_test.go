//go:build linux

package hoststack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"syscall"
)

// notes is the record of one run of a behaviour, in a form that does not depend on the world:
// addresses are replaced by their role, ports by their name.
type notes struct {
	world *world
	names map[string]string // "port" -> name
	lines []string
}

// Value notes v under a name.
func (n *notes) Value(name string, v any) {
	n.lines = append(n.lines, fmt.Sprintf("%s: %s", name, n.plain(fmt.Sprintf("%#v", v))))
}

// Text notes a sentence unchanged.
func (n *notes) Text(name, text string) {
	n.lines = append(n.lines, name+": "+n.plain(text))
}

// Err notes all properties of err that a caller could check.
func (n *notes) Err(name string, err error) {
	n.lines = append(n.lines, name+": "+n.describe(err))
}

// Addr notes an address: type, length of its IP, and text.
func (n *notes) Addr(name string, a net.Addr) { n.lines = append(n.lines, name+": "+n.addr(a)) }

// Port gives a port a name; every other port is noted as *.
func (n *notes) Port(name string, a net.Addr) {
	n.names[portOf(a)] = name
}

var withPort = regexp.MustCompile(`(^|[^:]):(\d+)\b`)

// plain replaces addresses by roles and ports by names.
func (n *notes) plain(s string) string {
	s = n.world.roles.Replace(s)
	return withPort.ReplaceAllStringFunc(s, func(m string) string {
		i := strings.LastIndex(m, ":")
		name, ok := n.names[m[i+1:]]
		if !ok {
			name = "*"
		}
		return m[:i+1] + name
	})
}

func (n *notes) addr(a net.Addr) string {
	if a == nil {
		return "nil"
	}
	var size int
	switch a := a.(type) {
	case *net.TCPAddr:
		size = len(a.IP)
	case *net.UDPAddr:
		size = len(a.IP)
	}
	return fmt.Sprintf("%s %s (%d bytes)", a.Network(), n.plain(a.String()), size)
}

// sentinels are the errors that programs pass to errors.Is.
var sentinels = []struct {
	name string
	err  error
}{
	{"net.ErrClosed", net.ErrClosed},
	{"net.ErrWriteToConnected", net.ErrWriteToConnected},
	{"os.ErrDeadlineExceeded", os.ErrDeadlineExceeded},
	{"context.DeadlineExceeded", context.DeadlineExceeded},
	{"context.Canceled", context.Canceled},
	{"io.EOF", io.EOF},
	{"io.ErrUnexpectedEOF", io.ErrUnexpectedEOF},
	{"ECONNREFUSED", syscall.ECONNREFUSED},
	{"ECONNRESET", syscall.ECONNRESET},
	{"ECONNABORTED", syscall.ECONNABORTED},
	{"EPIPE", syscall.EPIPE},
	{"ENOTCONN", syscall.ENOTCONN},
	{"EADDRINUSE", syscall.EADDRINUSE},
	{"EADDRNOTAVAIL", syscall.EADDRNOTAVAIL},
	{"EHOSTUNREACH", syscall.EHOSTUNREACH},
	{"ENETUNREACH", syscall.ENETUNREACH},
	{"ETIMEDOUT", syscall.ETIMEDOUT},
	{"EMSGSIZE", syscall.EMSGSIZE},
	{"EDESTADDRREQ", syscall.EDESTADDRREQ},
	{"EINVAL", syscall.EINVAL},
}

// describe describes err: the OpError's fields, the wrapped errors, what errors.Is finds, Timeout,
// Temporary and the text.
func (n *notes) describe(err error) string {
	if err == nil {
		return "no error"
	}
	var b strings.Builder
	if op, ok := err.(*net.OpError); ok {
		fmt.Fprintf(&b, "OpError{%s %s %s -> %s} ", op.Op, op.Net,
			n.opAddr(op.Source), n.opAddr(op.Addr))
		if sys, ok := op.Err.(*os.SyscallError); ok {
			fmt.Fprintf(&b, "syscall %s ", sys.Syscall)
		}
	}
	fmt.Fprintf(&b, "is %s ", n.sentinels(err))
	if ne, ok := err.(net.Error); ok {
		//lint:ignore SA1019 programs still ask it, so it is compared
		fmt.Fprintf(&b, "timeout=%t temporary=%t ", ne.Timeout(), ne.Temporary())
	}
	fmt.Fprintf(&b, "text %q", n.plain(err.Error()))
	return b.String()
}

// sentinels is what errors.Is finds in err.
func (n *notes) sentinels(err error) string {
	if err == nil {
		return "no error"
	}
	is := []string{}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			is = append(is, s.name)
		}
	}
	return fmt.Sprint(is)
}

// opAddr also distinguishes a nil interface from a nil pointer inside one.
func (n *notes) opAddr(a net.Addr) string {
	if a == nil {
		return "nil"
	}
	return n.plain(a.String())
}

// roles maps the addresses of a world to their roles.
func roles(w *world) *strings.Replacer {
	var pairs []string
	add := func(a netip.Addr, role string) {
		pairs = append(pairs, "["+a.String()+"]", "["+role+"]", a.String(), role)
	}
	add(w.alias4, "ALIAS4")
	add(w.server4, "HOST4")
	if w.client4 != w.server4 {
		add(w.client4, "HOST4")
	}
	add(w.server6, "HOST6")
	if w.client6 != w.server6 {
		add(w.client6, "HOST6")
	}
	if !w.server4.IsLoopback() {
		add(netip.MustParseAddr("127.0.0.1"), "HOST4")
		add(netip.IPv6Loopback(), "HOST6")
	}
	return strings.NewReplacer(pairs...)
}
