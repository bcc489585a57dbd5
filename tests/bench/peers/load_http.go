package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"net"
	"strconv"
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
	web, err := r.web()
	if err != nil {
		return nil, err
	}
	defer web.close()
	return r.repeat(len(web), func(i int) error { return web[i].get() })
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
	web, err := r.web()
	if err != nil {
		return nil, err
	}
	defer web.close()
	interval := time.Duration(float64(time.Second) * float64(r.Flows) / float64(r.Rate))
	start := time.Now()
	return r.together(len(web), func(i int, end time.Time, l *latencies) error {
		next := start.Add(interval * time.Duration(i) / time.Duration(r.Flows))
		for next.Before(end) {
			time.Sleep(time.Until(next))
			sent := time.Now()
			if err := web[i].get(); err != nil {
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

type webClients []*webConn

// web opens Flows keep-alive connections.
func (r *runner) web() (web webClients, err error) {
	conns, err := r.dial(cmp.Or(r.Port, portHTTP))
	for _, c := range conns {
		web = append(web, &webConn{c, bufio.NewReaderSize(c, 2048)})
	}
	return web, err
}

func (w webClients) close() {
	for _, c := range w {
		c.conn.Close()
	}
}
