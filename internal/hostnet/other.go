//go:build !linux

package hostnet

import (
	"errors"
	"net/netip"
)

// Kernel needs linux.
type Kernel struct{}

// Open needs linux.
func Open() (*Kernel, error) { return nil, errors.ErrUnsupported }

// Close needs linux.
func (*Kernel) Close() {}

// Read needs linux.
func (*Kernel) Read(string) (Network, error) { return Network{}, errors.ErrUnsupported }

// Conns needs linux.
func (*Kernel) Conns(func(local, remote netip.AddrPort) bool) ([]Conn, error) {
	return nil, errors.ErrUnsupported
}

// LinkAt needs linux.
func (*Kernel) LinkAt(int) (Link, error) { return Link{}, errors.ErrUnsupported }

// LastIndex needs linux.
func (*Kernel) LastIndex(string) (int, error) { return 0, errors.ErrUnsupported }

// Below needs linux.
func (*Kernel) Below(string) (Below, error) { return Below{}, errors.ErrUnsupported }

// WayTo needs linux.
func (*Kernel) WayTo(netip.Addr) (Way, error) { return Way{}, errors.ErrUnsupported }

// Watcher needs linux.
type Watcher struct{}

// Watch needs linux.
func Watch() (*Watcher, error) { return nil, errors.ErrUnsupported }

// Changed needs linux.
func (*Watcher) Changed() <-chan struct{} { return nil }

// Close needs linux.
func (*Watcher) Close() error { return errors.ErrUnsupported }
