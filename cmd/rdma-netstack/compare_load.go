package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// compareLoad describes one kind of load and its quantities.
type compareLoad struct {
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	Lower bool   `json:"lower_is_better"`
	run   func(ctx context.Context, s *contender, d time.Duration) (float64, error)
}

// compareLoads returns all of them; wrk is the program's path, empty if there is none.
func compareLoads(wrk string) []compareLoad {
	all := []compareLoad{
		{
			"HTTP, 1 KiB answers, 32 connections",
			"requests/s",
			false,
			closedLoop(32, httpRequester(1<<10), perSecond),
		},
		{
			"HTTP, new connection each time, 8 at once",
			"requests/s",
			false,
			closedLoop(8, httpOnce, perSecond),
		},
		{
			"HTTP, 1 MiB answers, 4 connections",
			"MiB/s",
			false,
			closedLoop(4, httpRequester(1<<20), perSecond),
		},
		{"HTTP, 1 connection, median answer", "us", true,
			closedLoop(1, httpRequester(100), median)},
		{"DNS over UDP, 32 sockets", "queries/s", false, closedLoop(32, dnsAsker, perSecond)},
		{"DNS over UDP, 1 socket, median answer", "us", true, closedLoop(1, dnsAsker, median)},
	}
	if wrk != "" {
		all = append(
			all,
			compareLoad{"HTTP, 1 KiB answers, 64 connections of wrk",
				"requests/s", false, runWrk(wrk)},
		)
	}
	return all
}

// requester opens what one client needs and returns a function that sends one request.
type requester func(ctx context.Context, s *contender) (ask func() error, stop func(), err error)

// closedLoop has n clients send requests, each after its previous answer, and computes one figure
// from the times the answers took.
func closedLoop(
	n int,
	open requester,
	figure func([]time.Duration, time.Duration) float64,
) func(context.Context, *contender, time.Duration) (float64, error) {
	return func(ctx context.Context, s *contender, d time.Duration) (float64, error) {
		// a server that does not answer ends it
		ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
		defer cancel()
		var mu sync.Mutex
		var all []time.Duration
		var failed error
		var ready, clients sync.WaitGroup
		ready.Add(n)
		began := make(chan time.Time)
		for range n {
			clients.Go(func() {
				took, err := oneClient(ctx, s, open, &ready, began, d)
				mu.Lock()
				defer mu.Unlock()
				all, failed = append(all, took...), errors.Join(failed, err)
			})
		}
		ready.Wait()
		start := time.Now()
		for range n {
			began <- start
		}
		clients.Wait()
		elapsed := time.Since(start)
		if failed == nil && len(all) == 0 {
			failed = errors.New("nothing was answered")
		}
		if failed != nil {
			return 0, failed
		}
		return figure(all, elapsed), nil
	}
}

// oneClient warms up with one request, waits for the others, and then sends requests for d.
func oneClient(ctx context.Context, s *contender, open requester, ready *sync.WaitGroup,
	began <-chan time.Time, d time.Duration) (took []time.Duration, err error) {
	ask, stop, err := open(ctx, s)
	if err == nil {
		defer stop()
		err = ask()
	}
	ready.Done()
	last := <-began
	for end := last.Add(d); err == nil && last.Before(end); {
		if err = ask(); err == nil {
			now := time.Now()
			took = append(took, now.Sub(last))
			last = now
		}
	}
	return took, err
}

func perSecond(took []time.Duration, elapsed time.Duration) float64 {
	return float64(len(took)) / elapsed.Seconds()
}

// median returns the median in microseconds.
func median(took []time.Duration, _ time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}

// httpRequester fetches answers of size bytes over a connection that it keeps.
func httpRequester(size int) requester {
	request := fmt.Appendf(nil, "GET /-/bytes/%d HTTP/1.1\r\nHost: slice\r\n\r\n", size)
	return func(ctx context.Context, s *contender) (func() error, func(), error) {
		conn, err := s.dial(ctx, "tcp", s.http)
		if err != nil {
			return nil, nil, err
		}
		r := bufio.NewReaderSize(conn, 64<<10)
		return func() error { return fetch(conn, r, request, size) }, func() { conn.Close() }, nil
	}
}

