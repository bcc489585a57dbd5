package dv

import (
	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// A CQE block is n completions in n entries of the completion ring,
// of which the NIC writes only some: the title, which says what all have in
// common, and arrays of eight minis of 8 bytes each, in entries 1, 8, 16, 24
// and so on behind it. What the other entries hold is of an earlier pass, and
// where an array has a mini's last byte is where the owner bit would be: so
// none of them may be looked at as a completion, now or in the next pass.

// cqeBlock is the CQE block at the consumer index that is being expanded. It may
// take several polls; until it is done the ring keeps it.
type cqeBlock struct {
	n, i uint32 // minis, and those delivered; n 0: no CQE block

	// What is common to all frames.
	timestamp uint64
	vlan      uint16
	flags     RxFlags
}

// maxCQEBlock is more than any device compresses into one CQE block.
const maxCQEBlock = 256

// titleReceive is the last byte of the title of a CQE block of received frames,
// leaving out the solicited and the owner bit.
const titleReceive = plainReceive | mlx5.FormatCompressed<<2

// begin starts the CQE block of n frames whose title is cqe.
func (s *cqeBlock) begin(cqe *mlx5.CQE, n uint32, flags RxFlags) {
	*s = cqeBlock{
		n:         n,
		timestamp: cqe.Timestamp(),
		vlan:      cqe.VLAN(),
		flags:     flags,
	}
}

// minis is the array that mini i of the CQE block at ci is in.
func (c *compRing) minis(i uint32) *mlx5.CQE {
	at := int((c.ci+max(1, i&^(mlx5.MinisPerCQE-1)))&c.mask) * mlx5.CQESize
	return (*mlx5.CQE)(c.buf[at : at+mlx5.CQESize])
}

// endBlock consumes the CQE block of n entries at ci and marks all of them as
// not written, but for the title, which has the owner bit of this pass.
func (c *compRing) endBlock(n uint32) {
	const invalid = uint8(mlx5.CQEInvalid) << 4
	for i := c.ci + 1; i != c.ci+n; i++ {
		c.buf[int(i&c.mask)*mlx5.CQESize+mlx5.CQESize-1] = invalid
	}
	c.ci += n
}

// plain is how many of the next limit entries are ours and no titles; title
// reports that behind them is one. It looks at one word of each; their other
// bytes may be read when it returns.
func (c *compRing) plain(limit int) (n int, title bool) {
	own, ours := uint32(0), false
	for ci := c.ci; n < limit; n++ {
		own, ours = c.owned(ci)
		if !ours || own&0xc == mlx5.FormatCompressed<<2 {
			break
		}
		ci++
	}
	if n == limit || !ours {
		c.acquire(n)
		return n, false
	}
	c.acquire(n + 1)
	return n, true
}

// blockLen is the number of entries of the CQE block whose title is cqe, 0 if
// it cannot be one: it is no more than limit.
func blockLen(cqe *mlx5.CQE, limit uint32) uint32 {
	n := cqe.ByteCount()
	if n < 2 || n > min(limit, maxCQEBlock) {
		return 0
	}
	return n
}
