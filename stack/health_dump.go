package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// keptDumps is how many dumps of a reporter are kept, at most: the last ones. A queue's takes less
// than 10 KiB.
const keptDumps = 32

// Errors of what is done with a reporter.
var (
	ErrNoReporter = errors.New("no such reporter")
	ErrNoDump     = errors.New("nothing to dump")
	ErrNoRecovery = errors.New("nothing to recover")
)

// keepDump keeps what the rings of a queue held when it, or its device, went into error.
func (h *health) keepDump(d dv.Dump) {
	i := reportRx
	switch {
	case errors.Is(d.Err, dv.ErrFailed):
		i = reportDevice
	case strings.HasPrefix(d.Queue, "tx"):
		i = reportTx
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.dumps[i]
	if len(kept) == keptDumps {
		kept = kept[1:]
	}
	h.dumps[i] = append(slices.Clip(kept), d)
}

// dumped has dumps of cfg's device kept, too.
func (h *health) dumped(cfg dv.Config) dv.Config {
	other := cfg.Dumped
	cfg.Dumped = func(d dv.Dump) {
		h.keepDump(d)
		if other != nil {
			other(d)
		}
	}
	return cfg
}

// reporterOf is the number of the reporter with a name.
func (h *health) reporterOf(name string) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for i := range h.all {
		if h.all[i].Reporter == name {
			return i, nil
		}
		names = append(names, h.all[i].Reporter)
	}
	return 0, fmt.Errorf("%w %q: want one of %s", ErrNoReporter, name, strings.Join(names, ", "))
}

// KeptDumps are what the rings of queues held when they went into error, the oldest first: of
// reporter tx or rx those of single queues, of reporter device those of all queues of a device that
// failed. The last 32 of each are kept.
func (s *Stack) KeptDumps(reporter string) ([]dv.Dump, error) {
	i, err := s.health.reporterOf(reporter)
	if err != nil {
		return nil, err
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return slices.Clone(s.health.dumps[i]), nil
}

// Dump copies what the rings hold now: of reporter tx or rx those of these queues, of reporter
// device all. The error is [ErrNoDump] where there are none: for the reporters link and stack, on
// packet sockets, and while the device is away. ctx bounds the wait for the receive workers.
func (s *Stack) Dump(ctx context.Context, reporter string) ([]dv.Dump, error) {
	i, err := s.health.reporterOf(reporter)
	switch {
	case err != nil:
		return nil, err
	case i == reportLink || i == reportStack:
		return nil, fmt.Errorf("reporter %s has no rings; health shows all there is: %w",
			reporter, ErrNoDump)
	}
	d := s.Device()
	if d == nil {
		return nil, fmt.Errorf("the stack is on no device with rings at present: %w", ErrNoDump)
	}
	all, err := d.Dump(ctx)
	if err != nil {
		return nil, err
	}
	if i != reportDevice {
		all = slices.DeleteFunc(all, func(d dv.Dump) bool {
			return !strings.HasPrefix(d.Queue, reporter)
		})
	}
	return all, nil
}
