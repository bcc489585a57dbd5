package stack_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// zone answers A and AAAA questions from names; other names do not exist.
type zone struct {
	names   map[string][]string
	rcode   int  // if not 0, the only answer
	cut     bool // answer datagrams with TC
	lame    bool // answer nothing, and refer to nobody who would
	queries atomic.Int64
	streams atomic.Int64
}

func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.queries.Add(1)
	a := new(dns.Msg)
	a.SetReply(q)
	a.RecursionAvailable = !z.lame
	_, udp := w.RemoteAddr().(*net.UDPAddr)
	if !udp {
		z.streams.Add(1)
	}
	addrs, ok := z.names[strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))]
	switch {
	case z.rcode != 0:
		a.Rcode = z.rcode
	case z.lame:
	case !ok:
		a.Rcode = dns.RcodeNameError
	case z.cut && udp:
		a.Truncated = true
	default:
		z.answer(a, addrs)
	}
	w.WriteMsg(a)
}

func (z *zone) answer(a *dns.Msg, addrs []string) {
	q := a.Question[0]
	for _, s := range addrs {
		ip := netip.MustParseAddr(s)
		head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}
		switch {
		case q.Qtype == dns.TypeA && ip.Is4():
			a.Answer = append(a.Answer, &dns.A{Hdr: head, A: ip.AsSlice()})
		case q.Qtype == dns.TypeAAAA && ip.Is6():
			a.Answer = append(a.Answer, &dns.AAAA{Hdr: head, AAAA: ip.AsSlice()})
		}
	}
}

// serve answers on port 53 of one of the server's addresses, by UDP and TCP.
func (z *zone) serve(t *testing.T, s *stack.Stack, ip netip.Addr) {
	t.Helper()
	address := net.JoinHostPort(ip.String(), "53")
	p, err := s.ListenPacket("udp", address)
	must(t, err)
	l, err := s.Listen("tcp", address)
	must(t, err)
	for _, srv := range []*dns.Server{{PacketConn: p, Handler: z}, {Listener: l, Handler: z}} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			srv.ActivateAndServe()
		}()
		t.Cleanup(func() {
			p.Close()
			l.Close()
			<-done
		})
	}
}

var homeZone = map[string][]string{
	"www.example.test":    {"192.0.2.1", "2001:db8::1"},
	"v4.example.test":     {"192.0.2.1"},
	"v6.example.test":     {"2001:db8::1"},
	"nobody.example.test": {"192.0.2.1", "2001:db8::1", "192.0.2.7"},
}

// dnsPair is a pair whose client asks servers; the server has more addresses.
func dnsPair(t *testing.T, faults netpair.Faults,
	servers ...netip.Addr) (server, client *stack.Stack) {
	return dnsPairAt(t, clock.Clock{}, faults, servers...)
}

// dnsPairAt is dnsPair by a clock.
func dnsPairAt(t *testing.T, at clock.Clock, faults netpair.Faults,
	servers ...netip.Addr) (server, client *stack.Stack) {
	return netpair.New(t, faults, manyAddresses, func(server bool, c *stack.Config) {
		if c.Clock = at; !server {
			c.DNS = servers
		}
	})
}

var secondIP = netip.MustParseAddr("192.0.2.7")

func TestDialName(t *testing.T) {
	z := &zone{names: homeZone}
	server, client := dnsPair(t, netpair.Faults{}, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	for _, c := range []struct{ network, name, want string }{
		{"tcp", "www.example.test", "2001:db8::1"}, // IPv6 is preferred
		{"tcp4", "www.example.test", "192.0.2.1"},
		{"tcp6", "www.example.test", "2001:db8::1"},
		{"tcp", "v4.example.test", "192.0.2.1"},
		{"tcp", "v4.example.test.", "192.0.2.1"},
		{"tcp", "V4.Example.TEST", "192.0.2.1"},
		{"udp", "v6.example.test", "2001:db8::1"},
	} {
		conn, err := client.Dial(c.network, net.JoinHostPort(c.name, port(l.Addr())))
		if err != nil {
			t.Errorf("%s %s: %v", c.network, c.name, err)
			continue
		}
		if host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); host != c.want {
			t.Errorf("%s %s connected to %s, want %s", c.network, c.name, host, c.want)
		}
		conn.Close()
	}
	for network, name := range map[string]string{"tcp6": "v4.example.test",
		"tcp4": "v6.example.test"} {
		_, err := client.Dial(network, net.JoinHostPort(name, "80"))
		var bad *net.DNSError
		if !errors.As(err, &bad) || !bad.IsNotFound {
			t.Errorf("%s %s: %v, want no such host", network, name, err)
		}
	}
	addrs, err := client.Resolver().LookupHost(context.Background(), "www.example.test")
	if err != nil || len(addrs) != 2 {
		t.Errorf("LookupHost: %v, %v", addrs, err)
	}
}

