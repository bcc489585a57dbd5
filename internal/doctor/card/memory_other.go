//go:build !linux

package card

import "errors"

func readMemory(uint64, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func writeMemory(uint64, []byte) error { return errors.ErrUnsupported }
