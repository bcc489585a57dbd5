package rig

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Log collects lines: the guest's console, or the model's log. Its methods may be called
// concurrently.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// tail is the last n lines.
func (l *Log) tail(n int) string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// line holds the host's end of a serial line; it records when data last arrived, and its end.
type line struct {
	net.Conn
	heard atomic.Int64 // Unix nanoseconds

	mu   sync.Mutex // guards the fields below
	got  int        // bytes
	last []byte     // up to lineTail bytes
}

// lineTail bounds how much of what came by a serial line goes into an error, in bytes.
const lineTail = 300

func newLine(c net.Conn) *line {
	l := &line{Conn: c}
	l.heard.Store(time.Now().UnixNano())
	return l
}

func (l *line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.heard.Store(time.Now().UnixNano())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got += n
	l.last = append(l.last, p[:n]...)
	l.last = l.last[max(0, len(l.last)-lineTail):]
	return n, err
}

// received tells how much came by the line, and the end of that.
func (l *line) received() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d bytes: %q", l.got, l.last)
}

// silence is the time since data last arrived.
func (l *line) silence() time.Duration { return time.Since(time.Unix(0, l.heard.Load())) }
