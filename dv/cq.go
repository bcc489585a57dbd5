package dv

import (
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// compRing holds a ring of completions as software sees it. The NIC writes entries and hands each
// over with the last byte: an entry is ours when its opcode is not "invalid" and its owner bit
// equals the parity of the pass that ci is in. One goroutine owns it.
type compRing struct {
	mem        *mmio.Region // entries of 64 bytes
	buf        []byte       // the same memory
	rec        *mmio.Region // doorbell record: consumer index, arm word
	mask       uint32       // entries - 1
	log        uint32       // log2 of entries
	compressed bool         // there may be CQE blocks among them
	ci         uint32       // consumer index; free-running, 24 bits of it are told to the NIC
	seen       uint32       // up to here the NIC has written (rx.go); free-running
}

// newCompRing prepares mem for entries completions (a power of two): every entry is marked as not
// written, of the wrong pass too. The NIC must not know of mem yet.
func newCompRing(mem, rec *mmio.Region, entries int) compRing {
	c := compRing{mem: mem, buf: mem.Slice(0, entries*mlx5.CQESize), rec: rec,
		mask: uint32(entries - 1), log: uint32(bits.TrailingZeros32(uint32(entries)))}
	clear(c.buf)
	for at := mlx5.CQESize - 1; at < len(c.buf); at += mlx5.CQESize {
		c.buf[at] = mlx5.OpOwn(mlx5.CQEInvalid, 0, 0, 1)
	}
	rec.StoreBE32(mlx5.RecordConsumer, 0)
	rec.StoreBE32(mlx5.RecordArm, 0)
	return c
}

// countReady returns how many of the next limit entries are ours. It looks at one word
// of each; their other bytes may be read when it returns.
func (c *compRing) countReady(limit int) int {
	n, ci := 0, c.ci
	for n < limit {
		if _, ours := c.ownedEntry(ci); !ours {
			break
		}
		n, ci = n+1, ci+1
	}
	c.acquireEntries(n)
	return n
}

// ownedEntry reports whether the entry at index ci is ours, and the word that says so.
func (c *compRing) ownedEntry(ci uint32) (own uint32, ours bool) {
	own = c.mem.LoadBE32(int(ci&c.mask)*mlx5.CQESize + mlx5.CQEOwnWord)
	return own, own>>4&0xf != uint32(mlx5.CQEInvalid) && own&1 == ci>>c.log&1
}

// acquireEntries makes the other bytes of n > 0 entries found ours readable.
func (c *compRing) acquireEntries(n int) {
	if n > 0 {
		mmio.FromDevice()
	}
}

// entryAtCI returns the entry at ci; it is ours if ready said so.
func (c *compRing) entryAtCI() *mlx5.CQE { return c.entryAt(c.ci) }

// entryAt returns the entry at index ci.
func (c *compRing) entryAt(ci uint32) *mlx5.CQE {
	at := int(ci&c.mask) * mlx5.CQESize
	return (*mlx5.CQE)(c.buf[at : at+mlx5.CQESize])
}

// publishCI tells the NIC how far we have read. It must precede publishing
// buffers whose completions need the room.
func (c *compRing) publishCI() {
	c.rec.StoreBE32(mlx5.RecordConsumer, c.ci&mlx5.RecordIndexMask)
}

// skipAll passes over what is there, unread, and publishes that.
func (c *compRing) skipAll() {
	// a full ring is one pass; a second look finds nothing, or what came meanwhile
	for range 2 * (c.mask + 1) {
		own, ours := c.ownedEntry(c.ci)
		if !ours {
			break
		}
		c.acquireEntries(1)
		n := uint32(0)
		if c.compressed && own&0xfc == titleReceive {
			n = blockLen(c.entryAtCI(), c.mask+1)
		}
		c.endBlock(max(1, n))
	}
	c.publishCI()
}
