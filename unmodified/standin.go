//go:build linux

package unmodified

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/backing"
)

// errNoDescriptor says what a program gets where the descriptor of a slice's socket would have to
// be the kernel's. errors.Is(err, errors.ErrUnsupported).
var errNoDescriptor = os.NewSyscallError("rdma-netstack: the socket of a slice has no descriptor",
	unix.ENOTSUP)

// sockOption names a socket option by level and name.
type sockOption struct{ level, name int }

// Options that are read back after every Control. Those that a family or type of socket does not
// have fail to be read and are passed over.
var (
	commonOptions = []sockOption{{unix.SOL_SOCKET, unix.SO_RCVBUF},
		{unix.SOL_SOCKET, unix.SO_SNDBUF}, pacingRate}
	streamOptions = []sockOption{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_NODELAY},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	}
	datagramOptions = []sockOption{{unix.SOL_UDP, unix.UDP_SEGMENT}, {unix.SOL_UDP, unix.UDP_GRO}}
	ip4Options      = []sockOption{
		{unix.IPPROTO_IP, unix.IP_TOS}, {unix.IPPROTO_IP, unix.IP_TTL},
		{unix.IPPROTO_IP, unix.IP_PKTINFO}, {unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP},
		{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER},
		{unix.IPPROTO_IP, unix.IP_RECVTTL}, {unix.IPPROTO_IP, unix.IP_RECVTOS},
	}
	ip6Options = []sockOption{
		{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}, {unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO}, {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP},
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS},
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER},
		{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT}, {unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS},
	}
)

// pacingRate names the option of a rate in bytes per second. The kernel takes and gives it in 64
// bits since Linux 4.20, all of which are set where there is none: as an int that is noRate.
var pacingRate = sockOption{unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE}

const noRate = -1

// setOn sets an option of a kernel's socket.
func (o sockOption) setOn(fd, v int) error {
	if o == pacingRate {
		return unix.SetsockoptUint64(fd, o.level, o.name, uint64(v))
	}
	return unix.SetsockoptInt(fd, o.level, o.name, v)
}

// readOf reads an option of a kernel's socket.
func (o sockOption) readOf(fd int) (int, error) {
	if o == pacingRate {
		v, err := unix.GetsockoptUint64(fd, o.level, o.name)
		return int(v), err
	}
	return unix.GetsockoptInt(fd, o.level, o.name)
}

// keptOptions names options that a slice's socket does not have: what is set is kept on the
// stand-in, does nothing, and is logged. SO_PRIORITY is not among them: the kernel changes it with
// IP_TOS.
var keptOptions = map[sockOption]string{
	{unix.SOL_SOCKET, unix.SO_MARK}:            "SO_MARK",
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT}:        "SO_RCVLOWAT",
	{unix.SOL_SOCKET, unix.SO_BUSY_POLL}:       "SO_BUSY_POLL",
	{unix.SOL_SOCKET, unix.SO_TIMESTAMP}:       "SO_TIMESTAMP",
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS}:     "SO_TIMESTAMPNS",
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPING}:    "SO_TIMESTAMPING",
	{unix.SOL_SOCKET, unix.SO_ZEROCOPY}:        "SO_ZEROCOPY",
	{unix.SOL_SOCKET, unix.SO_RXQ_OVFL}:        "SO_RXQ_OVFL",
	{unix.IPPROTO_TCP, unix.TCP_MAXSEG}:        "TCP_MAXSEG",
	{unix.IPPROTO_TCP, unix.TCP_CONGESTION}:    "TCP_CONGESTION",
	{unix.IPPROTO_TCP, unix.TCP_FASTOPEN}:      "TCP_FASTOPEN",
	{unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT}:  "TCP_DEFER_ACCEPT",
	{unix.IPPROTO_TCP, unix.TCP_SYNCNT}:        "TCP_SYNCNT",
	{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP}:  "TCP_WINDOW_CLAMP",
	{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT}: "TCP_NOTSENT_LOWAT",
	{unix.IPPROTO_TCP, unix.TCP_LINGER2}:       "TCP_LINGER2",
	{unix.IPPROTO_IP, unix.IP_RECVERR}:         "IP_RECVERR",
	{unix.IPPROTO_IP, unix.IP_FREEBIND}:        "IP_FREEBIND",
	{unix.IPPROTO_IP, unix.IP_TRANSPARENT}:     "IP_TRANSPARENT",
	{unix.IPPROTO_IPV6, unix.IPV6_RECVERR}:     "IPV6_RECVERR",
}

