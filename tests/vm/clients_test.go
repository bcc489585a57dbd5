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

	"golang.org/x/sys/unix"

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

	again    bool          // a client whose server ends its connection opens another
	body     int64         // bytes of a body
	pause    time.Duration // of a client between two pieces of its body
	repeated atomic.Uint64 // requests, see closedUnread

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
	l := &clients{w: w, at: at, body: bodySize}
	l.start(t, bodies, requesters)
	return l
}

// errClosing is that the server has ended the connection with its answer.
var errClosing = errors.New("the server ends the connection")

// start starts so many clients, until the test ends.
func (l *clients) start(t *testing.T, bodies, requesters int) {
	t.Helper()
	ctx, cancel := context.WithCancel(l.w.ctx)
	l.cancel = cancel
	l.steps, l.last = make([]atomic.Uint64, bodies+requesters),
		make([]atomic.Int64, bodies+requesters)
	for i := range l.steps {
		work := l.request
		if i < bodies {
			work = l.read
		}
		l.done.Go(func() {
			err := l.connected(ctx, i, work)
			for l.again && errors.Is(err, errClosing) {
				err = l.connected(ctx, i, work)
			}
			if err != nil && ctx.Err() == nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.lost = append(l.lost, fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	t.Cleanup(func() { l.stop() })
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

// ask sends one request, with more lines of its header.
func ask(conn net.Conn, r *bufio.Reader, size int64, lines string) (*http.Response, error) {
	if _, err := fmt.Fprintf(conn, "GET /-/bytes/%d HTTP/1.1\r\nHost: slice\r\n%s\r\n",
		size, lines); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(r, nil)
	if err == nil && (resp.StatusCode != http.StatusOK || resp.ContentLength != size) {
		err = fmt.Errorf("%s, %d bytes", resp.Status, resp.ContentLength)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// closedUnread is true for a connection that the server has closed before it read a request on its
// way: with again that is repeated, as net/http and browsers do (RFC 9112 section 9.3.1).
func closedUnread(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) ||
		errors.Is(err, unix.EPIPE)
}

// read reads bodies, where a client may open another connection each by one of its own: a server
// that ends takes one for idle whose client has not read all of what was written.
func (l *clients) read(ctx context.Context, i int, conn net.Conn) error {
	r, lines := bufio.NewReader(conn), ""
	if l.again {
		lines = "Connection: close\r\n"
	}
	for ctx.Err() == nil {
		resp, err := ask(conn, r, l.body, lines)
		if err == nil {
			err = l.check(i, resp.Body)
		}
		if err == nil && resp.Close {
			err = errClosing
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
	for off := int64(0); off < l.body; off += bodyPiece {
		if _, err := io.ReadFull(body, got); err != nil {
			return fmt.Errorf("after %d bytes: %w", off, err)
		}
		if httpd.FillPattern(want, off); !bytes.Equal(got, want) {
			return fmt.Errorf("wrong bytes after %d", off)
		}
		l.step(i)
		time.Sleep(l.pause)
	}
	return nil
}

// request makes requests on one connection.
func (l *clients) request(ctx context.Context, i int, conn net.Conn) error {
	const size = 100
	r := bufio.NewReader(conn)
	tick := time.NewTicker(requestPause)
	defer tick.Stop()
	for first := true; ; first = false {
		resp, err := ask(conn, r, size, "")
		if err != nil && !first && r.Buffered() == 0 && closedUnread(err) {
			l.repeated.Add(1)
			return fmt.Errorf("%w: %w", errClosing, err)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		if err != nil {
			return err
		}
		l.step(i)
		if resp.Close {
			return errClosing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// progress waits until every client has got something more, which what describes, and returns how
// long that took. On a slow machine a client's own timer, which doubles with each segment that is
// lost, may come late: the server's connections wait for as long.
func (l *clients) progress(t *testing.T, what string) time.Duration {
	t.Helper()
	start, before := time.Now(), make([]uint64, len(l.steps))
	for i := range l.steps {
		before[i] = l.steps[i].Load()
	}
	waiting := 0
	eventuallyIn(t, outageLimit, func() string {
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

// sum is what clients of some numbers have got.
func (l *clients) sum(from, to int) (n uint64) {
	for i := from; i < to; i++ {
		n += l.steps[i].Load()
	}
	return n
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
