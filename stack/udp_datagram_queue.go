package stack

import (
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Sizes of a pouch, of which an idle socket has none. The payload of one jumbo frame fits.
const (
	pouchBytes   = 16 << 10
	pouchLetters = 64
)

// letter is a datagram without its payload.
type letter struct {
	from, to tcpip.Address
	port     uint16 // of from
	at, n    uint16 // where the payload is in its pouch, bytes
}

// pouch is memory for some datagrams.
type pouch struct {
	next      *pouch
	put, read int // letters
	used      int // bytes
	letters   [pouchLetters]letter
	bytes     [pouchBytes]byte
}

var pouches = sync.Pool{New: func() any { return new(pouch) }}

// sack is datagrams in the order they came. Its zero value is empty; a pouch of a sack has something to be read.
type sack struct{ first, last *pouch }

// add copies a payload of at most pouchBytes.
func (s *sack) add(l *letter, payload []byte) {
	p := s.last
	if p == nil || p.put == pouchLetters || len(payload) > pouchBytes-p.used {
		p = pouches.Get().(*pouch)
		p.next, p.put, p.read, p.used = nil, 0, 0, 0
		if s.first == nil {
			s.first = p
		} else {
			s.last.next = p
		}
		s.last = p
	}
	l.at, l.n = uint16(p.used), uint16(len(payload))
	p.letters[p.put] = *l
	p.put++
	p.used += copy(p.bytes[p.used:], payload)
}

// next is the oldest datagram of a sack that is not empty. Both are valid until drop.
func (s *sack) next() (*letter, []byte) {
	p := s.first
	l := &p.letters[p.read]
	return l, p.bytes[l.at : int(l.at)+int(l.n)]
}

// drop removes the oldest datagram.
func (s *sack) drop() {
	p := s.first
	if p.read++; p.read < p.put {
		return
	}
	if s.first = p.next; s.first == nil {
		s.last = nil
	}
	pouches.Put(p)
}
