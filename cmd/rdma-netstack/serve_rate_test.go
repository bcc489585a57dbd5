package main

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestServeRate: a response of a server with --rate takes the time of the rate, and one of a server
// without waits for none.
func TestServeRate(t *testing.T) {
	const rate, size = 200_000, 100_000
	s := inANetworkOf(t, "10.0.0.0/24")
	transfer := func(flags ...string) (took time.Duration, waits int) {
		addrs, _ := serving(t, s, append(flags, "--address", "192.0.2.10/24",
			"--admin", "10.0.0.7:9100")...)
		defer s.stop(t)
		began := time.Now()
		url := "http://" + addrs[0].String() + "/-/bytes/" + number(size)
		if n := len(getFrom(t, s.net, url)); n != size {
			t.Errorf("%d bytes of %d", n, size)
		}
		took = time.Since(began)
		page := getFrom(t, s.net, "http://10.0.0.7:9100/metrics")
		_, after, _ := strings.Cut(page, "\nrdma_netstack_tcp_pacing_waits_total ")
		text, _, _ := strings.Cut(after, "\n")
		waits, err := strconv.Atoi(text)
		if err != nil {
			t.Error(err)
		}
		return took, waits
	}
	free, without := transfer()
	took, with := transfer("--rate", number(rate))
	t.Logf("%d bytes: %v, %d waits; at %d bytes/s: %v, %d waits", size, free, without, rate, took,
		with)
	if least := time.Second * size / rate; took < least {
		t.Errorf("%d bytes took %v, want %v or more", size, took, least)
	}
	if without != 0 {
		t.Errorf("%d waits without a rate", without)
	}
	if segments := size / 1460; with < segments/4 {
		t.Errorf("%d waits for the rate, of %d segments", with, segments)
	}
}

// TestServersRate: connections of each server have the rate of --rate.
func TestServersRate(t *testing.T) {
	s := inANetworkOf(t, "10.0.0.0/24")
	const zone = "-- z --\n$ORIGIN example.\n@ 60 IN SOA ns host 1 2 3 4 5\n@ 60 IN NS ns\n"
	s.unpack(zone)
	query := "\x00\x19" + "\x12\x34\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00" + // RFC 1035 4.2.2
		"\x07example\x00\x00\x06\x00\x01" // SOA, IN
	for _, c := range []struct{ what, more, port, ask string }{
		{"http", "", "80", "GET /-/healthz HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"dns", "--zone z", "53", query},
		{"iperf3", "", "5201", strings.Repeat("c", 36) + "\x00"}, // a client's cookie
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, rate := range []string{"0", "1000000", "192.0.2.0/24=1000000",
				"203.0.113.0/24=1000000"} {
				if err := s.start(append([]string{"serve", c.what, "--device", "sim", "--address",
					"192.0.2.10/24", "--rate", rate, "--admin", "10.0.0.7:9100"},
					strings.Fields(c.more)...)); err != nil {
					t.Fatal(err)
				}
				if err := s.out.await("^serving .*try: "); err != nil {
					t.Fatal(err, s.errs)
				}
				conn, err := s.net.DialContext(t.Context(), "tcp",
					net.JoinHostPort("192.0.2.10", c.port))
				if err != nil {
					t.Fatal(err)
				}
				if err := conn.SetDeadline(time.Now().Add(stepTime)); err != nil {
					t.Error(err)
				}
				if _, err := conn.Write([]byte(c.ask)); err != nil {
					t.Error(err)
				}
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Error("no answer:", err)
				}
				want := "\nrdma_netstack_tcp_paced_connections 1\n"
				if rate == "0" || strings.HasPrefix(rate, "203") { // no client is there
					want = "\nrdma_netstack_tcp_paced_connections 0\n"
				}
				if page := getFrom(t, s.net, "http://10.0.0.7:9100/metrics"); !strings.Contains(
					page, want) {
					t.Errorf("--rate %s: no %q in\n%s", rate, want, page)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				s.stop(t)
			}
		})
	}
}
