package stack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// The largest payloads that an IP datagram can carry.
const (
	maxPayload4 = 65535 - header.IPv4MinimumSize - header.UDPMinimumSize
	maxPayload6 = 65535 - header.UDPMinimumSize
)

// Write sends b to the peer of a connected socket.
func (c *UDPConn) Write(b []byte) (int, error) {
	if c.raddr == nil {
		return 0, c.writeError(nil,
			c.orClosedErr(os.NewSyscallError("write", syscall.EDESTADDRREQ)))
	}
	return c.sent(b, c.raddr, c.send(b, c.remote, c.bound(), "write", c.ownOptions()))
}

// WriteTo implements net.PacketConn. addr must be a *net.UDPAddr.
func (c *UDPConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, c.writeError(addr, syscall.EINVAL)
	}
	return c.WriteToUDP(b, a)
}

// WriteToUDP is WriteTo with the concrete address type.
func (c *UDPConn) WriteToUDP(b []byte, addr *net.UDPAddr) (int, error) {
	to, err := c.destination(addr)
	if err == nil {
		err = c.send(b, to, c.source(to), "sendto", c.ownOptions())
	}
	return c.sent(b, orNil(addr), err)
}

// WriteToUDPAddrPort is WriteTo with a netip address.
func (c *UDPConn) WriteToUDPAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	to, err := c.destinationAddrPort(addr)
	if err == nil {
		err = c.send(b, to, c.source(to), "sendto", c.ownOptions())
	}
	if err != nil {
		return 0, c.writeError(netAddrPort{addr}, err)
	}
	return len(b), nil
}

// netAddrPort stands for the net.Addr that package net puts into errors of the netip methods.
type netAddrPort struct{ netip.AddrPort }

func (netAddrPort) Network() string { return "udp" }

// WriteMsgUDP is WriteTo, or Write if addr is nil. oob may have control messages of Linux's form:
// IP_PKTINFO and IPV6_PKTINFO name the source address; IP_TOS, IPV6_TCLASS, IP_TTL and
// IPV6_HOPLIMIT mark this datagram; IPV6_DONTFRAG refuses to fragment it; UDP_SEGMENT sends b as
// datagrams of that many bytes, see [UDPConn.SetSegmentSize]; SO_TIMESTAMPING asks for its stamps,
// see [UDPConn.SetTransmitTimestamps]. Others, and wrong ones, are EINVAL.
func (c *UDPConn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	return c.writeMsgUDP(b, oob, addr, waitForRate)
}

func (c *UDPConn) writeMsgUDP(b, oob []byte, addr *net.UDPAddr, p patience) (n, oobn int,
	err error) {
	to := c.remote
	if addr != nil || c.raddr == nil {
		to, err = c.destination(addr)
	}
	if err == nil {
		err = c.sendMsg(b, oob, to, p)
	}
	if err != nil {
		return 0, 0, c.writeError(orNil(addr), err)
	}
	return len(b), len(oob), nil
}

// WriteMsgUDPAddrPort is WriteMsgUDP with a netip address; the zero AddrPort stands for nil.
func (c *UDPConn) WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error) {
	to := c.remote
	if addr.IsValid() || c.raddr == nil {
		to, err = c.destinationAddrPort(addr)
	}
	if err == nil {
		err = c.sendMsg(b, oob, to, waitForRate)
	}
	if err != nil {
		return 0, 0, c.writeError(netAddrPort{addr}, err)
	}
	return len(b), len(oob), nil
}

func (c *UDPConn) sendMsg(b, oob []byte, to tcpip.FullAddress, p patience) error {
	o, from, err := c.messageOptions(oob, to)
	if err != nil {
		return err
	}
	o.patience = p
	return c.send(b, to, from, "sendmsg", o)
}

// messageOptions returns how, and from where, a call with control messages sends.
func (c *UDPConn) messageOptions(oob []byte, to tcpip.FullAddress) (o sendOptions,
	from tcpip.Address, err error) {
	if len(oob) == 0 {
		return c.ownOptions(), c.source(to), nil
	}
	o, e := c.optionsOf(oob, to.Addr)
	if e == 0 {
		e = c.checkSource(&o)
	}
	if e != 0 {
		return o, from, os.NewSyscallError("sendmsg", e)
	}
	if from = o.from; from.Len() == 0 {
		from = c.source(to)
	}
	return o, from, nil
}

