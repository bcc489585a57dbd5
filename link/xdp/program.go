package xdp

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// The programs are pure functions of what they are for.

// assembler adds what programs of XDP have in common.
type assembler struct{ *bpf.Assembler }

const xdpDrop, xdpPass = 1, 2

// passUnlessInside goes on if n bytes from a register's place on are inside the frame, whose end R3
// has.
func (a assembler) passUnlessInside(from bpf.Register, n int32) {
	a.MoveRegister(bpf.R4, from)
	a.AddValue(bpf.R4, n)
	a.JumpTo(bpf.OpJumpIfGreater, bpf.R4, bpf.R3, 0, "pass")
}

// Sizes of headers in bytes, and where their fields are in a frame.
const (
	ethLen  = 14
	vlanLen = 4
	ipv4Len = 20
	ipv6Len = 40
	tcpLen  = 20
	udpLen  = 8

	atType          = 12
	atTag, vlanID   = 14, 0x0fff
	atVersion4      = ethLen
	atFragment4     = ethLen + 6
	atProtocol4     = ethLen + 9
	atDestination4  = ethLen + 16
	atProtocol6     = ethLen + 6
	atDestination6  = ethLen + 24
	fragmentBits    = 0x3fff // more fragments, or an offset
	atPort          = 2      // of the destination, in both transports
	typeIPv4        = 0x0800
	typeIPv6        = 0x86dd
	typeVLAN        = 0x8100
	typeServiceVLAN = 0x88a8
	protoTCP        = 6
	protoUDP        = 17

	// Fields of struct xdp_md.
	contextData, contextEnd, contextQueue = 0, 4, 16
)

// ownMACProgram returns a program that leads frames to mac, of VLAN vlan, or without a tag if that
// is 0, to the socket that the map sockets has for their queue. All else, and what comes by a queue
// without a socket, is for Linux. Of what is led it drops first what the map sources says, unless
// that is negative.
func ownMACProgram(mac [6]byte, vlan uint16, sources, sockets int) []byte {
	a := assembler{bpf.NewAssembler()}
	a.MoveRegister(bpf.R6, bpf.R1)
	a.LoadField(bpf.OpLoad32, bpf.R2, bpf.R6, contextData)
	a.LoadField(bpf.OpLoad32, bpf.R3, bpf.R6, contextEnd)
	size := int32(ethLen)
	if vlan != 0 {
		size += vlanLen
	}
	a.passUnlessInside(bpf.R2, size)
	a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, 0)
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, int32(binary.NativeEndian.Uint32(mac[:4])), "pass")
	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, 4)
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, int32(binary.NativeEndian.Uint16(mac[4:])), "pass")
	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, atType)
	if vlan == 0 {
		a.JumpTo(bpf.OpJumpIfEqual32, bpf.R5, 0, bpf.InMemory(typeVLAN), "pass")
		a.JumpTo(bpf.OpJumpIfEqual32, bpf.R5, 0, bpf.InMemory(typeServiceVLAN), "pass")
	} else {
		a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, bpf.InMemory(typeVLAN), "pass")
		a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, atTag)
		a.MaskValue(bpf.R5, bpf.InMemory(vlanID))
		a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, bpf.InMemory(vlan), "pass")
	}
	a.leadFrames(int16(size), sources, sockets)
	return a.ToBytes()
}

// leadFrames ends a program: at "ours" frames, whose IP header is at a place, are dropped by their
// source or go to the socket of their queue, at "pass" to Linux.
func (a assembler) leadFrames(at int16, sources, sockets int) {
	a.PlaceLabel("ours")
	if sources >= 0 {
		a.dropSources(at, sources)
	}
	a.PlaceLabel("lead")
	a.LoadField(bpf.OpLoad32, bpf.R2, bpf.R6, contextQueue)
	a.LoadMap(bpf.R1, sockets)
	a.SetValue(bpf.R3, xdpPass) // where the queue has no socket
	a.CallHelper(bpf.HelperRedirectMap)
	a.EndProgram()
	a.PlaceLabel("pass")
	a.SetValue(bpf.R0, xdpPass)
	a.EndProgram()
}

// hostMaps holds the maps that the program for the host's address reads.
type hostMaps struct {
	mac     int // an array of one element: the interface's MAC address, and two bytes
	ports   int // a hash: portKey
	sources int // a trie: sourceKey; negative: there is none
	sockets int // an XSKMAP
}

