//go:build linux

package unmodified

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// sharedUDP joins a UDP socket of the slice and those of the kernel on localhost. It is open until
// the last of its udpSocketConns is closed.
type sharedUDP struct {
	owners
	p     *Program
	c     *stack.UDPConn
	local []*net.UDPConn
	alone atomic.Int32 // reads that began while there was one owner

	// several is set once there is a second owner. From then on each has a deadline of its own;
	// reads register in readers, and wake ends all of them, those of other owners begin anew.
	several atomic.Bool
	gate    sync.Mutex
	quiet   *sync.Cond // waking has become false
	readers int        // guarded by gate
	waking  bool       // guarded by gate: the deadline of c is past until readers is 0
}

func newSharedUDP(p *Program, c *stack.UDPConn) *sharedUDP {
	u := &sharedUDP{owners: owners{n: 1}, p: p, c: c}
	u.quiet = sync.NewCond(&u.gate)
	return u
}

// udpSocketConn wraps a UDP socket of the program: the first, or one made of the File of another.
type udpSocketConn struct {
	noSocket
	*standIn
	*sharedUDP
	device string // the slice's
	limit  deadline
	closed atomic.Bool
}

var _ Socket = (*udpSocketConn)(nil)

// maxDatagram gives the largest payload of a datagram.
const maxDatagram = 65535

func newUDPSocket(u *sharedUDP, s *standIn, device string) *udpSocketConn {
	c := &udpSocketConn{standIn: s, sharedUDP: u, device: device}
	c.limit.init()
	c.limit.passed = u.wake
	return c
}

// bindLocally binds the port on localhost as well, by the kernel. One that is taken there is
// another program's, and stays so.
func (u *sharedUDP) bindLocally(ctx context.Context, network string, s *standIn) {
	for _, at := range localAddresses(network, u.c.LocalAddr().(*net.UDPAddr).Port) {
		lc := net.ListenConfig{Control: func(network, address string, c syscall.RawConn) error {
			return errors.Join(s.controlLocal(network, address, c), reportHeader(c))
		}}
		k, err := lc.ListenPacket(ctx, "udp", at)
		if err != nil {
			u.p.logMissing(at, err)
			continue
		}
		u.p.counts[udpSocket][kernel].Add(1)
		c := k.(*net.UDPConn)
		u.local = append(u.local, c)
		go u.receiveFrom(c)
	}
}

// reportHeader makes reads of a kernel socket report the traffic class and the time to live.
func reportHeader(c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		for _, o := range headerReports { // a socket does not have those of the other version of IP
			_ = unix.SetsockoptInt(int(fd), o.level, o.name, 1)
		}
	})
}

var headerReports = []sockOption{
	{unix.IPPROTO_IP, unix.IP_RECVTOS}, {unix.IPPROTO_IP, unix.IP_RECVTTL},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT},
}

// controlRoom suffices for what reportHeader asks for.
const controlRoom = 128

// receiveFrom delivers what the kernel receives on localhost until k is closed.
func (u *sharedUDP) receiveFrom(k *net.UDPConn) {
	at := k.LocalAddr().(*net.UDPAddr).AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	buffer, oob := make([]byte, maxDatagram), make([]byte, controlRoom)
	for {
		n, nn, _, from, err := k.ReadMsgUDPAddrPort(buffer, oob)
		if err != nil {
			if isClosed(err) {
				return
			}
			continue // an ICMP error of a datagram sent before
		}
		u.c.Deliver(buffer[:n], oob[:nn], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), at)
	}
}

func isClosed(err error) bool {
	_, ok := bareError(err).(*os.SyscallError)
	return !ok
}

// localTo returns the kernel's socket that sends to an address of localhost, or nil.
func (u *sharedUDP) localTo(to netip.Addr) *net.UDPConn {
	if len(u.local) == 0 || !to.Unmap().IsLoopback() {
		return nil
	}
	for _, k := range u.local {
		if k.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().Is4() == to.Unmap().Is4() {
			return k
		}
	}
	return nil
}

