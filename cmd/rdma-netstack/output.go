package main

import (
	"fmt"
	"io"
	"sync"
)

// output is the standard output. It keeps the first error, which becomes the program's: results
// that cannot be written are a failure. It may be used from any goroutine.
type output struct {
	to io.Writer

	mu     sync.Mutex
	failed error // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err == nil {
		return n, nil
	}
	err = fmt.Errorf("write to standard output: %w", err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = err
	}
	return n, err
}

func (o *output) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}
