package resolver

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http/httptrace"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// server answers queries that come over a net.Pipe, with the bytes that a server would send.
type server struct {
	answer func(server string, q dnsmessage.Question) *dnsmessage.Message // nil: none

	mu    sync.Mutex
	asked []string // server and type of each question
}

func (s *server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		b := make([]byte, 600)
		for {
			n, err := theirs.Read(b)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if q.Unpack(b[2:n]) != nil {
				return
			}
			s.mu.Lock()
			s.asked = append(s.asked, address+" "+q.Questions[0].Type.String()+" "+
				q.Questions[0].Name.String())
			s.mu.Unlock()
			a := s.answer(address, q.Questions[0])
			if a == nil {
				continue
			}
			a.ID, a.Response, a.Questions = q.ID, true, q.Questions
			out, err := a.Pack()
			if err != nil {
				return
			}
			theirs.Write(framed(out))
		}
	}()
	return ours, nil
}

func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.asked)
	s.asked = nil
	slices.Sort(all)
	return all
}

// has answers with addresses, of the type that was asked for.
func has(addrs ...string) *dnsmessage.Message {
	m := &dnsmessage.Message{Header: dnsmessage.Header{RecursionAvailable: true}}
	for _, a := range addrs {
		ip := netip.MustParseAddr(a)
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("x."),
			Class: dnsmessage.ClassINET}
		var body dnsmessage.ResourceBody = &dnsmessage.AAAAResource{AAAA: ip.As16()}
		if ip.Is4() {
			body = &dnsmessage.AResource{A: ip.As4()}
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: body})
	}
	return m
}

func newTest(t *testing.T, s *server, conf, hosts, nsswitch string) *Resolver {
	t.Helper()
	r, err := New(Config{Dial: s.dial, Files: Files{ResolvConf: write(t, "resolv.conf", conf),
		Hosts: write(t, "hosts", hosts), NSSwitch: write(t, "nsswitch.conf", nsswitch)}})
	must(t, err)
	return r
}

// TestFamilies: only what the network needs is asked for, and a type that nobody answers for does
// not take away what came for the other.
func TestFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ string, q dnsmessage.Question) *dnsmessage.Message {
			if q.Type == dnsmessage.TypeA {
				return has("192.0.2.1")
			}
			return nil
		}}
		r := newTest(t, s, "nameserver 192.0.2.53\nsearch .\n", "", "")
		for _, c := range []struct {
			network, questions string
			takes              time.Duration
			fails              bool
		}{
			{"ip4", "[192.0.2.53:53 TypeA a.test.]", 0, false},
			{"ip", "[192.0.2.53:53 TypeA a.test. 192.0.2.53:53 TypeAAAA a.test. " +
				"192.0.2.53:53 TypeAAAA a.test.]", 10 * time.Second, false},
			{"ip6", "[192.0.2.53:53 TypeAAAA a.test. 192.0.2.53:53 TypeAAAA a.test.]",
				10 * time.Second, true},
		} {
			start := time.Now()
			ips, err := r.LookupNetIP(t.Context(), c.network, "a.test")
			if (err != nil) != c.fails || !c.fails && len(ips) != 1 {
				t.Errorf("%s: %v, %v", c.network, ips, err)
			}
			var dns *net.DNSError
			if c.fails && (!errors.As(err, &dns) || !dns.IsTimeout || dns.Name != "a.test") {
				t.Errorf("%s: %v, want a timeout", c.network, err)
			}
			if took := time.Since(start); took != c.takes {
				t.Errorf("%s: took %v, want %v", c.network, took, c.takes)
			}
			if got := "[" + strings.Join(s.questions(), " ") + "]"; got != c.questions {
				t.Errorf("%s: asked %s, want %s", c.network, got, c.questions)
			}
		}
	})
}

