package stack

import (
	"encoding/binary"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostmode"
)

// openOnHost takes the ports of a socket that is bound.
func (c *UDPConn) openOnHost() (err error) {
	if c.stack.host == nil {
		return nil
	}
	b := hostmode.ForReceiver(boundAt(c.family, c.local), kernelReceiver{c})
	c.binding, err = c.stack.host.bind(b)
	return err
}

// headroom says how many bytes come before the payload of a datagram of the kernel.
const headroom = hostmode.Headroom

// kernelReceiver implements hostmode.Receiver for a socket of the stack.
type kernelReceiver struct{ *UDPConn }

// Receive implements hostmode.Receiver.
func (c kernelReceiver) Receive(buf, oob []byte, from, to netip.AddrPort) {
	c.deliverKernel(buf, oob, from, to)
}

// Deliver queues a datagram as if it had come from the network, for a program that receives some of
// a socket's datagrams elsewhere. Its addresses are of the socket's IP version. Of the kernel's
// control messages about it, oob, its traffic class and time to live are taken. It is dropped where
// one from the network would be: the queue is full, or the socket is connected to another peer.
func (c *UDPConn) Deliver(payload, oob []byte, from, to netip.AddrPort) {
	buf := make([]byte, headroom+len(payload))
	copy(buf[headroom:], payload)
	c.deliverKernel(buf, oob, from, to)
}

// defaultTTL repeats the time to live of what hosts send to each other (RFC 1700).
const defaultTTL = 64

// deliverKernel takes a datagram in, whose payload is in buf behind headroom.
func (c *UDPConn) deliverKernel(buf, oob []byte, from, to netip.AddrPort) {
	m := datagramMeta{from: toAddress(from.Addr()), to: toAddress(to.Addr()), port: from.Port()}
	if !c.rxq.accepts(&m) {
		return
	}
	class, ttl := classAndTTL(oob)
	ip, udp := putHeaders(buf, from, to, class, ttl)
	if !c.rxq.Deliver(ip, udp, time.Time{}) {
		c.deliverByEndpoint(ip, udp, &m, to.Port())
	}
	c.rxq.Flush()
}

// putHeaders writes the headers of a datagram before its payload.
func putHeaders(buf []byte, from, to netip.AddrPort, class, ttl uint8) (ip, udp []byte) {
	udp = buf[headroom-header.UDPMinimumSize:]
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], 0) // no checksum; nobody looks at it
	ip = buf[:header.IPv6MinimumSize]
	if from.Addr().Is4() {
		ip = ip[header.IPv6MinimumSize-header.IPv4MinimumSize:]
		header.IPv4(ip).Encode(&header.IPv4Fields{TOS: class, TTL: ttl,
			Protocol:    uint8(header.UDPProtocolNumber),
			TotalLength: uint16(len(ip) + len(udp)), SrcAddr: toAddress(from.Addr()),
			DstAddr: toAddress(to.Addr())})
		return ip, udp
	}
	header.IPv6(ip).Encode(&header.IPv6Fields{TrafficClass: class, HopLimit: ttl,
		TransportProtocol: header.UDPProtocolNumber, PayloadLength: uint16(len(udp)),
		SrcAddr: toAddress(from.Addr()), DstAddr: toAddress(to.Addr())})
	return ip, udp
}

// deliverByEndpoint queues a datagram in netstack's endpoint, where others wait already, or which
// the socket's own queue has no room for.
func (c *UDPConn) deliverByEndpoint(ip, udp []byte, m *datagramMeta, port uint16) {
	ep, ok := c.ep.(gstack.TransportEndpoint)
	if !ok {
		return
	}
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: headroom,
		Payload: buffer.MakeWithData(udp[header.UDPMinimumSize:])})
	defer pkt.DecRef()
	copy(pkt.TransportHeader().Push(header.UDPMinimumSize), udp)
	copy(pkt.NetworkHeader().Push(len(ip)), ip)
	pkt.NICID, pkt.RXChecksumValidated = nicID, true
	pkt.TransportProtocolNumber = header.UDPProtocolNumber
	pkt.NetworkProtocolNumber = ipv6Protocol
	if len(ip) == header.IPv4MinimumSize {
		pkt.NetworkProtocolNumber = ipv4Protocol
	}
	ep.HandlePacket(gstack.TransportEndpointID{LocalPort: port, LocalAddress: m.to,
		RemotePort: m.port, RemoteAddress: m.from}, pkt)
}

// sendByKernel sends a datagram to what the kernel reaches otherwise than by our netdev; done is
// false for all others.
func (c *UDPConn) sendByKernel(b []byte, to tcpip.FullAddress, from tcpip.Address,
	o *sendOptions) (done bool, err error) {
	h := c.stack.host
	if h == nil || c.binding == nil || to.Addr.Len() == 0 {
		return false, nil
	}
	a := fromAddress(to.Addr)
	if !h.ByKernel(a) {
		return false, nil
	}
	return true, h.Send(c.binding, b, o.forKernel(a.Is6()), fromAddress(from),
		netip.AddrPortFrom(a, to.Port))
}
