//go:build !linux

package card

import "errors"

func peek(uint64, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func poke(uint64, []byte) error { return errors.ErrUnsupported }