// TestOrder: nsswitch.conf as package net's pure-Go resolver reads it.
func TestOrder(t *testing.T) {
	s := &server{answer: func(string, dnsmessage.Question) *dnsmessage.Message {
		return has("192.0.2.1")
	}}
	const hosts = "192.0.2.2 a.test\n"
	for _, c := range []struct{ nsswitch, want string }{
		{"", "192.0.2.2"},
		{"hosts: files dns", "192.0.2.2"},
		{"hosts: dns files", "192.0.2.1"},
		{"hosts: dns\tfiles", "192.0.2.1"}, // one source, which nobody knows
		{"hosts: dns", "192.0.2.1"},
		{"hosts: files", "192.0.2.2"},
		{"hosts: files mdns4_minimal [NOTFOUND=return] dns", "192.0.2.2"},
		{"hosts: mdns4_minimal [NOTFOUND=return] dns files", "192.0.2.1"},
		{"hosts: resolve [!UNAVAIL=return] files", "192.0.2.1"}, // resolve stands for dns
		{"hosts: files myhostname", "192.0.2.2"},
		{"hosts: nis", "192.0.2.1"},
		{"passwd: dns\n# hosts: dns\nhosts:files # dns", "192.0.2.2"},
		{"hosts: dns [NOTFOUND=return", "192.0.2.2"}, // not a valid file
		{"hosts: dns [x]", "192.0.2.2"},
		{"hosts dns", "192.0.2.2"},
	} {
		r := newTest(t, s, "nameserver 192.0.2.53\n", hosts, c.nsswitch)
		ips, err := r.LookupNetIP(t.Context(), "ip4", "a.test")
		if err != nil || len(ips) != 1 || ips[0].String() != c.want {
			t.Errorf("%q: %v, %v, want %s", c.nsswitch, ips, err, c.want)
		}
	}
	r := newTest(t, s, "nameserver 192.0.2.53\n", hosts, "hosts: files")
	var dns *net.DNSError
	if _, err := r.LookupNetIP(t.Context(), "ip", "b.test"); !errors.As(err, &dns) ||
		!dns.IsNotFound {
		t.Errorf("%v, want no such host: only files are asked", err)
	}
}

// TestHostsBeforeSearch: a name of /etc/hosts is taken from there, whatever DNS has with a search
// domain.
func TestHostsBeforeSearch(t *testing.T) {
	s := &server{answer: func(string, dnsmessage.Question) *dnsmessage.Message {
		return has("192.0.2.1")
	}}
	r := newTest(t, s, "nameserver 192.0.2.53\nsearch corp.test\n",
		"192.0.2.2 www Www2.corp.test # comment\nfe80::1%eth0 link.test\nnonsense x\n", "")
	for name, want := range map[string]string{"www": "192.0.2.2", "WWW": "192.0.2.2",
		"www2.Corp.test.": "192.0.2.2", "link.test": "fe80::1%eth0",
		"www.": "192.0.2.1", "mail": "192.0.2.1", "printer.local": "192.0.2.1"} {
		ips, err := r.LookupNetIP(t.Context(), "ip4", name)
		if err != nil || len(ips) != 1 || ips[0].String() != want {
			t.Errorf("%s: %v, %v, want %s", name, ips, err, want)
		}
	}
	want := []string{"192.0.2.53:53 TypeA mail.corp.test.", "192.0.2.53:53 TypeA printer.local.",
		"192.0.2.53:53 TypeA www."}
	if got := s.questions(); !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

// TestNoName: names that are not asked for.
func TestNoName(t *testing.T) {
	s := &server{answer: func(string, dnsmessage.Question) *dnsmessage.Message {
		return has("192.0.2.1")
	}}
	r := newTest(t, s, "nameserver 192.0.2.53\nsearch corp.test\n", "", "")
	label := strings.Repeat("a", 63)
	for name, found := range map[string]bool{
		"": false, "a..b": false, "-a.b": false, "a-.b": false, "a b": false,
		"bücher.example": false,
		"bu\u0308cher":   false, "1.2.3": false, "1.2.3.4.5": false, "a.b..": false, ".a": false,
		label + "a.test": false, label + ".test": true, strings.Repeat(label+".", 4) + "x": false,
		"_srv._tcp.a": true, "xn--bcher-kva.example": true, "a\x00b": false,
	} {
		ips, err := r.LookupNetIP(t.Context(), "ip4", name)
		var dns *net.DNSError
		if found != (err == nil && len(ips) == 1) ||
			!found && (!errors.As(err, &dns) || !dns.IsNotFound || dns.Name != name) {
			t.Errorf("%q: %v, %v, want found: %v", name, ips, err, found)
		}
	}
	s.questions()
	// RFC 7686 and RFC 6761
	if ips, err := r.LookupNetIP(t.Context(), "ip", "foo.onion"); err != nil || len(ips) != 1 {
		t.Errorf("foo.onion: %v, %v, want that of foo.onion.corp.test", ips, err)
	}
	if ips, err := r.LookupNetIP(t.Context(), "ip", "foo.Onion."); err != nil || len(ips) != 0 {
		t.Errorf("foo.Onion.: %v, %v, want none", ips, err)
	}
	ips, err := r.LookupNetIP(t.Context(), "ip", "a.localhost")
	if err != nil || len(ips) != 2 || !ips[0].IsLoopback() || !ips[1].IsLoopback() {
		t.Errorf("a.localhost: %v, %v", ips, err)
	}
	for _, q := range s.questions() {
		if strings.Contains(q, "localhost") || strings.HasSuffix(strings.ToLower(q), "onion.") {
			t.Errorf("DNS was asked: %s", q)
		}
	}
}

// TestReload: a resolv.conf that changes is read again, 5 s after it was looked at; one that is
// away for a while stays in force.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTest(t, &server{}, "nameserver 192.0.2.1\n", "", "")
		path := r.cfg.Files.ResolvConf
		set := func(text string, at time.Duration) {
			must(t, os.WriteFile(path, []byte(text), 0o644))
			when := time.Now().Add(at)
			must(t, os.Chtimes(path, when, when))
		}
		check := func(what, want string) {
			t.Helper()
			if got := r.Servers(); len(got) != 1 || got[0].String() != want {
				t.Errorf("%s: %v, want %s", what, got, want)
			}
		}
		set("nameserver 192.0.2.2\n", time.Second)
		check("at once", "192.0.2.1")
		time.Sleep(recheck + time.Millisecond)
		check("after 5 s", "192.0.2.2")
		must(t, os.Remove(path))
		time.Sleep(recheck + time.Millisecond)
		check("without the file", "192.0.2.2")
		set("nameserver 192.0.2.3\n", 2*time.Second)
		time.Sleep(recheck + time.Millisecond)
		check("with another file", "192.0.2.3")
		set("nameserver 192.0.2.4\noptions no-reload\n", 3*time.Second)
		time.Sleep(recheck + time.Millisecond)
		check("no-reload", "192.0.2.4")
		set("nameserver 192.0.2.5\n", 4*time.Second)
		time.Sleep(recheck + time.Millisecond)
		check("after no-reload", "192.0.2.4")
	})
}

