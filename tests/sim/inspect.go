package sim

import (
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// inspector looks at what one host sends: each frame must be right by itself, and in some runs the
// new data of each TCP flow must come in order.
type inspector struct {
	mtu     int
	ordered bool // nothing that the host sends may get lost before it reaches the switch
	next    map[flowKey]uint32
	syns    *synCounts // of all ports of the host
}

// synCounts knows how often a SYN was sent once more.
type synCounts struct {
	last  map[flowKey]uint32
	again uint64
}

// sent takes note of a SYN that opens a connection.
func (c *synCounts) sent(key flowKey, seq uint32) {
	if last, known := c.last[key]; known && last == seq {
		c.again++
	}
	c.last[key] = seq
}

// flowKey is a direction of a connection: addresses and ports.
type flowKey struct {
	from, to tcpip.Address
	ports    [4]byte
}

// frame says what is wrong with a frame.
func (i *inspector) frame(f []byte) error {
	if len(f) < header.EthernetMinimumSize || len(f) > header.EthernetMinimumSize+i.mtu {
		return fmt.Errorf("a frame of %d bytes was sent", len(f))
	}
	b := f[header.EthernetMinimumSize:]
	switch header.Ethernet(f).Type() {
	case header.IPv4ProtocolNumber:
		return i.ipv4(b)
	case header.IPv6ProtocolNumber:
		return i.ipv6(b)
	}
	return nil
}

func (i *inspector) ipv4(b []byte) error {
	ip := header.IPv4(b)
	if !ip.IsValid(len(ip)) || !ip.IsChecksumValid() {
		return fmt.Errorf("a packet with a bad IPv4 header was sent: %x", b)
	}
	if ip.More() || ip.FragmentOffset() > 0 {
		return nil
	}
	return i.transport(ip, ip.TransportProtocol(), ip.Payload())
}

// ipv6 looks at what has no extension headers.
func (i *inspector) ipv6(b []byte) error {
	ip := header.IPv6(b)
	if !ip.IsValid(len(ip)) {
		return fmt.Errorf("a packet with a bad IPv6 header was sent: %x", b)
	}
	return i.transport(ip, tcpip.TransportProtocolNumber(ip.NextHeader()), ip.Payload())
}

// ipPacket is what both versions of IP have.
type ipPacket interface {
	SourceAddress() tcpip.Address
	DestinationAddress() tcpip.Address
}

func (i *inspector) transport(ip ipPacket, p tcpip.TransportProtocolNumber, payload []byte) error {
	switch p {
	case header.TCPProtocolNumber:
		return i.segment(ip, payload)
	case header.UDPProtocolNumber:
		return checkUDP(ip, payload)
	case header.ICMPv6ProtocolNumber:
		if sum := header.PseudoHeaderChecksum(p, ip.SourceAddress(), ip.DestinationAddress(),
			uint16(len(payload))); checksum.Checksum(payload, sum) != 0xffff {
			return errors.New("an ICMPv6 message with a wrong checksum was sent")
		}
	}
	return nil
}

// inOrder says whether a segment skips data that was never sent.
func (i *inspector) inOrder(ip ipPacket, s header.TCP) error {
	key := flowKey{ip.SourceAddress(), ip.DestinationAddress(), [4]byte(s[:4])}
	end := s.SequenceNumber() + uint32(len(s.Payload()))
	if s.Flags()&(header.TCPFlagSyn|header.TCPFlagFin) != 0 {
		end++
	}
	next, known := i.next[key]
	ahead := int32(s.SequenceNumber() - next)
	if s.Flags()&header.TCPFlagSyn == 0 && known && ahead > 0 {
		return fmt.Errorf("port %d sent a segment to port %d before the %d bytes in front of it",
			s.SourcePort(), s.DestinationPort(), ahead)
	}
	if s.Flags()&header.TCPFlagSyn != 0 || !known || int32(end-next) > 0 {
		i.next[key] = end
	}
	return nil
}

func checkUDP(ip ipPacket, b []byte) error {
	if len(b) < header.UDPMinimumSize || int(header.UDP(b).Length()) != len(b) {
		return errors.New("a datagram of another length than it says was sent")
	}
	if u := header.UDP(b); u.Checksum() != 0 && !u.IsChecksumValid(ip.SourceAddress(),
		ip.DestinationAddress(), checksum.Checksum(u.Payload(), 0)) {
		return errors.New("a datagram with a wrong checksum was sent")
	}
	return nil
}

// segment checks a TCP segment.
func (i *inspector) segment(ip ipPacket, b []byte) error {
	if len(b) < header.TCPMinimumSize || int(header.TCP(b).DataOffset()) > len(b) {
		return errors.New("a segment shorter than its header was sent")
	}
	s := header.TCP(b)
	if !s.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(),
		checksum.Checksum(s.Payload(), 0), uint16(len(s.Payload()))) {
		return errors.New("a segment with a wrong checksum was sent")
	}
	if s.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) == header.TCPFlagSyn {
		i.syns.sent(flowKey{ip.SourceAddress(), ip.DestinationAddress(), [4]byte(s[:4])},
			s.SequenceNumber())
	}
	if i.ordered && s.Flags()&header.TCPFlagRst == 0 {
		return i.inOrder(ip, s)
	}
	return nil
}

// ordered reports whether what host i sends reaches the switch in order: nothing is lost, and the
// faults of its NIC are none that lose or reset anything. It does not where SYN cookies are in use:
// a connection may begin with an older SYN-ACK's number than that of the last.
func (p *Plan) ordered(i int) bool {
	if m := p.Hosts[i].Memory; p.Hosts[i].Kind != Ours || m.Cookies || m.Backlog > 0 ||
		p.Hosts[i].OnHost {
		return false
	}
	for _, f := range p.Faults {
		switch f.Kind {
		case Wire, Unplugged, Paused, LateCompletion: // the first two take what was looked at
		default:
			if !f.Off && (f.Host == i || f.Kind == Resized) {
				return false
			}
		}
	}
	return true
}
