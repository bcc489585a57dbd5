package main

import (
	"context"
	"errors"
)

// server is an app that serves until it is shut down.
type server interface {
	Shutdown(ctx context.Context) error
}

// lifetime ends when the device or context under a server ends; a context has the same methods, and
// so has a device.
type lifetime interface {
	Done() <-chan struct{}
	Err() error // why, when Done is closed
}

// serveUntilDone runs the serving functions and shuts the app down when ctx ends, the device fails
// or one of them returns. A failure of the device is returned alone, in place of any other error.
func serveUntilDone(ctx context.Context, app server, device lifetime, serve ...func() error) error {
	results := make(chan error, len(serve))
	for _, fn := range serve {
		go func() { results <- fn() }()
	}
	var first error
	running := len(serve)
	select {
	case <-ctx.Done():
	case <-device.Done():
	case first = <-results:
		running--
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	err := app.Shutdown(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // the rest was aborted, as documented
	}
	for ; running > 0; running-- {
		err = errors.Join(err, <-results)
	}
	if failed := device.Err(); failed != nil {
		return failed
	}
	return errors.Join(first, err)
}