// TestNoResolvConf: a file that the program names must be there, the machine's need not.
func TestNoResolvConf(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no")
	if _, err := New(Config{Files: Files{ResolvConf: missing}}); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "set DNS instead, or correct ResolvConf") {
		t.Errorf("%v, want what to do", err)
	}
	r, err := New(Config{Files: Files{Machine: []string{missing}, Hosts: missing,
		NSSwitch: missing}})
	must(t, err)
	var dns *net.DNSError
	if _, err := r.LookupNetIP(t.Context(), "ip", "a.test"); !errors.As(err, &dns) ||
		!strings.Contains(err.Error(), "set DNS or ResolvConf") {
		t.Errorf("%v, want to be told about DNS", err)
	}
	if _, err := r.Net().LookupTXT(t.Context(), "a.test"); err == nil ||
		!strings.Contains(err.Error(), "set DNS or ResolvConf") {
		t.Errorf("%v, want to be told about DNS", err)
	}
}

// TestMachineFiles: servers on the machine's loopback cannot be reached from here, those behind
// them can.
func TestMachineFiles(t *testing.T) {
	stub := write(t, "stub", "nameserver 127.0.0.53\nnameserver ::1\nsearch stub.test\n")
	behind := write(t, "behind", "nameserver 192.0.2.53\nsearch a.test\n")
	plain := write(t, "plain", "nameserver 192.0.2.7\nnameserver 127.0.0.1\nsearch b.test\n")
	for _, c := range []struct {
		name            string
		files           []string
		servers, search string
	}{
		{"systemd-resolved", []string{stub, behind}, "192.0.2.53", "a.test."},
		{"plain", []string{plain, behind}, "192.0.2.7", "b.test."},
		{"only the first", []string{stub, stub + ".not"}, "", "stub.test."},
		{"none", []string{stub + ".not"}, "", ""},
	} {
		r, err := New(Config{Files: Files{Machine: c.files}})
		must(t, err)
		var servers []string
		for _, s := range r.Servers() {
			servers = append(servers, s.String())
		}
		if got := strings.Join(servers, " "); got != c.servers ||
			strings.Join(r.config().search, " ") != c.search {
			t.Errorf("%s: %s, %v, want %s, %s", c.name, got, r.config().search, c.servers, c.search)
		}
	}
}

