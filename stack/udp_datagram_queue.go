package stack

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Sizes of a block. The payload of one jumbo frame fits. An idle socket has no block.
const (
	blockBytes     = 16 << 10
	blockDatagrams = 64
)

// datagramMeta describes a datagram whose payload is in a block.
type datagramMeta struct {
	from, to tcpip.Address
	port     uint16 // of from
	at, n    uint16 // offset and length of the payload in the block, bytes
}

// datagramBlock is memory for up to blockDatagrams datagrams, filled and read in order.
type datagramBlock struct {
	next          *datagramBlock
	written, read int // entries of metas
	used          int // bytes of bytes
	metas         [blockDatagrams]datagramMeta
	bytes         [blockBytes]byte
}

var blockPool = sync.Pool{New: func() any { return new(datagramBlock) }}

// datagramQueue is a FIFO of datagrams, a list of blocks. Each of its blocks has something to be
// read. The zero value is empty. It is not safe for concurrent use.
type datagramQueue struct{ first, last *datagramBlock }

// add appends a datagram, and copies its payload of at most blockBytes.
func (s *datagramQueue) add(l *datagramMeta, payload []byte) {
	p := s.last
	if p == nil || p.written == blockDatagrams || len(payload) > blockBytes-p.used {
		p = blockPool.Get().(*datagramBlock)
		p.next, p.written, p.read, p.used = nil, 0, 0, 0
		if s.first == nil {
			s.first = p
		} else {
			s.last.next = p
		}
		s.last = p
	}
	l.at, l.n = uint16(p.used), uint16(len(payload))
	p.metas[p.written] = *l
	p.written++
	p.used += copy(p.bytes[p.used:], payload)
}

// next is the oldest datagram of a queue that is not empty. Both results are valid until drop.
func (s *datagramQueue) next() (*datagramMeta, []byte) {
	p := s.first
	l := &p.metas[p.read]
	return l, p.bytes[l.at : int(l.at)+int(l.n)]
}

// drop removes the oldest datagram.
func (s *datagramQueue) drop() {
	p := s.first
	if p.read++; p.read < p.written {
		return
	}
	if s.first = p.next; s.first == nil {
		s.last = nil
	}
	blockPool.Put(p)
}
