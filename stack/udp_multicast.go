package stack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// ListenMulticastUDP is net.ListenMulticastUDP: a socket on the wildcard address and the port of
// gaddr, which other such sockets may have, too, and which has joined the group. What it sends to
// groups is not looped back until [UDPConn.SetMulticastLoopback] says so. ifi is nil or has the
// stack's [Stack.Name]; any other fails with ENODEV.
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

func (c *UDPConn) setError(err error) error {
	return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: err}
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
	if ifi != nil && ifi.Name != c.stack.name {
		return errors.Join(os.NewSyscallError("setsockopt", syscall.ENODEV),
			fmt.Errorf("the stack's only interface is %s, not %s: give nil", c.stack.name,
				ifi.Name))
	}
	a, err := c.family.address(ip)
	if err != nil {
		return err
	}
	if _, err := c.stack.full(a, 0, zone); err != nil {
		return err
	}
	// the endpoint must not be closed at the same time: it would have no memberships to put this
	// into
	c.stack.live.RLock()
	defer c.stack.live.RUnlock()
	c.groups.Lock()
	defer c.groups.Unlock()
	if err := c.done(); err != nil {
		return err
	}
	if terr := c.ep.SetSockOpt(option(a)); terr != nil {
		return syscallError("setsockopt", terr)
	}
	c.stack.tellGroups()
	return nil
}

// sendFrom sends to a group or to all from an address that the caller named, which endpoints do not
// know of for IPv4.
func (c *UDPConn) sendFrom(b []byte, to tcpip.FullAddress, from tcpip.Address, call string) error {
	protocol := ipv6Protocol
	if to.Addr.Len() == net.IPv4len {
		protocol = ipv4Protocol
	}
	r, terr := c.stack.net.FindRoute(nicID, from, to.Addr, protocol,
		c.ep.SocketOptions().GetMulticastLoop())
	if terr == nil {
		defer r.Release()
		terr = c.write(r, b, to.Port)
	}
	switch terr.(type) {
	case nil, *tcpip.ErrNoBufferSpace: // lost, as of send
		return nil
	}
	return c.orClosedErr(syscallError(call, terr))
}
