package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// load is what one client does until r stops; it counts each operation in n.
type load func(r *traffic, c net.Conn, n *atomic.Uint64) error

// kind is a load and the port that it is for.
type kind struct {
	network string
	port    int
	do      load
	// patience is the longest that one answer may take.
	patience time.Duration
}

// answerTime is after how long a datagram is taken for lost.
const answerTime = time.Second

var loads = map[string]*kind{
	"echo": {"udp", portEcho, echoes, answerTime},
	"dns":  {"udp", portDNS, queries, answerTime},
	"http": {"tcp", portHTTP, requests, patience},
	"bulk": {"tcp", portSink, bulk, patience},
}

// padded is a client's count, on cache lines of its own.
type padded struct {
	_ [64]byte
	n atomic.Uint64
	_ [64]byte
}

// traffic is a load in progress.
type traffic struct {
	world   *world
	bulk    bool // operations are counted by the server
	counts  []padded
	stopped atomic.Bool
	clients sync.WaitGroup
	mu      sync.Mutex
	errs    []error // guarded by mu
}

// start has clients put load on the server.
func (w *world) start(k *kind, clients int) (*traffic, error) {
	r := &traffic{world: w, counts: make([]padded, clients), bulk: k.port == portSink}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := range clients {
		c, err := w.client.DialContext(ctx, k.network, w.address(k.port))
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		now := time.Now()
		if err := errors.Join(c.SetReadDeadline(now.Add(k.patience)),
			c.SetWriteDeadline(now.Add(patience))); err != nil {
			return nil, errors.Join(err, c.Close(), r.stop())
		}
		r.clients.Go(func() {
			defer c.Close()
			if err := k.do(r, c, &r.counts[i].n); err != nil {
				r.mu.Lock()
				r.errs = append(r.errs, err)
				r.mu.Unlock()
			}
		})
	}
	return r, nil
}

// stop ends the load and returns what went wrong in it.
func (r *traffic) stop() error {
	r.stopped.Store(true)
	r.clients.Wait()
	return errors.Join(r.errs...)
}

// chunk is what one operation of a bulk transfer carries, in bytes.
const chunk = 64 << 10

// operations is how many there have been.
func (r *traffic) operations() (n uint64) {
	if r.bulk {
		return r.world.services.received.Load() / chunk
	}
	for i := range r.counts {
		n += r.counts[i].n.Load()
	}
	return n
}

// askAgain gives the next answers of a socket their time if err is that one did not come.
func askAgain(c net.Conn, err error) (lost bool, _ error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, err
	}
	return true, c.SetReadDeadline(time.Now().Add(answerTime))
}

// echoes sends a datagram and waits until it comes back.
func echoes(r *traffic, c net.Conn, n *atomic.Uint64) error {
	b := make([]byte, 64)
	for !r.stopped.Load() {
		if _, err := c.Write(b); err != nil {
			return err
		}
		_, err := c.Read(b)
		if lost, err := askAgain(c, err); err != nil {
			return err
		} else if !lost {
			n.Add(1)
		}
	}
	return nil
}

// inFlight is how many queries a client has asked at once.
const inFlight = 8

// query asks for the A record of www.example.org (RFC 1035 section 4).
var query = []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" +
	"\x03www\x07example\x03org\x00\x00\x01\x00\x01")

func queries(r *traffic, c net.Conn, n *atomic.Uint64) error {
	b := make([]byte, 512)
	for !r.stopped.Load() {
		for range inFlight {
			if _, err := c.Write(query); err != nil {
				return err
			}
		}
		for range inFlight {
			size, err := c.Read(b)
			lost, err := askAgain(c, err)
			if err != nil {
				return err
			}
			if lost {
				break
			}
			n.Add(1)
			if size < 12 || b[3]&0xf != 0 || b[7] != 1 {
				return fmt.Errorf("DNS answer %x", b[:size])
			}
		}
	}
	return nil
}

const httpRequest = "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n"

func requests(r *traffic, c net.Conn, n *atomic.Uint64) error {
	in, request := bufio.NewReaderSize(c, 2048), []byte(httpRequest)
	for !r.stopped.Load() {
		if _, err := c.Write(request); err != nil {
			return err
		}
		for {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return err
			}
			if len(line) == 2 {
				break
			}
		}
		if _, err := in.Discard(len(body)); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}

// bulk sends without pause. The server counts.
func bulk(r *traffic, c net.Conn, _ *atomic.Uint64) error {
	b := make([]byte, 4*chunk)
	for !r.stopped.Load() {
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		if err := half.CloseWrite(); err != nil {
			return err
		}
	}
	if _, err := c.Read(b); !errors.Is(err, io.EOF) {
		return fmt.Errorf("end of a bulk transfer: %w", err)
	}
	return nil
}
