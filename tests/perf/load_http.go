package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

var httpRequest = []byte("GET / HTTP/1.1\r\nHost: 192.0.2.10\r\n\r\n")

// webConn is one keep-alive connection.
type webConn struct {
	conn net.Conn
	in   *bufio.Reader
}

// get sends one request and reads the whole answer.
func (w *webConn) get() error {
	if _, err := w.conn.Write(httpRequest); err != nil {
		return err
	}
	length := -1
	for first := true; ; first = false {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("answer %q", line)
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	if length != len(body) {
		return fmt.Errorf("answer of %d bytes", length)
	}
	_, err := w.in.Discard(length)
	return err
}

// http sends requests as fast as answers arrive, on every connection.
func (r *runner) http() (metrics, error) {
	return r.web(func(w *webConn, _ int, end time.Time, l *latencies) error {
		for now := time.Now(); now.Before(end); {
			if err := w.get(); err != nil {
				return err
			}
			done := time.Now()
			l.add(done.Sub(now))
			now = done
		}
		return nil
	})
}

// paced sends Rate requests a second in all, so that every server has the same work, and measures
// the round trip of a byte meanwhile.
func (r *runner) paced() (metrics, error) {
	probe := make(chan metrics, 1)
	go func() {
		one := *r
		line := *r.load
		one.load = &line
		m, err := one.rtt()
		if err != nil {
			m = metrics{}
		}
		probe <- m
	}()
	m, err := r.pacedWeb()
	p := <-probe
	if err == nil {
		m["probe_p50"], m["probe_p99"] = p["us_p50"], p["us_p99"]
	}
	return m, err
}

func (r *runner) pacedWeb() (metrics, error) {
	interval := time.Duration(float64(time.Second) * float64(r.Flows) / float64(r.Rate))
	start := time.Now()
	return r.web(func(w *webConn, i int, end time.Time, l *latencies) error {
		next := start.Add(interval * time.Duration(i) / time.Duration(r.Flows))
		for next.Before(end) {
			time.Sleep(time.Until(next))
			sent := time.Now()
			if err := w.get(); err != nil {
				return err
			}
			l.add(time.Since(sent))
			for next = next.Add(interval); next.Before(sent); {
				// skips missed requests and keeps its phase: connections do not synchronise
				next = next.Add(interval)
			}
		}
		return nil
	})
}

func (r *runner) web(use func(w *webConn, i int, end time.Time,
	l *latencies) error) (metrics, error) {
	conns, err := r.dial(portHTTP)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	var wg sync.WaitGroup
	took, errs := make([]latencies, len(conns)), make([]error, len(conns))
	start := time.Now()
	for i, c := range conns {
		w := &webConn{c, bufio.NewReaderSize(c, 2048)}
		wg.Go(func() { errs[i] = use(w, i, start.Add(r.time()), &took[i]) })
	}
	wg.Wait()
	wall := time.Since(start).Seconds()
	var all latencies
	for i := range conns {
		if errs[i] != nil && errs[i] != io.EOF {
			return nil, errs[i]
		}
		all = append(all, took[i]...)
	}
	m := metrics{"requests": float64(len(all)), "rate": float64(len(all)) / wall}
	all.put(m, "us")
	return m, nil
}
