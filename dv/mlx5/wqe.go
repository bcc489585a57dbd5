package mlx5

import (
	"encoding/binary"
)

// Field tables of what a driver writes: segments of send and receive WQEs.

// Control segment, first 16 bytes of a send WQE (struct mlx5_wqe_ctrl_seg).
var (
	CtrlOpMod     = Field{"opmod", 0, 7, 0}
	CtrlIndex     = Field{"wqe_index", 1, 15, 0} // producer counter at the WQE's first basic block
	CtrlOpcode    = Field{"opcode", 3, 7, 0}
	CtrlQPN       = Field{"qpn", 4, 31, 8} // number of the send queue
	CtrlDS        = Field{"ds", 7, 5, 0}   // whole WQE, this segment included
	CtrlSignature = Field{"signature", 8, 7, 0}
	CtrlStream    = Field{"dci_stream", 9, 15, 0}
	CtrlFM        = Field{"fm", 11, 7, 5}
	CtrlCE        = Field{"ce", 11, 3, 2}
	CtrlSE        = Field{"se", 11, 1, 1}
	CtrlImm       = Field{"imm", 12, 31, 0}

	CtrlLayout = Layout{"ctrl", CtrlSegSize, []Field{
		CtrlOpMod, CtrlIndex, CtrlOpcode, CtrlQPN, CtrlDS, CtrlSignature, CtrlStream,
		CtrlFM, CtrlCE, CtrlSE, CtrlImm,
	}}
)

// Ethernet segment, second 16 bytes of a send WQE (struct mlx5_wqe_eth_seg). Insert bits and inline
// length are two readings of the same 16 bits, as are the tag and the first two inline bytes.
var (
	EthSWPOuterL4  = Field{"swp_outer_l4", 0, 7, 0} // offsets in units of 2 bytes
	EthSWPOuterL3  = Field{"swp_outer_l3", 1, 7, 0}
	EthSWPInnerL4  = Field{"swp_inner_l4", 2, 7, 0}
	EthSWPInnerL3  = Field{"swp_inner_l3", 3, 7, 0}
	EthL4Csum      = Field{"l4_csum", 4, 7, 7}
	EthL3Csum      = Field{"l3_csum", 4, 6, 6}
	EthL4InnerCsum = Field{"l4_inner_csum", 4, 5, 5}
	EthL3InnerCsum = Field{"l3_inner_csum", 4, 4, 4}
	EthSWPFlags    = Field{"swp_flags", 5, 7, 0}
	EthMSS         = Field{"mss", 6, 15, 0}
	EthMetadata    = Field{"metadata", 8, 31, 0}
	EthInsert      = Field{"insert_vlan", 12, 15, 15}
	EthTrailer     = Field{"insert_trailer", 12, 14, 14}
	EthInlineLen   = Field{"inline_hdr_sz", 12, 9, 0}
	EthInsertSVLAN = Field{"insert_svlan", 13, 0, 0}
	EthTCI         = Field{"vlan_tci", 14, 15, 0}

	// EthLayout reads bytes 12 to 15 as an inline header.
	EthLayout = Layout{"eth", EthSegSize,
		append(ethCommon[:len(ethCommon):len(ethCommon)], EthInlineLen)}
	// EthInsertLayout reads them as a VLAN tag to insert: use it when EthInsert is set.
	EthInsertLayout = Layout{"eth", EthSegSize,
		append(ethCommon[:len(ethCommon):len(ethCommon)], EthInsertSVLAN, EthTCI)}
)

var ethCommon = []Field{
	EthSWPOuterL4, EthSWPOuterL3, EthSWPInnerL4, EthSWPInnerL3, EthL4Csum,
	EthL3Csum, EthL4InnerCsum,
	EthL3InnerCsum, EthSWPFlags, EthMSS, EthMetadata, EthInsert, EthTrailer,
}

// Data segment, 16 bytes of a send or receive WQE (struct mlx5_wqe_data_seg), and the head of an
// inline one (struct mlx5_wqe_inline_seg), whose bytes follow at 4.
var (
	DataInline    = Field{"inline", 0, 7, 7}
	DataByteCount = Field{"byte_count", 0, 30, 0}
	DataLKey      = Field{"lkey", 4, 31, 0}
	DataAddr      = Field{"addr", 8, 63, 0}

	DataLayout = Layout{"data", DataSegSize,
		[]Field{DataInline, DataByteCount, DataLKey, DataAddr}}
	InlineLayout = Layout{"inline", InlineHeaderSize, []Field{DataInline, DataByteCount}}
)

// Next segment, head of a striding receive WQE (struct mlx5_wqe_srq_next_seg).
var (
	NextIndex     = Field{"next_wqe_index", 2, 15, 0} // linked-list queues only
	NextSignature = Field{"signature", 4, 7, 0}

	NextLayout = Layout{"next", 16, []Field{NextIndex, NextSignature}}
)

// Doorbell record of a queue pair or work queue, 8 bytes in host memory, and
// of a completion queue.
var (
	DBRRecv = Field{"recv_counter", 0, 31, 0} // low 16 bits count
	DBRSend = Field{"send_counter", 4, 31, 0} // low 16 bits count

	QPRecordLayout = Layout{"dbrec", 8, []Field{DBRRecv, DBRSend}}

	DBRConsumer = Field{"consumer_index", 0, 23, 0}
	DBRArmSN    = Field{"arm_sn", 4, 5, 4}
	DBRArmCmd   = Field{"arm_cmd", 4, 0, 0} // 1: only for a solicited or error CQE
	DBRArmCI    = Field{"arm_ci", 4, 23, 0}

	CQRecordLayout = Layout{"cq dbrec", 8, []Field{DBRConsumer, DBRArmSN, DBRArmCmd, DBRArmCI}}
)

