package xdp

import (
	"encoding/binary"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// The programs are eBPF (linux Documentation/bpf/standardization/instruction-set.rst), pure
// functions of what they are for. They have no types, no relocations and no kernel functions, so
// that every kernel with AF_XDP loads them.

// register names one of the machine's.
type register uint8

const (
	r0 register = iota
	r1
	r2
	r3
	r4
	r5
	r6
	r7
	r8
	r9
	framePointer
)

// instruction mirrors struct bpf_insn: 8 bytes.
type instruction struct {
	op       uint8
	dst, src register
	offset   int16
	value    int32
}

// assembler lists instructions, with jumps to labels further on.
type assembler struct {
	list   []instruction
	labels map[string]int
	jumps  map[int]string
}

func newAssembler() *assembler {
	return &assembler{labels: map[string]int{}, jumps: map[int]string{}}
}

func (a *assembler) appendOp(op uint8, dst, src register, offset int16, value int32) {
	a.list = append(a.list, instruction{op, dst, src, offset, value})
}

func (a *assembler) jumpTo(op uint8, dst, src register, value int32, to string) {
	a.jumps[len(a.list)] = to
	a.appendOp(op, dst, src, 0, value)
}

// Operation codes: class, operation, source (include/uapi/linux/bpf.h, bpf_common.h).
const (
	opMove, opMoveImmediate        = 0xbf, 0xb7
	opAdd, opAddImmediate          = 0x0f, 0x07
	opAndImmediate                 = 0x57
	opShiftLeftImmediate           = 0x67
	opLoad8, opLoad16, opLoad32    = 0x71, 0x69, 0x61
	opStore8, opStore16, opStore32 = 0x73, 0x6b, 0x63
	opLoadMap                      = 0x18 // two instructions, source register 1
	opJump                         = 0x05
	opJumpIfGreater                = 0x2d
	opJumpIfNotEqual               = 0x5d
	opJumpIfEqual32                = 0x16 // with a value, of the lower half
	opJumpIfNotEqual32             = 0x56
	opJumpIfNotEqualImmediate      = 0x55
	opJumpIfSet                    = 0x45
	opJumpIfLess                   = 0xa5
	opCall, opExit                 = 0x85, 0x95

	helperMapLookup   = 1
	helperRedirectMap = 51

	xdpPass = 2
)

func (a *assembler) placeLabel(name string)          { a.labels[name] = len(a.list) }
func (a *assembler) moveRegister(dst, src register)  { a.appendOp(opMove, dst, src, 0, 0) }
func (a *assembler) setValue(dst register, v int32)  { a.appendOp(opMoveImmediate, dst, 0, 0, v) }
func (a *assembler) addRegister(dst, src register)   { a.appendOp(opAdd, dst, src, 0, 0) }
func (a *assembler) addValue(dst register, v int32)  { a.appendOp(opAddImmediate, dst, 0, 0, v) }
func (a *assembler) maskValue(dst register, v int32) { a.appendOp(opAndImmediate, dst, 0, 0, v) }
func (a *assembler) shiftLeft(dst register, v int32) {
	a.appendOp(opShiftLeftImmediate, dst, 0, 0, v)
}
func (a *assembler) loadField(op uint8, dst, src register, at int16) {
	a.appendOp(op, dst, src, at, 0)
}
func (a *assembler) storeField(op uint8, dst register, at int16, src register) {
	a.appendOp(op, dst, src, at, 0)
}
func (a *assembler) callHelper(helper int32) { a.appendOp(opCall, 0, 0, 0, helper) }
func (a *assembler) endProgram()             { a.appendOp(opExit, 0, 0, 0, 0) }

func (a *assembler) loadMap(dst register, fd int) {
	a.appendOp(opLoadMap, dst, 1, 0, int32(fd))
	a.appendOp(0, 0, 0, 0, 0)
}

// passUnlessInside goes on if n bytes from r4's place on are inside the frame, whose end r3 has.
func (a *assembler) passUnlessInside(from register, n int32) {
	a.moveRegister(r4, from)
	a.addValue(r4, n)
	a.jumpTo(opJumpIfGreater, r4, r3, 0, "pass")
}

// toBytes returns the program as the kernel takes it.
func (a *assembler) toBytes() []byte {
	for at, to := range a.jumps {
		a.list[at].offset = int16(a.labels[to] - at - 1)
	}
	var b []byte
	for _, i := range a.list {
		b = append(b, i.op, uint8(i.dst)|uint8(i.src)<<4)
		b = binary.NativeEndian.AppendUint16(b, uint16(i.offset))
		b = binary.NativeEndian.AppendUint32(b, uint32(i.value))
	}
	return b
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

// inMemory returns a big-endian number as a load in the processor's byte order finds it.
func inMemory(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// ownMACProgram returns a program that leads frames to mac, of VLAN vlan, or without a tag if that
// is 0, to the socket that the map sockets has for their queue. All else, and what comes by a queue
// without a socket, is for Linux.
func ownMACProgram(mac [6]byte, vlan uint16, sockets int) []byte {
	a := newAssembler()
	a.moveRegister(r6, r1)
	a.loadField(opLoad32, r2, r6, contextData)
	a.loadField(opLoad32, r3, r6, contextEnd)
	size := int32(ethLen)
	if vlan != 0 {
		size += vlanLen
	}
	a.passUnlessInside(r2, size)
	a.loadField(opLoad32, r5, r2, 0)
	a.jumpTo(opJumpIfNotEqual32, r5, 0, int32(binary.NativeEndian.Uint32(mac[:4])), "pass")
	a.loadField(opLoad16, r5, r2, 4)
	a.jumpTo(opJumpIfNotEqual32, r5, 0, int32(binary.NativeEndian.Uint16(mac[4:])), "pass")
	a.loadField(opLoad16, r5, r2, atType)
	if vlan == 0 {
		a.jumpTo(opJumpIfEqual32, r5, 0, inMemory(typeVLAN), "pass")
		a.jumpTo(opJumpIfEqual32, r5, 0, inMemory(typeServiceVLAN), "pass")
	} else {
		a.jumpTo(opJumpIfNotEqual32, r5, 0, inMemory(typeVLAN), "pass")
		a.loadField(opLoad16, r5, r2, atTag)
		a.maskValue(r5, inMemory(vlanID))
		a.jumpTo(opJumpIfNotEqual32, r5, 0, inMemory(vlan), "pass")
	}
	a.redirectFrames(sockets)
	return a.toBytes()
}

// redirectFrames ends a program: at "ours" frames go to the socket of their queue, at "pass" to
// Linux.
func (a *assembler) redirectFrames(sockets int) {
	a.placeLabel("ours")
	a.loadField(opLoad32, r2, r6, contextQueue)
	a.loadMap(r1, sockets)
	a.setValue(r3, xdpPass) // where the queue has no socket
	a.callHelper(helperRedirectMap)
	a.endProgram()
	a.placeLabel("pass")
	a.setValue(r0, xdpPass)
	a.endProgram()
}

// hostMaps holds the maps that the program for the host's address reads.
type hostMaps struct {
	mac     int // an array of one element: the interface's MAC address, and two bytes
	ports   int // a hash: portKey
	sockets int // an XSKMAP
}

// hostProgram returns a program that leads TCP and UDP to the ports in a map, unfragmented and with
// whole headers, to the socket of their queue. All else is for Linux.
func hostProgram(maps hostMaps) []byte {
	const (
		key   = -portKeyLen - 4 // of ports, on the stack
		index = -4              // of mac
	)
	a := newAssembler()
	a.moveRegister(r6, r1)
	a.setValue(r5, 0)
	a.storeField(opStore32, framePointer, index, r5)
	a.loadMap(r1, maps.mac)
	a.moveRegister(r2, framePointer)
	a.addValue(r2, index)
	a.callHelper(helperMapLookup)
	a.jumpTo(opJumpIfNotEqualImmediate, r0, 0, 0, "address")
	a.jumpTo(opJump, 0, 0, 0, "pass") // which the verifier wants: the element is always there
	a.placeLabel("address")
	a.loadField(opLoad32, r7, r0, 0)
	a.loadField(opLoad16, r8, r0, 4)
	a.loadField(opLoad32, r2, r6, contextData)
	a.loadField(opLoad32, r3, r6, contextEnd)
	a.passUnlessInside(r2, ethLen+ipv4Len)
	a.loadField(opLoad32, r5, r2, 0)
	a.jumpTo(opJumpIfNotEqual, r5, r7, 0, "pass")
	a.loadField(opLoad16, r5, r2, 4)
	a.jumpTo(opJumpIfNotEqual, r5, r8, 0, "pass")
	a.loadField(opLoad16, r5, r2, atType)
	a.jumpTo(opJumpIfEqual32, r5, 0, inMemory(typeIPv6), "six")
	a.jumpTo(opJumpIfNotEqual32, r5, 0, inMemory(typeIPv4), "pass")

	a.loadField(opLoad16, r5, r2, atFragment4)
	a.jumpTo(opJumpIfSet, r5, 0, inMemory(fragmentBits), "pass")
	a.loadField(opLoad32, r5, r2, atDestination4)
	a.storeField(opStore32, framePointer, key, r5)
	a.setValue(r5, 0)
	for i := int16(4); i < 16; i += 4 {
		a.storeField(opStore32, framePointer, key+i, r5)
	}
	a.loadField(opLoad8, r8, r2, atProtocol4)
	a.loadField(opLoad8, r7, r2, atVersion4)
	a.maskValue(r7, 15)
	a.jumpTo(opJumpIfLess, r7, 0, ipv4Len/4, "pass")
	a.shiftLeft(r7, 2)
	a.addValue(r7, ethLen)
	a.addRegister(r7, r2)
	a.jumpTo(opJump, 0, 0, 0, "transport")

	a.placeLabel("six")
	a.passUnlessInside(r2, ethLen+ipv6Len)
	for i := int16(0); i < 16; i += 4 {
		a.loadField(opLoad32, r5, r2, atDestination6+i)
		a.storeField(opStore32, framePointer, key+i, r5)
	}
	a.loadField(opLoad8, r8, r2, atProtocol6)
	a.moveRegister(r7, r2)
	a.addValue(r7, ethLen+ipv6Len)

	a.placeLabel("transport")
	a.jumpTo(opJumpIfEqual32, r8, 0, protoTCP, "tcp")
	a.jumpTo(opJumpIfNotEqual32, r8, 0, protoUDP, "pass")
	a.passUnlessInside(r7, udpLen)
	a.jumpTo(opJump, 0, 0, 0, "port")
	a.placeLabel("tcp")
	a.passUnlessInside(r7, tcpLen)
	a.placeLabel("port")
	a.loadField(opLoad16, r9, r7, atPort)
	a.storeField(opStore16, framePointer, key+keyPort, r9)
	a.storeField(opStore8, framePointer, key+keyProtocol, r8)
	a.setValue(r5, 0)
	a.storeField(opStore8, framePointer, key+keyBlock, r5)
	a.lookUp(maps.ports, key)
	a.jumpTo(opJumpIfNotEqualImmediate, r0, 0, 0, "ours")
	a.maskValue(r9, inMemory(^uint16(blockSize-1)))
	a.storeField(opStore16, framePointer, key+keyPort, r9)
	a.setValue(r5, 1)
	a.storeField(opStore8, framePointer, key+keyBlock, r5)
	a.lookUp(maps.ports, key)
	a.jumpTo(opJumpIfNotEqualImmediate, r0, 0, 0, "ours")
	a.jumpTo(opJump, 0, 0, 0, "pass")
	a.redirectFrames(maps.sockets)
	return a.toBytes()
}

// lookUp looks for the key on the stack.
func (a *assembler) lookUp(ports int, key int32) {
	a.loadMap(r1, ports)
	a.moveRegister(r2, framePointer)
	a.addValue(r2, key)
	a.callHelper(helperMapLookup)
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
