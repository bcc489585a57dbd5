//go:build !linux

package main

import (
	"errors"
	"time"
)

// ended fails outside Linux.
func ended(int, time.Duration) error { return errors.ErrUnsupported }
