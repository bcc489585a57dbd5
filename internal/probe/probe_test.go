package probe

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// world is the namespace near, where clients are, on a cable with far: a kernel at 192.0.2.2 and
// 2001:db8::2.
type world struct{ near, far *lab.Net }

func newWorld(t *testing.T) world {
	t.Helper()
	need.NetNS(t)
	var w world
	for name, n := range map[string]**lab.Net{"near": &w.near, "far": &w.far} {
		made, err := lab.New(name)
		if err != nil {
			t.Fatal(err)
		}
		*n = made
		t.Cleanup(func() { made.Close() })
	}
	if err := lab.Cable(w.near, "eth0", w.far, "eth0"); err != nil {
		t.Fatal(err)
	}
	for n, host := range map[*lab.Net]string{w.near: "1", w.far: "2"} {
		addrs := []netip.Prefix{netip.MustParsePrefix("192.0.2." + host + "/24"),
			netip.MustParsePrefix("2001:db8::" + host + "/64")}
		if err := n.Do(func() error {
			return lab.Up("eth0",
				lab.Setup{Addresses: addrs})
		}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// each runs the test with the programs that are installed and with none.
func each(t *testing.T, w world, program string, test func(t *testing.T, c *Client)) {
	t.Run(program, func(t *testing.T) {
		need.Tool(t, program)
		test(t, New(w.near, program))
	})
	t.Run("Go", func(t *testing.T) { test(t, New(w.near)) })
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPing(t *testing.T) {
	need.Long(t, "waits for answers that do not come, 4 s")
	w := newWorld(t)
	for _, row := range []struct {
		name, to string
		received int
	}{
		{"IPv4", "192.0.2.2", 2},
		{"IPv6", "2001:db8::2", 2},
		{"nobody there", "192.0.2.77", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			each(t, w, "ping", func(t *testing.T, c *Client) {
				got, err := c.Ping(patient(t), netip.MustParseAddr(row.to), 2)
				if err != nil || got.Received != row.received || got.Sent != 2 ||
					(got.Average > 0) != (row.received > 0) {
					t.Errorf("%+v, %v; want %d of 2", got, err, row.received)
				}
			})
		})
	}
}

func TestPingEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	each(t, w, "ping", func(t *testing.T, c *Client) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Ping(ctx, netip.MustParseAddr("192.0.2.77"), 1000); err == nil {
			t.Error("no error")
		}
	})
}

func TestHTTP(t *testing.T) {
	w := newWorld(t)
	srv, err := httpd.New(httpd.Config{DebugEndpoints: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ln, err := w.far.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(ln)
	for _, base := range []string{"http://192.0.2.2", "http://[2001:db8::2]"} {
		t.Run(base, func(t *testing.T) {
			each(t, w, "curl", func(t *testing.T, c *Client) {
				for _, size := range []int64{0, 1, 1 << 10, 3<<20 + 5} {
					if err := c.Download(patient(t), base, size); err != nil {
						t.Error(err)
					}
					if err := c.Echo(patient(t), base, size); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
	if err := New(w.near).DownloadConcurrently(patient(t), "http://192.0.2.2",
		64, 2, 10000); err != nil {
		t.Error(err)
	}
	if got := srv.Counters().Accepted; got < 64 {
		t.Errorf("crowd of 64: the server saw %d connections", got)
	}
}

// A server that answers wrongly must be found out.
func TestHTTPWrongAnswers(t *testing.T) {
	w := newWorld(t)
	ln, err := w.far.Listen("tcp", "192.0.2.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	right := make([]byte, 1000)
	httpd.FillPattern(right, 0)
	flipped := slices.Clone(right)
	flipped[777] ^= 4
	answers := map[string]struct {
		body []byte
		want string
	}{
		"short":   {right[:999], "999 bytes came, want 1000"},
		"long":    {append(slices.Clone(right), 0), "1001 bytes came, want 1000"},
		"flipped": {flipped, "byte 777 is wrong"},
	}
	go http.Serve(ln, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Write(answers[strings.Split(r.URL.Path, "/")[1]].body)
	}))
	for name, a := range answers {
		t.Run(name, func(t *testing.T) {
			each(t, w, "curl", func(t *testing.T, c *Client) {
				err := c.Download(patient(t), "http://192.0.2.2/"+name, 1000)
				if err == nil || !strings.Contains(err.Error(), a.want) {
					t.Errorf("error %v, want %q in it", err, a.want)
				}
			})
		})
	}
	t.Run("refused", func(t *testing.T) {
		each(t, w, "curl", func(t *testing.T, c *Client) {
			if err := c.Download(patient(t), "http://192.0.2.2:81", 1000); err == nil {
				t.Error("no error")
			}
		})
	})
}

func TestLookup(t *testing.T) {
	w := newWorld(t)
	zone := map[uint16][]string{
		dns.TypeA:    {"www.example. 60 IN A 192.0.2.10", "www.example. 60 IN A 192.0.2.9"},
		dns.TypeAAAA: {"www.example. 60 IN AAAA 2001:db8::10"},
	}
	handler := dns.HandlerFunc(func(rw dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for _, text := range zone[q.Question[0].Qtype] {
			rr, err := dns.NewRR(text)
			if err != nil {
				panic(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		rw.WriteMsg(m)
	})
	pc, err := w.far.ListenPacket("udp", ":53")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := w.far.Listen("tcp", ":53")
	if err != nil {
		t.Fatal(err)
	}
	for _, srv := range []*dns.Server{{PacketConn: pc, Handler: handler},
		{Listener: ln, Handler: handler}} {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		go srv.ActivateAndServe()
		<-started
		defer srv.Shutdown()
	}
	for _, network := range []string{"udp", "tcp"} {
		for _, at := range []string{"192.0.2.2", "2001:db8::2"} {
			t.Run(fmt.Sprint(network, " ", at), func(t *testing.T) {
				server := netip.AddrPortFrom(netip.MustParseAddr(at), 53)
				each(t, w, "dig", func(t *testing.T, c *Client) {
					for kind, want := range map[string][]string{"A": {"192.0.2.10", "192.0.2.9"},
						"AAAA": {"2001:db8::10"}, "TXT": nil} {
						got, err := c.Lookup(patient(t), network, server, "www.example", kind)
						if err != nil || !slices.Equal(got, want) {
							t.Errorf("%s: %q, %v; want %q", kind, got, err, want)
						}
					}
				})
			})
		}
	}
	t.Run("nobody there", func(t *testing.T) {
		each(t, w, "dig", func(t *testing.T, c *Client) {
			_, err := c.Lookup(patient(t), "tcp",
				netip.MustParseAddrPort("192.0.2.2:54"), "www.example", "A")
			if err == nil {
				t.Error("no error")
			}
		})
	})
}
