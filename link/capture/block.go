package capture

import (
	"encoding/binary"
	"time"
)

// Block types, options and values of draft-ietf-opsawg-pcapng sections 4.1 to 4.6.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockStats     = 5
	blockPacket    = 6

	byteOrder   = 0x1a2b3c4d
	linkEth     = 1
	optEnd      = 0
	optComment  = 1
	shbAppl     = 4
	ifName      = 2
	ifDescribe  = 3
	ifResol     = 9
	ifFilter    = 11
	ifHardware  = 15
	epbFlags    = 2
	epbDropped  = 4
	epbQueue    = 6
	epbVerdict  = 7
	isbStart    = 2
	isbEnd      = 3
	isbReceived = 4
	isbDropped  = 5
	isbAccepted = 6

	nanoseconds = 9 // of ifResol: 10^-9 s
	// The draft knows verdicts of hardware, of the kernel's traffic control and of XDP. Ours is
	// written as one of XDP, whose values are enum xdp_action of linux include/uapi/linux/bpf.h.
	verdictXDP = 2
	xdpDrop    = 1
)

// packetBlock holds what an enhanced packet block says.
type packetBlock struct {
	at        time.Time
	direction Direction
	queue     int
	lost      uint64 // frames, between the one before and this
	dropped   string
	frame     []byte
	length    int // on the wire
}

// recordOverhead says what a record adds to its frame at most, without the reason of a drop.
const recordOverhead = recordHeader + 32 + 8 + 12 + 8 + 16 + 4 + 8 + 8

// recordHeader is the order, in nanoseconds, and the length of the block behind it.
const recordHeader = 8 + 4

// putRecord appends a block with what the reader needs to put blocks of several shards in order.
func putRecord(to []byte, order time.Time, p *packetBlock) []byte {
	start := len(to)
	to = binary.LittleEndian.AppendUint64(to, uint64(order.UnixNano()))
	to = appendPacket(append(to, 0, 0, 0, 0), p)
	binary.LittleEndian.PutUint32(to[start+8:], uint32(len(to)-start-recordHeader))
	return to
}

func appendPacket(to []byte, p *packetBlock) []byte {
	to, start := beginBlock(to, blockPacket)
	to = binary.LittleEndian.AppendUint32(to, 0) // the interface
	to = appendTime(to, p.at)
	to = binary.LittleEndian.AppendUint32(to, uint32(len(p.frame)))
	to = binary.LittleEndian.AppendUint32(to, uint32(p.length))
	to = padTo4(append(to, p.frame...))
	to = binary.LittleEndian.AppendUint32(beginOption(to, epbFlags, 4), uint32(p.direction))
	if p.lost > 0 {
		to = binary.LittleEndian.AppendUint64(beginOption(to, epbDropped, 8), p.lost)
	}
	to = binary.LittleEndian.AppendUint32(beginOption(to, epbQueue, 4), uint32(p.queue))
	if p.dropped != "" {
		to = append(beginOption(to, epbVerdict, 9), verdictXDP)
		to = padTo4(binary.LittleEndian.AppendUint64(to, xdpDrop))
		to = appendString(to, optComment, p.dropped)
	}
	return endBlock(beginOption(to, optEnd, 0), start)
}

// appendHeader begins a file: the section, and the link as its one interface.
func (t *Tap) appendHeader(to []byte, about About) []byte {
	to, start := beginBlock(to, blockSection)
	to = binary.LittleEndian.AppendUint32(to, byteOrder)
	to = binary.LittleEndian.AppendUint32(to, 1)          // version 1.0
	to = binary.LittleEndian.AppendUint64(to, ^uint64(0)) // the section's length is not told
	to = appendString(to, shbAppl, about.Program)
	to = endBlock(beginOption(to, optEnd, 0), start)

	to, start = beginBlock(to, blockInterface)
	to = binary.LittleEndian.AppendUint32(to, linkEth)
	to = binary.LittleEndian.AppendUint32(to, uint32(t.opts.Snaplen))
	to = appendString(to, ifName, about.Name)
	to = appendString(to, ifDescribe, about.Description)
	to = appendString(to, ifHardware, about.Hardware)
	to = padTo4(append(beginOption(to, ifResol, 1), nanoseconds))
	if f := t.opts.Filter; f != "" {
		to = padTo4(append(append(beginOption(to, ifFilter, 1+len(f)), 0), f...))
	}
	return endBlock(beginOption(to, optEnd, 0), start)
}

// appendStats ends a file with what was seen and lost.
func (t *Tap) appendStats(to []byte) []byte {
	now, c := t.opts.Clock.Now(), t.Counts()
	to, start := beginBlock(to, blockStats)
	to = binary.LittleEndian.AppendUint32(to, 0)
	to = appendTime(to, now)
	to = appendTime(beginOption(to, isbStart, 8), t.started)
	to = appendTime(beginOption(to, isbEnd, 8), now)
	for _, o := range []struct {
		code uint16
		n    uint64
	}{{isbReceived, c.Seen}, {isbDropped, c.Lost}, {isbAccepted, c.Accepted}} {
		to = binary.LittleEndian.AppendUint64(beginOption(to, o.code, 8), o.n)
	}
	return endBlock(beginOption(to, optEnd, 0), start)
}

// appendTime writes a time in nanoseconds, its upper half first.
func appendTime(to []byte, at time.Time) []byte {
	n := uint64(at.UnixNano())
	to = binary.LittleEndian.AppendUint32(to, uint32(n>>32))
	return binary.LittleEndian.AppendUint32(to, uint32(n))
}

// beginBlock appends the type, and room for the length.
func beginBlock(to []byte, kind uint32) (out []byte, start int) {
	start = len(to)
	return append(binary.LittleEndian.AppendUint32(to, kind), 0, 0, 0, 0), start
}

// endBlock writes the length at both ends of the block.
func endBlock(to []byte, start int) []byte {
	n := uint32(len(to) - start + 4)
	binary.LittleEndian.PutUint32(to[start+4:], n)
	return binary.LittleEndian.AppendUint32(to, n)
}

func beginOption(to []byte, code uint16, length int) []byte {
	to = binary.LittleEndian.AppendUint16(to, code)
	return binary.LittleEndian.AppendUint16(to, uint16(length))
}

// appendString leaves an empty one out.
func appendString(to []byte, code uint16, s string) []byte {
	if s == "" {
		return to
	}
	s = s[:min(len(s), 1000)]
	return padTo4(append(beginOption(to, code, len(s)), s...))
}

// padTo4 fills up to a multiple of four bytes, which headers of records and blocks are.
func padTo4(to []byte) []byte {
	for len(to)%4 != 0 {
		to = append(to, 0)
	}
	return to
}
