package dnsd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/miekg/dns"
)

// zone is immutable once loaded. Owner names are canonical: lower case, absolute, escapes as the
// wire decoder spells them.
type zone struct {
	origin string
	nodes  map[string]node // every owner name and every empty name between one and the origin
	soa    *dns.SOA        // its TTL is already the one of negative answers, RFC 2308 section 3
}

// node holds one name's records by type; each set has one TTL.
type node map[uint16][]dns.RR

// lineReader counts the lines that the zone parser has read.
type lineReader struct {
	*bufio.Reader
	lines int // newlines read
	mid   bool
}

func (r *lineReader) ReadByte() (byte, error) {
	c, err := r.Reader.ReadByte()
	if err == nil {
		r.mid = c != '\n'
		if !r.mid {
			r.lines++
		}
	}
	return c, err
}

// lineNumber returns the number of the line that was read last.
func (r *lineReader) lineNumber() int {
	if r.mid || r.lines == 0 {
		return r.lines + 1
	}
	return r.lines
}

// loadZone reads one zone. Its first record must be the SOA. Errors begin with file:line.
func loadZone(from Zone) (*zone, error) {
	var text io.Reader = strings.NewReader(from.Text)
	if from.Text == "" {
		f, err := os.Open(from.File)
		if err != nil {
			return nil, fmt.Errorf("open zone file: %w", err)
		}
		defer f.Close()
		text = f
	}
	z, line, err := readZone(text, from.Origin)
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", from.File, line, err)
	}
	return z, nil
}

// readZone reads one zone; line is where an error was found.
func readZone(r io.Reader, origin string) (z *zone, line int, err error) {
	if origin != "" {
		origin = dns.Fqdn(origin)
	}
	lines := &lineReader{Reader: bufio.NewReader(r)}
	parser := dns.NewZoneParser(lines, origin, "")
	z = &zone{nodes: map[string]node{}}
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		if err := z.addRecord(rr); err != nil {
			return nil, lines.lineNumber(), err
		}
	}
	if err := parser.Err(); err != nil {
		return nil, lines.lineNumber(), withoutText(err)
	}
	if err := z.finishZone(origin); err != nil {
		return nil, lines.lineNumber(), err
	}
	return z, lines.lineNumber(), nil
}

// withoutText returns the parser's error without the text it quotes: a file that is not a zone may
// contain a secret.
func withoutText(err error) error {
	var syntax *dns.ParseError
	if !errors.As(err, &syntax) {
		return err
	}
	text := syntax.Error()
	what, _, _ := strings.Cut(strings.TrimPrefix(text, "dns: "), `"`)
	_, column, _ := strings.Cut(text[strings.LastIndex(text, " at line: ")+1:], "line: ")
	_, column, _ = strings.Cut(column, ":")
	return fmt.Errorf("%s in column %s", strings.TrimRight(what, ": "), column)
}

func (z *zone) addRecord(rr dns.RR) error {
	h := rr.Header()
	name, err := canonical(h.Name)
	if err != nil {
		return err
	}
	soa, isSOA := rr.(*dns.SOA)
	switch {
	case h.Class != dns.ClassINET:
		return fmt.Errorf("record of class %s (only IN is served)", dns.Class(h.Class))
	case z.soa == nil && !isSOA:
		return fmt.Errorf("%s record of %s before the SOA (a zone file begins with its SOA record)",
			dns.Type(h.Rrtype), name)
	case z.soa != nil && isSOA:
		return fmt.Errorf("second SOA record, of %s (one zone per file)", name)
	case h.Rrtype == dns.TypeDNAME:
		return fmt.Errorf("DNAME record of %s (DNAME is not supported)", name)
	case isSOA:
		z.origin = name
		negative := *soa
		negative.Hdr.Name, negative.Hdr.Ttl = name, min(soa.Hdr.Ttl, soa.Minttl)
		z.soa = &negative
	case !dns.IsSubDomain(z.origin, name):
		return fmt.Errorf("%s record of %s is outside the zone %s",
			dns.Type(h.Rrtype), name, z.origin)
	case h.Rrtype == dns.TypeNS && strings.HasPrefix(name, "*."):
		return fmt.Errorf("NS record of %s (a wildcard cannot be delegated)", name)
	}
	h.Name = name
	if cname, ok := rr.(*dns.CNAME); ok {
		if _, err := canonical(cname.Target); err != nil {
			return err
		}
	}
	return z.nodeAt(name).addRecord(rr)
}

// nodeAt returns the node of name, and makes it and the empty ones above it if necessary.
func (z *zone) nodeAt(name string) node {
	n, ok := z.nodes[name]
	if !ok {
		n = node{}
		z.nodes[name] = n
		if name != z.origin {
			z.nodeAt(parentName(name))
		}
	}
	return n
}

// parentName returns name without its first label; the root is its own parent.
func parentName(name string) string {
	off, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[off:]
}

func (n node) addRecord(rr dns.RR) error {
	h := rr.Header()
	set := n[h.Rrtype]
	for _, old := range set {
		if dns.IsDuplicate(old, rr) {
			return nil
		}
	}
	if h.Rrtype == dns.TypeCNAME && len(set) > 0 {
		return fmt.Errorf("second CNAME record of %s", h.Name)
	}
	n[h.Rrtype] = append(set, rr)
	least := h.Ttl
	for _, rr := range n[h.Rrtype] { // one TTL per set, RFC 2181 section 5.2
		least = min(least, rr.Header().Ttl)
	}
	for _, rr := range n[h.Rrtype] {
		rr.Header().Ttl = least
	}
	if n[dns.TypeCNAME] != nil {
		for t := range n {
			if t != dns.TypeCNAME && t != dns.TypeRRSIG && t != dns.TypeNSEC {
				return fmt.Errorf("%s has a CNAME record and a %s record (a CNAME stands alone)",
					h.Name, dns.Type(t))
			}
		}
	}
	return nil
}

func (z *zone) finishZone(origin string) error {
	if z.soa == nil {
		return errors.New("no SOA record")
	}
	if want, err := canonical(origin); origin != "" && (err != nil || want != z.origin) {
		return fmt.Errorf("the zone is %s, not %s as configured", z.origin, origin)
	}
	if z.nodes[z.origin][dns.TypeNS] == nil {
		return fmt.Errorf("no NS record of %s", z.origin)
	}
	return nil
}

// canonical spells a name as the wire decoder would, in lower case.
func canonical(name string) (string, error) {
	name = dns.CanonicalName(name)
	if !strings.Contains(name, `\`) {
		return name, nil
	}
	var wire [256]byte
	n, err := dns.PackDomainName(name, wire[:], 0, nil, false)
	if err != nil {
		return "", fmt.Errorf("name %s: %w", name, err)
	}
	name, _, err = dns.UnpackDomainName(wire[:n], 0)
	return dns.CanonicalName(name), err
}
