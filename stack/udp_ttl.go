package stack

import (
	"fmt"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// SetTTL sets the time to live, or hop limit, of what is sent to hosts and to broadcast addresses
// from now on: 1 to 255, or -1 for the default of 64. Others are EINVAL.
func (c *UDPConn) SetTTL(ttl int) error {
	if err := c.checkTTL(ttl); err != nil {
		return err
	}
	return c.set(func() {
		c.ttl.Store(uint32(max(ttl, 0)))
		// For what the endpoint sends. Its "default" is 0 of one and -1 of the other.
		c.ep.SetSockOptInt(tcpip.IPv4TTLOption, max(ttl, tcpip.UseDefaultIPv4TTL))
		c.ep.SetSockOptInt(tcpip.IPv6HopLimitOption, ttl)
	})
}

// SetMulticastTTL is SetTTL for what is sent to groups. The default is 1, which keeps it on the
// link. 0, with which Linux keeps it inside the host, is EINVAL.
func (c *UDPConn) SetMulticastTTL(ttl int) error {
	if err := c.checkTTL(ttl); err != nil {
		return err
	}
	if ttl == -1 {
		ttl = 1
	}
	return c.set(func() { c.ep.SetSockOptInt(tcpip.MulticastTTLOption, ttl) })
}

func (c *UDPConn) checkTTL(ttl int) error {
	if ttl < -1 || ttl == 0 || ttl > 255 {
		return c.setError(fmt.Errorf("TTL %d: want 1 to 255, or -1 for the default: %w", ttl,
			syscall.EINVAL))
	}
	return nil
}

// ttlOn is the time to live of what takes a route.
func (c *UDPConn) ttlOn(r *gstack.Route) uint8 {
	if to := r.RemoteAddress(); header.IsV4MulticastAddress(to) || header.IsV6MulticastAddress(to) {
		ttl, _ := c.ep.GetSockOptInt(tcpip.MulticastTTLOption) // which every UDP endpoint has
		return uint8(ttl)
	}
	if ttl := c.ttl.Load(); ttl != 0 {
		return uint8(ttl)
	}
	return r.DefaultTTL()
}

// putTTL writes a time to live into an IP header.
func putTTL(ip []byte, v6 bool, ttl uint8) {
	if v6 {
		header.IPv6(ip).SetHopLimit(ttl)
		return
	}
	header.IPv4(ip).SetTTL(ttl)
}