// destination checks and converts an address that was given to an unconnected socket.
func (c *UDPConn) destination(addr *net.UDPAddr) (tcpip.FullAddress, error) {
	if c.raddr != nil {
		return tcpip.FullAddress{}, net.ErrWriteToConnected
	}
	if addr == nil {
		return tcpip.FullAddress{}, errMissingAddress
	}
	a, err := c.family.address(addr.IP)
	if err != nil {
		return tcpip.FullAddress{}, err
	}
	return c.stack.zones.full(a, addr.Port, addr.Zone)
}

// destinationAddrPort is destination for netip.
func (c *UDPConn) destinationAddrPort(addr netip.AddrPort) (tcpip.FullAddress, error) {
	if c.raddr != nil {
		return tcpip.FullAddress{}, net.ErrWriteToConnected
	}
	if !addr.IsValid() {
		return tcpip.FullAddress{}, errMissingAddress
	}
	a, err := c.family.fromNetip(addr.Addr())
	if err != nil {
		return tcpip.FullAddress{}, err
	}
	return c.stack.zones.full(a, int(addr.Port()), addr.Addr().Zone())
}

// bound returns the address that the socket is bound to and sends from, if any: not a broadcast
// address (RFC 1122 section 3.2.1.3).
func (c *UDPConn) bound() tcpip.Address {
	if c.toAll {
		return tcpip.Address{}
	}
	return c.local.Addr
}

// source returns the address to send from: the one bound to, or the one that to has last sent to.
func (c *UDPConn) source(to tcpip.FullAddress) tcpip.Address {
	if a := c.bound(); a.Len() != 0 || c.toAll {
		return a
	}
	return c.replySources.sourceFor(to)
}

// sent turns a send's outcome into what the Write methods return.
func (c *UDPConn) sent(b []byte, addr net.Addr, err error) (int, error) {
	if err != nil {
		return 0, c.writeError(addr, err)
	}
	return len(b), nil
}

// send transmits b; call names the system call the host stack would have made.
func (c *UDPConn) send(b []byte, to tcpip.FullAddress, from tcpip.Address, call string,
	o sendOptions) error {
	if err := c.check(&c.wr); err != nil {
		return err
	}
	if err := c.stack.outage.refuse(call); err != nil {
		return err
	}
	if e := c.checkSend(b, to); e != 0 {
		return os.NewSyscallError(call, e)
	}
	if p := c.paced(); p != nil {
		return c.sendPaced(p, b, to, from, call, &o)
	}
	return c.sendNow(b, to, from, call, &o)
}

// sendNow sends what may leave.
func (c *UDPConn) sendNow(b []byte, to tcpip.FullAddress, from tcpip.Address, call string,
	o *sendOptions) error {
	if done, err := c.sendByKernel(b, to, from, o); done {
		if err != nil {
			err = c.orClosedErr(err)
		}
		return err
	}
	if c.raddr != nil { // an ICMP error about an earlier datagram costs this one, as on Linux
		if terr := c.ep.LastError(); terr != nil {
			if c.isTooLong(b, to, from, o) { // which Linux sees first
				c.ep.SocketOptions().SetLastError(terr)
				terr = &tcpip.ErrMessageTooLong{}
			}
			return syscallError(call, terr)
		}
	}
	return c.dispatch(b, to, from, call, o)
}

// isTooLong says whether a datagram to one host has to be refused for its size.
func (c *UDPConn) isTooLong(b []byte, to tcpip.FullAddress, from tcpip.Address,
	o *sendOptions) bool {
	if !c.mustFit(o) || o.segment != 0 || !cacheable(to.Addr) {
		return false
	}
	r, terr := c.stack.findRoute(routeKey{from, to.Addr})
	if terr != nil {
		return false
	}
	defer r.Release()
	return header.UDPMinimumSize+len(b) > c.datagramRoom(r).limit
}