// wake ends the reads that wait.
func (u *sharedUDP) wake() {
	if !u.several.Load() {
		return
	}
	u.gate.Lock()
	defer u.gate.Unlock()
	if u.readers > 0 && !u.waking {
		u.waking = true
		_ = u.c.SetReadDeadline(time.Now())
	}
}

// share ends the reads of the one owner so far, which begin anew as those of one of several.
func (u *sharedUDP) share() {
	u.gate.Lock()
	defer u.gate.Unlock()
	if u.several.Swap(true) {
		return
	}
	_ = u.c.SetReadDeadline(time.Now())
	for u.alone.Load() > 0 {
		runtime.Gosched() // they return at once
	}
	_ = u.c.SetReadDeadline(time.Time{})
}

// read runs f, which reads from c.c, until it is this owner's to return.
func (c *udpSocketConn) read(f func() error) error {
	c.alone.Add(1)
	several := c.several.Load()
	if !several {
		err := f()
		several = c.several.Load()
		if c.alone.Add(-1); !several || !errors.Is(err, os.ErrDeadlineExceeded) {
			return bareError(err)
		}
	} else {
		c.alone.Add(-1)
	}
	for {
		if err := c.register(); err != nil {
			return err
		}
		err := f()
		if c.unregister(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return bareError(err)
		}
	}
}

// register adds a read to those that wake ends, or says why it may not wait.
func (c *udpSocketConn) register() error {
	c.gate.Lock()
	defer c.gate.Unlock()
	for c.waking {
		c.quiet.Wait()
	}
	if c.closed.Load() {
		return net.ErrClosed
	}
	if _, err := c.limit.expired(); err != nil {
		return err
	}
	c.readers++
	return nil
}

func (u *sharedUDP) unregister() {
	u.gate.Lock()
	defer u.gate.Unlock()
	if u.readers--; u.readers == 0 && u.waking {
		u.waking = false
		_ = u.c.SetReadDeadline(time.Time{})
		u.quiet.Broadcast()
	}
}

// Close closes the sockets and the stand-in if this is the last socket that has them.
func (c *udpSocketConn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	if !c.leave() {
		c.wake()
		return nil
	}
	c.closeDescriptor()
	for _, u := range c.local {
		u.Close()
	}
	c.p.closeFiles(&c.owners)
	return bareError(c.c.Close())
}

// File returns a file of which net.FilePacketConn makes another socket in this process.
func (c *udpSocketConn) File() (*os.File, error) {
	return c.p.openFile(&c.owners, func() Socket {
		c.sharedUDP.share()
		return newUDPSocket(c.sharedUDP, c.standIn, c.device)
	})
}

// SetDeadline implements Socket.
func (c *udpSocketConn) SetDeadline(t time.Time) error {
	if !c.several.Load() {
		return bareError(c.c.SetDeadline(t))
	}
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *udpSocketConn) LocalAddr() net.Addr  { return c.c.LocalAddr() }
func (c *udpSocketConn) RemoteAddr() net.Addr { return c.c.RemoteAddr() }

// SetReadDeadline implements Socket.
func (c *udpSocketConn) SetReadDeadline(t time.Time) error {
	if c.several.Load() {
		c.limit.set(t)
		return nil
	}
	return bareError(c.c.SetReadDeadline(t))
}

// SetWriteDeadline implements Socket.
func (c *udpSocketConn) SetWriteDeadline(t time.Time) error {
	return bareError(c.c.SetWriteDeadline(t))
}

// Read implements Socket.
func (c *udpSocketConn) Read(b []byte) (n int, err error) {
	err = c.read(func() (err error) {
		n, err = c.c.Read(b)
		return err
	})
	return n, err
}

// Write implements Socket.
func (c *udpSocketConn) Write(b []byte) (int, error) {
	n, err := c.c.Write(b)
	return n, bareError(err)
}

