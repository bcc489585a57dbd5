package dnsd

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/pipes"
)

func from(addr string) asker { return asker{addrPort: netip.MustParseAddrPort(addr)} }

// TestResponseRate: a prefix gets its rate of answers, half of the queries above the rate are told
// to use TCP, and other prefixes are not affected.
func TestResponseRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worker(t)
		query := packed(t, "www.example.org.")
		ask := func(n int, a asker) (full, cut int) {
			for range n {
				out := w.answerQuery(query, a)
				var r dns.Msg
				switch {
				case out == nil:
				case r.Unpack(out) != nil ||
					r.Question[0].Name != "www.example.org." || r.IsEdns0() == nil:
					t.Fatalf("%v", r)
				case r.Truncated && len(r.Answer) == 0 && len(out) <= len(query):
					cut++
				default:
					full++
				}
			}
			return full, cut
		}
		slow := asker{addr: &net.UDPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 53}}
		for _, tt := range []struct {
			name      string
			from      asker
			asked     int
			full, cut int
		}{
			{"a flood", from("192.0.2.1:53"), 1000, 200, 400},
			{"the same /24", from("192.0.2.200:99"), 100, 0, 50},
			{"another", from("198.51.100.1:53"), 100, 100, 0},
			{"IPv4 in IPv6", from("[::ffff:192.0.2.7]:53"), 100, 0, 50},
			{"IPv6", from("[2001:db8::1]:53"), 300, 200, 50},
			{"the same /56", from("[2001:db8:0:ff::1]:53"), 10, 0, 5},
			{"another /56", from("[2001:db8:0:100::1]:53"), 10, 10, 0},
			{"a conn with net.Addr", slow, 300, 200, 50},
			{"loopback", from("127.0.0.1:53"), 1000, 1000, 0},
			{"loopback, IPv6", from("[::1]:53"), 1000, 1000, 0},
		} {
			if full, cut := ask(tt.asked, tt.from); full != tt.full || cut != tt.cut {
				t.Errorf("%s: %d answers and %d TC, want %d and %d", tt.name,
					full, cut, tt.full, tt.cut)
			}
		}
		time.Sleep(500 * time.Millisecond)
		if full, _ := ask(1000, from("192.0.2.1:53")); full != 100 {
			t.Errorf("%d answers half a second later", full)
		}
		if c := w.s.Counters(); c.Limited != 2110 || c.Slipped != 1055 {
			t.Errorf("%+v", c)
		}
	})
}

func TestTruncatedReply(t *testing.T) {
	plain, _ := new(dns.Msg).SetQuestion("a.test.", dns.TypeA).Pack()
	for name, edit := range map[string]func([]byte) []byte{
		"not a query": func(q []byte) []byte { q[2] |= 0x80; return q },
		"an update":   func(q []byte) []byte { q[2] |= 5 << 3; return q },
		"two":         func(q []byte) []byte { q[5] = 2; return q },
		"cut short":   func(q []byte) []byte { return q[:len(q)-1] },
	} {
		if out := truncated(edit(append([]byte(nil), plain...)), nil); out != nil {
			t.Errorf("%s: %x", name, out)
		}
	}
}

// silence opens n connections that send nothing.
func silence(t *testing.T, l *pipes.Listener, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		all = append(all, l.Dial(t))
	}
	synctest.Wait()
	return all
}

// TestSilentTCPClients: while the table is more than half full they have 2 s, else 30 s; and a
// client that sends a query is answered, however many silent ones there are.
func TestSilentTCPClients(t *testing.T) {
	for _, tt := range []struct {
		name      string
		silent    int
		after     time.Duration
		remaining int
	}{
		{"half full", 256, 29 * time.Second, 256},
		{"half full, later", 256, 31 * time.Second, 0},
		{"more than half", 300, 3 * time.Second, 0},
		{"full", 512, 1 * time.Second, 512},
		{"full, later", 512, 3 * time.Second, 0},
		{"more than there is room for", 2000, 0, 512},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, l := pipedTCP(t)
				silence(t, l, tt.silent)
				time.Sleep(tt.after)
				synctest.Wait()
				s.tcp.mu.Lock()
				n := len(s.tcp.open)
				s.tcp.mu.Unlock()
				if n != tt.remaining {
					t.Errorf("%d connections, want %d", n, tt.remaining)
				}
				c := dns.Conn{Conn: silence(t, l, 1)[0]}
				if err := c.WriteMsg(new(dns.Msg).SetQuestion("www.example.org.",
					dns.TypeA)); err != nil {
					t.Fatal(err)
				}
				if r, err := c.ReadMsg(); err != nil || len(r.Answer) != 2 {
					t.Errorf("%v, %v", r, err)
				}
			})
		})
	}
}

// pipedTCP is a server in virtual time.
func pipedTCP(t *testing.T) (*Server, *pipes.Listener) {
	t.Helper()
	s, err := New(Config{Zones: []Zone{exampleZone}})
	if err != nil {
		t.Fatal(err)
	}
	return s, pipes.Serve(t, s.ServeTCP, func() {
		if err := s.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
}
