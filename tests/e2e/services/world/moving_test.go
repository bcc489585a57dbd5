package world

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

// TestStopped: a server that accepts and sends nothing is detected, by programs and in the process.
func TestStopped(t *testing.T) {
	const limit = 200 * time.Millisecond
	w := New(t, "")
	w.Listen(t, 80)
	_, err := w.try(t, limit, nil, "curl", "-sS", "http://"+Server4+"/")
	if !errors.Is(err, moving.ErrStopped) {
		t.Errorf("curl: %v, want %v", err, moving.ErrStopped)
	}
	ctx, stop := w.moved.Watch(t.Context(), limit)
	defer stop()
	conn, err := w.Client.DialContext(ctx, "tcp", net.JoinHostPort(Server4, "80"))
	must(t, err)
	defer conn.Close()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, moving.ErrStopped) {
		t.Errorf("%v, want %v", err, moving.ErrStopped)
	}
}