// hostProgram returns a program that leads TCP and UDP to the ports in a map, unfragmented and with
// whole headers, to the socket of their queue, unless the map of sources has them dropped. All else
// is for Linux.
func hostProgram(maps hostMaps) []byte {
	const (
		key   = -portKeyLen - 4 // of ports, on the stack
		index = -4              // of mac
	)
	a := assembler{bpf.NewAssembler()}
	a.MoveRegister(bpf.R6, bpf.R1)
	a.SetValue(bpf.R5, 0)
	a.StoreField(bpf.OpStore32, bpf.FramePointer, index, bpf.R5)
	a.LoadMap(bpf.R1, maps.mac)
	a.MoveRegister(bpf.R2, bpf.FramePointer)
	a.AddValue(bpf.R2, index)
	a.CallHelper(bpf.HelperMapLookup)
	a.JumpTo(bpf.OpJumpIfNotEqualImmediate, bpf.R0, 0, 0, "address")
	a.JumpTo(bpf.OpJump, 0, 0, 0, "pass") // which the verifier wants: the element is always there
	a.PlaceLabel("address")
	a.LoadField(bpf.OpLoad32, bpf.R7, bpf.R0, 0)
	a.LoadField(bpf.OpLoad16, bpf.R8, bpf.R0, 4)
	a.LoadField(bpf.OpLoad32, bpf.R2, bpf.R6, contextData)
	a.LoadField(bpf.OpLoad32, bpf.R3, bpf.R6, contextEnd)
	a.passUnlessInside(bpf.R2, ethLen+ipv4Len)
	a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, 0)
	a.JumpTo(bpf.OpJumpIfNotEqual, bpf.R5, bpf.R7, 0, "pass")
	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, 4)
	a.JumpTo(bpf.OpJumpIfNotEqual, bpf.R5, bpf.R8, 0, "pass")
	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, atType)
	a.JumpTo(bpf.OpJumpIfEqual32, bpf.R5, 0, bpf.InMemory(typeIPv6), "six")
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, bpf.InMemory(typeIPv4), "pass")

	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, atFragment4)
	a.JumpTo(bpf.OpJumpIfSet, bpf.R5, 0, bpf.InMemory(fragmentBits), "pass")
	a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, atDestination4)
	a.StoreField(bpf.OpStore32, bpf.FramePointer, key, bpf.R5)
	a.SetValue(bpf.R5, 0)
	for i := int16(4); i < 16; i += 4 {
		a.StoreField(bpf.OpStore32, bpf.FramePointer, key+i, bpf.R5)
	}
	a.LoadField(bpf.OpLoad8, bpf.R8, bpf.R2, atProtocol4)
	a.LoadField(bpf.OpLoad8, bpf.R7, bpf.R2, atVersion4)
	a.MaskValue(bpf.R7, 15)
	a.JumpTo(bpf.OpJumpIfLess, bpf.R7, 0, ipv4Len/4, "pass")
	a.ShiftLeft(bpf.R7, 2)
	a.AddValue(bpf.R7, ethLen)
	a.AddRegister(bpf.R7, bpf.R2)
	a.JumpTo(bpf.OpJump, 0, 0, 0, "transport")

	a.PlaceLabel("six")
	a.passUnlessInside(bpf.R2, ethLen+ipv6Len)
	for i := int16(0); i < 16; i += 4 {
		a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, atDestination6+i)
		a.StoreField(bpf.OpStore32, bpf.FramePointer, key+i, bpf.R5)
	}
	a.LoadField(bpf.OpLoad8, bpf.R8, bpf.R2, atProtocol6)
	a.MoveRegister(bpf.R7, bpf.R2)
	a.AddValue(bpf.R7, ethLen+ipv6Len)

	a.PlaceLabel("transport")
	a.JumpTo(bpf.OpJumpIfEqual32, bpf.R8, 0, protoTCP, "tcp")
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R8, 0, protoUDP, "pass")
	a.passUnlessInside(bpf.R7, udpLen)
	a.JumpTo(bpf.OpJump, 0, 0, 0, "port")
	a.PlaceLabel("tcp")
	a.passUnlessInside(bpf.R7, tcpLen)
	a.PlaceLabel("port")
	a.LoadField(bpf.OpLoad16, bpf.R9, bpf.R7, atPort)
	a.StoreField(bpf.OpStore16, bpf.FramePointer, key+keyPort, bpf.R9)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+keyProtocol, bpf.R8)
	a.SetValue(bpf.R5, 0)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+keyBlock, bpf.R5)
	a.lookUp(maps.ports, key)
	a.JumpTo(bpf.OpJumpIfNotEqualImmediate, bpf.R0, 0, 0, "ours")
	a.MaskValue(bpf.R9, bpf.InMemory(^uint16(blockSize-1)))
	a.StoreField(bpf.OpStore16, bpf.FramePointer, key+keyPort, bpf.R9)
	a.SetValue(bpf.R5, 1)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+keyBlock, bpf.R5)
	a.lookUp(maps.ports, key)
	a.JumpTo(bpf.OpJumpIfNotEqualImmediate, bpf.R0, 0, 0, "ours")
	a.JumpTo(bpf.OpJump, 0, 0, 0, "pass")
	a.leadFrames(ethLen, maps.sources, maps.sockets)
	return a.ToBytes()
}

// lookUp looks for the key on the stack.
func (a assembler) lookUp(ports int, key int32) {
	a.LoadMap(bpf.R1, ports)
	a.MoveRegister(bpf.R2, bpf.FramePointer)
	a.AddValue(bpf.R2, key)
	a.CallHelper(bpf.HelperMapLookup)
}

// blockSize says how many ports one key of a block stands for, which begins at a multiple of it.
const blockSize = 256

// portKey returns the key of a port, or of a block of them, in the map of the program for the
// host's address: the address as in the packet, IPv4 with zeros behind it, the port big endian, the
// protocol, and 1 for a block.
type portKey [portKeyLen]byte

const (
	keyPort     = 16
	keyProtocol = 18
	keyBlock    = 19
	portKeyLen  = 20
)

func keyOf(addr netip.Addr, udp bool, port uint16, block uint8) (k portKey) {
	copy(k[:], addr.AsSlice())
	binary.BigEndian.PutUint16(k[keyPort:], port)
	k[keyProtocol], k[keyBlock] = protoTCP, block
	if udp {
		k[keyProtocol] = protoUDP
	}
	return k
}

// keysOf returns the keys that stand for p: of each whole block one, and of other ports one each.
func keysOf(p packet.Ports) (keys []portKey) {
	for port, last := int(p.First), int(p.Last); port <= last; {
		if port%blockSize == 0 && port+blockSize-1 <= last {
			keys = append(keys, keyOf(p.Addr, p.UDP, uint16(port), 1))
			port += blockSize
			continue
		}
		keys = append(keys, keyOf(p.Addr, p.UDP, uint16(port), 0))
		port++
	}
	return keys
}
