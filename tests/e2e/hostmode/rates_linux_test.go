package hostmode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// What the host's own address costs: a stack with an address and a MAC of its own is in the same
// process, on the same packet sockets' interface or card, and the two are measured in turns.

const (
	ownIP = "10.9.0.3"
	// rateRounds is how often each is measured, for rateTime each time, by rateClients at once.
	rateRounds, rateClients = 10, 32
	rateTime                = time.Second
	rateBody                = 1024 // bytes of an HTTP answer
)

// TestRates prints the ratio of HTTP requests and DNS queries per second. It is not a part of make
// test: make bench-host sets RATES.
func TestRates(t *testing.T) {
	if os.Getenv("RATES") == "" {
		need.That(t, "rates", errors.New("make bench-host runs it, in two minutes"))
	}
	onBoth(t, func(t *testing.T, w *world) {
		s := w.start(t, "rates :8081", "own "+ownIP+"/24", "ownrates :8081")
		for _, l := range []struct {
			name string
			run  func(w *world, to string, n *atomic.Uint64, end <-chan struct{}) error
		}{{"HTTP", httpLoad}, {"DNS", dnsLoad}} {
			var ratios []float64
			for range rateRounds {
				host, err := w.rate(hostIP+":8081", l.run)
				must(t, err)
				own, err := w.rate(ownIP+":8081", l.run)
				must(t, err)
				ratios = append(ratios, host/own)
			}
			slices.Sort(ratios)
			t.Logf("%s, the host's address against its own: median %.3f of %d pairs, %.2f to %.2f",
				l.name, ratios[rateRounds/2], rateRounds, ratios[0], ratios[rateRounds-1])
		}
		s.stop()
	})
}

// rate is operations per second.
func (w *world) rate(to string,
	load func(*world, string, *atomic.Uint64, <-chan struct{}) error) (float64, error) {
	var n atomic.Uint64
	end, failed := make(chan struct{}), make(chan error, rateClients)
	var clients sync.WaitGroup
	for range rateClients {
		clients.Go(func() {
			if err := load(w, to, &n, end); err != nil {
				failed <- err
			}
		})
	}
	time.Sleep(rateTime / 4) // connections are made
	before, began := n.Load(), time.Now()
	time.Sleep(rateTime)
	did, took := n.Load()-before, time.Since(began)
	close(end)
	clients.Wait()
	close(failed)
	return float64(did) / took.Seconds(), <-failed
}

func httpLoad(w *world, to string, n *atomic.Uint64, end <-chan struct{}) error {
	c := http.Client{Timeout: time.Minute,
		Transport: &http.Transport{DialContext: w.outside.DialContext}}
	defer c.CloseIdleConnections()
	for !over(end) {
		r, err := c.Get("http://" + to + "/")
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, r.Body)
		if r.Body.Close(); err != nil || size != rateBody {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		n.Add(1)
	}
	return nil
}

func dnsLoad(w *world, to string, n *atomic.Uint64, end <-chan struct{}) error {
	c, err := w.outside.DialContext(context.Background(), "udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	conn, question := dns.Conn{Conn: c}, new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
	for lost := 0; !over(end); {
		conn.SetDeadline(time.Now().Add(time.Second))
		if err := conn.WriteMsg(question); err != nil {
			return err
		}
		if _, err := conn.ReadMsg(); errors.Is(err, os.ErrDeadlineExceeded) && lost < 3 {
			lost++ // a datagram may be
			continue
		} else if err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}

func over(end <-chan struct{}) bool {
	select {
	case <-end:
		return true
	default:
		return false
	}
}

// openOwn opens a stack with an address of its own beside the one on the host's.
func openOwn(cfg stack.Config, own *card, address string) (*stack.Stack, error) {
	prefix, err := netip.ParsePrefix(address)
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Addresses = false, []netip.Prefix{prefix}
	if own != nil {
		cfg.NIC.Model.Kernel = kernel.Opener(own.nic)
	}
	return stack.Open(context.Background(), cfg)
}

// serveRates answers HTTP and DNS on a port of a stack.
func serveRates(st *stack.Stack, at string) (string, error) {
	ln, err := st.Listen("tcp", at)
	if err != nil {
		return "", err
	}
	pc, err := st.ListenPacket("udp", at)
	if err != nil {
		return "", errors.Join(err, ln.Close())
	}
	body := []byte(strings.Repeat("x", rateBody))
	go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(body)
	}))
	address := &dns.A{Hdr: dns.RR_Header{Name: "www.example.", Rrtype: dns.TypeA,
		Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}
	server := dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(
		func(w dns.ResponseWriter, q *dns.Msg) {
			answer := new(dns.Msg).SetReply(q)
			answer.Answer = append(answer.Answer, address)
			w.WriteMsg(answer)
		})}
	go server.ActivateAndServe()
	return "listening on " + ln.Addr().String(), nil
}
