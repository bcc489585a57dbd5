package capture

import (
	"bytes"
	"net/netip"

	"golang.org/x/net/bpf"
)

// Filter says which frames are recorded. It is read only; nil matches every frame.
type Filter struct {
	root    node    // nil: program
	program *bpf.VM // what tcpdump has compiled
}

// Match reports whether a frame is recorded. frame may be cut off, length is the whole.
func (f *Filter) Match(frame []byte,
	length int) bool {
	return f.matches(&subject{}, frame, length)
}

// matches does what Match does, with scratch memory of the caller.
func (f *Filter) matches(s *subject, frame []byte, length int) bool {
	switch {
	case f == nil:
		return true
	case f.program != nil:
		n, err := f.program.Run(frame)
		return err == nil && n > 0
	}
	*s = subject{frame, length, parseHeaders(frame)}
	return f.root.matches(s)
}

// subject holds the frame that is looked at.
type subject struct {
	frame  []byte
	length int
	headers
}

// node is an expression.
type node interface{ matches(s *subject) bool }

type (
	and struct{ a, b node }
	or  struct{ a, b node }
	not struct{ a node }
)

func (n and) matches(s *subject) bool { return n.a.matches(s) && n.b.matches(s) }
func (n or) matches(s *subject) bool  { return n.a.matches(s) || n.b.matches(s) }
func (n not) matches(s *subject) bool { return !n.a.matches(s) }

// sides says which end of a frame is meant.
type sides uint8

const (
	either sides = iota
	source
	destination
	bothEnds
)

// combineSides combines what is true of each end.
func (d sides) combineSides(from, to bool) bool {
	switch d {
	case source:
		return from
	case destination:
		return to
	case bothEnds:
		return from && to
	}
	return from || to
}

// family is frames of a protocol: an EtherType, or an IP protocol over IPv4 or IPv6, or either.
type family struct {
	etherType uint16 // 0: IPv4 or IPv6
	proto     uint8  // 0: any, with etherType
}

func (f family) matches(s *subject) bool {
	if f.etherType == 0 && s.etherType != typeIPv4 && s.etherType != typeIPv6 ||
		f.etherType != 0 && f.etherType != s.etherType {
		return false
	}
	return f.proto == 0 || s.l4 != 0 && s.proto == f.proto
}

// network is an address or a range of them. An IPv4 one is looked for in ARP, too.
type network struct {
	sides
	prefix netip.Prefix
}

func (n network) matches(s *subject) bool {
	from, to := s.addresses(s.frame)
	if len(from)*8 != n.prefix.Addr().BitLen() {
		return false
	}
	return n.combineSides(n.hasAddress(from), n.hasAddress(to))
}

func (n network) hasAddress(b []byte) bool {
	a, _ := netip.AddrFromSlice(b)
	return n.prefix.Contains(a)
}

// ports describes a range of ports of TCP, UDP and SCTP.
type ports struct {
	sides
	first, last uint16
}

func (p ports) matches(s *subject) bool {
	from, to, ok := s.portsIn(s.frame)
	return ok && p.combineSides(p.first <= from && from <= p.last, p.first <= to && to <= p.last)
}

// station is an Ethernet address.
type station struct {
	sides
	mac [6]byte
}

func (e station) matches(s *subject) bool {
	return len(s.frame) >= ethLen &&
		e.combineSides(bytes.Equal(s.frame[6:12], e.mac[:]), bytes.Equal(s.frame[:6], e.mac[:]))
}

// tagged is frames with a VLAN tag; id -1: any.
type tagged struct{ id int }

func (t tagged) matches(s *subject) bool { return s.vlan >= 0 && (t.id < 0 || s.vlan == t.id) }

// group is frames to several stations, or to all.
type group struct{ all bool }

func (g group) matches(s *subject) bool {
	if len(s.frame) < ethLen {
		return false
	}
	if g.all {
		return bytes.Equal(s.frame[:6], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	}
	return s.frame[0]&1 != 0
}

// size is frames of at least, or of at most, so many bytes.
type size struct {
	least bool
	bytes int
}

func (z size) matches(s *subject) bool {
	if z.least {
		return s.length >= z.bytes
	}
	return s.length <= z.bytes
}