// httpOnce opens a connection for each request. One thread of the namespace opens all of a client's
// connections: entering the namespace takes longer than what is measured.
func httpOnce(ctx context.Context, s *contender) (func() error, func(), error) {
	const size = 100
	request := fmt.Appendf(nil,
		"GET /-/bytes/%d HTTP/1.1\r\nHost: slice\r\nConnection: close\r\n\r\n", size)
	wanted, opened := make(chan struct{}), make(chan dialResult)
	go s.client.Do(func() error {
		var d net.Dialer
		for range wanted {
			conn, err := d.DialContext(ctx, "tcp", s.http)
			opened <- dialResult{conn, err}
		}
		return nil
	})
	r := bufio.NewReader(nil)
	ask := func() error {
		select {
		case wanted <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		o := <-opened // a dial ends with ctx
		if o.err != nil {
			return o.err
		}
		defer o.conn.Close()
		if err := until(ctx, o.conn); err != nil {
			return err
		}
		r.Reset(o.conn)
		return fetch(o.conn, r, request, size)
	}
	return ask, func() { close(wanted) }, nil
}

// dialResult holds the outcome of a dial.
type dialResult struct {
	conn net.Conn
	err  error
}

func fetch(conn net.Conn, r *bufio.Reader, request []byte, size int) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != int64(size)) {
		err = fmt.Errorf("%s with %d bytes, want %d", resp.Status, n, size)
	}
	return err
}

// dial connects a kernel socket; it works until ctx ends.
func (s *contender) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := s.client.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := until(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// until gives conn the deadline of ctx, if it has one.
func until(ctx context.Context, conn net.Conn) error {
	end, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	return conn.SetDeadline(end)
}

var wrkRate = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)

// runWrk runs the installed program, for whole seconds.
func runWrk(path string) func(context.Context, *contender, time.Duration) (float64, error) {
	return func(ctx context.Context, s *contender, d time.Duration) (float64, error) {
		ctx, cancel := context.WithTimeout(ctx, d+20*time.Second)
		defer cancel()
		var out bytes.Buffer
		cmd := exec.CommandContext(
			ctx,
			path,
			"-t2",
			"-c64",
			fmt.Sprintf("-d%ds", max(1, int(d.Seconds()))),
			// wrk calls an answer after its timeout, 2 s by default, an error: late is not lost,
			// and counts against the rate
			"--timeout", "15s",
			"http://"+s.http+"/-/bytes/1024",
		)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := s.client.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		m := wrkRate.FindSubmatch(out.Bytes())
		if err != nil || m == nil || bytes.Contains(out.Bytes(), []byte("Socket errors")) {
			return 0, fmt.Errorf("wrk: %w: %s",
				errors.Join(err, errors.New("not all was answered")), out.Bytes())
		}
		return strconv.ParseFloat(string(m[1]), 64)
	}
}

// dnsAsker queries for one address from one socket.
func dnsAsker(ctx context.Context, s *contender) (func() error, func(), error) {
	conn, err := s.dial(ctx, "udp", s.dns)
	if err != nil {
		return nil, nil, err
	}
	query, err := new(dns.Msg).SetQuestion("www.example.", dns.TypeA).Pack()
	if err != nil {
		return nil, nil, err
	}
	q := &dnsQuestion{conn: conn, query: query, buf: make([]byte, dns.MinMsgSize)}
	return func() error { return q.ask(ctx) }, func() { conn.Close() }, nil
}

// askAgain gives the time after which a query is repeated whose datagram, or answer, was lost.
const askAgain = time.Second

// dnsQuestion describes a query that is sent repeatedly, from one socket.
type dnsQuestion struct {
	conn       net.Conn
	query, buf []byte
	id         uint16
}

func (q *dnsQuestion) ask(ctx context.Context) error {
	q.id++
	binary.BigEndian.PutUint16(q.query, q.id)
	for ctx.Err() == nil {
		if err := q.conn.SetDeadline(time.Now().Add(askAgain)); err != nil {
			return err
		}
		if _, err := q.conn.Write(q.query); err != nil {
			return err
		}
		if err := q.await(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}

// await skips late answers to earlier queries.
func (q *dnsQuestion) await() error {
	for {
		n, err := q.conn.Read(q.buf)
		switch {
		case err != nil:
			return err
		case n <= len(q.query):
			return fmt.Errorf("an answer of %d bytes: % x", n, q.buf[:min(n, 12)])
		case binary.BigEndian.Uint16(q.buf) == q.id:
			return nil
		}
	}
}
