package mlx5

// Checksums the device fills in (Eth.CsumFlags). What the frame carries in
// their place is ignored.
const (
	CsumInnerL3 = 0x10
	CsumInnerL4 = 0x20
	CsumL3      = 0x40 // IPv4 header
	CsumL4      = 0x80 // TCP or UDP
)

// Parser hints for tunnels (Eth.SWPFlags).
const (
	SWPInnerIPv6 = 0x01
	SWPInnerUDP  = 0x02
	SWPOuterIPv6 = 0x10
	SWPOuterUDP  = 0x20
)

// Tags the device inserts behind the MAC addresses (Eth.Insert).
const (
	InsertNone = 0x0000
	InsertCTag = 0x8000 // 0x8100
	InsertSTag = 0x8001 // 0x88a8
)

// Eth is an Ethernet segment.
type Eth struct {
	CsumFlags  uint8
	SWPFlags   uint8
	MSS        uint16 // OpLSO: bytes of payload per segment
	SWPOffsets uint32 // outer L4, outer L3, inner L4, inner L3; 2-byte units
	Metadata   uint32 // for flow rules of the send side
	InlineLen  uint16 // bytes of header inlined at InlineOffset; 0 with Insert
	Insert     uint16 // InsertCTag with TCI; 0 with InlineLen
	TCI        uint16
}

// InlineOffset is where inlined header bytes start, in bytes from the start of
// the Ethernet segment.
const InlineOffset = 14

// MaxInlineHeader is the largest InlineLen the field can say.
const MaxInlineHeader = 1023

// EthDS is how many DS an Ethernet segment with inlineLen header bytes takes.
func EthDS(inlineLen int) int {
	if inlineLen <= 2 {
		return 1
	}
	return (InlineOffset + inlineLen + DSSize - 1) / DSSize
}

// PutEth writes the 16 bytes of an Ethernet segment, of which the last two are
// TCI; PutInlineHeader overwrites them when InlineLen is not 0.
func PutEth(b []byte, e Eth) {
	s := (*[EthSegSize]byte)(b)
	put64(s[0:8],
		uint64(e.SWPOffsets)<<32|uint64(e.CsumFlags)<<24|uint64(e.SWPFlags)<<16|uint64(e.MSS))
	put64(s[8:16], uint64(e.Metadata)<<32|uint64(e.InlineLen|e.Insert)<<16|uint64(e.TCI))
}

// PutInlineHeader copies hdr behind the Ethernet segment at b[0], pads it with
// zeros to the next DS and returns how many DS the segment then takes. b must
// have that many; Eth.InlineLen must say len(hdr).
func PutInlineHeader(b, hdr []byte) int {
	ds := EthDS(len(hdr))
	clear(b[InlineOffset+copy(b[InlineOffset:], hdr) : ds*DSSize])
	return ds
}
