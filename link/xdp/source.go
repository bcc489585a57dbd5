package xdp

import (
	"encoding/binary"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Of the frames that are ours the program drops TCP and UDP from sources in a map, a trie of
// prefixes (linux Documentation/bpf/map_lpm_trie.rst), so that they take no place in a ring.

const (
	// maxSources bounds the elements of the trie: 1,024 prefixes, of TCP and of UDP.
	maxSources = 2048
	// maxBlocks bounds the blocks of ports that a prefix of a protocol has.
	maxBlocks = 4
)

// sourceKey returns the key of a prefix in the trie: the bits that count in the processor's byte
// order, then the family (4 or 6), the protocol, two zeros, and the address with zeros behind it.
type sourceKey [sourceKeyLen]byte

// sourceValue holds the blocks of ports of a prefix, each as the bits of the destination port and
// the mask of those that count, big endian, and then how many frames to each were dropped, in the
// processor's byte order.
type sourceValue [sourceValueLen]byte

const (
	sourceFamily   = 4
	sourceProtocol = 5
	sourceAddress  = 8
	sourceKeyLen   = 24
	// sourceKindBits counts the bits in front of the address.
	sourceKindBits = 8 * (sourceAddress - sourceFamily)

	blockLen       = 4
	sourceCounts   = maxBlocks * blockLen
	sourceValueLen = sourceCounts + maxBlocks*8
)

// source holds what is dropped from one prefix of a protocol, a block of ports each, and how many
// frames of each have been told of.
type source struct {
	drops []packet.SourceDrop
	told  [maxBlocks]uint64
}

// keyOfSource returns the key of d's prefix.
func keyOfSource(d packet.SourceDrop) (k sourceKey) {
	binary.NativeEndian.PutUint32(k[:], uint32(sourceKindBits+d.From.Bits()))
	k[sourceFamily], k[sourceProtocol] = 6, d.Proto
	if d.From.Addr().Is4() {
		k[sourceFamily] = 4
	}
	copy(k[sourceAddress:], d.From.Masked().Addr().AsSlice())
	return k
}

// toValue returns the value that stands for the drops, without counts. A block that is not used
// has no port.
func (s *source) toValue() (v sourceValue) {
	for i := range maxBlocks {
		port, mask := uint16(1), uint16(0)
		if i < len(s.drops) {
			mask = s.drops[i].Mask
			port = s.drops[i].Port & mask
		}
		binary.BigEndian.PutUint16(v[i*blockLen:], port)
		binary.BigEndian.PutUint16(v[i*blockLen+2:], mask)
	}
	return v
}

// groupSources returns those of all for which there is room, by key, and how many these are.
func groupSources(all []packet.SourceDrop) (by map[sourceKey]*source, n int) {
	by = map[sourceKey]*source{}
	for _, d := range all {
		k := keyOfSource(d)
		s := by[k]
		if s == nil {
			if len(by) == maxSources {
				continue
			}
			s = &source{}
			by[k] = s
		}
		if len(s.drops) < maxBlocks && !slices.Contains(s.drops, d) {
			s.drops = append(s.drops, d)
			n++
		}
	}
	return by, n
}

// dropSources drops frames whose IP header is at a place if the trie has their source, protocol and
// port, and counts them. It goes on with others at "lead". R6 has the context; all else is
// overwritten.
func (a assembler) dropSources(at int16, sources int) {
	const (
		key                    = -sourceKeyLen // on the stack
		atFragment, atProtocol = 6, 9
		atSource4, atSource6   = 12, 8
		atNext6, offsetBits    = 6, 0x1fff
	)
	leadUnlessInside := func(from bpf.Register, n int32) {
		a.MoveRegister(bpf.R4, from)
		a.AddValue(bpf.R4, n)
		a.JumpTo(bpf.OpJumpIfGreater, bpf.R4, bpf.R3, 0, "lead")
	}
	a.LoadField(bpf.OpLoad32, bpf.R2, bpf.R6, contextData)
	a.LoadField(bpf.OpLoad32, bpf.R3, bpf.R6, contextEnd)
	leadUnlessInside(bpf.R2, int32(at)+ipv4Len)
	a.SetValue(bpf.R5, 0)
	a.StoreField(bpf.OpStore32, bpf.FramePointer, key+sourceFamily, bpf.R5)
	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, at-2)
	a.JumpTo(bpf.OpJumpIfEqual32, bpf.R5, 0, bpf.InMemory(typeIPv6), "source6")
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R5, 0, bpf.InMemory(typeIPv4), "lead")

	a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R2, at+atFragment)
	a.JumpTo(bpf.OpJumpIfSet, bpf.R5, 0, bpf.InMemory(offsetBits), "lead")
	a.SetValue(bpf.R5, 4)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+sourceFamily, bpf.R5)
	a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, at+atSource4)
	a.StoreField(bpf.OpStore32, bpf.FramePointer, key+sourceAddress, bpf.R5)
	a.SetValue(bpf.R5, 0)
	for i := int16(4); i < 16; i += 4 {
		a.StoreField(bpf.OpStore32, bpf.FramePointer, key+sourceAddress+i, bpf.R5)
	}
	a.LoadField(bpf.OpLoad8, bpf.R8, bpf.R2, at+atProtocol)
	a.LoadField(bpf.OpLoad8, bpf.R7, bpf.R2, at)
	a.MaskValue(bpf.R7, 15)
	a.JumpTo(bpf.OpJumpIfLess, bpf.R7, 0, ipv4Len/4, "lead")
	a.ShiftLeft(bpf.R7, 2)
	a.AddValue(bpf.R7, int32(at))
	a.AddRegister(bpf.R7, bpf.R2)
	a.JumpTo(bpf.OpJump, 0, 0, 0, "source")

	a.PlaceLabel("source6")
	leadUnlessInside(bpf.R2, int32(at)+ipv6Len)
	a.SetValue(bpf.R5, 6)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+sourceFamily, bpf.R5)
	for i := int16(0); i < 16; i += 4 {
		a.LoadField(bpf.OpLoad32, bpf.R5, bpf.R2, at+atSource6+i)
		a.StoreField(bpf.OpStore32, bpf.FramePointer, key+sourceAddress+i, bpf.R5)
	}
	a.LoadField(bpf.OpLoad8, bpf.R8, bpf.R2, at+atNext6)
	a.MoveRegister(bpf.R7, bpf.R2)
	a.AddValue(bpf.R7, int32(at)+ipv6Len)

	a.PlaceLabel("source")
	a.JumpTo(bpf.OpJumpIfEqual32, bpf.R8, 0, protoTCP, "source ports")
	a.JumpTo(bpf.OpJumpIfNotEqual32, bpf.R8, 0, protoUDP, "lead")
	a.PlaceLabel("source ports")
	leadUnlessInside(bpf.R7, atPort+2)
	a.LoadField(bpf.OpLoad16, bpf.R9, bpf.R7, atPort)
	a.StoreField(bpf.OpStore8, bpf.FramePointer, key+sourceProtocol, bpf.R8)
	a.SetValue(bpf.R5, 8*(sourceKeyLen-sourceFamily))
	a.StoreField(bpf.OpStore32, bpf.FramePointer, key, bpf.R5)
	a.lookUp(sources, key)
	a.JumpTo(bpf.OpJumpIfNotEqualImmediate, bpf.R0, 0, 0, "source known")
	a.JumpTo(bpf.OpJump, 0, 0, 0, "lead")
	a.PlaceLabel("source known")
	a.countInBlocks()
}

