//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// queries are clients that ask a DNS server again and again, once each time.
type queries struct {
	w        *world
	at       string
	cancel   context.CancelFunc
	done     sync.WaitGroup
	answered atomic.Int64

	mu     sync.Mutex
	failed []error // guarded by mu
}

// start starts n clients, one in two over TCP, until the test ends.
func (q *queries) start(t *testing.T, n int) {
	ctx, cancel := context.WithCancel(q.w.ctx)
	q.cancel = cancel
	for i := range n {
		q.done.Go(func() {
			for network := []string{"udp", "tcp"}[i%2]; ctx.Err() == nil; {
				if err := q.ask(ctx, network); err != nil && ctx.Err() == nil {
					q.mu.Lock()
					defer q.mu.Unlock()
					q.failed = append(q.failed, fmt.Errorf("over %s: %w", network, err))
					return
				}
				q.answered.Add(1)
				time.Sleep(20 * time.Millisecond) // a client's pace
			}
		})
	}
	t.Cleanup(q.stop)
}

func (q *queries) ask(ctx context.Context, network string) error {
	conn, err := q.w.outside.DialContext(ctx, network, q.at)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	question := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
	r, _, err := (&dns.Client{Net: network, Timeout: patience}).
		ExchangeWithConn(question, &dns.Conn{Conn: conn})
	if err == nil && len(r.Answer) != 1 {
		err = fmt.Errorf("answer %v", r)
	}
	return err
}

// progress waits for an answer to a query that has been sent since.
func (q *queries) progress(t *testing.T) {
	t.Helper()
	before := q.answered.Load()
	eventually(t, func() string { return fmt.Sprintf("answers of DNS: %v", q.err()) },
		func() bool { return q.answered.Load() > before+8 || q.err() != nil })
}

func (q *queries) err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return errors.Join(q.failed...)
}

// stop ends the clients. It may be called again.
func (q *queries) stop() {
	if q.cancel != nil {
		q.cancel()
	}
	q.done.Wait()
}
