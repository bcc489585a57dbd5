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

// load is what one client does with its connections until r stops; it counts each operation in n.
type load func(r *traffic, cs []net.Conn, n *atomic.Uint64) error

// single is a load on one connection.
func single(do func(r *traffic, c net.Conn, n *atomic.Uint64) error) load {
	return func(r *traffic, cs []net.Conn, n *atomic.Uint64) error { return do(r, cs[0], n) }
}

// kind is a load and the port that it is for.
type kind struct {
	network string
	port    int
	do      load
	// patience is the longest that one answer may take.
	patience time.Duration
	conns    int // of a client
}

// answerTime is after how long a datagram is taken for lost.
const answerTime = time.Second

var loads = map[string]*kind{
	"echo": {"udp", portEcho, single(echoes), answerTime, 1},
	"dns":  {"udp", portDNS, single(queries), answerTime, 1},
	"http": {"tcp", portHTTP, requests, patience, 1},
	"many": {"tcp", portHTTP, requests, patience, manyConns},
	"bulk": {"tcp", portSink, single(bulk), patience, 1},
}

// manyConns is how many connections a client of "many" uses in turn.
const manyConns = 16

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
		cs, err := w.dial(ctx, k)
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		r.clients.Go(func() {
			defer closeAll(cs)
			if err := k.do(r, cs, &r.counts[i].n); err != nil {
				r.mu.Lock()
				r.errs = append(r.errs, err)
				r.mu.Unlock()
			}
		})
	}
	return r, nil
}

// dial opens the connections of one client.
func (w *world) dial(ctx context.Context, k *kind) (cs []net.Conn, err error) {
	for range k.conns {
		c, err := w.client.Dial(ctx, k.network, w.address(k.port))
		if err != nil {
			closeAll(cs)
			return nil, err
		}
		cs = append(cs, c)
		now := time.Now()
		if err := errors.Join(c.SetReadDeadline(now.Add(k.patience)),
			c.SetWriteDeadline(now.Add(patience))); err != nil {
			closeAll(cs)
			return nil, err
		}
	}
	return cs, nil
}

func closeAll(cs []net.Conn) {
	for _, c := range cs {
		c.Close()
	}
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

// fewest is how many operations a measurement has at least. Those of bulk transfers are counted
// where they are read: more than receive buffers of stack.Config's largest size held as it began.
func (r *traffic) fewest() uint64 {
	if r.bulk {
		return uint64(len(r.counts))*(8<<20)/chunk + 1
	}
	return 4
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

var httpRequest = []byte("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n")

// requests uses its connections in turn, one request at a time.
func requests(r *traffic, cs []net.Conn, n *atomic.Uint64) error {
	in := make([]*bufio.Reader, len(cs))
	for i, c := range cs {
		in[i] = bufio.NewReaderSize(c, 2048)
	}
	for i := 0; !r.stopped.Load(); i = (i + 1) % len(cs) {
		if err := request(cs[i], in[i]); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}

// request asks once and reads the answer.
func request(c net.Conn, in *bufio.Reader) error {
	if _, err := c.Write(httpRequest); err != nil {
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
	_, err := in.Discard(len(body))
	return err
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
