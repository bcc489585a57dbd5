// Command dns answers questions by github.com/miekg/dns: an A record with the client's address, or
// a TXT record of many strings.
package main

import (
	"log"
	"net"
	"strings"

	"github.com/miekg/dns"
)

func main() {
	dns.HandleFunc(".", func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype,
			Class: dns.ClassINET, Ttl: 1}
		if q.Question[0].Qtype == dns.TypeTXT {
			t := &dns.TXT{Hdr: header}
			for range 100 {
				t.Txt = append(t.Txt, strings.Repeat("x", 255))
			}
			m.Answer = append(m.Answer, t)
		} else {
			from, _, _ := net.SplitHostPort(w.RemoteAddr().String())
			m.Answer = append(m.Answer, &dns.A{Hdr: header, A: net.ParseIP(from)})
		}
		if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
			m.Truncate(dns.MinMsgSize)
		}
		w.WriteMsg(m)
	})
	failed := make(chan error)
	for _, network := range []string{"udp", "tcp"} {
		s := &dns.Server{Addr: ":53", Net: network, ReusePort: true}
		go func() { failed <- s.ListenAndServe() }()
	}
	log.Fatal(<-failed)
}
