package tcpframe

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Packet makes a packet of f as the stack hands it to its link.
func (f Frame) Packet() *gstack.PacketBuffer { return f.ReleasedPacket(nil) }

// ReleasedPacket makes a packet as Packet does, and calls released at its last release.
func (f Frame) ReleasedPacket(released func()) *gstack.PacketBuffer {
	b := f.Bytes()
	n := len(b) - len(f.Payload)
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: n,
		Payload: buffer.MakeWithData(f.Payload), OnRelease: released})
	copy(pkt.TransportHeader().Push(20+len(f.Options)), b[n-20-len(f.Options):])
	copy(pkt.NetworkHeader().Push(n-20-len(f.Options)-ethLen), b[ethLen:])
	copy(pkt.LinkHeader().Push(ethLen), b)
	pkt.TransportProtocolNumber, pkt.NetworkProtocolNumber = header.TCPProtocolNumber,
		header.IPv4ProtocolNumber
	if f.V6 {
		pkt.NetworkProtocolNumber = header.IPv6ProtocolNumber
	}
	pkt.GSOOptions.MSS = 1000
	return pkt
}

// ACKPacket makes a pure ACK without allocating.
func ACKPacket(ack uint32) *gstack.PacketBuffer { return flagPacket(ack, header.TCPFlagAck) }

// ResetPacket makes a RST without allocating.
func ResetPacket() *gstack.PacketBuffer { return flagPacket(1, header.TCPFlagRst) }

func flagPacket(ack uint32, flags header.TCPFlags) *gstack.PacketBuffer {
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{ReserveHeaderBytes: 54})
	header.TCP(pkt.TransportHeader().Push(20)).Encode(&header.TCPFields{
		SrcPort: 1, DstPort: 2, AckNum: ack, Flags: flags, DataOffset: 20, WindowSize: 1000,
	})
	header.IPv4(pkt.NetworkHeader().Push(20)).Encode(&header.IPv4Fields{TotalLength: 40,
		Protocol: uint8(header.TCPProtocolNumber)})
	eth := pkt.LinkHeader().Push(14)
	eth[12] = 8
	pkt.TransportProtocolNumber = header.TCPProtocolNumber
	pkt.GSOOptions.MSS = 1000
	return pkt
}
