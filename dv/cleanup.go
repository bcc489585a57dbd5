package dv

import (
	"errors"
	"fmt"
)

// cleanup remembers how to undo what was done, in order. It is used by one
// goroutine at a time.
type cleanup struct {
	steps []cleanupStep
}

// cleanupStep is one thing done, and what takes it back.
type cleanupStep struct {
	name string
	undo func() error
}

// run runs create and remembers undo if it worked. The error names the step.
func (l *cleanup) run(name string, create, undo func() error) error {
	if err := create(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.steps = append(l.steps, cleanupStep{name, undo})
	return nil
}

// unwind undoes everything, last step first, and forgets it. A step that
// fails does not stop the others; the errors come back joined.
func (l *cleanup) unwind() error {
	var errs []error
	for i := len(l.steps) - 1; i >= 0; i-- {
		if err := l.steps[i].undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", l.steps[i].name, err))
		}
	}
	l.steps = nil
	return errors.Join(errs...)
}
