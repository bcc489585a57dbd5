package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
)

// HealthState is that of a reporter, in the words of devlink-health(8).
type HealthState string

// The states.
const (
	Healthy HealthState = "healthy"
	InError HealthState = "error"
)

// Health holds what one reporter says.
type Health struct {
	// Reporter names the part that it is about:
	//
	//	tx, rx  the device's send and receive queues, which recover at once from an error
	//	link    the port's link
	//	device  whether it is there and works; see UplinkOptions
	//	stack   whether connections can be: not after MaxOutage, nor when the stack has ended
	//	memory  whether connections are below TCPOptions.MaxMemory and MaxTimeWait
	Reporter string
	State    HealthState
	// Error says how often the part went into error, Recover how often out of it.
	Error, Recover uint64
	Since          time.Time // of the last change; when the stack was made if there was none
	Reason         error     // of the last error; nil if there was none
	// Notice says what the part does less well than it could, though it works; nil: nothing. A
	// change of it alone is told as well.
	Notice error
	// GracePeriod is Config.Uplink.GracePeriod for the device, 0 for others.
	GracePeriod time.Duration
	// AutoRecover: what is in error is recovered by itself. Not a device within its grace period,
	// nor anything once the stack has ended.
	AutoRecover bool
	// LastDump says when a dump was kept last, see Stack.KeptDumps; the zero time: there is none.
	LastDump time.Time
}

// The reporters, in the order of Stack.Health.
const (
	reportTx = iota
	reportRx
	reportLink
	reportDevice
	reportStack
	reportMemory
	reporters
)

// health holds the reporters of a stack.
type health struct {
	clock   clock.Clock
	changed func(Health) // called one at a time; nil: by nobody

	mu      sync.Mutex // guards what follows; not held while changed is called
	all     [reporters]Health
	untold  []Health                 // that changed is to be called with, in order
	telling bool                     // somebody calls it
	resets  map[*dv.Device][2]uint64 // of the queues of those at work, by reporter
	dumps   [reporters][]dv.Dump
}

func (h *health) init(c clock.Clock, changed func(Health)) {
	h.clock, h.changed = c, changed
	for i, name := range [reporters]string{"tx", "rx", "link", "device", "stack", "memory"} {
		h.all[i] = Health{Reporter: name, State: Healthy, Since: c.Now()}
	}
}

// report notes that a part is in error, or not if err is nil.
func (h *health) report(i int, err error) {
	state := Healthy
	if err != nil {
		state = InError
	}
	h.change(i, func(r *Health) bool {
		if r.State == state {
			return false
		}
		r.State = state
		if err == nil {
			r.Recover++
			return true
		}
		r.Error++
		r.Reason = err
		return true
	})
}

// notice notes what a part does less well than it could; nil: nothing any more.
func (h *health) notice(i int, what error) {
	h.change(i, func(r *Health) bool {
		if errors.Is(what, r.Notice) {
			return false
		}
		r.Notice = what
		return true
	})
}

// change changes a reporter, and has it told if change returns true: by this goroutine, or by the
// one that tells others now.
func (h *health) change(i int, change func(*Health) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.all[i]
	if !change(r) {
		return
	}
	r.Since = h.clock.Now()
	if h.changed == nil {
		return
	}
	if h.untold = append(h.untold, *r); h.telling {
		return
	}
	h.telling = true
	for len(h.untold) > 0 {
		next := h.untold[0]
		h.untold = h.untold[1:]
		h.mu.Unlock()
		h.changed(next)
		h.mu.Lock()
	}
	h.telling, h.untold = false, nil
}

// sample counts resets of the queues of the devices at work.
func (h *health) sample(all []*dv.Device) {
	h.mu.Lock()
	maps.DeleteFunc(h.resets, func(d *dv.Device, _ [2]uint64) bool {
		return len(all) > 0 && !slices.Contains(all, d)
	})
	h.mu.Unlock()
	for _, d := range all {
		h.sampleOne(d)
	}
}

func (h *health) sampleOne(d *dv.Device) {
	st, resets := d.Stats(), [2]uint64{}
	for i := range st.Tx {
		resets[reportTx] += st.Tx[i].Resets
	}
	for i := range st.Rx {
		resets[reportRx] += st.Rx[i].Resets
	}
	h.mu.Lock()
	before := h.resets[d]
	if h.resets == nil {
		h.resets = map[*dv.Device][2]uint64{}
	}
	h.resets[d] = resets
	h.mu.Unlock()
	for i := range resets {
		more := resets[i] - before[i]
		h.change(i, func(r *Health) bool {
			if more == 0 || more > resets[i] { // another has counted meanwhile
				return false
			}
			r.Error += more
			r.Recover += more
			r.Reason = errors.New("queues were in error and were reset")
			return true
		})
	}
}

