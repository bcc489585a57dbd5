package dnsd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var exampleZone = Zone{File: "testdata/example.org.zone"}

// onlyPacketConn hides the methods of *net.UDPConn that other conns may lack.
type onlyPacketConn struct{ net.PacketConn }

// serve starts a server on loopback sockets, UDP and TCP on the same port, and ends it with the
// test.
func serve(t testing.TB, cfg Config, wrap func(net.PacketConn) net.PacketConn) (*Server, string) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		pc = wrap(pc)
	}
	errs := make(chan error, 2)
	go func() { errs <- s.ServeUDP(pc) }()
	go func() { errs <- s.ServeTCP(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		for range 2 {
			// a goroutine may begin after the end
			if err := <-errs; err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("Serve: %v", err)
			}
		}
	})
	return s, ln.Addr().String()
}

func ask(t testing.TB, network, addr string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: 10 * time.Second, UDPSize: 4096}
	r, _, err := c.Exchange(m, addr)
	if err != nil {
		t.Fatalf("%s: %v", network, err)
	}
	return r
}

func TestHeaderRules(t *testing.T) {
	s, addr := serve(t, Config{Zones: []Zone{exampleZone}, UDPWorkers: 1},
		func(pc net.PacketConn) net.PacketConn { return onlyPacketConn{pc} })
	query := func(edit func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
		edit(m)
		return m
	}
	for _, tc := range []struct {
		name string
		m    *dns.Msg
		want int
	}{
		{"chaos version", query(func(m *dns.Msg) {
			m.Question[0] = dns.Question{Name: "version.bind.", Qtype: dns.TypeTXT,
				Qclass: dns.ClassCHAOS}
		}), dns.RcodeRefused},
		{"class any", query(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }),
			dns.RcodeRefused},
		{"zone transfer", query(func(m *dns.Msg) { m.SetAxfr("example.org.") }), dns.RcodeRefused},
		{"update", query(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }),
			dns.RcodeNotImplemented},
		{"two questions",
			query(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }),
			dns.RcodeFormatError},
		{"no question", query(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		{"edns version 1",
			query(func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }),
			dns.RcodeBadVers},
		{"two opts", query(
			func(m *dns.Msg) { m.SetEdns0(1232, false); m.Extra = append(m.Extra, m.Extra[0]) }),
			dns.RcodeFormatError},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if r := ask(t, network, addr, tc.m); r.Rcode != tc.want || len(r.Answer) != 0 {
				t.Errorf("%s over %s: %s, want %s", tc.name, network, dns.RcodeToString[r.Rcode],
					dns.RcodeToString[tc.want])
			}
		}
	}
	for _, do := range []bool{false, true} {
		r := ask(t, "udp", addr, query(func(m *dns.Msg) { m.SetEdns0(4096, do) }))
		if opt := r.IsEdns0(); opt == nil || opt.UDPSize() != udpSize || opt.Do() != do ||
			opt.Version() != 0 {
			t.Errorf("OPT of the answer: %v", r.IsEdns0())
		}
	}
	if r := ask(t, "udp", addr, query(func(m *dns.Msg) {})); r.IsEdns0() != nil {
		t.Error("OPT in the answer to a query without")
	}
	// 0x20: the question comes back as spelt, the first time and from the packed answers.
	before := s.Counters().Cached
	for _, name := range []string{"wWw.ExAmPlE.oRg.", "WwW.eXaMpLe.OrG.", "www.example.org."} {
		r := ask(t, "udp", addr, query(func(m *dns.Msg) { m.Question[0].Name = name }))
		if r.Question[0].Name != name || len(r.Answer) != 2 || r.Answer[0].Header().Name != name {
			t.Errorf("asked %s: %v", name, r)
		}
	}
	if got := s.Counters().Cached - before; got != 3 {
		t.Errorf("%d of 3 spellings answered from packed answers", got)
	}
}