// dispatch sends a datagram on the way that is open to it, see [UDPConn].
func (c *UDPConn) dispatch(b []byte, to tcpip.FullAddress, from tcpip.Address, call string,
	o *sendOptions) error {
	if !cacheable(to.Addr) && o.segment != 0 && len(b) > o.segment {
		return c.dispatchEach(b, to, from, call, o)
	}
	switch named := o.marked || o.stamps != 0 ||
		from != c.local.Addr && (from.Len() != 0 || c.toAll); {
	case cacheable(to.Addr):
	case c.mustFit(o) && c.exceedsLink(b, to):
		return os.NewSyscallError(call, syscall.EMSGSIZE)
	case named && to.Addr.Len() != 0:
		return c.sendFrom(b, to, from, call, o)
	default:
		return c.sendEndpoint(b, to, call)
	}
	terr := c.routes.use(c.stack, routeKey{from, to.Addr}, func(p *peerPath) tcpip.Error {
		if o.segment != 0 {
			return c.sendSegments(p, b, to.Port, o)
		}
		return c.transmit(p, b, to.Port, o)
	})
	switch terr.(type) {
	case nil, *tcpip.ErrNoBufferSpace: // as on Linux, a full queue below loses the datagram
		return nil
	}
	return c.orClosedErr(syscallError(call, terr))
}

// dispatchEach sends b to a group or to all in datagrams of o.segment bytes.
func (c *UDPConn) dispatchEach(b []byte, to tcpip.FullAddress, from tcpip.Address, call string,
	o *sendOptions) error {
	switch {
	case c.exceedsLink(b[:o.segment], to):
		return os.NewSyscallError(call, syscall.EMSGSIZE)
	case len(b) > o.segment*maxSegments:
		return os.NewSyscallError(call, syscall.EINVAL)
	}
	for part := range slices.Chunk(b, o.segment) {
		if err := c.dispatch(part, to, from, call, o); err != nil {
			return err
		}
		o.stamps = 0 // of the first only, as of linux net/ipv4/udp_offload.c
	}
	return nil
}

// mustFit reports whether a datagram that would have to be fragmented is refused.
func (c *UDPConn) mustFit(o *sendOptions) bool {
	return o.whole || PathMTUDiscovery(c.discovery.Load()) >= PathMTUDo
}

// checkSend returns the error of what Linux refuses before it looks up a route, or 0.
func (c *UDPConn) checkSend(b []byte, to tcpip.FullAddress) syscall.Errno {
	limit := maxPayload6
	if to.Addr.Len() == net.IPv4len || c.family == inet4 {
		limit = maxPayload4
	}
	switch {
	case len(b) > limit:
		return syscall.EMSGSIZE
	case to.Port == 0:
		return syscall.EINVAL
	case to.Addr.Len() == net.IPv4len && (c.family == inet6 || c.local.Addr.Len() == net.IPv6len):
		return syscall.ENETUNREACH
	}
	return 0
}

// cacheable says whether a is one host, whose route does not depend on the socket's options.
func cacheable(a tcpip.Address) bool {
	return a.Len() != 0 && a != header.IPv4Broadcast &&
		!header.IsV4MulticastAddress(a) && !header.IsV6MulticastAddress(a)
}

// isGroup says whether a stands for several hosts: a multicast or broadcast address.
func (s *Stack) isGroup(a tcpip.Address) bool {
	return a.Len() != 0 && !cacheable(a) || s.net.IsSubnetBroadcast(nicID, ipv4Protocol, a)
}

// transmit sends a datagram on a path: directly if the path has a template, else through netstack.
func (c *UDPConn) transmit(p *peerPath, b []byte, port uint16, o *sendOptions) tcpip.Error {
	if c.stack.datagrams == nil || o.stamps != 0 {
		return c.write(p.route, b, port, o)
	}
	if err, sent := c.sendDirect(p, b, port, o); sent {
		return err
	}
	err := c.write(p.route, b, port, o)
	p.template.Store(c.buildTemplate(p.route))
	return err
}

