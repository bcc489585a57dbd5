//go:build linux

package attack

import (
	"context"
	"fmt"

	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// zone has a small answer, and a large one for amplification.
func zone(t *testing.T) string {
	t.Helper()
	text := "$ORIGIN example.\n$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A " +
		"192.0.2.10\nwww A 192.0.2.80\n"
	for i := range 8 {
		text += fmt.Sprintf("big TXT \"%s%d\"\n", strings.Repeat("amplified ", 10), i)
	}
	file := filepath.Join(t.TempDir(), "example.zone")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// question is a query's bytes.
func question(t testing.TB, name string, kind uint16) []byte {
	q := new(dns.Msg)
	q.SetQuestion(name, kind)
	q.SetEdns0(1232, false)
	b, err := q.Pack()
	must(t, err)
	return b
}

// askers returns a function that makes DNS clients which repeat a query after a second, as
// resolvers do.
func (w *world) askers(network string, name func() string) func() client {
	return func() client {
		return func(ctx context.Context) (err error) {
			for ctx.Err() == nil {
				again := time.After(time.Second)
				if err = w.lookup(ctx, network, name()); err == nil {
					return nil
				}
				select {
				case <-ctx.Done():
				case <-again:
				}
			}
			return err
		}
	}
}

func (w *world) lookup(ctx context.Context, network, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := w.ns.DialContext(ctx, network, server4+":53")
	if err != nil {
		return fmt.Errorf("dial %s failed", network)
	}
	defer c.Close()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	cl := dns.Client{Net: network}
	a, _, err := cl.ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: c})
	switch {
	case err != nil:
		return fmt.Errorf("%s query without answer", network)
	case a.Truncated && network == "udp":
		return w.lookup(ctx, "tcp", name) // RFC 7766: what a legitimate client does
	case a.Rcode != dns.RcodeSuccess || len(a.Answer) == 0:
		return fmt.Errorf("%s with %d answers", dns.RcodeToString[a.Rcode], len(a.Answer))
	}
	return nil
}

func www() string { return "www.example." }

// TestAmplification: queries with a victim's source address, whose answers are larger.
func TestAmplification(t *testing.T) {
	w := newServer(t, "dns", "--zone", zone(t))
	p, ear := w.port(), w.port()
	f := newForge(t, p)
	victim := addr("198.18.7.7")
	query := question(t, "big.example.", dns.TypeTXT)
	var sent int
	var hit atomic.Int64
	go func() {
		buf := make([]byte, 2048)
		for {
			b, err := ear.Recv(buf, time.Now().Add(time.Minute))
			if err != nil {
				return
			}
			if len(b) > 42 && b[12] == 8 && netip.AddrFrom4([4]byte(b[30:34])) == victim {
				hit.Add(int64(len(b)))
			}
		}
	}()
	r := w.under("DNS: amplification, 10,000 q/s", w.askers("udp", www),
		func(done <-chan struct{}) {
			sent = flood(t, p, 10000, done, func() []byte { return f.udp(victim, 53, query) })
		})
	paid := int64(sent * (42 + len(query)))
	factor := float64(hit.Load()) / float64(paid)
	if factor > 1 {
		t.Errorf("the victim got %.1f times the bytes that the attacker sent, want less than "+
			"they are", factor)
	}
	r.note = fmt.Sprintf("the victim got %.2f bytes for each of the attacker's", factor)
	w.judge(r)
}

// silentClients is more than the connections that a server accepts.
const silentClients = 600

// TestSilentDNSClients: connections that send no query, and stay open.
func TestSilentDNSClients(t *testing.T) {
	t.Parallel()
	w := newServer(t, "dns", "--zone", zone(t))
	if err := w.lookup(context.Background(), "tcp", www()); err != nil {
		t.Fatalf("before: %v", err)
	}
	var conns []net.Conn
	r := w.under("DNS: silent TCP clients", w.askers("udp", www), func(done <-chan struct{}) {
		conns = w.hold(silentClients, server4+":53", "", nil)
		<-done
	})
	after := some(w.askers("tcp", www)) // while they are still open
	r.after = after.share()
	r.note = fmt.Sprintf("%d connections; after: over TCP, with them still there: %v", len(conns),
		after)
	w.judge(r)
}

// upstream is a resolver in the namespace that answers queries for names which begin with "ok", and
// no others.
type upstream struct {
	conn  net.PacketConn
	asked atomic.Int64 // queries for names it does not answer
}

func newUpstream(t *testing.T, w *world) *upstream {
	t.Helper()
	var err error
	u := &upstream{}
	u.conn, err = w.ns.ListenPacket("udp4", client4+":5353")
	must(t, err)
	t.Cleanup(func() { u.conn.Close() })
	go u.serve()
	return u
}

func (u *upstream) serve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := u.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		q := new(dns.Msg)
		if q.Unpack(buf[:n]) != nil || len(q.Question) != 1 {
			continue
		}
		if !strings.HasPrefix(strings.ToLower(q.Question[0].Name), "ok") {
			u.asked.Add(1)
			continue
		}
		a := new(dns.Msg)
		a.SetReply(q)
		a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA,
			Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(192, 0, 2, 81)}}
		if b, err := a.Pack(); err == nil {
			u.conn.WriteTo(b, from)
		}
	}
}

// TestForwarding: queries that upstream never answers, each of which occupies a place for the
// longest time that a query may wait.
func TestForwarding(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fresh bool // a new name for each query, instead of always the same
	}{{"DNS: one name, forwarded", false}, {"DNS: random names, forwarded", true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCable(t)
			u := newUpstream(t, w)
			w.start("dns", "--address", server4+"/24", "--gateway", client4,
				"--forward", client4+":5353")
			p := w.port()
			f := newForge(t, p)
			var mu sync.Mutex
			n := 0
			fresh := func() string {
				mu.Lock()
				defer mu.Unlock()
				n++
				return fmt.Sprintf("ok%d.test.", n)
			}
			query := question(t, "never.test.", dns.TypeA)
			sent := 0
			r := w.under(tt.name, w.askers("udp", fresh), func(done <-chan struct{}) {
				sent = flood(t, p, 1000, done, func() []byte {
					if tt.fresh {
						query = question(t, fmt.Sprintf("never%d.test.", f.rng.Uint32()), dns.TypeA)
					}
					return f.udp(addr("198.18.9.9"), 53, query)
				})
			})
			asked := u.asked.Load()
			if !tt.fresh && asked > int64(sent/10) {
				t.Errorf("the same question was forwarded %d times of %d, want a tenth at most",
					asked, sent)
			}
			r.note = fmt.Sprintf("%d questions, %d forwarded", sent, asked)
			w.judge(r)
		})
	}
}