// WriteBuffers sends all buffers as one datagram, as writev(2) does.
func (c *udpSocketConn) WriteBuffers(buffers [][]byte) (int64, error) {
	n, err := c.Write(joinBytes(buffers))
	return int64(n), err
}

func joinBytes(buffers [][]byte) (all []byte) {
	if len(buffers) == 1 {
		return buffers[0]
	}
	for _, b := range buffers {
		all = append(all, b...)
	}
	return all
}

// ReadAddr implements Socket.
func (c *udpSocketConn) ReadAddr(b []byte) (n int, from netip.AddrPort, err error) {
	err = c.read(func() (err error) {
		n, from, err = c.c.ReadFromUDPAddrPort(b)
		return err
	})
	return n, from, err
}

// WriteAddr implements Socket.
func (c *udpSocketConn) WriteAddr(b []byte, to netip.AddrPort) (int, error) {
	if u := c.localTo(to.Addr()); u != nil {
		n, err := u.WriteToUDPAddrPort(b, to)
		return n, bareError(err)
	}
	n, err := c.c.WriteToUDPAddrPort(b, to)
	return n, bareError(err)
}

// ReadMsg implements Socket. MSG_PEEK and other flags are refused: the datagram would be lost.
func (c *udpSocketConn) ReadMsg(b, oob []byte, flags int) (n, oobn, ret int, from netip.AddrPort,
	err error) {
	if flags&^(unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC) != 0 {
		return 0, 0, 0, netip.AddrPort{}, os.NewSyscallError("recvmsg", unix.EOPNOTSUPP)
	}
	err = c.read(func() (err error) {
		n, oobn, ret, from, err = c.c.ReadMsgUDPAddrPort(b, oob)
		return err
	})
	return n, oobn, ret, from, err
}

// WriteMsg implements Socket.
func (c *udpSocketConn) WriteMsg(b, oob []byte, to netip.AddrPort) (int, int, error) {
	if to.IsValid() {
		if u := c.localTo(to.Addr()); u != nil {
			n, oobn, err := u.WriteMsgUDPAddrPort(b, withoutPacketInfo(oob), to)
			if err == nil {
				oobn = len(oob)
			}
			return n, oobn, bareError(err)
		}
	}
	n, oobn, err := c.c.WriteMsgUDPAddrPort(b, oob, to)
	return n, oobn, bareError(err)
}

// Layout of struct cmsghdr (linux include/linux/socket.h): length, level, type, and data aligned to
// 8 bytes.
const (
	controlHeader = 16
	controlAlign  = 8
)

// withoutPacketInfo leaves the source address out of control messages for localhost.
func withoutPacketInfo(oob []byte) (rest []byte) {
	for len(oob) >= controlHeader {
		n := binary.NativeEndian.Uint64(oob)
		if n < controlHeader || n > uint64(len(oob)) {
			return append(rest, oob...) // the kernel refuses it
		}
		o := sockOption{int(binary.NativeEndian.Uint32(oob[8:])),
			int(binary.NativeEndian.Uint32(oob[12:]))}
		next := min((n+controlAlign-1)&^(controlAlign-1), uint64(len(oob)))
		if o != (sockOption{unix.IPPROTO_IP, unix.IP_PKTINFO}) &&
			o != (sockOption{unix.IPPROTO_IPV6, unix.IPV6_PKTINFO}) {
			rest = append(rest, oob[:next]...)
		}
		oob = oob[next:]
	}
	return rest
}

// ReadBatch implements what package net's seam in golang.org/x/net/internal/socket calls, whose
// Message is ipv4.Message.
func (c *udpSocketConn) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
	err = c.read(func() (err error) {
		n, err = c.c.ReadBatch(ms, flags&^unix.MSG_DONTWAIT)
		return err
	})
	return n, err
}

