package roads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// traffic says what goes over a road: bulk over so many connections, from the server or to it, or
// answers of HTTP over connections that stay open.
type traffic struct {
	name   string
	down   bool // the server sends
	v6     bool
	flows  int
	answer int // bytes of each answer of HTTP; 0: bulk
}

// usualTraffic names those of which `make test-roads` prints rows.
const usualTraffic = "down,up"

var traffics = []traffic{
	{name: "down", down: true, flows: 1},
	{name: "up", flows: 1},
	{name: "4 down", down: true, flows: 4},
	{name: "4 up", flows: 4},
	{name: "IPv6 down", down: true, v6: true, flows: 1},
	{name: "IPv6 up", v6: true, flows: 1},
	{name: "HTTP", down: true, flows: 8, answer: 60000},
}

// someTraffic returns those that TRAFFIC names.
func someTraffic(t *testing.T) (some []traffic) {
	list := os.Getenv("TRAFFIC")
	if list == "" {
		list = usualTraffic
	}
	for name := range strings.SplitSeq(list, ",") {
		before := len(some)
		for _, tr := range traffics {
			if name == "all" || name == tr.name {
				some = append(some, tr)
			}
		}
		if len(some) == before {
			t.Fatalf("TRAFFIC: there is no %q; docs/testing.md names what there is", name)
		}
	}
	return some
}

// carried tells of one run: the bytes that came in a second, how many frames the road has lost of
// both directions, and by how much the machine had the latest one come too late.
type carried struct {
	rate float64
	lost int
	lag  time.Duration
}

// carry tells of what comes within d.
func (b *bench) carry(k kind, tr traffic, d time.Duration) (run carried, err error) {
	at := netip.AddrPortFrom(k.at(tr.v6), 5000).String()
	ln, err := k.server.Listen("tcp", at)
	if err != nil {
		return run, err
	}
	defer ln.Close()
	var n int64
	began := time.Now()
	if tr.answer > 0 {
		n, err = b.answers(ln, at, tr, d)
	} else {
		began, n, err = b.bulk(ln, at, tr, d)
	}
	run.rate = float64(n) / time.Since(began).Seconds()
	of, lag := k.relay.Fared()
	for _, c := range of {
		run.lost += c.Lost + c.Full
	}
	run.lag = lag
	return run, err
}

// bulk returns how many bytes come within d of when the connections are there.
func (b *bench) bulk(ln net.Listener, at string, tr traffic, d time.Duration) (began time.Time,
	n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	accepted := make(chan net.Conn, tr.flows)
	go func() {
		for range tr.flows {
			if c, err := ln.Accept(); err == nil {
				accepted <- c
			}
		}
	}()
	var writers, readers []net.Conn
	for range tr.flows {
		from, err := b.client.DialContext(ctx, "tcp", at)
		if err != nil {
			return began, 0, err
		}
		defer from.Close()
		var to net.Conn
		select {
		case to = <-accepted:
		case <-ctx.Done():
			return began, 0, fmt.Errorf("not accepted: %w", ctx.Err())
		}
		defer to.Close()
		if tr.down {
			from, to = to, from
		}
		writers, readers = append(writers, from), append(readers, to)
	}
	began = time.Now()
	var all sync.WaitGroup
	var bytes atomic.Int64
	failed := make([]error, tr.flows)
	for i := range tr.flows {
		_ = readers[i].SetReadDeadline(began.Add(d))
		_ = writers[i].SetWriteDeadline(began.Add(d))
		go func() {
			for block := make([]byte, 128<<10); ; {
				if _, err := writers[i].Write(block); err != nil {
					return
				}
			}
		}()
		all.Go(func() {
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard},
				struct{ io.Reader }{readers[i]}, make([]byte, 256<<10))
			bytes.Add(n)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				failed[i] = err
			}
		})
	}
	all.Wait()
	return began, bytes.Load(), errors.Join(failed...)
}

// answers returns how many bytes of answers come within d, over connections that ask for one after
// the other.
func (b *bench) answers(ln net.Listener, at string, tr traffic, d time.Duration) (int64, error) {
	body := make([]byte, tr.answer)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
	})}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()
	transport := &http.Transport{DialContext: b.client.DialContext, MaxIdleConnsPerHost: tr.flows}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var all sync.WaitGroup
	var bytes atomic.Int64
	failed := make([]error, tr.flows)
	for i := range tr.flows {
		all.Go(func() {
			for ctx.Err() == nil {
				n, err := fetch(ctx, transport, "http://"+at)
				bytes.Add(n)
				if err != nil && ctx.Err() == nil {
					failed[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	return bytes.Load(), errors.Join(failed...)
}

// fetch returns how many bytes of an answer have come.
func fetch(ctx context.Context, transport *http.Transport, url string) (int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	return io.Copy(io.Discard, answer.Body)
}
