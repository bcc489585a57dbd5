package sim

import (
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// ethernet writes the header of a frame.
func (h *scriptHost) ethernet(f []byte, to net.HardwareAddr, proto tcpip.NetworkProtocolNumber) {
	header.Ethernet(f).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(hardware(h.index)),
		DstAddr: tcpip.LinkAddress(to), Type: proto})
}

// peer is a TCP connection of a script host with one host: the numbers to write and those that
// came.
type peer struct {
	host          *scriptHost
	to            int    // number of the other host
	local, remote uint16 // ports
	seq           uint32 // of the first byte of data
	ack           uint32 // what we acknowledge
}

// segment sends a segment with data from offset on, of the stream that begins at p.seq.
func (p *peer) segment(offset int, flags header.TCPFlags, data []byte) {
	const headers = header.IPv4MinimumSize + header.TCPMinimumSize
	f := make([]byte, header.EthernetMinimumSize+headers+len(data))
	p.host.ethernet(f, hardware(p.to), header.IPv4ProtocolNumber)
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	from, to := toAddress(address(p.host.index)), toAddress(address(p.to))
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(headers + len(data)), TTL: 64,
		Protocol: uint8(header.TCPProtocolNumber), SrcAddr: from, DstAddr: to})
	ip.SetChecksum(^ip.CalculateChecksum())
	s := header.TCP(ip[header.IPv4MinimumSize:])
	copy(s[header.TCPMinimumSize:], data)
	s.Encode(&header.TCPFields{SrcPort: p.local, DstPort: p.remote, SeqNum: p.seq + uint32(offset),
		AckNum: p.ack, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, from, to,
		uint16(header.TCPMinimumSize+len(data)))
	s.SetChecksum(^s.CalculateChecksum(checksum.Checksum(data, sum)))
	p.host.port.put(f)
}

// next is the next segment that came for the connection, nil if none comes for d.
func (p *peer) next(t *task, d time.Duration) header.TCP {
	over := make(chan struct{})
	timer := t.w.clock.AfterFunc(d, func() { close(over) })
	defer timer.Stop()
	for {
		select {
		case b := <-p.host.segments:
			if s := whole(b); s != nil && s.DestinationPort() == p.local {
				return s
			}
		case <-over:
			return nil
		}
	}
}

// whole is the TCP segment in an IPv4 packet, nil if it is none, or damaged.
func whole(b []byte) header.TCP {
	ip := header.IPv4(b)
	if !ip.IsValid(len(b)) || !ip.IsChecksumValid() ||
		ip.TransportProtocol() != header.TCPProtocolNumber {
		return nil
	}
	s := header.TCP(ip.Payload())
	if len(s) < header.TCPMinimumSize || int(s.DataOffset()) > len(s) ||
		!s.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(),
			checksum.Checksum(s.Payload(), 0), uint16(len(s.Payload()))) {
		return nil
	}
	return s
}