// WriteBatch implements the counterpart of ReadBatch.
func (c *udpSocketConn) WriteBatch(ms []ipv4.Message, flags int) (int, error) {
	for i := range ms {
		a, _ := ms[i].Addr.(*net.UDPAddr)
		if a != nil && c.localTo(a.AddrPort().Addr()) != nil {
			return c.writeEach(ms)
		}
	}
	n, err := c.c.WriteBatch(ms, flags&^unix.MSG_DONTWAIT)
	return n, bareError(err)
}

// writeEach sends messages one by one. As sendmmsg(2) does, it reports an error only if no message
// was sent.
func (c *udpSocketConn) writeEach(ms []ipv4.Message) (int, error) {
	for i := range ms {
		var to netip.AddrPort
		if a, ok := ms[i].Addr.(*net.UDPAddr); ok && a != nil {
			to = a.AddrPort()
		}
		n, _, err := c.WriteMsg(joinBytes(ms[i].Buffers), ms[i].OOB, to)
		if err != nil && i == 0 {
			return 0, err
		}
		if err != nil {
			return i, nil
		}
		ms[i].N = n
	}
	return len(ms), nil
}

// JoinGroup joins a group on the slice's interface.
func (c *udpSocketConn) JoinGroup(ifi *net.Interface, group net.IP) error {
	if ifi != nil && ifi.Name != c.device {
		return os.NewSyscallError("setsockopt", unix.ENODEV)
	}
	return bareError(c.c.JoinGroup(nil, &net.UDPAddr{IP: group}))
}

func (c *udpSocketConn) leaveGroup(group net.IP) error {
	return bareError(c.c.LeaveGroup(nil, &net.UDPAddr{IP: group}))
}

// SetOptionBytes implements setsockopt for golang.org/x/net/internal/socket. False leaves it to the
// stand-in.
func (c *udpSocketConn) SetOptionBytes(level, name int, b []byte) (bool, error) {
	switch (sockOption{level, name}) {
	case sockOption{unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP}:
		return true, c.JoinGroup(nil, leadingIP(b, net.IPv4len))
	case sockOption{unix.IPPROTO_IP, unix.IP_DROP_MEMBERSHIP}:
		return true, c.leaveGroup(leadingIP(b, net.IPv4len))
	case sockOption{unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP}:
		return true, c.JoinGroup(nil, leadingIP(b, net.IPv6len))
	case sockOption{unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP}:
		return true, c.leaveGroup(leadingIP(b, net.IPv6len))
	case sockOption{unix.IPPROTO_IP, unix.MCAST_JOIN_GROUP},
		sockOption{unix.IPPROTO_IPV6, unix.MCAST_JOIN_GROUP}:
		return true, c.JoinGroup(nil, requestedGroup(b))
	case sockOption{unix.IPPROTO_IP, unix.MCAST_LEAVE_GROUP},
		sockOption{unix.IPPROTO_IPV6, unix.MCAST_LEAVE_GROUP}:
		return true, c.leaveGroup(requestedGroup(b))
	case sockOption{unix.IPPROTO_IP, unix.MCAST_JOIN_SOURCE_GROUP},
		sockOption{unix.IPPROTO_IPV6, unix.MCAST_JOIN_SOURCE_GROUP}:
		return true, os.NewSyscallError("setsockopt", unix.ENOPROTOOPT)
	}
	return false, nil
}

// leadingIP returns the address at the start of struct ip_mreq, ip_mreqn and ipv6_mreq.
func leadingIP(b []byte, size int) net.IP {
	if len(b) < size {
		return nil
	}
	return net.IP(b[:size])
}

// requestedGroup returns the group in struct group_req: u32 interface, and a sockaddr_storage
// aligned to 8 bytes (linux include/uapi/linux/in.h).
func requestedGroup(b []byte) net.IP {
	const address = 8
	if len(b) < address+24 {
		return nil
	}
	sa := b[address:]
	if binary.NativeEndian.Uint16(sa) == unix.AF_INET {
		return net.IP(sa[4:8])
	}
	return net.IP(sa[8:24])
}

// SetOption implements Socket.
func (c *udpSocketConn) SetOption(level, name, v int) error {
	return c.setSockOption(sockOption{level, name}, v)
}

