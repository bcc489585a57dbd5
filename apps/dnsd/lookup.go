package dnsd

import (
	"github.com/miekg/dns"
)

// maxChain bounds the CNAMEs followed in one answer; loops end here too.
const maxChain = 16

// zoneOf returns the innermost zone that holds the canonical name, or nil.
func (s *Server) zoneOf(name string) *zone {
	for off, end := 0, false; !end; off, end = dns.NextLabel(name, off) {
		if z := s.zones[name[off:]]; z != nil {
			return z
		}
	}
	return s.zones["."]
}

// answerFromZones fills r, which holds the question in canonical form, from the zones (RFC 1034
// section 4.3.2). False: the name is in none of them.
func (s *Server) answerFromZones(r *dns.Msg) bool {
	q := r.Question[0]
	name := q.Name
	z := s.zoneOf(name)
	if z == nil {
		return false
	}
	r.Authoritative = true
	for range maxChain {
		target := z.addRecords(r, name, q.Qtype)
		if target == "" {
			return true
		}
		if z = s.zoneOf(target); z == nil {
			return true // the resolver continues from here
		}
		name = target
	}
	return true
}

// addRecords adds the records of z for name and returns the next name when that is a CNAME. r's
// slices are never written through: they may be the zone's own.
func (z *zone) addRecords(r *dns.Msg, name string, qtype uint16) (target string) {
	n, closest, cut := z.findNode(name, qtype)
	if cut != "" {
		z.addReferral(r, cut)
		return ""
	}
	wild := false
	if n == nil {
		if n, wild = z.nodes["*."+closest]; !wild {
			r.Rcode = dns.RcodeNameError
			r.Ns = []dns.RR{z.soa}
			return ""
		}
	}
	set := n[qtype]
	if cname := n[dns.TypeCNAME]; cname != nil && qtype != dns.TypeCNAME {
		set = cname
		target, _ = canonical(cname[0].(*dns.CNAME).Target) // checked when it was loaded
	} else if qtype == dns.TypeANY && len(n) > 0 {
		set = []dns.RR{&dns.HINFO{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeHINFO,
			Class: dns.ClassINET, Ttl: z.soa.Hdr.Ttl}, Cpu: "RFC8482"}}
	}
	if set == nil {
		r.Ns = []dns.RR{z.soa}
		return ""
	}
	if wild {
		set = renameRecords(set, name)
	}
	if r.Answer == nil {
		r.Answer = set[:len(set):len(set)]
	} else {
		r.Answer = append(r.Answer, set...)
	}
	if target == "" {
		z.addGlue(r, set)
	}
	return target
}

// findNode walks from name up to the origin: the node of name if it exists, else the closest name
// above it that does, and the topmost delegation on the way. A DS record belongs to the upper side
// of its delegation (RFC 3658 section 2.2.1.1).
func (z *zone) findNode(name string, qtype uint16) (n node, closest, cut string) {
	for off := 0; ; off, _ = dns.NextLabel(name, off) {
		suffix := name[off:]
		if off == len(name) {
			suffix = "."
		}
		if here := z.nodes[suffix]; here != nil {
			if closest == "" {
				closest = suffix
			}
			if off == 0 {
				n = here
			}
			if suffix == z.origin {
				return n, closest, cut
			}
			if here[dns.TypeNS] != nil && (off > 0 || qtype != dns.TypeDS) {
				cut = suffix
			}
		}
	}
}

// addReferral refers the client to the name servers of a delegated name.
func (z *zone) addReferral(r *dns.Msg, cut string) {
	if len(r.Answer) == 0 {
		r.Authoritative = false
	}
	set := z.nodes[cut][dns.TypeNS]
	r.Ns = set[:len(set):len(set)]
	z.addGlue(r, set)
}

// addGlue adds the addresses that the zone has for the hosts named in the records of set.
func (z *zone) addGlue(r *dns.Msg, set []dns.RR) {
	for _, rr := range set {
		var host string
		switch rr := rr.(type) {
		case *dns.NS:
			host = rr.Ns
		case *dns.MX:
			host = rr.Mx
		case *dns.SRV:
			host = rr.Target
		default:
			return
		}
		if host, err := canonical(host); err == nil {
			n := z.nodes[host]
			r.Extra = append(append(r.Extra, n[dns.TypeA]...), n[dns.TypeAAAA]...)
		}
	}
}

// renameRecords copies records of a wildcard for the name in the query.
func renameRecords(set []dns.RR, name string) []dns.RR {
	out := make([]dns.RR, len(set))
	for i, rr := range set {
		out[i] = dns.Copy(rr)
		out[i].Header().Name = name
	}
	return out
}
