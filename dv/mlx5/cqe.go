package mlx5

import "encoding/binary"

// CQESize gives the size of a completion in bytes.
const CQESize = 64

// CQEOwnWord gives the offset of the word whose last byte hands a completion to
// software: wqe_counter, signature, op_own. The device writes it last.
const CQEOwnWord = 0x3c

// CQE is one completion, 64 bytes; a ring entry converts to a *CQE in place. The accessors
// inline, without bounds checks. Read it only once it is known to be valid
// (the driver's phase rule) and FromDevice has been passed. Which accessors
// mean something depends on Opcode.
type CQE [CQESize]byte

// Formats of a CQE (bits [3:2] of the last byte).
const (
	FormatPlain      = 0
	FormatInline32   = 1
	FormatInline64   = 2
	FormatCompressed = 3 // title of a compressed session
)

// Third layer type of a received frame.
const (
	L3Other = 0
	L3IPv6  = 1
	L3IPv4  = 2
)

// Fourth layer type of a received frame.
const (
	L4Other   = 0
	L4TCP     = 1 // without ACK
	L4UDP     = 2
	L4TCPAck  = 3 // ACK, no data
	L4TCPData = 4 // ACK with data
)

// Bits of HeaderStatus.
const (
	// TCP or UDP checksum right; trust it only with a known L4 type and no fragment
	HdrL4OK         = 0x0400
	HdrL3OK         = 0x0200 // IPv4 header checksum right, or IPv6
	HdrL2OK         = 0x0100
	HdrFragment     = 0x0080
	HdrL4Mask       = 0x0070
	HdrL4Shift      = 4
	HdrL3Mask       = 0x000c
	HdrL3Shift      = 2
	HdrIPExt        = 0x0002 // IPv4 options or IPv6 extension headers
	HdrVLANStripped = 0x0001
)

// OpOwn packs the last byte of a CQE.
func OpOwn(op CQEOpcode, format, solicited, owner uint8) uint8 {
	return uint8(op)<<4 | format<<2 | solicited<<1 | owner
}

// OpOwn returns the last byte: opcode, format, solicited, owner.
func (c *CQE) OpOwn() uint8 { return c[0x3f] }

// Tail returns the word at CQEOwnWord in one load: wqe_counter, signature, op_own.
func (c *CQE) Tail() uint32 { return binary.BigEndian.Uint32(c[CQEOwnWord:CQESize]) }

// Opcode says what completed.
func (c *CQE) Opcode() CQEOpcode { return CQEOpcode(c[0x3f] >> 4) }

// Format is FormatPlain, or FormatCompressed for a title.
func (c *CQE) Format() uint8 { return c[0x3f] >> 2 & 3 }

// Solicited reports the SE bit.
func (c *CQE) Solicited() bool { return c[0x3f]&2 != 0 }

// Owner returns the phase bit, 0 in the device's first pass over the queue.
func (c *CQE) Owner() uint8 { return c[0x3f] & 1 }

// WQECounter returns the index of the WQE that completed, modulo the size of the ring: a
// free-running count of 16 bits, of which readers use the low bits only (mlx5_parse_cqe in
// rdma-core providers/mlx5/cq.c); of a striding receive queue, the first stride within its WQE.
func (c *CQE) WQECounter() uint16 { return binary.BigEndian.Uint16(c[0x3c:0x3e]) }

// ByteCount returns the length of the received frame in bytes, without FCS; of a
// title, the number of completions in the session.
func (c *CQE) ByteCount() uint32 { return binary.BigEndian.Uint32(c[0x2c:0x30]) }

// HeaderStatus returns the parser's verdict, Hdr bits, in one load.
func (c *CQE) HeaderStatus() uint16 { return binary.BigEndian.Uint16(c[0x1c:0x1e]) }

// L3OK reports a right IPv4 header checksum, or IPv6.
func (c *CQE) L3OK() bool { return c.HeaderStatus()&HdrL3OK != 0 }

// L4OK reports a right TCP or UDP checksum. Trust it only with a known L4Type.
func (c *CQE) L4OK() bool { return c.HeaderStatus()&HdrL4OK != 0 }

