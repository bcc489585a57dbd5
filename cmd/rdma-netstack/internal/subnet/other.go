//go:build !linux

package subnet

import (
	"errors"
	"fmt"
)

var errNotLinux = fmt.Errorf("look for a free subnet: %w outside Linux", errors.ErrUnsupported)

// InUse fails outside Linux.
func InUse(string) ([]Use, error) { return nil, errNotLinux }

// Lock fails outside Linux.
func Lock() (unlock func() error, err error) { return nil, errNotLinux }
