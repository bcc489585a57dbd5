package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// loadSize gives the size of each response of the load, in bytes.
const loadSize = 16 << 10

// load runs one kernel HTTP client against the netdev's server during the checks.
type load struct {
	probe *probe.Client
	url   string

	done   sync.WaitGroup
	cancel context.CancelFunc

	mu       sync.Mutex
	requests int           // answered correctly
	slowest  time.Duration // of those
	err      error         // the first
}

func newLoad(at *lab.Net, url string) *load {
	return &load{probe: probe.New(at), url: url, cancel: func() {}}
}

func (l *load) start(ctx context.Context) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.done.Go(func() {
		err := l.probe.DownloadRepeatedly(ctx, l.url, loadSize, l.answered)
		if ctx.Err() == nil {
			l.mu.Lock()
			l.err = err
			l.mu.Unlock()
		}
	})
}

func (l *load) answered(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.slowest = max(l.slowest, took)
}

// stop may be called again, and without start.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// verdict returns the result so far.
func (l *load) verdict() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return "", fmt.Errorf("after %d requests: %w", l.requests, l.err)
	}
	if l.requests == 0 {
		return "", fmt.Errorf("no request was answered")
	}
	return fmt.Sprintf("%d requests of %d KiB meanwhile, slowest %.1f ms", l.requests, loadSize>>10,
		float64(l.slowest.Microseconds())/1000), nil
}