// standIn holds a kernel socket of the same family and type as one of the slice's, on which a
// program sets and reads options. It is made when a program first asks for a descriptor. It is
// bound to lo and to no port, and drops what comes, so that nothing that is sent on it leaves the
// host. Its methods may be called from any goroutine.
type standIn struct {
	device       string // the slice's
	filters      func() *backing.Filters
	family, kind int
	only6        bool // made without IPv4

	mu       sync.Mutex
	apply    func(o sockOption, v int) error // to the slice's socket; nil until that is there
	current  func() map[sockOption]int       // the options of the slice's socket; nil: unknown
	kept     func(option string)             // told of one that does nothing; may be nil
	fd       int                             // -1: none
	closeFD  func() error                    // closes fd
	closed   bool
	users    int // functions of the program that have fd
	seen     map[sockOption]int
	changed  map[sockOption]int // what the program has set, as the kernel reads it
	explicit bool               // changed has anything
}

func newStandIn(network, device string, filters func() *backing.Filters,
	kept func(option string)) *standIn {
	s := &standIn{device: device, filters: filters, family: unix.AF_INET6, kind: unix.SOCK_DGRAM,
		kept: kept, fd: -1}
	if strings.HasSuffix(network, "4") {
		s.family = unix.AF_INET
	}
	s.only6 = strings.HasSuffix(network, "6")
	if strings.HasPrefix(network, "tcp") {
		s.kind = unix.SOCK_STREAM
	}
	return s
}

// options returns those of this kind of socket.
func (s *standIn) options() []sockOption {
	all := commonOptions
	if s.kind == unix.SOCK_STREAM {
		all = append(all[:len(all):len(all)], streamOptions...)
	} else {
		all = append(all[:len(all):len(all)], datagramOptions...)
	}
	all = append(all[:len(all):len(all)], ip4Options...)
	if s.family == unix.AF_INET6 {
		all = append(all, ip6Options...)
	}
	for o := range keptOptions {
		all = append(all, o)
	}
	return all
}

// acquire makes the socket if there is none, for one function of the program.
func (s *standIn) acquire() (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, net.ErrClosed
	}
	if s.fd < 0 {
		if err := s.makeSocket(); err != nil {
			return -1, err
		}
	}
	if s.users++; s.users == 1 {
		s.showCurrent()
	}
	return s.fd, nil
}

// showCurrent sets on the stand-in what the slice's socket has, so that it is read back. Without
// CAP_NET_ADMIN the kernel bounds sizes of buffers (net.core.rmem_max, wmem_max). s.mu is held.
func (s *standIn) showCurrent() {
	if s.current == nil {
		return
	}
	for o, v := range s.current() {
		was, ok := s.seen[o]
		if !ok || halved(o, was) == v {
			continue
		}
		switch o {
		case sockOption{unix.SOL_SOCKET, unix.SO_RCVBUF}:
			_ = unix.SetsockoptInt(s.fd, o.level, o.name, v)
			_ = unix.SetsockoptInt(s.fd, o.level, unix.SO_RCVBUFFORCE, v)
		case sockOption{unix.SOL_SOCKET, unix.SO_SNDBUF}:
			_ = unix.SetsockoptInt(s.fd, o.level, o.name, v)
			_ = unix.SetsockoptInt(s.fd, o.level, unix.SO_SNDBUFFORCE, v)
		default:
			_ = o.setOn(s.fd, v) // what it refuses, it does not show
		}
		if now, err := o.readOf(s.fd); err == nil {
			s.seen[o] = now
		}
	}
}

// makeSocket sets what package net sets on the sockets of the kernel. s.mu is held.
func (s *standIn) makeSocket() error {
	fd, err := unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	closeFD := func() error { return unix.Close(fd) }
	if s.family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, intOf(s.only6))
	}
	if s.kind == unix.SOCK_STREAM {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	} else {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		dropping, err := s.filters().DropAll(fd)
		if err != nil {
			return errors.Join(err, closeFD())
		}
		closeFD = dropping
	}
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo"); err != nil {
		return errors.Join(os.NewSyscallError("setsockopt", err), closeFD())
	}
	s.fd, s.closeFD, s.changed = fd, closeFD, map[sockOption]int{}
	s.seen = s.readOptions()
	return nil
}

