package dnsd

import (
	"github.com/miekg/dns"
)

const (
	headerLen = 12
	// udpSize gives the largest answer sent over UDP, and the size that EDNS0 announces: it fits
	// one IPv6 packet on any link.
	udpSize = 1232
)

// action says what became of one query.
type action int

const (
	drop    action = iota // not a query: no answer
	reply                 // r is the answer
	known                 // as reply, from a zone: the same query gets the same answer
	forward               // r waits for the resolvers' answer
)

// answerTo turns the query in wire form into an answer to be packed; q is the decoded query when
// there is one.
func (s *Server) answerTo(wire []byte, q, r *dns.Msg) action {
	if len(wire) < headerLen || wire[2]&0x80 != 0 {
		return drop
	}
	err := q.Unpack(wire)
	r.SetReply(q)
	r.Compress = true
	r.RecursionAvailable = len(s.cfg.Forward) > 0
	opts := 0
	for _, rr := range q.Extra {
		if opt, ok := rr.(*dns.OPT); ok {
			if opts++; opts == 1 {
				r.SetEdns0(udpSize, opt.Do())
				if opt.Version() != 0 {
					r.Rcode = dns.RcodeBadVers
				}
			}
		}
	}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		r.Rcode = dns.RcodeNotImplemented
		return reply
	case err != nil || len(q.Question) != 1 || opts > 1:
		r.Rcode = dns.RcodeFormatError
		return reply
	case r.Rcode != dns.RcodeSuccess:
		return reply
	}
	return s.resolveQuery(q, r)
}

// resolveQuery answers a well-formed query.
func (s *Server) resolveQuery(q, r *dns.Msg) action {
	question := &r.Question[0]
	if question.Qclass != dns.ClassINET || question.Qtype == dns.TypeAXFR ||
		question.Qtype == dns.TypeIXFR {
		r.Rcode = dns.RcodeRefused
		return reply
	}
	// Names in the answer are lower case, so that those equal to the question compress to it,
	// whatever the case of the question; pack restores the question's own spelling.
	question.Name = dns.CanonicalName(question.Name)
	if s.answerFromZones(r) {
		return known
	}
	if q.RecursionDesired && r.RecursionAvailable {
		return forward
	}
	r.Rcode = dns.RcodeRefused
	return reply
}

// sizeFor returns the largest answer that the client of q accepts over UDP.
func sizeFor(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return min(max(int(opt.UDPSize()), dns.MinMsgSize), udpSize)
	}
	return dns.MinMsgSize
}

// packResponse encodes r into buf, cut to size, with the question spelled as in the query wire.
// Additional addresses are left out before anything is truncated, except in a referral, which is
// useless without them (RFC 9471).
func packResponse(r *dns.Msg, wire, buf []byte, size int) ([]byte, error) {
	if r.Authoritative && r.Len() > size {
		opt := r.IsEdns0()
		r.Extra = nil
		if opt != nil {
			r.Extra = []dns.RR{opt}
		}
	}
	if r.Len() > size {
		r.Truncate(size)
	}
	out, err := r.PackBuffer(buf)
	if err == nil && len(r.Question) == 1 {
		if n := questionLen(wire); n > 0 {
			copy(out[headerLen:], wire[headerLen:headerLen+n])
		}
	}
	return out, err
}

// questionLen returns the size of the first question in wire; 0 when it is cut short or compressed.
func questionLen(wire []byte) int {
	off := headerLen
	for off < len(wire) && wire[off] != 0 {
		if wire[off] > 63 {
			return 0
		}
		off += 1 + int(wire[off])
	}
	if off += 5; off > len(wire) {
		return 0
	}
	return off - headerLen
}
