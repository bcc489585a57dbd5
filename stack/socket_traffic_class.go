package stack

import (
	"fmt"
	"net"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// maxDSCP is the largest differentiated services code point: six bits (RFC 2474 section 3).
const maxDSCP = 1<<6 - 1

func validateDSCP(dscp uint8) error {
	if dscp > maxDSCP {
		return fmt.Errorf("DSCP is %d, code points are 0 to %d: "+
			"46 is expedited forwarding, 0 best effort", dscp, maxDSCP)
	}
	return nil
}

// SetTrafficClass marks what is sent from now on with this traffic class (IPv6) or type of service
// (IPv4), 0 to 255: the DSCP times four. It takes the place of [Config.DSCP]. The two ECN bits
// below it are TCP's own.
func (c *TCPConn) SetTrafficClass(class int) error {
	if class < 0 || class > 255 {
		return c.opError("set", badClass(class))
	}
	return c.set(func() { mark(c.ep, class) })
}

// SetTrafficClass is TCPConn.SetTrafficClass for datagrams.
func (c *UDPConn) SetTrafficClass(class int) error {
	if class < 0 || class > 255 {
		return &net.OpError{Op: "set", Net: c.network, Addr: c.laddr, Err: badClass(class)}
	}
	return c.set(func() { c.mark(class) })
}

func badClass(class int) error { return fmt.Errorf("traffic class %d: want 0 to 255", class) }

// mark has both IP versions of an endpoint send with a traffic class; one may not be there.
func mark(ep tcpip.Endpoint, class int) {
	ep.SetSockOptInt(tcpip.IPv4TOSOption, class)
	ep.SetSockOptInt(tcpip.IPv6TrafficClassOption, class)
}

// markDefault has an endpoint send with the configured traffic class.
func (s *Stack) markDefault(ep tcpip.Endpoint) {
	if s.cfg.DSCP != 0 {
		mark(ep, int(s.cfg.DSCP)<<2)
	}
}

func (c *UDPConn) mark(class int) {
	mark(c.ep, class) // for what the endpoint sends
	c.class.Store(uint32(class))
}

// putClass writes a traffic class into an IP header that has none.
func putClass(ip []byte, v6 bool, class uint8) {
	if v6 {
		header.IPv6(ip).SetTOS(class, 0)
		return
	}
	header.IPv4(ip).SetTOS(class, 0)
}
