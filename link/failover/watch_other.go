//go:build !linux

package failover

import "errors"

// Watcher needs linux.
type Watcher struct{}

// Watch needs linux.
func Watch() (*Watcher, error) { return nil, errors.ErrUnsupported }

// Signals needs linux.
func (*Watcher) Signals() <-chan Signal { return nil }

// Close needs linux.
func (*Watcher) Close() error { return nil }
