package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// rtt sends one byte over TCP and waits for its echo, repeatedly.
func (r *runner) rtt() (metrics, error) {
	r.Flows = 1
	conns, err := r.dial(portEcho)
	if err != nil {
		return nil, err
	}
	defer closeAll(conns)
	var l latencies
	b := []byte{0}
	for now, end := time.Now(), time.Now().Add(r.time()); now.Before(end); {
		if _, err := conns[0].Write(b); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(conns[0], b); err != nil {
			return nil, err
		}
		done := time.Now()
		l.add(done.Sub(now))
		if now = done; r.Rate > 0 { // with another load: only a probe
			time.Sleep(probePause)
			now = time.Now()
		}
	}
	m := metrics{"requests": float64(len(l))}
	l.put(m, "us")
	return m, nil
}

// probePause is the time between two probes of a busy server.
const probePause = 2 * time.Millisecond

// idlers are idle connections. They last as long as the process.
var idlers []net.Conn

// idle opens Flows keep-alive connections, sends one request on each, and leaves them open.
func (r *runner) idle() (metrics, error) {
	const dialers = 64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	start := time.Now()
	for i := range dialers {
		wg.Go(func() {
			for range (r.Flows + i) / dialers {
				c, err := r.idler()
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, err)
				} else {
					idlers = append(idlers, c)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return metrics{"connections": float64(len(idlers)),
		"rate": float64(len(idlers)) / time.Since(start).Seconds()}, failed
}

func (r *runner) idler() (net.Conn, error) {
	c, err := r.host.Dial(r.ctx, "tcp", r.at(portHTTP))
	if err != nil {
		return nil, err
	}
	deadline, _ := r.ctx.Deadline()
	_ = c.SetDeadline(deadline)
	w := &webConn{c, bufio.NewReaderSize(c, 2048)}
	return c, w.get()
}
