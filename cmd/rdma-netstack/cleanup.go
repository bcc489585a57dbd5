package main

import (
	"errors"
	"slices"
)

// cleanup is the list of what was opened, closed in reverse order.
type cleanup struct{ actions []func() error }

func (l *cleanup) add(undo func() error) { l.actions = append(l.actions, undo) }

// close may be called again; then it does nothing.
func (l *cleanup) close() error {
	var errs []error
	for _, undo := range slices.Backward(l.actions) {
		errs = append(errs, undo())
	}
	l.actions = nil
	return errors.Join(errs...)
}