func TestDialUnknownName(t *testing.T) {
	z := &zone{names: homeZone}
	server, client := dnsPair(t, netpair.Faults{}, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	_, err := client.Dial("tcp", "no.such.test:80")
	var op *net.OpError
	var bad *net.DNSError
	if !errors.As(err, &op) || !errors.As(err, &bad) || !bad.IsNotFound ||
		bad.Name != "no.such.test" || bad.Server != "192.0.2.1:53" {
		t.Errorf("%#v (%v), want a DNSError of the name in an OpError", err, err)
	}
}

func TestSearchDomain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(name, []byte("search other.test example.test\nnameserver 192.0.2.1\n"),
		0o644))
	z := &zone{names: homeZone}
	server, client := netpair.New(t, netpair.Faults{},
		netpair.Both(func(c *stack.Config) { c.ResolvConf = name }))
	z.serve(t, server, netpair.ServerIP4)
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	c, err := client.Dial("tcp4", net.JoinHostPort("www", port(l.Addr())))
	must(t, err)
	c.Close()
}

// TestDNSFailover has a first server that does not exist, does not answer, or answers what package
// net asks the next server after. The first one is asked first each time, as package net does.
func TestDNSFailover(t *testing.T) {
	bad := map[string]*zone{"lame referral": {lame: true}}
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeServerFailure,
		dns.RcodeNotImplemented, dns.RcodeRefused, dns.RcodeYXDomain, dns.RcodeNotAuth} {
		bad[dns.RcodeToString[rcode]] = &zone{rcode: rcode}
	}
	first := map[string]func(t *testing.T, s *stack.Stack){
		"nobody listens": func(*testing.T, *stack.Stack) {},
		"silent": func(t *testing.T, s *stack.Stack) {
			p, err := s.ListenPacket("udp", net.JoinHostPort(secondIP.String(), "53"))
			must(t, err)
			t.Cleanup(func() { p.Close() })
		},
	}
	for name, z := range bad {
		first[name] = func(t *testing.T, s *stack.Stack) { z.serve(t, s, secondIP) }
	}
	for name, begin := range first {
		t.Run(name, func(t *testing.T) {
			server, client := dnsPairAt(t, newVirtualTime(t).Clock.Clock(), netpair.Faults{},
				secondIP, netpair.ServerIP4)
			begin(t, server)
			good := &zone{names: homeZone}
			good.serve(t, server, netpair.ServerIP4)
			ips, err := client.Resolver().LookupNetIP(context.Background(), "ip4",
				"v4.example.test")
			if err != nil || len(ips) != 1 {
				t.Errorf("Resolver: %v, %v", ips, err)
			}
			c, err := client.Dial("udp4", "v4.example.test:7")
			must(t, err)
			c.Close()
			if z := bad[name]; z != nil && z.queries.Load() != 2 {
				t.Errorf("%d questions for the first server, want one for each lookup",
					z.queries.Load())
			}
		})
	}
}

// TestDNSOverTCP: an answer that does not fit a datagram is fetched by TCP.
func TestDNSOverTCP(t *testing.T) {
	z := &zone{names: homeZone, cut: true}
	server, client := dnsPair(t, netpair.Faults{}, secondIP, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	ips, err := client.Resolver().LookupNetIP(context.Background(), "ip4", "v4.example.test")
	if err != nil || len(ips) != 1 || z.streams.Load() == 0 {
		t.Errorf("%v, %v, %d questions by TCP", ips, err, z.streams.Load())
	}
}

func TestNoDNS(t *testing.T) {
	_, client := netpair.New(t, netpair.Faults{})
	_, err := client.Dial("tcp", "www.example.test:80")
	if err == nil || !strings.Contains(err.Error(), "set DNS or ResolvConf") {
		t.Errorf("%v, want to be told about DNS", err)
	}
	c, err := client.Listen("tcp", "localhost:0") // localhost needs no server
	must(t, err)
	c.Close()
}

// TestSilentResolver: a lookup gives up after the timeout of resolv.conf, however long the caller
// would wait.
func TestSilentResolver(t *testing.T) {
	name := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(name, []byte("nameserver 192.0.2.1\noptions timeout:1 attempts:1\n"),
		0o644))
	server, client := netpair.New(t, netpair.Faults{},
		netpair.Both(func(c *stack.Config) { c.ResolvConf = name }))
	p, err := server.ListenPacket("udp", ":53")
	must(t, err)
	var questions atomic.Int32
	done := background(func() error {
		for {
			if _, _, err := p.ReadFrom(make([]byte, 512)); err != nil {
				return nil
			}
			questions.Add(1)
		}
	})
	_, err = client.Dial("tcp", "www.example.test:80")
	var failed *net.DNSError
	if !errors.As(err, &failed) || !failed.IsTimeout || failed.Name != "www.example.test" {
		t.Errorf("%v, want a timeout of the lookup", err)
	}
	must(t, p.Close())
	if result(t, "ReadFrom", done); questions.Load() > 2 { // for A and AAAA
		t.Errorf("%d questions, want one attempt", questions.Load())
	}
}

