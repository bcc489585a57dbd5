package dnsd

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

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
	s, addr := serve(t, Config{Forward: []string{silent(t), upstream},
		ForwardTimeout: 50 * time.Millisecond}, nil)
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
		{"too big for udp, over tcp", "tcp", "big.example.org.", dns.TypeTXT,
			dns.RcodeSuccess, 41, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion(tc.qname, tc.qtype)
			r := ask(t, tc.network, addr, m)
			if r.Rcode != tc.rcode || tc.answers >= 0 && len(r.Answer) != tc.answers ||
				r.Truncated != tc.tc || !r.RecursionAvailable || r.Authoritative {
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
	s, addr := serve(t, Config{Forward: []string{silent(t)}, ForwardTimeout: 20 * time.Millisecond},
		nil)
	for _, network := range []string{"udp", "tcp"} {
		if r := ask(t, network, addr,
			new(dns.Msg).SetQuestion("x.test.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %v", network, r)
		}
	}
	if c := s.Counters(); c.ForwardFailed != 2 {
		t.Errorf("counters %+v", c)
	}
}

// TestForwardLiar sends answers that must be ignored: another ID, another question, not an answer
// at all.
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
			r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name,
				Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(6, 6, 6, 6)}}
			switch i % 4 {
			case 0:
				r.Id++
			case 1:
				r.Question[0].Name = "other.test."
			case 2:
				r.Response = false
			case 3:
				r.Question[0].Name = swapCase(r.Question[0].Name)
			}
			b, _ := r.Pack()
			pc.WriteTo(b, from)
		}
	}()
	_, addr := serve(t, Config{Forward: []string{pc.LocalAddr().String()},
		ForwardTimeout: 20 * time.Millisecond}, nil)
	for range 4 {
		if r := ask(t, "udp", addr, new(dns.Msg).SetQuestion("x.test.",
			dns.TypeA)); r.Rcode != dns.RcodeServerFailure || len(r.Answer) != 0 {
			t.Errorf("believed %v", r)
		}
	}
}

// TestShutdownCutsForwards: a query that waits for a silent resolver ends with Shutdown's context.
func TestShutdownCutsForwards(t *testing.T) {
	dialled := make(chan struct{}, 1)
	resolver := silent(t)
	s, addr := serve(t, Config{Forward: []string{resolver}, ForwardTimeout: time.Hour,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
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

// swapCase swaps upper and lower case letters.
func swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, s)
}

// upstream is a resolver on UDP and TCP that passes each query to answer, which returns nil for no
// answer.
func upstream(t *testing.T, answer func(network string, q *dns.Msg) *dns.Msg) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for network, srv := range map[string]*dns.Server{"udp": {PacketConn: pc},
		"tcp": {Listener: ln}} {
		srv.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			if r := answer(network, q); r != nil {
				w.WriteMsg(r)
			}
		})
		started, done := make(chan struct{}), make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		go func() { srv.ActivateAndServe(); close(done) }()
		<-started
		t.Cleanup(func() { srv.Shutdown(); <-done })
	}
	return ln.Addr().String()
}

func addressed(q *dns.Msg) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}
	r.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 1)}}
	return r
}

// TestForwardMerges: a query for a question in progress waits for that answer.
func TestForwardMerges(t *testing.T) {
	const clients = 50
	var asked atomic.Int64
	release := make(chan struct{})
	resolver := upstream(t, func(_ string, q *dns.Msg) *dns.Msg {
		asked.Add(1)
		<-release
		return addressed(q)
	})
	s, addr := serve(t, Config{Forward: []string{resolver}, ForwardTimeout: time.Minute}, nil)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			r := ask(t, "udp", addr, new(dns.Msg).SetQuestion("Same.Test.", dns.TypeA))
			if len(r.Answer) != 1 || r.Question[0].Name != "Same.Test." {
				t.Errorf("%v", r)
			}
		})
	}
	deadline := time.Now().Add(10 * time.Second)
	for c := s.Counters(); c.Merged+c.Forwarded < clients &&
		time.Now().Before(deadline); c = s.Counters() {
		runtime.Gosched()
	}
	close(release)
	wg.Wait()
	if n, c := asked.Load(), s.Counters(); n != 1 || c.Forwarded != 1 || c.Merged != clients-1 {
		t.Errorf("the resolver was asked %d times; %+v", n, c)
	}
}

