package stack

import (
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// payloadWriter receives one datagram from netstack, and drops what does not fit buf. It implements
// io.Writer.
type payloadWriter struct {
	buf []byte
	n   int
}

func (d *payloadWriter) Write(p []byte) (int, error) {
	d.n += copy(d.buf[d.n:], p)
	return len(p), nil
}

// received describes a datagram.
type received struct {
	n     int // bytes stored
	total int // bytes sent
	from  tcpip.FullAddress
	to    tcpip.Address // the address of ours, or group, or broadcast address it was sent to
}

// Read reads a datagram and drops what does not fit in b.
func (c *UDPConn) Read(b []byte) (int, error) {
	r, err := c.receive(b, "read")
	return r.n, err
}

// ReadFrom implements net.PacketConn. The address is a *net.UDPAddr.
func (c *UDPConn) ReadFrom(b []byte) (int, net.Addr, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, nil, err
	}
	return r.n, c.stack.udpAddr(c.family, r.from), nil
}

// ReadFromUDP is ReadFrom with the concrete address type.
func (c *UDPConn) ReadFromUDP(b []byte) (int, *net.UDPAddr, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, nil, err
	}
	return r.n, c.stack.udpAddr(c.family, r.from), nil
}

// ReadFromUDPAddrPort is ReadFrom without allocation. On a dual-stack socket IPv4 senders have
// IPv4-mapped IPv6 addresses, as in package net.
func (c *UDPConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	r, err := c.receive(b, "recvfrom")
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	return r.n, c.family.addrPort(r.from, c.stack.zone(r.from.Addr)), nil
}

// ReadMsgUDP is ReadFrom with flags (MSG_TRUNC) and, after [UDPConn.SetControl], the datagram's
// destination in oob.
func (c *UDPConn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	r, oobn, flags, err := c.receiveMsg(b, oob)
	if err != nil {
		return 0, 0, 0, nil, err
	}
	return r.n, oobn, flags, c.stack.udpAddr(c.family, r.from), nil
}

// ReadMsgUDPAddrPort is ReadMsgUDP with a netip address.
func (c *UDPConn) ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int,
	addr netip.AddrPort, err error) {
	r, oobn, flags, err := c.receiveMsg(b, oob)
	if err != nil {
		return 0, 0, 0, netip.AddrPort{}, err
	}
	return r.n, oobn, flags, c.family.addrPort(r.from, c.stack.zone(r.from.Addr)), nil
}

func (c *UDPConn) receiveMsg(b, oob []byte) (r received, oobn, flags int, err error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	if r, err = c.receiveLocked(b, "recvmsg"); err != nil {
		return r, 0, 0, c.readError(err)
	}
	oobn, flags = c.message(r, oob)
	return r, oobn, flags, nil
}

// message fills in what recvmsg returns besides the bytes. rd.mu is held.
func (c *UDPConn) message(r received, oob []byte) (oobn, flags int) {
	if r.total > r.n {
		flags |= syscall.MSG_TRUNC
	}
	if !c.control.Load() {
		return 0, flags
	}
	oobn, ok := putPacketInfo(oob, r.to)
	if !ok {
		flags |= syscall.MSG_CTRUNC
	}
	return oobn, flags
}

// receive waits for a datagram; call names the system call the host stack would have made.
func (c *UDPConn) receive(b []byte, call string) (received, error) {
	c.rd.mu.Lock()
	defer c.rd.mu.Unlock()
	r, err := c.receiveLocked(b, call)
	if err != nil {
		return r, c.readError(err)
	}
	return r, nil
}

func (c *UDPConn) receiveLocked(b []byte, call string) (received, error) {
	for {
		if err := c.check(&c.rd); err != nil {
			return received{}, err
		}
		r, terr := c.dequeue(b)
		switch {
		case terr == nil:
			return r, nil
		case wouldBlock(terr):
			c.rd.park()
		default:
			return received{}, c.orClosedErr(syscallError(call, terr))
		}
	}
}

// endpointEvents is told by netstack what the endpoint of a socket is ready for.
type endpointEvents struct{ c *UDPConn }

// NotifyEvent implements waiter.EventListener. It is called with netstack's locks held.
func (a endpointEvents) NotifyEvent(mask waiter.EventMask) {
	if mask&readEvents != 0 {
		a.c.rxq.endpointReady()
		a.c.rd.notify()
	}
	if mask&writeEvents != 0 {
		a.c.wr.notify()
	}
}

// dequeue removes the oldest datagram, or reports tcpip.ErrWouldBlock. rd.mu is held.
func (c *UDPConn) dequeue(b []byte) (received, tcpip.Error) {
	if c.raddr != nil { // an ICMP error that came back is reported first
		if terr := c.ep.LastError(); terr != nil {
			return received{}, terr
		}
	}
	r, terr := c.rxq.dequeue(b)
	if terr != nil {
		return received{}, terr
	}
	if c.raddr == nil && c.local.Addr.Len() == 0 {
		c.replySources.remember(c.stack, r.from, r.to)
	}
	return r, nil
}

// dequeueEndpoint is dequeue for what netstack has delivered.
func (c *UDPConn) dequeueEndpoint(b []byte) (received, tcpip.Error) {
	c.payload = payloadWriter{buf: b}
	res, terr := c.ep.Read(&c.payload, tcpip.ReadOptions{NeedRemoteAddr: true})
	n := c.payload.n
	c.payload = payloadWriter{}
	if terr != nil {
		return received{}, terr
	}
	r := received{n: n, total: res.Total, from: res.RemoteAddr}
	if m := &res.ControlMessages; m.HasIPPacketInfo {
		r.to = m.PacketInfo.DestinationAddr
	} else if m.HasIPv6PacketInfo {
		r.to = m.IPv6PacketInfo.Addr
	}
	return r, nil
}

func (c *UDPConn) readError(err error) error {
	return &net.OpError{Op: "read", Net: c.network, Source: c.laddr, Addr: c.RemoteAddr(), Err: err}
}