func TestTruncation(t *testing.T) {
	_, addr := serve(t, Config{Zones: []Zone{exampleZone}}, nil)
	for _, tc := range []struct {
		name, qname string
		size        uint16 // 0: no EDNS
		tc          bool
		limit       int
	}{
		{"mid without edns", "mid.example.org.", 0, true, 512},
		{"mid, tiny edns counts as 512", "mid.example.org.", 100, true, 512},
		{"mid with edns", "mid.example.org.", 1232, false, 1232},
		{"big, over our own limit", "big.example.org.", 65535, true, 1232},
	} {
		m := new(dns.Msg).SetQuestion(tc.qname, dns.TypeTXT)
		if tc.size > 0 {
			m.SetEdns0(tc.size, false)
		}
		r := ask(t, "udp", addr, m)
		r.Compress = true // so that Len is that of the wire
		if r.Truncated != tc.tc || r.Len() > tc.limit || (r.IsEdns0() != nil) != (tc.size > 0) {
			t.Errorf("%s: TC %v, %d bytes, OPT %v", tc.name, r.Truncated, r.Len(), r.IsEdns0())
		}
	}
	// Additional addresses are left out before the answer is truncated.
	if r := ask(t, "udp", addr,
		new(dns.Msg).SetQuestion("many.example.org.", dns.TypeMX)); r.Truncated ||
		len(r.Answer) != 12 || len(r.Extra) != 0 {
		t.Errorf("MX: TC %v, %d answers, %d extras", r.Truncated, len(r.Answer), len(r.Extra))
	}
	if r := ask(t, "udp", addr,
		new(dns.Msg).SetQuestion("many.example.org.", dns.TypeMX).SetEdns0(1232, false)); len(
		r.Extra) != 25 {
		t.Errorf("MX with room: %d extras", len(r.Extra))
	}
	if r := ask(t, "tcp", addr,
		new(dns.Msg).SetQuestion("big.example.org.", dns.TypeTXT)); r.Truncated ||
		len(r.Answer) != 41 {
		t.Errorf("TCP: TC %v, %d answers", r.Truncated, len(r.Answer))
	}
}

