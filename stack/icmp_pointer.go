package stack

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// correctPointer makes an ICMPv6 message about a parameter (RFC 4443 section 3.4) point to what is
// wrong, as Linux's do (net/ipv6/exthdrs.c, net/ipv6/reassembly.c): netstack's point behind a
// routing or fragment header, and into an option's data.
func correctPointer(pkt *gstack.PacketBuffer) {
	icmp := header.ICMPv6(pkt.TransportHeader().Slice())
	if len(icmp) < icmpHeaderLen || icmp.Type() != header.ICMPv6ParamProblem {
		return
	}
	at, ok := wrongParameter(pkt.Data().AsRange().ToSlice(), icmp.Code(), icmp.TypeSpecific())
	if !ok || at == icmp.TypeSpecific() {
		return
	}
	sum := uint32(^icmp.Checksum()) // RFC 1624: without the old pointer and with the new one
	for _, v := range []uint32{^icmp.TypeSpecific(), at} {
		sum += v>>16 + v&0xffff
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	icmp.SetTypeSpecific(at)
	icmp.SetChecksum(^uint16(sum))
}

// Offsets in extension headers (RFC 8200 section 4).
const (
	routingType    = 2
	segmentsLeft   = 3
	fragmentOffset = 2
	firstOption    = 2
)

// wrongParameter is the offset in an IPv6 packet of what netstack refuses with a code of "parameter
// problem", or told if that is right.
func wrongParameter(packet []byte, code header.ICMPv6Code, told uint32) (at uint32, ok bool) {
	if len(packet) < header.IPv6MinimumSize {
		return 0, false
	}
	field := header.IPv6NextHeaderOffset // of the value that says what begins at start
	for start := header.IPv6MinimumSize; start+8 <= len(packet); {
		size := (int(packet[start+1]) + 1) * 8
		kind := header.IPv6ExtensionHeaderIdentifier(packet[field])
		switch kind {
		case header.IPv6HopByHopOptionsExtHdrIdentifier,
			header.IPv6DestinationOptionsExtHdrIdentifier:
			if kind == header.IPv6HopByHopOptionsExtHdrIdentifier &&
				start != header.IPv6MinimumSize {
				return uint32(field), code == header.ICMPv6UnknownHeader
			}
			o, found := refusedOption(packet[start:min(start+size, len(packet))], kind)
			if found {
				return uint32(start + o), code == header.ICMPv6UnknownOption
			}
		case header.IPv6RoutingExtHdrIdentifier:
			if packet[start+segmentsLeft] != 0 {
				return uint32(start + routingType), code == header.ICMPv6ErroneousHeader
			}
		case header.IPv6FragmentExtHdrIdentifier:
			if code == header.ICMPv6ErroneousHeader {
				if told == header.IPv6PayloadLenOffset {
					return told, true
				}
				return uint32(start + fragmentOffset), true
			}
			size = header.IPv6FragmentHeaderSize
		default:
			return uint32(field), code == header.ICMPv6UnknownHeader
		}
		field, start = start, start+size
	}
	return uint32(field), code == header.ICMPv6UnknownHeader
}

// answeredToAll reports whether netstack answers a packet with extension headers only if one has an
// option that says that all hosts shall answer.
func answeredToAll(packet []byte) bool {
	const first = header.IPv6MinimumSize
	for field, start := header.IPv6NextHeaderOffset, first; start+8 <= len(packet); {
		kind := header.IPv6ExtensionHeaderIdentifier(packet[field])
		size := (int(packet[start+1]) + 1) * 8
		switch kind {
		case header.IPv6HopByHopOptionsExtHdrIdentifier,
			header.IPv6DestinationOptionsExtHdrIdentifier:
			if kind == header.IPv6HopByHopOptionsExtHdrIdentifier && start != first {
				return false
			}
			at, refused := refusedOption(packet[start:min(start+size, len(packet))], kind)
			if refused {
				return packet[start+at]>>6 == 2
			}
		case header.IPv6RoutingExtHdrIdentifier, header.IPv6FragmentExtHdrIdentifier:
			return false
		default:
			return true // sockets are hostDispatcher's business
		}
		field, start = start, start+size
	}
	return false
}

// refusedOption is the offset of the first option that netstack does not know and that has the
// packet discarded with a message: its two highest bits are 10 or 11 (RFC 8200 section 4.2).
func refusedOption(h []byte, kind header.IPv6ExtensionHeaderIdentifier) (at int, ok bool) {
	const pad1, padN, routerAlert = 0, 1, 5
	for at = firstOption; at < len(h); {
		switch t := h[at]; {
		case t == pad1:
			at++
			continue
		case t == padN || t == routerAlert && kind == header.IPv6HopByHopOptionsExtHdrIdentifier:
		case t>>6 >= 2:
			return at, true
		}
		if at+1 >= len(h) {
			break
		}
		at += 2 + int(h[at+1])
	}
	return 0, false
}