// countInBlocks drops a frame whose port R9 has if it is in one of the blocks that R0 points to,
// and adds one to the block's count.
func (a assembler) countInBlocks() {
	var counts [maxBlocks]string
	for i := range int16(maxBlocks) {
		counts[i] = "count " + string('0'+rune(i))
		a.LoadField(bpf.OpLoad16, bpf.R5, bpf.R0, i*blockLen+2)
		a.AppendOp(bpf.OpAnd, bpf.R5, bpf.R9, 0, 0)
		a.LoadField(bpf.OpLoad16, bpf.R4, bpf.R0, i*blockLen)
		a.JumpTo(bpf.OpJumpIfEqual, bpf.R5, bpf.R4, 0, counts[i])
	}
	a.JumpTo(bpf.OpJump, 0, 0, 0, "lead")
	for i := range int16(maxBlocks) {
		a.PlaceLabel(counts[i])
		a.SetValue(bpf.R5, 1)
		a.AppendOp(bpf.OpAtomicAdd64, bpf.R0, bpf.R5, sourceCounts+8*i, 0)
		a.JumpTo(bpf.OpJump, 0, 0, 0, "drop")
	}
	a.PlaceLabel("drop")
	a.SetValue(bpf.R0, xdpDrop)
	a.EndProgram()
}