// currentOptions returns the options of the slice's socket.
func (c *udpSocketConn) currentOptions() map[sockOption]int {
	s := c.c.Settings()
	m := map[sockOption]int{
		{unix.SOL_SOCKET, unix.SO_RCVBUF}:             s.ReadBuffer,
		{unix.SOL_SOCKET, unix.SO_SNDBUF}:             s.WriteBuffer,
		{unix.SOL_UDP, unix.UDP_SEGMENT}:              s.SegmentSize,
		{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP}:     intOf(s.MulticastLoopback),
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP}: intOf(s.MulticastLoopback),
		{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL}:      s.MulticastTTL,
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS}: s.MulticastTTL,
	}
	addHeaderOptions(m, s.TrafficClass, s.TTL)
	addRate(m, s.Pacing)
	return m
}

// setLocally sets an option that was set on the slice's socket on those of localhost.
func (u *sharedUDP) setLocally(o sockOption, v int) {
	for _, k := range u.local {
		raw, err := k.SyscallConn()
		if err != nil {
			continue // closed
		}
		_ = raw.Control(func(fd uintptr) { // it does not have those of the other version of IP
			_ = o.setOn(int(fd), v)
		})
	}
}

// setSockOption sets an option of the slice's socket, and of those on localhost. One that it does
// not have is the stand-in's only.
func (c *udpSocketConn) setSockOption(o sockOption, v int) error {
	u := c.c
	if receivedBy(o) == 0 { // those are always on
		c.setLocally(o, v)
	}
	switch o {
	case sockOption{unix.SOL_SOCKET, unix.SO_RCVBUF}:
		return bareError(u.SetReadBuffer(v))
	case sockOption{unix.SOL_SOCKET, unix.SO_SNDBUF}:
		return bareError(u.SetWriteBuffer(v))
	case pacingRate:
		return bareError(u.SetPacing(uint64(v)))
	case sockOption{unix.IPPROTO_IP, unix.IP_TOS}, sockOption{unix.IPPROTO_IPV6, unix.IPV6_TCLASS}:
		return bareError(u.SetTrafficClass(v))
	case sockOption{unix.IPPROTO_IP, unix.IP_TTL},
		sockOption{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS}:
		return bareError(u.SetTTL(v))
	case sockOption{unix.SOL_UDP, unix.UDP_SEGMENT}:
		return bareError(u.SetSegmentSize(v))
	case sockOption{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP},
		sockOption{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP}:
		return bareError(u.SetMulticastLoopback(v != 0))
	case sockOption{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL},
		sockOption{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS}:
		return bareError(u.SetMulticastTTL(v))
	case sockOption{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER},
		sockOption{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER}:
		if v > unix.IP_PMTUDISC_PROBE { // INTERFACE and OMIT set no DF and take no advice
			v = unix.IP_PMTUDISC_DONT
		}
		return bareError(u.SetPathMTUDiscovery(stack.PathMTUDiscovery(v)))
	}
	if m := receivedBy(o); m != 0 {
		return bareError(u.SetReceive(m, v != 0))
	}
	return nil
}

// receivedBy returns the control message that an option asks for, or 0.
func receivedBy(o sockOption) stack.ControlMessages {
	switch o {
	case sockOption{unix.IPPROTO_IP, unix.IP_PKTINFO}:
		return stack.ReceivePacketInfo4
	case sockOption{unix.IPPROTO_IP, unix.IP_RECVTTL}:
		return stack.ReceiveTTL
	case sockOption{unix.IPPROTO_IP, unix.IP_RECVTOS}:
		return stack.ReceiveTOS
	case sockOption{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO}:
		return stack.ReceivePacketInfo6
	case sockOption{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT}:
		return stack.ReceiveHopLimit
	case sockOption{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}:
		return stack.ReceiveTrafficClass
	case sockOption{unix.SOL_UDP, unix.UDP_GRO}:
		return stack.ReceiveSegments
	}
	return 0
}