// write sends a datagram through netstack.
func (c *UDPConn) write(r *gstack.Route, b []byte, port uint16, o *sendOptions) tcpip.Error {
	path := c.datagramRoom(r)
	fits := header.UDPMinimumSize+len(b) <= path.limit
	switch {
	case fits:
	case c.mustFit(o):
		return &tcpip.ErrMessageTooLong{}
	case path.path != nil:
		at := c.stack.clock.Now()
		err := c.writeFragments(r, b, port, path, o)
		if o.stamps != 0 && err == nil {
			c.wishStamps(o).notePosted(nil, false, at)
		}
		c.countSent(err)
		return err
	}
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
		ReserveHeaderBytes: header.UDPMinimumSize + int(r.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(b),
	})
	defer pkt.DecRef()
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	length := header.UDPMinimumSize + len(b)
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	h.Encode(&header.UDPFields{SrcPort: c.local.Port, DstPort: port, Length: uint16(length)})
	if r.RequiresTXTransportChecksum() {
		sum := r.PseudoHeaderChecksum(udp.ProtocolNumber, uint16(length))
		sum = h.CalculateChecksum(checksum.Combine(sum, pkt.Data().Checksum()))
		if sum != 0xffff { // 0 on the wire means "no checksum" (RFC 768)
			sum = ^sum
		}
		h.SetChecksum(sum)
	}
	params := gstack.NetworkHeaderParams{
		Protocol: udp.ProtocolNumber,
		TTL:      c.ttlOn(r, o),
		TOS:      o.class,
		DF:       fits && !c.mayBeFragmented(r, path), // netstack fragments what does not fit
	}
	var err tcpip.Error
	if o.stamps != 0 {
		err = c.writeStamped(r, params, fits, pkt, o)
	} else {
		err = r.WritePacket(params, pkt)
	}
	c.countSent(err)
	return err
}

// countSent counts what became of a datagram.
func (c *UDPConn) countSent(err tcpip.Error) {
	if err == nil {
		c.stack.udp.stats.PacketsSent.Increment()
	} else {
		c.stack.udp.stats.PacketSendErrors.Increment()
	}
}

// sendEndpoint sends through the endpoint, which handles groups, broadcast and "any".
func (c *UDPConn) sendEndpoint(b []byte, to tcpip.FullAddress, call string) error {
	c.wr.mu.Lock()
	defer c.wr.mu.Unlock()
	defer c.src.Reset(nil)
	opts := tcpip.WriteOptions{To: &to}
	if c.raddr != nil {
		opts.To = nil
	}
	for {
		if err := c.check(&c.wr); err != nil {
			return err
		}
		c.src.Reset(b)
		_, terr := c.ep.Write(&c.src, opts)
		switch {
		case terr == nil:
			return nil
		case wouldBlock(terr):
			c.wr.park()
		default:
			return c.orClosedErr(syscallError(call, terr))
		}
	}
}

func (c *UDPConn) writeError(addr net.Addr, err error) error {
	return &net.OpError{Op: "write", Net: c.network, Source: c.laddr, Addr: addr, Err: err}
}

// ListenMulticastUDP is net.ListenMulticastUDP: a socket on the wildcard address and the port of
// gaddr, which other such sockets may have, too, and which has joined the group. What it sends to
// groups is not looped back until [UDPConn.SetMulticastLoopback] says so. ifi is nil, has the
// stack's [Stack.Name], or is the port's netdev; any other fails with ENODEV.
func (s *Stack) ListenMulticastUDP(network string, ifi *net.Interface,
	gaddr *net.UDPAddr) (*UDPConn, error) {
	fail := func(err error) (*UDPConn, error) {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: orNil(gaddr), Err: err}
	}
	if err := checkNetwork("udp", network); err != nil {
		return fail(err)
	}
	if gaddr == nil || gaddr.IP == nil {
		return fail(errMissingAddress)
	}
	c, err := s.ListenConfig().listenUDP(network, gaddr)
	if err != nil {
		return nil, err
	}
	c.ep.SocketOptions().SetMulticastLoop(false)
	if err := c.join(ifi, gaddr.IP, gaddr.Zone); err != nil {
		c.Close()
		return fail(err)
	}
	return c, nil
}

// JoinGroup makes the stack a member of a group, a *net.UDPAddr or *net.IPAddr whose port does not
// matter, and says so on the link (IGMPv3, RFC 3376; MLDv2, RFC 3810). As on Linux, what is sent to
// the group then comes to every socket that has the datagram's port and is bound to the group's or
// the wildcard address, whichever socket has joined. ifi is as for [Stack.ListenMulticastUDP].
// Errors are EINVAL for what is no group and EADDRINUSE for a group joined before. Close leaves all
// groups.
func (c *UDPConn) JoinGroup(ifi *net.Interface, group net.Addr) error {
	return c.change(group, func(ip net.IP, zone string) error { return c.join(ifi, ip, zone) })
}

