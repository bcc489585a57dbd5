package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestServer asks over UDP and TCP. The answer for big.example fits TCP only.
func TestServer(t *testing.T) {
	var zone strings.Builder
	fmt.Fprintln(&zone, "www.Example. 300 IN A 192.0.2.80")
	for i := range 100 {
		fmt.Fprintf(&zone, "big.example. 300 IN A 198.51.100.%d\n", i)
	}
	z, err := load(strings.NewReader(zone.String()))
	if err != nil {
		t.Fatal(err)
	}
	server, client := stacktest.Pair(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, server, z) }()

	for _, tt := range []struct {
		network, name string
		rcode, count  int
		truncated     bool
	}{
		{"udp", "www.example.", dns.RcodeSuccess, 1, false},
		{"tcp", "WWW.example.", dns.RcodeSuccess, 1, false},
		{"udp", "none.example.", dns.RcodeNameError, 0, false},
		{"udp", "big.example.", dns.RcodeSuccess, 30, true},
		{"tcp", "big.example.", dns.RcodeSuccess, 100, false},
	} {
		t.Run(tt.network+" "+tt.name, func(t *testing.T) {
			answer := ask(t, client.DialTimeout, tt.network, tt.name)
			if answer.Rcode != tt.rcode || len(answer.Answer) != tt.count ||
				answer.Truncated != tt.truncated {
				t.Errorf("got %v", answer)
			}
		})
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

type dialer func(network, address string, timeout time.Duration) (net.Conn, error)

// ask repeats a question until it is answered: the server may not be listening yet.
func ask(t *testing.T, dial dialer, network, name string) *dns.Msg {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		conn, err := dial(network, "192.0.2.1:53", time.Second)
		if err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
		if err != nil {
			continue
		}
		answer, _, err := (&dns.Client{Net: network}).ExchangeWithConn(
			new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
		conn.Close()
		if err == nil {
			return answer
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
