package stack

import (
	"encoding/binary"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Between two hosts only ports, lengths and checksums differ from one datagram to the next, and the
// NIC computes the checksums. So a path keeps a template of the headers, and most datagrams go to
// the link directly. One per templateLifetime goes through netstack, which keeps the neighbour
// entry alive.

// templateLifetime is how long a template is used before a datagram goes through netstack again. A
// neighbour's new link address takes effect that much later.
const templateLifetime = 100 * time.Millisecond

// maxHeaders is the longest headers: Ethernet, IPv6, UDP.
const maxHeaders = header.EthernetMinimumSize + header.IPv6MinimumSize + header.UDPMinimumSize

// headerTemplate has the headers of a path's datagrams, with ports, lengths and checksums zero. It
// is not changed once built.
type headerTemplate struct {
	bytes [maxHeaders]byte
	size  int       // bytes used
	ip    int       // where the IP header starts
	v6    bool      // it is an IPv6 header
	limit int       // most bytes of a datagram, its header included
	built time.Time // it is used for templateLifetime
}

// buildTemplate makes a template from what netstack knows of the route, or returns nil if the
// neighbour is not resolved or the route does not leave through the link.
func buildTemplate(r *gstack.Route, c clock.Clock) (h *headerTemplate) {
	if r.OutgoingNIC() != nicID || r.Loop() != gstack.PacketOut || r.ResolvedFields(nil) != nil {
		return nil
	}
	// Resolved a moment ago, so this calls back before it returns; if it is not any more, h comes
	// too late and is lost.
	got := make(chan *headerTemplate, 1)
	_ = r.ResolvedFields(func(f gstack.ResolvedFieldsResult) {
		if f.Err == nil {
			got <- newHeaderTemplate(r, &f.RouteInfo, c.Now())
		}
	})
	select {
	case h = <-got:
	default:
	}
	return h
}

func newHeaderTemplate(r *gstack.Route, info *gstack.RouteInfo,
	now time.Time) *headerTemplate {
	if len(info.LocalLinkAddress) != header.EthernetAddressSize ||
		len(info.RemoteLinkAddress) != header.EthernetAddressSize {
		return nil
	}
	h := &headerTemplate{ip: header.EthernetMinimumSize, v6: info.NetProto == ipv6Protocol,
		limit: int(r.MTU()), built: now}
	header.Ethernet(h.bytes[:]).Encode(&header.EthernetFields{
		SrcAddr: info.LocalLinkAddress, DstAddr: info.RemoteLinkAddress, Type: info.NetProto,
	})
	ip := h.bytes[h.ip:]
	if h.v6 {
		h.size = h.ip + header.IPv6MinimumSize
		header.IPv6(ip).Encode(&header.IPv6Fields{
			TransportProtocol: udp.ProtocolNumber, HopLimit: r.DefaultTTL(),
			SrcAddr: r.LocalAddress(), DstAddr: r.RemoteAddress(),
		})
	} else {
		h.size = h.ip + header.IPv4MinimumSize
		header.IPv4(ip).Encode(&header.IPv4Fields{
			Flags: header.IPv4FlagDontFragment, TTL: r.DefaultTTL(),
			Protocol: uint8(udp.ProtocolNumber),
			SrcAddr:  r.LocalAddress(), DstAddr: r.RemoteAddress(),
		})
	}
	h.size += header.UDPMinimumSize
	return h
}

// complete writes the headers of a datagram of n bytes, its header included, to out and returns
// them.
func (h *headerTemplate) complete(out *[maxHeaders]byte, from, to uint16, n int) []byte {
	*out = h.bytes
	at := h.size - header.UDPMinimumSize
	if h.v6 {
		binary.BigEndian.PutUint16(out[h.ip+4:], uint16(n))
	} else {
		binary.BigEndian.PutUint16(out[h.ip+2:], uint16(header.IPv4MinimumSize+n))
	}
	binary.BigEndian.PutUint16(out[at:], from)
	binary.BigEndian.PutUint16(out[at+2:], to)
	binary.BigEndian.PutUint16(out[at+4:], uint16(n))
	return out[:h.size]
}

// headerPool is memory for headers on their way to the link, *[maxHeaders]byte.
var headerPool = sync.Pool{New: func() any { return new([maxHeaders]byte) }}

// datagramLink is a link that takes datagrams in this form, [link/rdma.Endpoint].
type datagramLink interface {
	WriteDatagram(headers, payload []byte) tcpip.Error
	WriteDatagrams([]rdma.Datagram) (int, tcpip.Error)
}

// sendDirect sends b with the path's template; false if there is none, or the link cannot send it.
func (c *UDPConn) sendDirect(p *path, b []byte, to uint16) (tcpip.Error, bool) {
	h := p.freshTemplate(header.UDPMinimumSize+len(b), c.stack.clock.Now())
	if h == nil {
		return nil, false
	}
	out := headerPool.Get().(*[maxHeaders]byte)
	headers := c.fillHeaders(h, out, to, header.UDPMinimumSize+len(b))
	err := c.stack.datagrams.WriteDatagram(headers, b)
	headerPool.Put(out)
	if _, cannot := err.(*tcpip.ErrNotSupported); cannot {
		return nil, false
	}
	c.countSent(err)
	return err, true
}

// freshTemplate is the template for a datagram of n bytes, its header included, or nil if the
// datagram has to go through netstack.
func (p *path) freshTemplate(n int, now time.Time) *headerTemplate {
	h := p.template.Load()
	if h == nil || n > h.limit || now.Sub(h.built) > templateLifetime {
		return nil
	}
	return h
}

// fillHeaders writes the headers of a datagram of n bytes, its header included, to port to.
func (c *UDPConn) fillHeaders(h *headerTemplate, out *[maxHeaders]byte, to uint16, n int) []byte {
	headers := h.complete(out, c.local.Port, to, n)
	if class := c.class.Load(); class != 0 {
		putClass(headers[h.ip:], h.v6, uint8(class))
	}
	if ttl := c.ttl.Load(); ttl != 0 {
		putTTL(headers[h.ip:], h.v6, uint8(ttl))
	}
	return headers
}
