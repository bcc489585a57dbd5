package monitoring

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// server is a server on a software NIC with two queues, with a client that asks it without end.
type server struct {
	*stack.Stack
	nic  *simnic.NIC
	page *httptest.Server // its admin handler
	quit func()           // ends the client
}

// serve starts a server, which ends with the test.
func serve(t *testing.T) (s server) {
	t.Helper()
	a, b := wire.Pair()
	f, err := stack.NewFilter("chain input { tcp dport 80 accept; udp dport 8 drop; }")
	if err == nil {
		err = f.Deny(netip.MustParsePrefix("203.0.113.0/24"), time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Stack, s.nic = open(t, "sim_a", a, "192.0.2.1/24", f)
	client, _ := open(t, "sim_b", b, "192.0.2.2/24", nil)
	ln, err := s.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	})}
	go web.Serve(ln)
	t.Cleanup(func() { web.Close() })
	s.quit = ask(t, client)
	s.page = httptest.NewServer(admin.Handler(admin.Config{Stack: s.Stack,
		Netdev: func() admin.Traffic {
			c := s.nic.Counters().Netdev
			return admin.Traffic{Name: "port", RxPackets: c.RxPackets, RxBytes: c.RxBytes,
				TxPackets: c.TxPackets, TxBytes: c.TxBytes}
		}}))
	t.Cleanup(s.page.Close)
	return s
}

// ask has a client get pages and send datagrams that nobody takes, until quit is called or the test
// ends.
func ask(t *testing.T, client *stack.Stack) (quit func()) {
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	quit = func() {
		stop()
		asking.Wait()
	}
	t.Cleanup(quit)
	c := client.HTTPClient()
	conn, err := client.Dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Fatal(err)
	}
	refused, err := client.Dial("udp", "192.0.2.1:8") // which the filter drops
	if err != nil {
		t.Fatal(err)
	}
	asking.Go(func() {
		defer conn.Close()
		defer refused.Close()
		defer c.CloseIdleConnections()
		for ctx.Err() == nil {
			conn.Write([]byte("x"))
			refused.Write([]byte("x"))
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://192.0.2.1/", nil)
			resp, err := c.Do(req)
			if err != nil {
				continue
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // so that the machine has time for others
			}
		}
	})
	return quit
}

// open opens a stack on a software NIC, with a filter or nil.
func open(t *testing.T, name string, w wire.Wire, address string,
	f *stack.Filter) (*stack.Stack, *simnic.NIC) {
	t.Helper()
	n, err := simnic.New(simnic.Config{Name: name, Netdev: name + "net"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	if err := n.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	s, err := stack.Open(t.Context(),
		stack.Config{Filter: f, Addressing: stack.AddressOptions{DuplicateDetection: -1},
			Addresses: []netip.Prefix{netip.MustParsePrefix(address)},
			NIC: dv.NIC{Model: dv.Model{
				Kernel: kernel.Opener(n),
				Facts:  dv.PortFacts{Name: name, Netdev: name + "net", MAC: n.MAC(), MTU: n.MTU()},
			}, RxQueues: 2, TxQueues: 2}})
	if errors.Is(err, errors.ErrUnsupported) {
		need.That(t, "simnic", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, n
}

// freeAddress is a TCP address of this machine on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