// TestLookupCancelled: a lookup ends with its context, and with a dial's timeout.
func TestLookupCancelled(t *testing.T) {
	_, client := dnsPair(t, netpair.Faults{}, netip.MustParseAddr("192.0.2.99"))
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(30*time.Millisecond, cancel)
	errs := background(func() error {
		_, err := client.DialContext(ctx, "tcp",
			"www.example.test:80")
		return err
	})
	if err := result(t, "lookup", errs); err == nil {
		t.Error("no error")
	}
	errs = background(func() error {
		_, err := client.DialTimeout("tcp", "www.example.test:80", 30*time.Millisecond)
		return err
	})
	var ne net.Error
	if err := result(t, "lookup", errs); !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%v, want a timeout", err)
	}
}

// dropTo drops frames to one IP address.
func dropTo(ip netip.Addr) func(int, []byte) bool {
	b := ip.As16()
	at := 38 // destination in an Ethernet frame of IPv6
	if ip.Is4() {
		v4 := ip.As4()
		return func(_ int, f []byte) bool {
			return len(f) >= 34 && f[12] == 8 &&
				f[13] == 0 && [4]byte(f[30:34]) == v4
		}
	}
	return func(_ int, f []byte) bool {
		return len(f) >= at+16 && f[12] == 0x86 &&
			[16]byte(f[at:at+16]) == b
	}
}

// TestHappyEyeballs dials a name whose preferred address does not answer.
func TestHappyEyeballs(t *testing.T) {
	z := &zone{names: homeZone}
	server, client := dnsPair(t, netpair.Faults{Tap: dropTo(netpair.ServerIP6)}, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	d := client.Dialer()
	d.FallbackDelay = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("www.example.test", port(l.Addr())))
	must(t, err)
	defer c.Close()
	if !c.RemoteAddr().(*net.TCPAddr).IP.Equal(net.IPv4(192, 0, 2, 1)) {
		t.Errorf("connected to %v", c.RemoteAddr())
	}
	if n := client.Stats().TCPDialed; n < 2 {
		t.Errorf("%d handshakes begun, want one per address", n)
	}
}

// TestEyeballsFail: when no address answers, the error is the preferred one's, and at once.
func TestEyeballsFail(t *testing.T) {
	z := &zone{names: homeZone}
	server, client := dnsPair(t, netpair.Faults{}, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	// a failure starts the next attempt at once
	for _, delay := range []time.Duration{time.Hour, -1} {
		d := client.Dialer()
		d.FallbackDelay = delay
		errs := background(func() error {
			_, err := d.DialContext(context.Background(), "tcp", "nobody.example.test:9")
			return err
		})
		err := result(t, "dial", errs)
		if err == nil || !strings.Contains(err.Error(),
			"dial tcp [2001:db8::1]:9: connect: connection refused") {
			t.Errorf("delay %v: %v", delay, err)
		}
	}
}

// TestSharesOfTimeout: without fallback each address gets its share of the time.
func TestSharesOfTimeout(t *testing.T) {
	z := &zone{names: homeZone}
	server, client := dnsPairAt(t, newVirtualTime(t).Clock.Clock(),
		netpair.Faults{Tap: dropTo(netpair.ServerIP6)}, netpair.ServerIP4)
	z.serve(t, server, netpair.ServerIP4)
	l, err := server.Listen("tcp", ":0")
	must(t, err)
	d := client.Dialer()
	d.FallbackDelay = -1
	d.Timeout = 5 * time.Second // 2.5 s for the first address
	c, err := d.DialContext(context.Background(), "tcp",
		net.JoinHostPort("www.example.test", port(l.Addr())))
	must(t, err)
	c.Close()
}
