package main

import (
	"errors"
	"slices"
)

// ledger is the list of what was opened, closed backwards.
type ledger struct{ undo []func() error }

func (l *ledger) add(undo func() error) { l.undo = append(l.undo, undo) }

// close may be called again; then it has nothing left to do.
func (l *ledger) close() error {
	var errs []error
	for _, undo := range slices.Backward(l.undo) {
		errs = append(errs, undo())
	}
	l.undo = nil
	return errors.Join(errs...)
}