// Sizes of the parts of a WQE, in bytes.
const (
	CtrlSegSize      = 16
	EthSegSize       = 16
	DataSegSize      = 16
	InlineHeaderSize = 4
	DSSize           = 16
	BB               = 64
)

// MaxDS gives the longest send WQE drivers use, in DS: 15 basic blocks. The field
// could say 63. The device's own limit (max_wqe_sz_sq) applies too.
const MaxDS = 60

// Bits of the last argument of PutCtrl (fm_ce_se).
const (
	CEOnError      = 0x00 // completion only if this WQE fails
	CEOnFirstError = 0x04 // completion only if it is the queue's first failure
	CEAlways       = 0x08
	SESolicited    = 0x02
)

// BBs returns the number of basic blocks a WQE of ds DS occupies.
func BBs(ds int) int { return (ds + 3) / 4 }

// PutCtrl writes the 16 bytes of a control segment: index is the producer
// counter at the WQE's first basic block, ds the length of the whole WQE.
// Reserved bytes and the immediate are zero, which newer cards insist on.
func PutCtrl(b []byte, op Opcode, opmod uint8, index uint16, sqn uint32, ds, fmCeSe uint8) {
	s := (*[CtrlSegSize]byte)(b)
	put64(s[0:8], uint64(opmod)<<56|uint64(index)<<40|uint64(op)<<32|uint64(sqn)<<8|uint64(ds))
	put64(s[8:16], uint64(fmCeSe)<<32)
}

// EndOfListLKey in a segment of zero bytes ends the list of a receive WQE that
// uses fewer segments than it has room for.
const EndOfListLKey = 0x100

// inlineFlag in the byte count makes a data segment an inline one.
const inlineFlag = 1 << 31

// PutData writes the 16 bytes of a data segment: n bytes at addr, in the region
// lkey names. n must not be 0 in a send WQE: the device reads that as 2 GiB.
func PutData(b []byte, n uint32, lkey uint32, addr uint64) {
	s := (*[DataSegSize]byte)(b)
	put64(s[0:8], uint64(n)<<32|uint64(lkey))
	put64(s[8:16], addr)
}

// PutInlineDataHeader writes the 4 bytes ahead of n bytes of inline data.
func PutInlineDataHeader(b []byte, n int) {
	binary.BigEndian.PutUint32(b[:InlineHeaderSize], inlineFlag|uint32(n))
}

// InlineDS returns how many DS an inline data segment of n bytes takes.
func InlineDS(n int) int { return (InlineHeaderSize + n + DSSize - 1) / DSSize }

// Checksums the device fills in (Eth.CsumFlags). What the frame carries in
// their place is ignored.
const (
	CsumL3 = 0x40 // IPv4 header
	CsumL4 = 0x80 // TCP or UDP
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

// InlineOffset says where inlined header bytes start, in bytes from the start of
// the Ethernet segment.
const InlineOffset = 14

// MaxInlineHeader gives the largest InlineLen the field can say.
const MaxInlineHeader = 1023

// EthDS returns how many DS an Ethernet segment with inlineLen header bytes takes.
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

// Reading of a CQE of a striding receive queue, whose WQEs hold many frames.

// WQEID returns the index of the WQE the frame is in, modulo the size of the ring.
func (c *CQE) WQEID() uint16 { return binary.BigEndian.Uint16(c[0x02:0x04]) }

// Filler reports a completion without a frame: the rest of the WQE was too small for the next one.
func (c *CQE) Filler() bool { return c[0x2c]&0x80 != 0 }

// Strides returns how many strides this completion consumed.
func (c *CQE) Strides() int { return int(binary.BigEndian.Uint16(c[0x2c:0x2e]) & 0x7fff) }

// StridingBytes returns the length of the frame in bytes.
func (c *CQE) StridingBytes() int { return int(binary.BigEndian.Uint16(c[0x2e:0x30])) }

// PutNext writes the 16-byte head of a striding receive WQE. index links WQEs
// of linked-list queues; cyclic ones want 0.
func PutNext(b []byte, index uint16) {
	s := (*[16]byte)(b)
	put64(s[0:8], uint64(index)<<32)
	put64(s[8:16], 0)
}

// Reading of a CQE of a coalesced receive (LROSegments above 1). The frame has
// the first segment's headers; lengths, TTL, acknowledgement, window and
// checksums are for software to rewrite from these.

// LROSegments returns how many TCP segments were coalesced; 0 or 1 means none were.
func (c *CQE) LROSegments() int { return int(c[0x20]) }

// LROPush reports that one of them had PSH.
func (c *CQE) LROPush() bool { return c[0x04]&0x40 != 0 }

// LROMinTTL returns the smallest TTL or hop limit among them.
func (c *CQE) LROMinTTL() uint8 { return c[0x05] }

// LROWindow returns the last TCP window.
func (c *CQE) LROWindow() uint16 { return binary.BigEndian.Uint16(c[0x06:0x08]) }

// LROAck returns the last acknowledgement number.
func (c *CQE) LROAck() uint32 { return binary.BigEndian.Uint32(c[0x08:0x0c]) }