// LeaveGroup undoes JoinGroup. The error is EADDRNOTAVAIL if this socket has not joined.
func (c *UDPConn) LeaveGroup(ifi *net.Interface, group net.Addr) error {
	return c.change(group, func(ip net.IP, zone string) error {
		return c.member(ifi, ip, zone, func(a tcpip.Address) tcpip.SettableSocketOption {
			return &tcpip.RemoveMembershipOption{NIC: nicID, MulticastAddr: a}
		})
	})
}

// SetMulticastLoopback says whether what is sent to a group that this stack is a member of comes to
// its own sockets, too. Default true, but for sockets of [Stack.ListenMulticastUDP].
func (c *UDPConn) SetMulticastLoopback(on bool) error {
	return c.set(func() { c.ep.SocketOptions().SetMulticastLoop(on) })
}

// change runs a change of memberships unless the conn is closed.
func (c *UDPConn) change(group net.Addr, do func(ip net.IP, zone string) error) error {
	var err error
	switch g := group.(type) {
	case *net.UDPAddr:
		err = do(g.IP, g.Zone)
	case *net.IPAddr:
		err = do(g.IP, g.Zone)
	default:
		err = errMissingAddress
	}
	if err != nil {
		return c.setError(err)
	}
	return nil
}

func (c *UDPConn) join(ifi *net.Interface, ip net.IP, zone string) error {
	return c.member(ifi, ip, zone, func(a tcpip.Address) tcpip.SettableSocketOption {
		return &tcpip.AddMembershipOption{NIC: nicID, MulticastAddr: a}
	})
}

// member sets an option about membership of a group.
func (c *UDPConn) member(ifi *net.Interface, ip net.IP, zone string,
	option func(tcpip.Address) tcpip.SettableSocketOption) error {
	if len(ip) == 0 {
		return errMissingAddress
	}
	if c.stack.host != nil {
		return fmt.Errorf("groups on the host's MAC are Linux's, see Config.Host: %w",
			errors.ErrUnsupported)
	}
	if ifi != nil && !c.stack.zones.has(ifi.Name) {
		return errors.Join(os.NewSyscallError("setsockopt", syscall.ENODEV),
			fmt.Errorf("the stack's only interface is %s, not %s: give nil", c.stack.name,
				ifi.Name))
	}
	a, err := c.family.address(ip)
	if err != nil {
		return err
	}
	if _, err := c.stack.zones.full(a, 0, zone); err != nil {
		return err
	}
	// the endpoint must not be closed at the same time: it would have no memberships to put this
	// into
	c.stack.life.live.RLock()
	defer c.stack.life.live.RUnlock()
	c.groups.Lock()
	defer c.groups.Unlock()
	if err := c.done(); err != nil {
		return err
	}
	if terr := c.ep.SetSockOpt(option(a)); terr != nil {
		return syscallError("setsockopt", terr)
	}
	c.stack.addrs.TellGroups()
	return nil
}

// sendFrom sends to a group or to all from an address that the caller named, which endpoints do not
// know of for IPv4.
func (c *UDPConn) sendFrom(b []byte, to tcpip.FullAddress, from tcpip.Address, call string,
	o *sendOptions) error {
	protocol := ipv6Protocol
	if to.Addr.Len() == net.IPv4len {
		protocol = ipv4Protocol
	}
	r, terr := c.stack.net.FindRoute(nicID, from, to.Addr, protocol,
		c.ep.SocketOptions().GetMulticastLoop())
	if terr == nil {
		defer r.Release()
		terr = c.write(r, b, to.Port, o)
	}
	switch terr.(type) {
	case nil, *tcpip.ErrNoBufferSpace: // lost, as of send
		return nil
	}
	return c.orClosedErr(syscallError(call, terr))
}

