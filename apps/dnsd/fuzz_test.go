package dnsd

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// many finds a $GENERATE with a number of more than two digits.
var many = regexp.MustCompile(`(?i)\$GENERATE[^\n]*[0-9]{3}`)

// FuzzZone: a zone file is either refused with one line, or is a zone that answers for each of its
// names with messages that can be packed.
func FuzzZone(f *testing.F) {
	example, err := os.ReadFile(exampleZone.File)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example), "")
	f.Add("@ 60 SOA ns h 1 2 3 4 5\n@ 60 NS ns\n*.w 60 CNAME a.w\n", "a.test")
	f.Fuzz(func(t *testing.T, text, origin string) {
		if many.MatchString(text) || strings.ContainsAny(origin, "\n\r") {
			return // one line may make 65536 records
		}
		z, line, err := readZone(strings.NewReader(text), origin)
		if err != nil {
			if line < 1 || line > 1+strings.Count(text, "\n") ||
				strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("line %d: %q", line, err)
			}
			return
		}
		s := &Server{zones: map[string]*zone{z.origin: z}}
		asked := 0
		for name := range z.nodes {
			if asked++; asked > 100 {
				return
			}
			for _, qtype := range []uint16{dns.TypeA, dns.TypeANY, dns.TypeNS, dns.TypeDS} {
				answersFor(t, s, name, qtype)
			}
		}
	})
}

func answersFor(t *testing.T, s *Server, name string, qtype uint16) {
	t.Helper()
	r := new(dns.Msg).SetQuestion(name, qtype)
	wire, err := r.Pack()
	if err != nil {
		t.Fatalf("%s has no wire form: %v", name, err)
	}
	if !s.answerFromZones(r) {
		t.Errorf("%s is not answered", name)
	}
	r.Response, r.Compress = true, true
	out, err := packResponse(r, wire, nil, udpSize)
	if err != nil || len(out) > udpSize {
		t.Errorf("%s: %d bytes, %v", name, len(out), err)
	}
}