// keptDumps says how many dumps of a reporter are kept, at most: the last ones. A queue's takes
// less than 10 KiB.
const keptDumps = 32

// Errors of what is done with a reporter.
var (
	ErrNoReporter = errors.New("no such reporter")
	ErrNoDump     = errors.New("nothing to dump")
	ErrNoRecovery = errors.New("nothing to recover")
)

// keepDump keeps a dump of a queue in error, or of a device's, and returns its reporter's number.
func (h *health) keepDump(d dv.Dump) (i int) {
	i = reportRx
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
	return i
}

// dumped adds to cfg that dumps are kept, and that lost is called when a send queue is replaced,
// with the queue's lock held.
func (h *health) dumped(cfg dv.Config, lost func()) dv.Config {
	other := cfg.Dumped
	cfg.Dumped = func(d dv.Dump) {
		if h.keepDump(d) == reportTx {
			lost()
		}
		if other != nil {
			other(d)
		}
	}
	return cfg
}

// reporterOf returns the number of the reporter with a name.
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

// Health returns what the reporters say: tx, rx, link, device, stack and memory, in this order.
func (s *Stack) Health() []Health {
	s.health.sample(s.Devices())
	var copies error
	for _, d := range s.Devices() {
		if _, err := d.SendMemory(); err != nil {
			copies = err
		}
	}
	ended, held := s.life.done() != nil, s.LinkStatus().Held
	fragments := s.host.fragmentsDropped()
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	all := s.health.all
	for i := range all {
		all[i].AutoRecover = !ended
		if kept := s.health.dumps[i]; len(kept) > 0 {
			all[i].LastDump = kept[len(kept)-1].Time
		}
	}
	if copies != nil {
		all[reportTx].Notice = copies
	}
	if all[reportRx].Notice == nil {
		all[reportRx].Notice = fragments
	}
	device := &all[reportDevice]
	device.GracePeriod = s.cfg.Uplink.GracePeriod
	device.AutoRecover = s.uplink.IsKept() && !ended && !held
	return all[:]
}

// Unhealthy says why the stack should get no new clients: it has ended, it has had no link for
// longer than Config.Uplink.MaxOutage, or its device is not recovered any more
// (Config.Uplink.GracePeriod). Nil: it can serve.
func (s *Stack) Unhealthy() error {
	if err := s.life.done(); err != nil {
		return err
	}
	if s.outage.now.Load() {
		return fmt.Errorf("no link for longer than %v: %w", s.cfg.Uplink.MaxOutage, unix.ENETDOWN)
	}
	if st := s.LinkStatus(); st.Held {
		return fmt.Errorf("the device failed twice within %v and is not recovered: %w",
			s.cfg.Uplink.GracePeriod, st.Reason)
	}
	return nil
}

// RecoverReporter recovers a part that is in error: for device, link and stack that is
// [Stack.Recover]. It does not wait. The error is [ErrNoRecovery] where there is nothing to do.
func (s *Stack) RecoverReporter(reporter string) error {
	i, err := s.health.reporterOf(reporter)
	if err != nil {
		return err
	}
	s.health.mu.Lock()
	state, away := s.health.all[i].State, s.health.all[reportDevice].State == InError
	s.health.mu.Unlock()
	switch {
	case s.life.done() != nil:
		return fmt.Errorf("the stack has ended: %w; start the server again", ErrNoRecovery)
	case i == reportTx || i == reportRx:
		return fmt.Errorf("queues recover by themselves, at once: %w", ErrNoRecovery)
	case i == reportMemory:
		return fmt.Errorf("memory is free again when connections are read or closed: %w",
			ErrNoRecovery)
	case state == Healthy:
		return fmt.Errorf("reporter %s is healthy: %w", reporter, ErrNoRecovery)
	case !away:
		return fmt.Errorf("the device works, and its port has no link: %w here; look at ip link, "+
			"the cable and the switch", ErrNoRecovery)
	}
	s.Recover()
	return nil
}

// Recover looks for the device now, also if it is not recovered by itself any more: see
// Config.Uplink.GracePeriod. It does not wait, and does nothing while the device works.
func (s *Stack) Recover() { s.uplink.Recover() }

// KeptDumps returns what the rings of queues held when they went into error, the oldest first: of
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
// device all. The error is [ErrNoDump] where there are none: for the other reporters, on packet
// sockets, and while the device is away. ctx bounds the wait for the receive workers.
func (s *Stack) Dump(ctx context.Context, reporter string) ([]dv.Dump, error) {
	i, err := s.health.reporterOf(reporter)
	switch {
	case err != nil:
		return nil, err
	case i == reportLink || i == reportStack || i == reportMemory:
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
