package stack_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// website is an httptest server on a stack.
func website(t *testing.T, s *stack.Stack, h http.Handler,
	start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	l, err := s.Listen("tcp", net.JoinHostPort(netpair.ServerIP4.String(), "0"))
	must(t, err)
	site := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	start(site)
	t.Cleanup(site.Close)
	return site
}

// browser is an HTTP client that dials as one does on a bad cable, and trusts every certificate.
func browser(client *stack.Stack) *http.Client {
	web := client.HTTPClient()
	transport := web.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	transport.DialContext = func(_ context.Context, _, to string) (net.Conn, error) {
		return redial(client, to)
	}
	return web
}

// TestHTTP runs requests in parallel, over plain HTTP, TLS and HTTP/2, with and without loss.
func TestHTTP(t *testing.T) {
	body := strings.Repeat("all work and no play ", 5000)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %d %s", r.Proto, n, body)
	})
	inMemory := func(t *testing.T) (server, client *stack.Stack) {
		return netpair.New(t, netpair.Faults{}, netpair.Both(quick))
	}
	badCable := func(t *testing.T) (server, client *stack.Stack) {
		j := join(t, cable{queues: 1, faults: wire.FaultConfig{Drop: 0.05, Reorder: 0.02,
			Seed: netpair.Seed(t)}})
		j.mustMove(t, moving.Limit)
		return j.server, j.client
	}
	http2 := func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.StartTLS()
	}
	for _, c := range []struct {
		name, proto string
		stacks      func(*testing.T) (server, client *stack.Stack)
		start       func(*httptest.Server)
	}{
		{"HTTP/1.1", "HTTP/1.1", inMemory, (*httptest.Server).Start},
		{"TLS", "HTTP/1.1", inMemory, (*httptest.Server).StartTLS},
		{"HTTP/2", "HTTP/2.0", inMemory, http2},
		{"HTTP/2 on a bad cable", "HTTP/2.0", badCable, http2},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, client := c.stacks(t)
			site := website(t, server, h, c.start)
			web := browser(client)
			defer web.CloseIdleConnections()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range stack.Rounds(5) {
						resp, err := web.Post(site.URL, "text/plain", strings.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if want := fmt.Sprintf("%s %d %s", c.proto, len(body), body); err != nil ||
							string(got) != want {
							t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestHTTPShutdown: http.Server.Shutdown and then Stack.Shutdown lose no response.
func TestHTTPShutdown(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	l, err := server.Listen("tcp", ":80")
	must(t, err)
	started, finish := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-finish
		w.Write(make([]byte, 1<<20))
	})}
	served := background(func() error { return srv.Serve(l) })
	web := client.HTTPClient()
	defer web.CloseIdleConnections()
	got := background(func() error {
		resp, err := web.Get("http://192.0.2.1/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 1<<20 {
			return fmt.Errorf("%d bytes, %w", n, err)
		}
		return nil
	})
	<-started
	shut := background(func() error { return srv.Shutdown(context.Background()) })
	if err := result(t, "Serve", served); err != http.ErrServerClosed {
		t.Errorf("Serve: %v", err)
	}
	close(finish)
	must(t, result(t, "http Shutdown", shut))
	must(t, server.Shutdown(context.Background()))
	must(t, result(t, "client", got))
}

// TestServeEndsQuietly: servers treat an Accept after Close as the end, not as a failure.
func TestServeEndsQuietly(t *testing.T) {
	server, _ := netpair.New(t, netpair.Faults{})
	l, err := server.Listen("tcp", ":80")
	must(t, err)
	served := background(func() error { return http.Serve(l, nil) })
	must(t, server.Close())
	if err := result(t, "Serve", served); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want net.ErrClosed", err)
	}
}

// TestHTTPTrace: the hooks that tracing libraries set are called.
func TestHTTPTrace(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	site := website(t, server, http.NotFoundHandler(), (*httptest.Server).Start)
	var events []string
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		ConnectStart: func(network, addr string) {
			events = append(events,
				"start "+network+" "+addr)
		},
		ConnectDone: func(network, addr string, err error) {
			events = append(events, fmt.Sprint("done ", network, " ", addr, " ", err))
		},
	})
	req, err := http.NewRequestWithContext(ctx, "GET", site.URL, nil)
	must(t, err)
	web := client.HTTPClient()
	resp, err := web.Do(req)
	must(t, err)
	resp.Body.Close()
	web.CloseIdleConnections()
	addr := site.Listener.Addr().String()
	if want := []string{"start tcp " + addr, "done tcp " + addr +
		" <nil>"}; fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// TestPing sends echo requests from the client's netstack and requires answers from the server's.
func TestPing(t *testing.T) {
	server, client := netpair.New(t, netpair.Faults{})
	linkLocal := server.Addrs()[0].Addr()
	for _, p := range server.Addrs() {
		if p.Addr().IsLinkLocalUnicast() {
			linkLocal = p.Addr()
		}
	}
	for _, ip := range []netip.Addr{netpair.ServerIP4, netpair.ServerIP6, linkLocal} {
		if err := ping(client, ip); err != nil {
			t.Errorf("%v: %v", ip, err)
		}
	}
}

func ping(from *stack.Stack, to netip.Addr) error {
	request := make([]byte, 64)
	request[0], request[7] = byte(header.ICMPv4Echo), 1
	transport, network, reply := header.ICMPv4ProtocolNumber, header.IPv4ProtocolNumber,
		byte(header.ICMPv4EchoReply)
	if to.Is6() {
		request[0] = byte(header.ICMPv6EchoRequest)
		transport, network, reply = header.ICMPv6ProtocolNumber, header.IPv6ProtocolNumber,
			byte(header.ICMPv6EchoReply)
	}
	q := new(waiter.Queue)
	ep, terr := from.Netstack().NewEndpoint(transport, network, q)
	if terr != nil {
		return errors.New(terr.String())
	}
	defer ep.Close()
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents)
	q.EventRegister(&entry)
	addr := tcpip.FullAddress{Addr: tcpip.AddrFromSlice(to.AsSlice())}
	if to.IsLinkLocalUnicast() {
		addr.NIC = 1
	}
	if _, terr := ep.Write(bytes.NewReader(request), tcpip.WriteOptions{To: &addr}); terr != nil {
		return errors.New(terr.String())
	}
	select {
	case <-readable:
	case <-time.After(hangs):
		return errors.New("no answer")
	}
	var answer bytes.Buffer
	if _, terr := ep.Read(&answer, tcpip.ReadOptions{}); terr != nil {
		return errors.New(terr.String())
	}
	if answer.Bytes()[0] != reply || answer.Len() != len(request) {
		return fmt.Errorf("answered % x", answer.Bytes()[:8])
	}
	return nil
}
