package dnsd

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// silent is a resolver that never answers.
func silent(t *testing.T) string {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	return pc.LocalAddr().String()
}

func TestForward(t *testing.T) {
	_, upstream := serve(t, Config{Zones: []Zone{exampleZone}}, nil)
	s, addr := serve(t, Config{Forward: []string{silent(t), upstream}, ForwardTimeout: 50 * time.Millisecond}, nil)
	for _, tc := range []struct {
		name, network, qname string
		qtype                uint16
		rcode, answers       int
		tc                   bool
	}{
		{"answer", "udp", "wWw.example.org.", dns.TypeA, dns.RcodeSuccess, 2, false},
		{"no such name", "udp", "absent.example.org.", dns.TypeA, dns.RcodeNameError, 0, false},
		{"over tcp", "tcp", "www.example.org.", dns.TypeA, dns.RcodeSuccess, 2, false},
		{"too big for udp", "udp", "big.example.org.", dns.TypeTXT, dns.RcodeSuccess, -1, true},
		{"too big for udp, over tcp", "tcp", "big.example.org.", dns.TypeTXT, dns.RcodeSuccess, 41, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion(tc.qname, tc.qtype)
			r := ask(t, tc.network, addr, m)
			if r.Rcode != tc.rcode || tc.answers >= 0 && len(r.Answer) != tc.answers || r.Truncated != tc.tc || !r.RecursionAvailable || r.Authoritative {
				t.Errorf("%v", r)
			}
			if r.Question[0].Name != tc.qname || r.IsEdns0() != nil {
				t.Errorf("question %v, OPT %v", r.Question, r.IsEdns0())
			}
		})
	}
	m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
	m.RecursionDesired = false
	if r := ask(t, "udp", addr, m); r.Rcode != dns.RcodeRefused {
		t.Errorf("no recursion desired: %v", r)
	}
	if c := s.Counters(); c.Forwarded != 5 || c.ForwardFailed != 0 || c.Cached != 0 {
		t.Errorf("counters %+v", c)
	}
}

func TestForwardNobodyAnswers(t *testing.T) {
	s, addr := serve(t, Config{Forward: []string{silent(t)}, ForwardTimeout: 20 * time.Millisecond}, nil)
	for _, network := range []string{"udp", "tcp"} {
		if r := ask(t, network, addr, new(dns.Msg).SetQuestion("x.test.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %v", network, r)
		}
	}
	if c := s.Counters(); c.ForwardFailed != 2 {
		t.Errorf("counters %+v", c)
	}
}

// TestForwardLiar gives answers that must not be believed: another ID, another question, not an answer at all.
func TestForwardLiar(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 1500)
		for i := 0; ; i++ {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dns.Msg
			if q.Unpack(buf[:n]) != nil {
				return
			}
			r := new(dns.Msg).SetReply(&q)
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(6, 6, 6, 6)}}
			switch i % 3 {
			case 0:
				r.Id++
			case 1:
				r.Question[0].Name = "other.test."
			case 2:
				r.Response = false
			}
			b, _ := r.Pack()
			pc.WriteTo(b, from)
		}
	}()
	_, addr := serve(t, Config{Forward: []string{pc.LocalAddr().String()}, ForwardTimeout: 20 * time.Millisecond}, nil)
	for range 3 {
		if r := ask(t, "udp", addr, new(dns.Msg).SetQuestion("x.test.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure || len(r.Answer) != 0 {
			t.Errorf("believed %v", r)
		}
	}
}

// TestShutdownCutsForwards: a query that waits for a silent resolver does not outlive Shutdown's context.
func TestShutdownCutsForwards(t *testing.T) {
	dialled := make(chan struct{}, 1)
	resolver := silent(t)
	s, addr := serve(t, Config{Forward: []string{resolver}, ForwardTimeout: time.Hour, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled <- struct{}{}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}, nil)
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	q, _ := new(dns.Msg).SetQuestion("x.test.", dns.TypeA).Pack()
	conn.Write(q)
	<-dialled
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != context.Canceled {
		t.Errorf("Shutdown: %v", err)
	}
}
