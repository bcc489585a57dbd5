//go:build !linux

package uverbs

import "errors"

// packetPipe fails outside Linux.
func packetPipe() (r, w int, err error) { return -1, -1, errors.ErrUnsupported }