// TestShared: lookups of one name at the same time are one, which goes on as long as anybody waits.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(_ string, q dnsmessage.Question) *dnsmessage.Message {
			time.Sleep(2 * time.Second)
			return has("192.0.2.1")
		}}
		r := newTest(t, s, "nameserver 192.0.2.53\n", "", "")
		var coalesced atomic.Int32
		trace := &httptrace.ClientTrace{DNSDone: func(d httptrace.DNSDoneInfo) {
			if d.Coalesced {
				coalesced.Add(1)
			}
		}}
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				ctx := httptrace.WithClientTrace(t.Context(), trace)
				if i == 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				ips, err := r.LookupNetIP(ctx, "ip4", "a.test")
				var dns *net.DNSError
				if i > 0 && (err != nil || len(ips) != 1) ||
					i == 0 && (!errors.As(err, &dns) || !dns.IsTimeout) {
					t.Errorf("%d: %v, %v", i, ips, err)
				}
			})
		}
		all.Wait()
		if q := s.questions(); len(q) != 1 || coalesced.Load() != 2 {
			t.Errorf("asked %v, %d lookups share", q, coalesced.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := r.LookupNetIP(ctx, "ip4", "b.test"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was cancelled", err)
		}
		if _, err := r.LookupNetIP(t.Context(), "ip4", "b.test"); err != nil {
			t.Error(err) // it does not share what was given up
		}
	})
}

// TestBridge: package net's resolver gets records of other types from our servers.
func TestBridge(t *testing.T) {
	s := &server{answer: func(server string, q dnsmessage.Question) *dnsmessage.Message {
		m := &dnsmessage.Message{Header: dnsmessage.Header{RecursionAvailable: true}}
		if server == "192.0.2.1:53" {
			m.RCode = dnsmessage.RCodeNotImplemented
			return m
		}
		for range 200 { // more than a datagram holds
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{
				Name: q.Name, Class: dnsmessage.ClassINET}, Body: &dnsmessage.TXTResource{
				TXT: []string{"ok"}}})
		}
		return m
	}}
	r := newTest(t, s, "nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions use-vc\n", "", "")
	texts, err := r.Net().LookupTXT(t.Context(), "a.test.")
	if err != nil || len(texts) != 200 {
		t.Errorf("%d texts, %v", len(texts), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nameserver 192.0.2.53\nsearch a b\noptions ndots:3 rotate", "www.example")
	f.Add("options timeout:-1 attempts:999999999999\nsearch .\ndomain x", ".")
	f.Add("hosts: files [!a=b] dns\n192.0.2.1 a b", "a")
	f.Fuzz(func(t *testing.T, text, name string) {
		c := newConfig()
		c.parse(text)
		if c.ndots < 0 || c.ndots > 15 || c.timeout < time.Second || c.attempts < 1 ||
			len(c.servers) > maxServers {
			t.Errorf("ndots %d, timeout %v, attempts %d, %v", c.ndots, c.timeout, c.attempts,
				c.servers)
		}
		for _, n := range c.nameList(name) {
			if len(n) > longest || !strings.HasSuffix(n, ".") {
				t.Errorf("%q of %q", n, name)
			}
		}
		for n, ips := range parseHosts(text) {
			if len(ips) == 0 || hostsKey(n) != n {
				t.Errorf("%q: %v", n, ips)
			}
		}
		if sources, err := hostsSources(text); err == nil {
			orderOf(sources)
		}
	})
}

// FuzzAnswer: a server's bytes.
func FuzzAnswer(f *testing.F) {
	for _, m := range []*dnsmessage.Message{has("192.0.2.1", "2001:db8::1"), has()} {
		m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("a."),
			Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
		b, err := m.Pack()
		must(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, _, err := read(b)
		if err != nil || a.parser.SkipQuestion() != dnsmessage.ErrSectionDone {
			return
		}
		err = a.toFirst(dnsmessage.TypeA)
		if ips, bad := a.addrs(err, "a"); err != nil && (len(ips) > 0 || bad == nil) {
			t.Errorf("%v from an answer that is refused: %v", ips, err)
		}
	})
}
