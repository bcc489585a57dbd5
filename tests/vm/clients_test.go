//go:build linux

package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
)

// clients are clients outside that keep their connections whatever happens: some that read bodies
// without a pause, and some that make a small request now and then. A connection that ends is lost.
type clients struct {
	w      *world
	at     string
	cancel context.CancelFunc
	done   sync.WaitGroup

	steps []atomic.Uint64 // of each client: pieces of its body, or answers
	last  []atomic.Int64  // when the latest was, in ns of Unix time
	gap   atomic.Int64    // the longest time between two of one client, in ns

	mu   sync.Mutex
	lost []error // guarded by mu
}

const (
	bodyPiece    = 16 << 10 // bytes
	bodySize     = int64(128) << 10
	requestPause = 250 * time.Millisecond // between two requests of a client
)

// minRate, in bytes per second, is what the server disconnects slower clients for once they are a
// minute behind. Emulated processors on a busy machine may be slower than the usual 16 KiB/s for
// half a minute, which would be taken for a lost connection.
const minRate = "1024"

// clientsOf starts the clients of a server at the address.
func (w *world) clientsOf(t *testing.T, at string, bodies, requesters int) *clients {
	t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	l := &clients{w: w, at: at, cancel: cancel, steps: make([]atomic.Uint64, bodies+requesters),
		last: make([]atomic.Int64, bodies+requesters)}
	for i := range l.steps {
		work := l.request
		if i < bodies {
			work = l.read
		}
		l.done.Go(func() {
			if err := l.connected(ctx, i, work); err != nil && ctx.Err() == nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.lost = append(l.lost, fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// connected opens the connection of client i and closes it with ctx.
func (l *clients) connected(ctx context.Context, i int,
	work func(ctx context.Context, i int, conn net.Conn) error) error {
	dial, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := l.w.outside.DialContext(dial, "tcp", l.at)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return work(ctx, i, conn)
}

// step counts what client i got.
func (l *clients) step(i int) {
	now := time.Now().UnixNano()
	if before := l.last[i].Swap(now); before != 0 {
		for gap := now - before; ; {
			max := l.gap.Load()
			if gap <= max || l.gap.CompareAndSwap(max, gap) {
				break
			}
		}
	}
	l.steps[i].Add(1)
}

// ask sends one request.
func ask(conn net.Conn, r *bufio.Reader, size int64) (io.Reader, error) {
	if _, err := fmt.Fprintf(conn, "GET /-/bytes/%d HTTP/1.1\r\nHost: slice\r\n\r\n",
		size); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(r, nil)
	if err == nil && (resp.StatusCode != http.StatusOK || resp.ContentLength != size) {
		err = fmt.Errorf("%s, %d bytes", resp.Status, resp.ContentLength)
	}
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// read reads bodies.
func (l *clients) read(ctx context.Context, i int, conn net.Conn) error {
	r := bufio.NewReader(conn)
	for ctx.Err() == nil {
		body, err := ask(conn, r, bodySize)
		if err == nil {
			err = l.check(i, body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check reads a body, which has the pattern of package httpd.
func (l *clients) check(i int, body io.Reader) error {
	got, want := make([]byte, bodyPiece), make([]byte, bodyPiece)
	for off := int64(0); off < bodySize; off += bodyPiece {
		if _, err := io.ReadFull(body, got); err != nil {
			return fmt.Errorf("after %d bytes: %w", off, err)
		}
		if httpd.FillPattern(want, off); !bytes.Equal(got, want) {
			return fmt.Errorf("wrong bytes after %d", off)
		}
		l.step(i)
	}
	return nil
}

// request makes requests on one connection.
func (l *clients) request(ctx context.Context, i int, conn net.Conn) error {
	const size = 100
	r := bufio.NewReader(conn)
	tick := time.NewTicker(requestPause)
	defer tick.Stop()
	for {
		body, err := ask(conn, r, size)
		if err == nil {
			_, err = io.Copy(io.Discard, body)
		}
		if err != nil {
			return err
		}
		l.step(i)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// progress waits until every client has got something more, which what describes, and returns how
// long that took.
func (l *clients) progress(t *testing.T, what string) time.Duration {
	t.Helper()
	start, before := time.Now(), make([]uint64, len(l.steps))
	for i := range l.steps {
		before[i] = l.steps[i].Load()
	}
	waiting := 0
	eventually(t, func() string {
		return fmt.Sprintf("progress of all clients %s: %d wait; lost: %v", what, waiting,
			l.losses())
	}, func() bool {
		waiting = 0
		for i := range l.steps {
			if l.steps[i].Load() == before[i] {
				waiting++
			}
		}
		return waiting == 0 || l.losses() != nil
	})
	if err := l.losses(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return time.Since(start)
}

func (l *clients) losses() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.lost...)
}

// stop ends the clients. It may be called again.
func (l *clients) stop() {
	l.cancel()
	l.done.Wait()
}