// SetPathMTUDiscovery chooses how datagrams are sent from now on. The error is EINVAL for other
// values than those of the constants. What the path's MTU is, routers tell by ICMP, about datagrams
// that were sent from here; one call on a connected socket then fails with EMSGSIZE, as on Linux,
// unless it is PathMTUDont. A Write that fails so sends nothing.
func (c *UDPConn) SetPathMTUDiscovery(d PathMTUDiscovery) error {
	if d < PathMTUDont || d > PathMTUProbe {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return c.set(func() {
		c.discovery.Store(uint32(d))
		group := tcpip.PMTUDiscoveryDont // see configure
		if d >= PathMTUDo {
			group = tcpip.PMTUDiscoveryDo
		}
		_ = c.ep.SetSockOptInt(tcpip.MTUDiscoverOption, int(group)) // cannot fail
		c.routes.forgetTemplates()
	})
}

// SetDontFragment chooses PathMTUDo, or PathMTUWant: whether datagrams that are larger than the MTU
// of their path are refused with EMSGSIZE, or fragmented.
func (c *UDPConn) SetDontFragment(on bool) error {
	if on {
		return c.SetPathMTUDiscovery(PathMTUDo)
	}
	return c.SetPathMTUDiscovery(PathMTUWant)
}

// PathMTU returns the MTU of the path to the peer of a connected socket, in bytes of IP packets,
// as far as it is known (Linux's IP_MTU). The error is ENOTCONN if the socket is not connected.
func (c *UDPConn) PathMTU() (int, error) {
	if err := c.done(); err != nil {
		return 0, c.setError(err)
	}
	if c.raddr == nil {
		return 0, c.setError(os.NewSyscallError("getsockopt", syscall.ENOTCONN))
	}
	r, terr := c.stack.findRoute(routeKey{c.local.Addr, c.remote.Addr})
	if terr != nil {
		return 0, c.setError(syscallError("getsockopt", terr))
	}
	defer r.Release()
	return c.stack.icmp.mtus.payload(r).limit + ipHeaderLen(r), nil
}

// datagramRoom tells payload as the socket goes by it.
func (c *UDPConn) datagramRoom(r *gstack.Route) payloadRoom {
	if PathMTUDiscovery(c.discovery.Load()) == PathMTUProbe {
		return payloadRoom{int(r.MTU()), nil}
	}
	return c.stack.icmp.mtus.payload(r)
}

// mayBeFragmented reports whether what fits a path is sent without "don't fragment". IPv6 has no
// such flag.
func (c *UDPConn) mayBeFragmented(r *gstack.Route, path payloadRoom) bool {
	return r.NetProto() == ipv4Protocol &&
		(PathMTUDiscovery(c.discovery.Load()) == PathMTUDont ||
			path.path != nil && path.path.fragment)
}

// exceedsLink reports whether a datagram to several hosts has to be fragmented.
func (c *UDPConn) exceedsLink(b []byte, to tcpip.FullAddress) bool {
	headers := header.IPv6MinimumSize
	if to.Addr.Len() == header.IPv4AddressSize {
		headers = header.IPv4MinimumSize
	}
	info, ok := c.stack.net.SingleNICInfo(nicID)
	return ok && headers+header.UDPMinimumSize+len(b) > int(info.MTU)
}

// writeFragments sends a datagram in fragments of a path that takes less than the interface does,
// for which netstack has no means. The datagram has its checksum: a NIC cannot compute that of
// fragments.
func (c *UDPConn) writeFragments(r *gstack.Route, b []byte, port uint16, path payloadRoom,
	o *sendOptions) tcpip.Error {
	datagram := make([]byte, header.UDPMinimumSize+len(b))
	h := header.UDP(datagram)
	h.Encode(&header.UDPFields{SrcPort: c.local.Port, DstPort: port,
		Length: uint16(len(datagram))})
	copy(h.Payload(), b)
	sum := r.PseudoHeaderChecksum(udp.ProtocolNumber, uint16(len(datagram)))
	if sum = checksum.Checksum(datagram, sum); sum != 0xffff { // 0 means "no checksum" (RFC 768)
		sum = ^sum
	}
	h.SetChecksum(sum)

	size := path.limit
	if r.NetProto() == ipv6Protocol {
		size -= header.IPv6FragmentHeaderSize
	}
	size &^= 7 // a multiple of 8 in all but the last (RFC 791 section 3.1, RFC 8200 section 4.5)
	identification := path.path.identification.Add(1)
	for at := 0; at < len(datagram); at += size {
		end := min(at+size, len(datagram))
		pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
			ReserveHeaderBytes: int(r.MaxHeaderLength()),
			Payload: buffer.MakeWithData(append(c.fragmentHeaders(r, o, identification,
				at, end-at, end < len(datagram)), datagram[at:end]...)),
		})
		err := r.WriteHeaderIncludedPacket(pkt)
		pkt.DecRef()
		if err != nil {
			return err
		}
	}
	return nil
}

