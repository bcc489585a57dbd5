package main

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
)

// fakeApp serves until it is shut down, and then ends in order.
type fakeApp chan struct{}

func (a fakeApp) Shutdown(context.Context) error { close(a); return nil }

func (a fakeApp) serve() error { <-a; return nil }

func TestUntilToldToStop(t *testing.T) {
	told, tell := context.WithCancel(t.Context())
	tell()
	working := context.Background()
	removed, broken := errors.New("device removed"), errors.New("listener broken")
	failed, fail := context.WithCancelCause(t.Context())
	fail(removed)
	for _, c := range []struct {
		name   string
		ctx    context.Context
		device lifetime
		serve  func() error // a second serving function; nil: none
		want   error
	}{
		{"told to stop", told, working, nil, nil},
		{"device failed", t.Context(), failedDevice{failed}, nil, removed},
		{"device failed, and the listener for it", t.Context(), failedDevice{failed},
			func() error { return broken }, removed},
		{"listener broken", t.Context(), working, func() error { return broken }, broken},
	} {
		app := make(fakeApp)
		serve := []func() error{app.serve}
		if c.serve != nil {
			serve = append(serve, c.serve)
		}
		if err := serveUntilDone(c.ctx, app, ending{device: c.device, limit: time.Minute},
			serve...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// failedDevice is a device that ends like a context, with the context's cause.
type failedDevice struct{ context.Context }

func (d failedDevice) Err() error { return context.Cause(d.Context) }

// TestToldToStopAtOnce: a signal that comes before a socket is served is no failure.
func TestToldToStopAtOnce(t *testing.T) {
	app, err := dnsd.New(dnsd.Config{Forward: []string{"192.0.2.1:53"}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	told, tell := context.WithCancel(t.Context())
	tell()
	down := make(chan struct{})
	err = serveUntilDone(told, afterShutdown{app, down}, ending{device: context.Background(),
		limit: time.Minute}, func() error {
		<-down
		return notShutDown(app.ServeTCP(ln))
	})
	if err != nil {
		t.Errorf("%v, want nil", err)
	}
}

// afterShutdown is a server that says when it is shut down.
type afterShutdown struct {
	server
	down chan struct{}
}

func (a afterShutdown) Shutdown(ctx context.Context) error {
	defer close(a.down)
	return a.server.Shutdown(ctx)
}
