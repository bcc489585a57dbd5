package main

import (
	"errors"
	"net"
	"os"
	"time"
)

// udpUp sends datagrams as fast as it can. The server counts.
func (r *runner) udpUp() (metrics, error) {
	c, err := r.host.Dial(r.ctx, "udp", r.at(portUDP))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b := make([]byte, r.Size)
	sent, failed := 0, 0
	for end := time.Now().Add(r.time()); time.Now().Before(end); {
		for range 64 {
			if _, err := c.Write(b); err != nil {
				failed++
			} else {
				sent++
			}
		}
	}
	time.Sleep(20 * time.Millisecond) // datagrams in the server's socket buffer are counted, too
	return metrics{"sent": float64(sent), "failed": float64(failed)}, nil
}

// udpDown makes the server send, and counts what comes.
func (r *runner) udpDown() (metrics, error) {
	c, err := r.host.Dial(r.ctx, "udp", r.at(portUDP))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	burst := udpBurst{r.Size, max(r.Each, 1), int(r.time().Milliseconds())}
	if _, err := c.Write(burst.encode()); err != nil {
		return nil, err
	}
	got, b := 0, make([]byte, 64<<10)
	end := time.Now().Add(r.time() + 100*time.Millisecond)
	if err := c.SetReadDeadline(end); err != nil {
		return nil, err
	}
	for time.Now().Before(end) {
		if _, err := c.Read(b); err == nil {
			got++
		}
	}
	return metrics{"received": float64(got), "rate": float64(got) / r.Seconds}, nil
}

// udpEcho sends a datagram and waits for it, on Flows sockets at once: to the echo service, or each
// to a socket of the server's own from Port on.
func (r *runner) udpEcho() (metrics, error) {
	results := make(chan latencies)
	for i := range r.Flows {
		to := portEcho
		if r.Port != 0 {
			to = r.Port + i
		}
		c, err := r.host.Dial(r.ctx, "udp", r.at(to))
		if err != nil {
			return nil, err
		}
		go func() {
			defer c.Close()
			results <- r.echoes(c)
		}()
	}
	var all latencies
	for range r.Flows {
		all = append(all, <-results...)
	}
	if len(all) == 0 {
		return nil, errors.New("no datagram came back")
	}
	m := metrics{"requests": float64(len(all)), "rate": float64(len(all)) / r.Seconds}
	all.put(m, "us")
	return m, nil
}

func (r *runner) echoes(c net.Conn) (l latencies) {
	b := make([]byte, max(r.Size, 1))
	start := time.Now()
	for now, end := start, start.Add(r.time()); now.Before(end); {
		if _, err := c.Write(b); err != nil {
			return l
		}
		_ = c.SetReadDeadline(now.Add(200 * time.Millisecond))
		_, err := c.Read(b)
		done := time.Now()
		if err == nil {
			l.add(done.Sub(now))
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			return l
		}
		now = done
	}
	return l
}