// L3Type is L3IPv4, L3IPv6 or L3Other.
func (c *CQE) L3Type() uint8 { return uint8(c.HeaderStatus() & HdrL3Mask >> HdrL3Shift) }

// L4Type returns one of the L4 constants.
func (c *CQE) L4Type() uint8 { return uint8(c.HeaderStatus() & HdrL4Mask >> HdrL4Shift) }

// Fragment reports an IP fragment.
func (c *CQE) Fragment() bool { return c.HeaderStatus()&HdrFragment != 0 }

// IPExt reports IPv4 options or IPv6 extension headers.
func (c *CQE) IPExt() bool { return c.HeaderStatus()&HdrIPExt != 0 }

// VLANStripped reports that the device took a tag out; VLAN is that tag.
func (c *CQE) VLANStripped() bool { return c.HeaderStatus()&HdrVLANStripped != 0 }

// VLAN returns the stripped tag (priority, DEI, id).
func (c *CQE) VLAN() uint16 { return binary.BigEndian.Uint16(c[0x1e:0x20]) }

// Tunneled reports that the header fields describe the inner headers.
func (c *CQE) Tunneled() bool { return c[0]&1 != 0 }

// Hash returns the RSS hash, 0 with HashType 0.
func (c *CQE) Hash() uint32 { return binary.BigEndian.Uint32(c[0x0c:0x10]) }

// HashType says what was hashed: [1:0] source IP, [3:2] destination IP (1 v4,
// 2 v6), [5:4] source and [7:6] destination port (1 TCP, 2 UDP, 3 SPI).
func (c *CQE) HashType() uint8 { return c[0x10] }

// Checksum returns the ones' complement sum, not inverted, of the IP datagram; of a
// coalesced receive, of its TCP payload.
func (c *CQE) Checksum() uint16 { return binary.BigEndian.Uint16(c[0x14:0x16]) }

// Timestamp is in cycles of the device's clock, or, with the real-time format, seconds since 1970
// in the upper half and nanoseconds in the lower.
func (c *CQE) Timestamp() uint64 { return binary.BigEndian.Uint64(c[0x30:0x38]) }

// UIdx returns the user index of the queue, 24 bits.
func (c *CQE) UIdx() uint32 { return binary.BigEndian.Uint32(c[0x20:0x24]) & 0xffffff }

// Metadata returns what a flow rule attached to the frame.
func (c *CQE) Metadata() uint32 { return binary.BigEndian.Uint32(c[0x24:0x28]) }

// FlowTag returns the tag of the flow rule that took the frame, 24 bits.
func (c *CQE) FlowTag() uint32 { return c.QPN() }

// QPN returns the number of the queue a send or an error belongs to.
func (c *CQE) QPN() uint32 { return binary.BigEndian.Uint32(c[0x38:0x3c]) & 0xffffff }

// SendOpcode returns the opcode of the send WQE that completed.
func (c *CQE) SendOpcode() Opcode { return Opcode(c[0x38]) }

// Signature returns the exclusive or of all other bytes but the last where the device writes one,
// which it does in error CQEs. It is not to be checked.
func (c *CQE) Signature() uint8 { return c[0x3e] }

// Syndrome returns the cause in an error CQE.
func (c *CQE) Syndrome() Syndrome { return Syndrome(c[0x37]) }

// VendorSyndrome returns the undocumented cause in an error CQE: for logs.
func (c *CQE) VendorSyndrome() uint8 { return c[0x36] }

// String lists the fields that are not zero, as the opcode says to read them.
func (c *CQE) String() string {
	b := c[:]
	op := c.Opcode()
	switch {
	case op == CQEInvalid:
		return "invalid"
	case op.IsError():
		return op.String() + " " + c.Syndrome().String() + " " + ErrorCQELayout.String(b)
	case op == CQEReq:
		return op.String() + " " + c.SendOpcode().String() + " " + SendCQELayout.String(b)
	case c.LROSegments() > 1:
		return op.String() + " " + CQELayout.String(b) + " " + LROLayout.String(b)
	}
	return op.String() + " " + CQELayout.String(b)
}
