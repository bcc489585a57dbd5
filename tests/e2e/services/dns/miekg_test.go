// Package dns runs DNS servers on the stack: one written with miekg/dns, and CoreDNS.
package dns

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

const zoneFile = "testdata/example.org.zone"

// zone answers from a zone file with the features these tests need: names, types, aliases; answers
// are truncated where they must be.
type zone map[string][]dns.RR

func readZone(t *testing.T) zone {
	t.Helper()
	f, err := os.Open(zoneFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, p := zone{}, dns.NewZoneParser(f, "", zoneFile)
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		name := rr.Header().Name
		z[name] = append(z[name], rr)
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	return z
}

func (z zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	name := strings.ToLower(q.Question[0].Name)
	for _, rr := range z[name] {
		kind := rr.Header().Rrtype
		if kind == q.Question[0].Qtype || kind == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(z[name]) == 0 {
		m.Rcode = dns.RcodeNameError
	}
	size := dns.MinMsgSize
	if o := q.IsEdns0(); o != nil {
		size = int(o.UDPSize())
		m.SetEdns0(1232, false)
	}
	if w.LocalAddr().Network() == "udp" {
		m.Truncate(size)
	}
	w.WriteMsg(m)
}

func TestMiekg(t *testing.T) {
	world.Module(t, "github.com/miekg/dns")
	world.Each(t, func(t *testing.T, w *world.World) {
		id := world.NewIdentity(t)
		z := readZone(t)
		secret := tls.NewListener(w.Listen(t, 853), id.Server("dot"))
		for _, srv := range []*dns.Server{
			{PacketConn: w.ListenPacket(t, 53), Handler: z},
			{Listener: w.Listen(t, 53), Handler: z, MaxTCPQueries: -1},
			{Listener: secret, Handler: z, MaxTCPQueries: -1},
		} {
			started := make(chan struct{})
			srv.NotifyStartedFunc = func() { close(started) }
			go srv.ActivateAndServe()
			<-started
			t.Cleanup(func() { srv.Shutdown() })
		}
		questions(t, w, id)
	})
}
