package main

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// sfu opens Flows subscribers at the unit on Port, and a publisher that sends as many packets as
// the unit makes Rate of in a second, at even distances.
func (r *runner) sfu() (metrics, error) {
	publisher, err := r.host.Dial(r.ctx, "udp", r.at(r.Port))
	if err != nil {
		return nil, err
	}
	defer publisher.Close()
	if err := asksUnit(publisher, sfuReset); err != nil {
		return nil, err
	}
	var subscribers []net.Conn
	defer func() { closeAll(subscribers) }()
	var got atomic.Int64
	var reading sync.WaitGroup
	for range r.Flows {
		c, err := r.host.Dial(r.ctx, "udp", r.at(r.Port))
		if err != nil {
			return nil, err
		}
		subscribers = append(subscribers, c)
		if err := asksUnit(c, sfuJoin); err != nil {
			return nil, err
		}
	}
	for _, c := range subscribers {
		reading.Go(func() { r.subscribe(c, &got) })
	}
	sent := 0
	b := make([]byte, r.Size)
	b[0] = rtpMark
	step := time.Second * time.Duration(r.Flows) / time.Duration(r.Rate)
	start := time.Now()
	for at := time.Duration(0); at < r.time(); at += step {
		time.Sleep(time.Until(start.Add(at)))
		if _, err := publisher.Write(b); err != nil {
			return nil, err
		}
		sent++
	}
	if err := asksUnit(publisher, sfuReset); err != nil { // it has sent all
		return nil, err
	}
	wall := time.Since(start).Seconds()
	time.Sleep(20 * time.Millisecond) // what is under way arrives
	n := got.Load()
	closeAll(subscribers)
	reading.Wait()
	if n == 0 {
		return nil, errors.New("no packet reached a subscriber")
	}
	return metrics{"requests": float64(n), "rate": float64(n) / wall,
		"lost": float64(sent*r.Flows) - float64(n)}, nil
}

// subscribe counts packets until the socket is closed.
func (r *runner) subscribe(c net.Conn, got *atomic.Int64) {
	b := make([]byte, 2<<10)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if n == r.Size && b[0] == rtpMark {
			got.Add(1)
		}
	}
}

// asksUnit sends a request until it comes back.
func asksUnit(c net.Conn, what byte) error {
	defer c.SetReadDeadline(time.Time{})
	var err error
	for range 75 { // a unit that is behind answers late
		if _, err = c.Write([]byte{what}); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		var b [16]byte
		if _, err = c.Read(b[:]); err == nil {
			return nil
		}
	}
	return fmt.Errorf("ask the unit: %w", err)
}
