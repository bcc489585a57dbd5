package dnsd

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// text is a record's canonical text without TTL and class: "name type data".
func text(rrs []dns.RR) string {
	var out []string
	for _, rr := range rrs {
		if f := strings.Fields(rr.String()); rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, f[0]+" "+strings.Join(f[3:], " "))
		}
	}
	return strings.Join(out, "; ")
}

const soa = "example.org. SOA ns1.example.org. hostmaster.example.org. 2026010101 7200 900 " +
	"1209600 300"

func TestAnswers(t *testing.T) {
	_, addr := serve(t, Config{Zones: []Zone{exampleZone}}, nil)
	for _, tc := range []struct {
		name, qname, qtype       string
		rcode                    int
		aa                       bool
		answer, authority, extra string
	}{
		{"two addresses, one ttl", "www.example.org.", "A", 0, true,
			"www.example.org. A 192.0.2.80; www.example.org. A 192.0.2.81", "", ""},
		{"no data", "www.example.org.", "AAAA", 0, true, "", soa, ""},
		{"no name", "absent.example.org.", "A", 3, true, "", soa, ""},
		{"no name deep", "a.b.c.absent.example.org.", "A", 3, true, "", soa, ""},
		{"empty name between", "ent.here.example.org.", "A", 0, true, "", soa, ""},
		{"below an empty name", "x.ent.here.example.org.", "A", 3, true, "", soa, ""},
		{"case of the zone does not matter", "mixed.example.org.", "TXT", 0, true,
			`mixed.example.org. TXT "as is"`, "", ""},
		{"origin soa", "example.org.", "SOA", 0, true, soa, "", ""},
		{"origin ns with addresses", "example.org.", "NS", 0, true,
			"example.org. NS ns1.example.org.; example.org. NS ns2.elsewhere.net.", "",
			"ns1.example.org. A 192.0.2.1; ns1.example.org. AAAA 2001:db8::1"},
		{"mx with address", "example.org.", "MX", 0, true, "example.org. MX 10 mail.example.org.",
			"", "mail.example.org. A 192.0.2.25"},
		{"srv with address", "_sip._tcp.example.org.", "SRV", 0, true,
			"_sip._tcp.example.org. SRV 1 2 5060 mail.example.org.", "",
			"mail.example.org. A 192.0.2.25"},
		{"cname", "alias.example.org.", "A", 0, true,
			"alias.example.org. CNAME www.example.org.; www.example.org. A 192.0.2.80; " +
				"www.example.org. A 192.0.2.81", "", ""},
		{"cname itself", "alias.example.org.", "CNAME", 0, true,
			"alias.example.org. CNAME www.example.org.", "", ""},
		{"chain to no data", "chain1.example.org.", "MX", 0, true,
			"chain1.example.org. CNAME chain2.example.org.; chain2.example.org. CNAME " +
				"alias.example.org.; alias.example.org. CNAME www.example.org.", soa, ""},
		{"cname out of the zone", "away.example.org.", "A", 0, true,
			"away.example.org. CNAME www.elsewhere.net.", "", ""},
		{"cname to nothing", "dangling.example.org.", "A", 3, true,
			"dangling.example.org. CNAME absent.example.org.", soa, ""},
		{"cname into a delegation", "tosub.example.org.", "A", 0, true,
			"tosub.example.org. CNAME host.sub.example.org.",
			"sub.example.org. NS ns.sub.example.org.; sub.example.org. NS ns.other.net.",
			"ns.sub.example.org. A 192.0.2.53; ns.sub.example.org. AAAA 2001:db8::53"},
		{"cname to a wildcard", "towild.example.org.", "A", 0, true,
			"towild.example.org. CNAME any.wild.example.org.; any.wild.example.org. A 192.0.2.42",
			"", ""},
		{"wildcard", "x.wild.example.org.", "TXT", 0, true, `x.wild.example.org. TXT "wild"`, "",
			""},
		{"wildcard two labels", "x.y.wild.example.org.", "A", 0, true,
			"x.y.wild.example.org. A 192.0.2.42", "", ""},
		{"wildcard no data", "x.wild.example.org.", "AAAA", 0, true, "", soa, ""},
		{"wildcard does not cover a real name", "real.wild.example.org.", "TXT", 0, true, "", soa,
			""},
		{"wildcard does not cover below a real name", "x.real.wild.example.org.", "A", 3, true, "",
			soa, ""},
		{"wildcard itself", "*.wild.example.org.", "A", 0, true, "*.wild.example.org. A 192.0.2.42",
			"", ""},
		{"wildcard cname", "q.cwild.example.org.", "A", 0, true,
			"q.cwild.example.org. CNAME www.example.org.; www.example.org. A 192.0.2.80; " +
				"www.example.org. A 192.0.2.81", "", ""},
		{"referral", "host.sub.example.org.", "A", 0, false, "",
			"sub.example.org. NS ns.sub.example.org.; sub.example.org. NS ns.other.net.",
			"ns.sub.example.org. A 192.0.2.53; ns.sub.example.org. AAAA 2001:db8::53"},
		{"referral for the delegated name", "sub.example.org.", "NS", 0, false, "",
			"sub.example.org. NS ns.sub.example.org.; sub.example.org. NS ns.other.net.",
			"ns.sub.example.org. A 192.0.2.53; ns.sub.example.org. AAAA 2001:db8::53"},
		{"glue is not an answer", "ns.sub.example.org.", "A", 0, false, "",
			"sub.example.org. NS ns.sub.example.org.; sub.example.org. NS ns.other.net.",
			"ns.sub.example.org. A 192.0.2.53; ns.sub.example.org. AAAA 2001:db8::53"},
		{"ds belongs above", "sub.example.org.", "DS", 0, true,
			"sub.example.org. DS 1 8 2 " +
				"0000000000000000000000000000000000000000000000000000000000000000", "", ""},
		{"any", "www.example.org.", "ANY", 0, true, `www.example.org. HINFO "RFC8482" ""`, "", ""},
		{"any of no name", "absent.example.org.", "ANY", 3, true, "", soa, ""},
		{"any of a cname", "away.example.org.", "ANY", 0, true,
			"away.example.org. CNAME www.elsewhere.net.", "", ""},
		{"escape spelt otherwise", "escaped.example.org.", "TXT", 0, true,
			`escaped.example.org. TXT "octal"`, "", ""},
		{"dot in a label", `dot\.ted.example.org.`, "TXT", 0, true,
			`dot\.ted.example.org. TXT "dot"`, "", ""},
		{"outside", "example.com.", "A", 5, false, "", "", ""},
		{"above", "org.", "NS", 5, false, "", "", ""},
		{"root", ".", "NS", 5, false, "", "", ""},
		{"not a part of the zone by letters", "badexample.org.", "A", 5, false, "", "", ""},
		{"ixfr over udp", "example.org.", "IXFR", 5, false, "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// the second time from packed answers
			for _, network := range []string{"udp", "udp", "tcp"} {
				m := new(dns.Msg).SetQuestion(tc.qname, dns.StringToType[tc.qtype])
				r := ask(t, network, addr, m)
				if r.Rcode != tc.rcode || r.Authoritative != tc.aa || r.RecursionAvailable ||
					!r.RecursionDesired || r.Truncated {
					t.Errorf("%s: header %+v", network, r.MsgHdr)
				}
				if got := text(r.Answer); got != tc.answer {
					t.Errorf("%s: answer\n got %s\nwant %s", network, got, tc.answer)
				}
				if got := text(r.Ns); got != tc.authority {
					t.Errorf("%s: authority\n got %s\nwant %s", network, got, tc.authority)
				}
				if got := text(r.Extra); got != tc.extra {
					t.Errorf("%s: additional\n got %s\nwant %s", network, got, tc.extra)
				}
			}
		})
	}
	t.Run("ttl", func(t *testing.T) {
		if r := ask(t, "udp", addr,
			new(dns.Msg).SetQuestion("www.example.org.",
				dns.TypeA)); r.Answer[0].Header().Ttl != 300 || r.Answer[1].Header().Ttl != 300 {
			t.Error("a record set has two TTLs")
		}
		if r := ask(t, "udp", addr,
			new(dns.Msg).SetQuestion("absent.example.org.",
				dns.TypeA)); r.Ns[0].Header().Ttl != 300 {
			t.Errorf("negative TTL %d", r.Ns[0].Header().Ttl)
		}
		if r := ask(t, "udp", addr,
			new(dns.Msg).SetQuestion("example.org.",
				dns.TypeSOA)); r.Answer[0].Header().Ttl != 3600 {
			t.Errorf("SOA TTL %d", r.Answer[0].Header().Ttl)
		}
	})
	t.Run("loop", func(t *testing.T) {
		if r := ask(t, "tcp", addr,
			new(dns.Msg).SetQuestion("loop1.example.org.", dns.TypeA)); r.Rcode != 0 ||
			len(r.Answer) > maxChain {
			t.Errorf("loop: %v", r)
		}
	})
}