// TestGarbage sends invalid queries and expects no answer or a format error, and a server that
// still answers.
func TestGarbage(t *testing.T) {
	s, addr := serve(t, Config{Zones: []Zone{exampleZone}, UDPWorkers: 1}, nil)
	conn, err := net.Dial("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	good, _ := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA).Pack()
	response := slices.Clone(good)
	response[2] |= 0x80
	for _, b := range [][]byte{nil, {1}, make([]byte, 11), response} {
		conn.Write(b)
	}
	cut := good[:len(good)-3]
	conn.Write(cut)
	buf := make([]byte, 1500)
	n, err := conn.Read(buf) // one worker answers in order: the first answer is truncated
	if err != nil || n < 12 || buf[0] != cut[0] || buf[1] != cut[1] ||
		buf[3]&15 != dns.RcodeFormatError {
		t.Errorf("cut query: %x, %v", buf[:n], err)
	}
	if c := s.Counters(); c.Dropped != 4 || c.UDP != 5 || c.Answers["FORMERR"] != 1 {
		t.Errorf("counters %+v", c)
	}
}

func TestTCPPipelining(t *testing.T) {
	_, addr := serve(t, Config{Zones: []Zone{exampleZone}}, nil)
	conn, err := dns.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var ids []uint16
	for range 20 {
		m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
		ids = append(ids, m.Id)
		if err := conn.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if r, err := conn.ReadMsg(); err != nil || r.Id != id || len(r.Answer) != 2 {
			t.Fatalf("%v, %v", r, err)
		}
	}
}

func TestBrokenZones(t *testing.T) {
	const head = "$ORIGIN a.test.\n$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\n"
	for _, tc := range []struct {
		name, zone string
		line       string
		want       string
	}{
		{"bad address", head + "; comment\n\nx A 1.2.3\n", "7", "bad A A in column 9"},
		{"unknown type", head + "x WHAT 1\n", "5", "not a TTL in column 7"},
		{"outside", head + "x.b.test. A 1.2.3.4\n", "5", "outside the zone a.test."},
		{"cname and other", head + "x A 1.2.3.4\nx CNAME y\n", "6",
			"x.a.test. has a CNAME record and a A record"},
		{"two cnames", head + "x CNAME y\nx CNAME z\n", "6", "second CNAME"},
		{"no soa", "$ORIGIN a.test.\n$TTL 60\n@ NS ns\n", "3", "before the SOA"},
		{"two soas", head + "@ SOA ns h 1 2 3 4 6\n", "5", "second SOA"},
		{"no ns", "$ORIGIN a.test.\n$TTL 60\n@ SOA ns h 1 2 3 4 5\n", "3", "no NS record"},
		{"empty", "", "1", "no SOA"},
		{"dname", head + "x DNAME y\n", "5", "DNAME is not supported"},
		{"chaos", head + "x CH TXT y\n", "5", "class CH"},
		{"wildcard delegation", head + "*.x NS ns\n", "5", "wildcard"},
		{"multi-line record", head + "x TXT ( a\n b\n c )\ny A z\n", "8", "bad A"},
		{"a file of secrets", "root:$6$SECRET:20000:0:99999:7:::\n", "1", "in column"},
		{"a secret in quotes", head + "x A \"SECRET\"\n", "5", "bad A A"},
		{"a secret for a number", head + "x MX SECRET y\n", "5", "bad MX"},
		{"a secret for a time", "$TTL SECRET\n", "1", "TTL"},
		{"no ttl", "a.test. SOA ns.a.test. h.a.test. 1 2 3 4 5\n", "1", "TTL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "zone")
			if err := os.WriteFile(file, []byte(tc.zone), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := New(Config{Zones: []Zone{{File: file}}})
			if err == nil || !strings.HasPrefix(err.Error(), file+":"+tc.line+": ") ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v\nwant %s:%s: ... %s", err, file, tc.line, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "SECRET") {
				t.Errorf("prints what is in the file: %v", err)
			}
		})
	}
	if _, err := New(Config{Zones: []Zone{{File: "testdata/absent"}}}); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := New(Config{Zones: []Zone{exampleZone, exampleZone}}); err == nil ||
		!strings.Contains(err.Error(), "already served") {
		t.Errorf("same zone twice: %v", err)
	}
	if _, err := New(
		Config{Zones: []Zone{{File: exampleZone.File, Origin: "other.org"}}}); err == nil ||
		!strings.Contains(err.Error(), "not other.org. as configured") {
		t.Errorf("wrong origin: %v", err)
	}
	if _, err := New(Config{Forward: []string{"192.0.2.1"}}); err == nil {
		t.Error("resolver without a port accepted")
	}
}

func TestLifecycle(t *testing.T) {
	s, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { s.Shutdown(context.Background()); s.Counters() })
	}
	wg.Wait()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ServeUDP(pc); !errors.Is(err, ErrClosed) {
		t.Errorf("ServeUDP after Shutdown: %v", err)
	}
	s2, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s2.Shutdown(context.Background())
	if err := s2.ServeUDP(pc); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ServeUDP on a closed conn: %v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := s2.ServeTCP(ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("ServeTCP on a closed listener: %v", err)
	}
}

// TestZoneText: a zone may be a text, and its errors name the place in it.
func TestZoneText(t *testing.T) {
	const soa = "example. 60 IN SOA ns.example. root.example. 1 60 60 60 60\n" +
		"example. IN NS ns.example.\n"
	s, err := New(Config{Zones: []Zone{{File: "text", Text: soa}}})
	if err != nil || s.zones["example."] == nil {
		t.Errorf("%v, %v", s, err)
	}
	wrong := Zone{File: "text", Text: soa + "example. IN A x\n"}
	if _, err := New(Config{Zones: []Zone{wrong}}); err == nil ||
		!strings.HasPrefix(err.Error(), "text:3: ") {
		t.Errorf("a wrong line: %v", err)
	}
}
