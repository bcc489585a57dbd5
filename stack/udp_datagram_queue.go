package stack

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Sizes of a pouch, of which an idle socket has none. The payload of one jumbo frame fits.
const (
	blockBytes     = 16 << 10
	blockDatagrams = 64
)

// datagramMeta is a datagram without its payload.
type datagramMeta struct {
	from, to tcpip.Address
	port     uint16 // of from
	at, n    uint16 // where the payload is in its pouch, bytes
}

// datagramBlock is memory for some datagrams.
type datagramBlock struct {
	next          *datagramBlock
	written, read int // letters
	used          int // bytes
	metas         [blockDatagrams]datagramMeta
	bytes         [blockBytes]byte
}

var blockPool = sync.Pool{New: func() any { return new(datagramBlock) }}

// datagramQueue is datagrams in the order they came. Its zero value is empty; a pouch of a sack has something to be read.
type datagramQueue struct{ first, last *datagramBlock }

// add copies a payload of at most pouchBytes.
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

// next is the oldest datagram of a sack that is not empty. Both are valid until drop.
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
