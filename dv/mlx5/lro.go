package mlx5

import "encoding/binary"

// Reading of a CQE of a coalesced receive (LROSegments above 1). The frame has
// the first segment's headers; lengths, TTL, acknowledgement, window and
// checksums are for software to rewrite from these.

// LROSegments is how many TCP segments were coalesced; 0 or 1 means none were.
func (c *CQE) LROSegments() int { return int(c[0x20]) }

// LROPush reports that one of them had PSH.
func (c *CQE) LROPush() bool { return c[0x04]&0x40 != 0 }

// LROMinTTL is the smallest TTL or hop limit among them.
func (c *CQE) LROMinTTL() uint8 { return c[0x05] }

// LROWindow is the last TCP window.
func (c *CQE) LROWindow() uint16 { return binary.BigEndian.Uint16(c[0x06:0x08]) }

// LROAck is the last acknowledgement number.
func (c *CQE) LROAck() uint32 { return binary.BigEndian.Uint32(c[0x08:0x0c]) }