// fragmentHeaders returns the headers of a fragment that is at an offset of a datagram and has n
// bytes.
func (c *UDPConn) fragmentHeaders(r *gstack.Route, o *sendOptions, identification uint32,
	at, n int, more bool) []byte {
	if r.NetProto() == ipv6Protocol {
		b := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+
			header.IPv6FragmentHeaderSize+n)
		header.IPv6(b).Encode(&header.IPv6Fields{
			PayloadLength:     uint16(header.IPv6FragmentHeaderSize + n),
			TransportProtocol: header.IPv6FragmentHeader, HopLimit: c.ttlOn(r, o),
			TrafficClass: o.class, SrcAddr: r.LocalAddress(),
			DstAddr: r.RemoteAddress(),
		})
		field := uint16(at)
		if more {
			field |= 1
		}
		b = append(b, uint8(udp.ProtocolNumber), 0)
		b = binary.BigEndian.AppendUint16(b, field)
		return binary.BigEndian.AppendUint32(b, identification)
	}
	b := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+n)
	f := header.IPv4Fields{TotalLength: uint16(header.IPv4MinimumSize + n),
		TOS: o.class, ID: uint16(max(identification&0xffff, 1)),
		FragmentOffset: uint16(at), TTL: c.ttlOn(r, o), Protocol: uint8(udp.ProtocolNumber),
		SrcAddr: r.LocalAddress(), DstAddr: r.RemoteAddress()}
	if more {
		f.Flags = header.IPv4FlagMoreFragments
	}
	header.IPv4(b).Encode(&f)
	return b
}

// sendPaced sends b when the socket's rate allows it.
func (c *UDPConn) sendPaced(p *socketPacing, b []byte, to tcpip.FullAddress, from tcpip.Address,
	call string, o *sendOptions) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	if o.patience == sendAtOnce {
		if !p.admitNow(c.stack.clock) {
			return os.NewSyscallError(call, syscall.EAGAIN)
		}
	} else if err := c.awaitRate(p); err != nil {
		return err
	}
	n := c.wireBytes(len(b), to, o)
	err := c.sendNow(b, to, from, call, o)
	if err == nil {
		p.datagrams.Sent(n)
	}
	return err
}

// paced returns the rate of the socket; nil: it has none.
func (c *UDPConn) paced() *socketPacing {
	if p := c.pacing.Load(); p != nil && p.rate.Load() != 0 {
		return p
	}
	return nil
}

// wireBytes returns how many bytes a write of n bytes of payload takes in frames, without FCS.
func (c *UDPConn) wireBytes(n int, to tcpip.FullAddress, o *sendOptions) int {
	ip := header.IPv6MinimumSize
	if to.Addr.Len() == header.IPv4AddressSize || c.family == inet4 {
		ip = header.IPv4MinimumSize
	}
	each := header.EthernetMinimumSize + ip
	if o.segment != 0 {
		segments := max(1, (n+o.segment-1)/o.segment)
		return n + segments*(each+header.UDPMinimumSize)
	}
	n += header.UDPMinimumSize
	if n <= header.IPv6MinimumMTU-ip { // which every link has room for
		return n + each
	}
	info, ok := c.stack.net.SingleNICInfo(nicID)
	room := int(info.MTU) - ip
	if !ok || n <= room {
		return n + each
	}
	if ip == header.IPv6MinimumSize {
		each += header.IPv6FragmentHeaderSize
		room -= header.IPv6FragmentHeaderSize
	}
	room = max(8, room&^7) // all fragments but the last (RFC 791, RFC 8200)
	return n + (n+room-1)/room*each
}

// awaitRate returns when the rate of the socket lets out a datagram. The caller has the turn.
func (c *UDPConn) awaitRate(p *socketPacing) error {
	c.wr.mu.Lock()
	defer c.wr.mu.Unlock()
	for waited := false; ; waited = true {
		err := c.check(&c.wr)
		wait := p.admit(c.stack.clock)
		if err != nil || wait <= 0 {
			if waited {
				p.timer.Stop()
			}
			p.datagrams.Rest()
			return err
		}
		if !waited {
			c.stack.udp.pacing.waits.Add(1)
		}
		p.timer.Reset(wait)
		c.wr.park()
	}
}
