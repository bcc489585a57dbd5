// Package tcpframe makes frames with TCP segments, as a peer sends them and as netstack does, for
// the tests of link/rdma and of the packages below it.
package tcpframe

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// The addresses of both ends.
const (
	OurMAC  = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x01")
	PeerMAC = tcpip.LinkAddress("\x02\x00\x00\x00\x00\x02")
)

const (
	ethLen             = header.EthernetMinimumSize
	nop                = header.TCPOptionNOP
	destinationOptions = 60 // RFC 8200 section 4.6
)

// Frame describes a frame with one TCP segment, as a peer would send it. gVisor's package header
// encodes it, which the code under test does not use.
type Frame struct {
	V6       bool
	Src, Dst tcpip.LinkAddress
	From, To byte // last byte of the addresses
	Ports    [2]uint16
	Seq, Ack uint32
	Flags    header.TCPFlags
	Window   uint16
	Urgent   uint16
	Options  []byte
	Payload  []byte
	ID       uint16
	NoDF     bool
	TTL, TOS byte
	Flow     uint32 // IPv6 flow label
	IPOpts   []byte // IPv4 options, or an IPv6 destination options header
	Fragment uint16 // IPv4 fragment offset in bytes, with more to follow
	Pad      int    // bytes behind the IP packet
}

// Segment describes the n'th segment of a flow to us, 100 bytes each.
func Segment(n int) Frame {
	f := Frame{
		Src: PeerMAC, Dst: OurMAC, From: 2, To: 1, Ports: [2]uint16{4000, 80},
		Seq: 0xffffff00 + uint32(n)*100, Ack: 77, Flags: header.TCPFlagAck, Window: 512,
		ID: uint16(0xfffe + n), TTL: 64,
		Payload: make([]byte, 100),
	}
	for i := range f.Payload {
		f.Payload[i] = byte(n*31 + i)
	}
	return f
}

// Bytes returns the whole frame.
func (f Frame) Bytes() []byte {
	tcp := make([]byte, 20+len(f.Options)+len(f.Payload))
	header.TCP(tcp).Encode(&header.TCPFields{
		SrcPort: f.Ports[0], DstPort: f.Ports[1], SeqNum: f.Seq, AckNum: f.Ack,
		DataOffset: uint8(20 + len(f.Options)),
		Flags:      f.Flags, WindowSize: f.Window, UrgentPointer: f.Urgent,
	})
	copy(tcp[20:], f.Options)
	copy(tcp[20+len(f.Options):], f.Payload)
	return f.Encode(header.TCPProtocolNumber, tcp, 16)
}

// Encode wraps a transport segment, whose checksum is at offset sumAt, in IP and Ethernet.
func (f Frame) Encode(proto tcpip.TransportProtocolNumber, segment []byte, sumAt int) []byte {
	src, dst := tcpip.AddrFrom4([4]byte{10, 0, 0, f.From}), tcpip.AddrFrom4([4]byte{10, 0, 0, f.To})
	etherType, ip := header.IPv4ProtocolNumber, []byte(nil)
	if f.V6 {
		src, dst = tcpip.AddrFrom16([16]byte{0: 0xfd, 15: f.From}),
			tcpip.AddrFrom16([16]byte{0: 0xfd, 15: f.To})
		etherType = header.IPv6ProtocolNumber
		ip = make([]byte, header.IPv6MinimumSize, 128)
		next := proto
		if f.IPOpts != nil {
			ip, next = append(append(ip, byte(proto)), f.IPOpts...), destinationOptions
		}
		header.IPv6(ip).Encode(&header.IPv6Fields{
			TrafficClass: f.TOS, FlowLabel: f.Flow,
			PayloadLength:     uint16(len(ip) - 40 + len(segment)),
			TransportProtocol: next, HopLimit: f.TTL, SrcAddr: src, DstAddr: dst,
		})
	} else {
		ip = make([]byte, header.IPv4MinimumSize+len(f.IPOpts))
		flags := uint8(header.IPv4FlagDontFragment)
		if f.NoDF {
			flags = 0
		}
		if f.Fragment > 0 {
			flags = header.IPv4FlagMoreFragments
		}
		header.IPv4(ip).Encode(&header.IPv4Fields{
			TOS: f.TOS, TotalLength: uint16(len(ip) + len(segment)), ID: f.ID, Flags: flags,
			FragmentOffset: f.Fragment &^ 7, TTL: f.TTL,
			Protocol: uint8(proto), SrcAddr: src, DstAddr: dst,
		})
		ip[0] = 0x40 | byte(len(ip)/4)
		copy(ip[20:], f.IPOpts)
		header.IPv4(ip).SetChecksum(0)
		header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
	}
	sum := checksum.Checksum(segment, header.PseudoHeaderChecksum(proto, src,
		dst, uint16(len(segment))))
	checksum.Put(segment[sumAt:], ^sum)
	eth := make([]byte, header.EthernetMinimumSize)
	header.Ethernet(eth).Encode(&header.EthernetFields{SrcAddr: f.Src,
		DstAddr: f.Dst, Type: etherType})
	out := append(append(eth, ip...), segment...)
	return append(out, make([]byte, f.Pad)...)
}

// Stamped returns the options of a segment with a timestamp.
func Stamped(value, echo uint32) []byte {
	b := []byte{nop, nop, header.TCPOptionTS, header.TCPOptionTSLength}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
}

// Sacked returns the options of an ACK with these blocks, of a start and an end each, behind a
// timestamp.
func Sacked(blocks ...uint32) []byte {
	b := append(Stamped(1, 2), nop, nop, header.TCPOptionSACK, byte(2+4*len(blocks)))
	for _, n := range blocks {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// Data returns n bytes of a stream, different at each place.
func Data(n int, stream uint64) []byte {
	b := make([]byte, n&^7, n|7)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], (stream<<32+uint64(i)+1)*0x9e3779b97f4a7c15)
	}
	return b[:n]
}
