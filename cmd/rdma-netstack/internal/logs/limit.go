// Package logs bounds what a server writes to its log.
package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Of lines with one message, Burst are written per Period. Errors of what others do to a server,
// such as frames that reset a queue, would fill a disk otherwise.
const (
	Burst  = 10
	Period = 10 * time.Second
)

// LeftOut gives the attribute of a line that says how many with the same message were left out
// since the one before.
const LeftOut = "left_out"

// maxMessages says how many messages are told apart. Ours are constants but for a few.
const maxMessages = 256

// Limit is next, without the lines of a message that come too often. now is the time.
func Limit(next slog.Handler, now func() time.Time) slog.Handler {
	return &limited{next, &counts{now: now, of: map[string]*count{}}}
}

// limited is the handler of Limit; those that WithAttrs and WithGroup make of it share the counts.
type limited struct {
	slog.Handler
	counts *counts
}

type counts struct {
	now func() time.Time
	mu  sync.Mutex
	of  map[string]*count // by message; guarded by mu, as what it has
}

// count counts the lines of one message.
type count struct {
	since         time.Time // when the period began
	used, leftOut uint64
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	write, leftOut := l.counts.take(r.Message)
	if !write {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64(LeftOut, leftOut))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{l.Handler.WithAttrs(attrs), l.counts}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.counts}
}

// take says whether a line with a message may be written, and how many were left out before.
func (c *counts) take(message string) (write bool, leftOut uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	n := c.of[message]
	if n == nil {
		if len(c.of) >= maxMessages {
			c.forget(now)
		}
		n = &count{since: now}
		c.of[message] = n
	}
	if now.Sub(n.since) >= Period {
		n.since, n.used = now, 0
	}
	if n.used >= Burst {
		n.leftOut++
		return false, 0
	}
	n.used++
	leftOut, n.leftOut = n.leftOut, 0
	return true, leftOut
}

// forget makes room: what has not come for a period goes, or else everything.
func (c *counts) forget(now time.Time) {
	for message, n := range c.of {
		if now.Sub(n.since) >= Period {
			delete(c.of, message)
		}
	}
	if len(c.of) >= maxMessages {
		clear(c.of)
	}
}