func (s *standIn) readOptions() map[sockOption]int {
	m := map[sockOption]int{}
	for _, o := range s.options() {
		if v, err := o.readOf(s.fd); err == nil {
			m[o] = v
		}
	}
	return m
}

// release ends a use, applies the options that have changed, and closes the socket if it is to be.
func (s *standIn) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	err := s.applyChanges()
	s.closeUnused()
	return err
}

// applyChanges applies what has changed since it was last looked at. s.mu is held.
func (s *standIn) applyChanges() error {
	now := s.readOptions()
	for _, o := range s.options() {
		v, ok := now[o]
		if !ok || v == s.seen[o] {
			continue
		}
		s.seen[o], s.changed[o], s.explicit = v, v, true
		if name := keptOptions[o]; name != "" && s.kept != nil {
			s.kept(name)
		}
		if s.apply != nil {
			if err := s.apply(o, halved(o, v)); err != nil {
				return err
			}
		}
	}
	return nil
}

// halved returns the size of a buffer as a program sets it: the kernel doubles it, see socket(7).
func halved(o sockOption, v int) int {
	if o.level == unix.SOL_SOCKET && (o.name == unix.SO_RCVBUF || o.name == unix.SO_SNDBUF) {
		return v / 2
	}
	return v
}

// optionSocket describes a slice's socket whose options a stand-in has.
type optionSocket interface {
	setSockOption(o sockOption, v int) error
	currentOptions() map[sockOption]int
}

// bindTo applies the options set so far, and those set from now on when they are.
func (s *standIn) bindTo(to optionSocket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply, s.current = to.setSockOption, to.currentOptions
	return s.applyTo(to.setSockOption)
}

// inherit applies to an accepted connection what was set on its listener, as the kernel does.
func (s *standIn) inherit(apply func(o sockOption, v int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.explicit {
		_ = s.applyTo(apply) // the program cannot tell an option of the listener from its own
	}
}

func (s *standIn) applyTo(apply func(o sockOption, v int) error) error {
	for _, o := range s.options() {
		if v, ok := s.changed[o]; ok {
			if err := apply(o, halved(o, v)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Control implements syscall.RawConn on the stand-in.
func (s *standIn) Control(f func(fd uintptr)) error {
	fd, err := s.acquire()
	if err != nil {
		return err
	}
	f(uintptr(fd))
	return s.release()
}

// controlConn implements the syscall.RawConn of ListenConfig.Control and Dialer.Control.
type controlConn struct{ *standIn }

func (controlConn) Read(func(uintptr) bool) error  { return errNoDescriptor }
func (controlConn) Write(func(uintptr) bool) error { return errNoDescriptor }

// closeDescriptor closes the stand-in once nobody uses it.
func (s *standIn) closeDescriptor() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.closeUnused()
}

func (s *standIn) closeUnused() {
	if s.closed && s.users == 0 && s.fd >= 0 {
		_ = s.closeFD() // nothing that was written waits there
		s.fd = -1
	}
}

// controlLocal serves as the Control function of a kernel socket on localhost beside the slice's:
// that gets the options that the program has set.
func (s *standIn) controlLocal(_, _ string, c syscall.RawConn) error {
	shares := s.reusesPort()
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed error
	err := c.Control(func(fd uintptr) {
		for o, v := range s.changed { // those of the other version of IP it does not have
			_ = o.setOn(int(fd), halved(o, v))
		}
		if shares {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

// reusesPort says whether the program has set SO_REUSEPORT.
func (s *standIn) reusesPort() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return false
	}
	v, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	return err == nil && v != 0
}

// networkSet returns network as the program's IPV6_V6ONLY changes it.
func (s *standIn) networkSet(network string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 || s.family != unix.AF_INET6 {
		return network
	}
	v, err := unix.GetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	switch {
	case err != nil:
		return network
	case v != 0:
		return strings.TrimSuffix(network, "6") + "6"
	}
	return strings.TrimSuffix(network, "6")
}

// boundElsewhere returns the device, other than the slice's, that the program has bound the socket
// to, or "".
func (s *standIn) boundElsewhere() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return ""
	}
	d, err := unix.GetsockoptString(s.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
	if err != nil || d == "lo" || d == s.device {
		return ""
	}
	return d
}