// TestForwardShares: a client whose unanswered questions take all slots loses one when another
// client asks.
func TestForwardShares(t *testing.T) {
	resolver := upstream(t, func(_ string, q *dns.Msg) *dns.Msg {
		if strings.EqualFold(q.Question[0].Name, "good.test.") {
			return addressed(q)
		}
		return nil
	})
	s, addr := serve(t, Config{Forward: []string{resolver}, ForwardTimeout: time.Minute}, nil)
	greedy, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer greedy.Close()
	deadline := time.Now().Add(10 * time.Second)
	for i := 0; s.Counters().Forwarded < maxForwards; i++ {
		greedy.Write(packed(t, fmt.Sprintf("n%d.test.", i)))
		for s.Counters().UDP <= uint64(i) && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s.Counters())
		}
	}
	other := dns.Client{
		Timeout: 10 * time.Second,
		Dialer:  &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}},
	}
	r, _, err := other.Exchange(new(dns.Msg).SetQuestion("good.test.", dns.TypeA), addr)
	if err != nil || len(r.Answer) != 1 {
		t.Errorf("the other client got %v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Shutdown(ctx) // does not wait a minute for the rest
}

// TestForwardMixesCase: names are sent in random case. A UDP answer in another case is ignored and
// the question repeated over TCP, and clients see their own spelling.
func TestForwardMixesCase(t *testing.T) {
	var mu sync.Mutex
	spelt := map[string]bool{}
	resolver := upstream(t, func(network string, q *dns.Msg) *dns.Msg {
		mu.Lock()
		defer mu.Unlock()
		name := q.Question[0].Name
		spelt[name] = true
		r := addressed(q)
		if network == "udp" {
			r.Answer[0].(*dns.A).A = net.IPv4(6, 6, 6, 6)
		}
		if strings.EqualFold(name, "lower-case-resolver.test.") {
			r.Question[0].Name = strings.ToLower(name)
		}
		return r
	})
	_, addr := serve(t, Config{Forward: []string{resolver}}, nil)
	for range 8 {
		r := ask(t, "udp", addr, new(dns.Msg).SetQuestion("preserving.test.", dns.TypeA))
		if text(r.Answer) != "preserving.test. A 6.6.6.6" ||
			r.Question[0].Name != "preserving.test." {
			t.Errorf("%v", r)
		}
	}
	mu.Lock()
	if len(spelt) < 2 {
		t.Errorf("spelt %v", spelt)
	}
	mu.Unlock()
	r := ask(t, "udp", addr, new(dns.Msg).SetQuestion("lower-case-resolver.test.", dns.TypeA))
	if text(r.Answer) != "lower-case-resolver.test. A 192.0.2.1" {
		t.Errorf("%v", r)
	}
}

func TestLowerTail(t *testing.T) {
	for _, tt := range []struct{ s, want string }{
		{"WWW.eXample.ORG.", "www.example.org."}, {"Mail.eXample.ORG.", "Mail.example.org."},
		{"Other.NET.", "Other.NET."}, {".", "."}, {"ORG.", "org."},
	} {
		if got := lowerTail(tt.s, "www.example.org."); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.s, got, tt.want)
		}
	}
}

func TestFlightsShare(t *testing.T) {
	f, cancelled := newFlights(), 0
	client := func(n byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2,
			n}), 32)
	}
	join := func(name string, n byte) (*flight, bool) {
		return f.joinOrStart(question{name: name},
			waiter{client(n), func(*dns.Msg) {}}, func() { cancelled++ })
	}
	for i := range maxForwards {
		if fl, ok := join(fmt.Sprint(i), 1); fl == nil || !ok {
			t.Fatalf("flight %d: %v", i, ok)
		}
	}
	if _, ok := join("one more", 1); ok || cancelled != 0 {
		t.Error("one client took more than there is")
	}
	for i := range maxForwards / 2 {
		if _, ok := join(fmt.Sprint("other", i), 2); !ok {
			t.Fatalf("the other client's flight %d found no room", i)
		}
	}
	if _, ok := join("beyond its half", 2); ok {
		t.Error("a client took more than half from another")
	}
	if cancelled != maxForwards/2 || f.owned[client(1)] != maxForwards/2 ||
		f.owned[client(2)] != maxForwards/2 {
		t.Errorf("%d given up, %v", cancelled, f.owned)
	}
	for _, fl := range f.all {
		f.completeFlight(fl, nil)
	}
	if len(f.all) != 0 || len(f.owned) != 0 || f.waiters < 0 {
		t.Errorf("%+v", f)
	}
}
