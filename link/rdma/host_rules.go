package rdma

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// In host mode (dv.Config.HostMode) the NIC leads to an endpoint what its rules say. They are the
// endpoint's: whatever device is under it has them, and packet sockets, which need none, do not.

// hostRules holds the rules of an endpoint.
type hostRules struct {
	turn chan struct{}             // of capacity 1: full while what follows is read or changed
	list list.List                 // of *hostRule, in order of their addition
	of   map[dv.HostRule]*hostRule // of these
}

// hostRule describes one rule.
type hostRule struct {
	dv.HostRule
	place *list.Element           // in hostRules.list
	at    map[*dv.Device]*dv.Rule // of the devices that have it
	err   error                   // why one has it not; nil also while there is none
}

// inOrder returns the rules in order of their addition.
func (h *hostRules) inOrder() iter.Seq[*hostRule] {
	return func(yield func(*hostRule) bool) {
		for e := h.list.Front(); e != nil && yield(e.Value.(*hostRule)); e = e.Next() {
		}
	}
}

func (h *hostRules) lock()   { h.turn <- struct{}{} }
func (h *hostRules) unlock() { <-h.turn }

// normal returns r with the defaults filled in, so that equal rules are equal values.
func normal(r dv.HostRule) dv.HostRule {
	r.Ports = max(r.Ports, 1)
	return r
}

// AddRule has the NIC lead the frames of r here, from now on and after each Switch to a device,
// until RemoveRule or Close. A rule that is there already stays, and counts once. The error is
// unix.EADDRINUSE if another process has these frames; then the endpoint has no such rule. ctx
// bounds the wait for other calls. On packet sockets, or on nothing, the rule waits for a device.
func (e *Endpoint) AddRule(ctx context.Context, r dv.HostRule) error {
	r = normal(r)
	if err := r.Validate(); err != nil {
		return err
	}
	h := e.rules
	select {
	case h.turn <- struct{}{}:
		defer h.unlock()
	case <-ctx.Done():
		return fmt.Errorf("add the rule for %v: %w", r, context.Cause(ctx))
	}
	if e.closed.Load() {
		return dv.ErrClosed
	}
	have := h.of[r]
	if have != nil && len(have.at) > 0 && have.err == nil {
		return nil
	}
	added := have
	if have == nil {
		added = &hostRule{HostRule: r}
	}
	if err := added.install(e.queues.Load().backend); err != nil {
		if have == nil {
			_ = added.remove()
		}
		return err
	}
	if have == nil {
		added.place, h.of[r] = h.list.PushBack(added), added
	}
	return nil
}

// install gives the rule to the devices of a backend that have it not. One of several that has
// failed, and is about to leave, is none of them.
func (r *hostRule) install(queues backend) error {
	r.err = nil
	all := devicesOf(queues)
	for _, dev := range all {
		if r.at[dev] != nil || len(all) > 1 && dev.Err() != nil {
			continue
		}
		rule, err := dev.AddRule(r.HostRule)
		if err != nil {
			r.err = errors.Join(r.err, err)
			continue
		}
		if r.at == nil {
			r.at = map[*dv.Device]*dv.Rule{}
		}
		r.at[dev] = rule
	}
	return r.err
}

// remove takes the rule from all devices.
func (r *hostRule) remove() error {
	var errs []error
	for _, rule := range r.at {
		errs = append(errs, rule.Close())
	}
	clear(r.at)
	return errors.Join(errs...)
}

// leave takes the rule off the list of each device that is not among stays, and returns these.
func (r *hostRule) leave(stays []*dv.Device) (left []*dv.Rule) {
	for dev, rule := range r.at {
		if !slices.Contains(stays, dev) {
			left = append(left, rule)
			delete(r.at, dev)
		}
	}
	return left
}

// RemoveRule undoes AddRule: the frames go to Linux. Removing what is not there does nothing.
func (e *Endpoint) RemoveRule(r dv.HostRule) error {
	h := e.rules
	h.lock()
	defer h.unlock()
	have := h.of[normal(r)]
	if have == nil {
		return nil
	}
	h.list.Remove(have.place)
	delete(h.of, have.HostRule)
	e.offload.endTo(have.HostRule)
	return have.remove()
}

// AddBlock adds the rules for the block of dv.BlockPorts ports from first on, of TCP and UDP on
// each address: all of them, or none. unix.EADDRINUSE: another process has one, so try the next of
// Blocks. Addresses may be added later by another call.
func (e *Endpoint) AddBlock(ctx context.Context, first uint16, addrs ...netip.Addr) error {
	var added []dv.HostRule
	for _, r := range blockRules(first, addrs) {
		if e.hasRule(r) {
			continue
		}
		if err := e.AddRule(ctx, r); err != nil {
			for _, a := range added {
				err = errors.Join(err, e.RemoveRule(a))
			}
			return err
		}
		added = append(added, r)
	}
	return nil
}

// RemoveBlock undoes AddBlock for these addresses.
func (e *Endpoint) RemoveBlock(first uint16, addrs ...netip.Addr) error {
	var errs []error
	for _, r := range blockRules(first, addrs) {
		errs = append(errs, e.RemoveRule(r))
	}
	return errors.Join(errs...)
}

func (e *Endpoint) hasRule(r dv.HostRule) bool {
	e.rules.lock()
	defer e.rules.unlock()
	have := e.rules.of[normal(r)]
	return have != nil && have.err == nil
}

func blockRules(first uint16, addrs []netip.Addr) (rules []dv.HostRule) {
	for _, a := range addrs {
		for _, proto := range []tcpip.TransportProtocolNumber{header.TCPProtocolNumber,
			header.UDPProtocolNumber} {
			rules = append(rules, dv.HostRule{Priority: dv.PriorityBlock, Proto: uint8(proto),
				Addr: a, Port: first, Ports: dv.BlockPorts})
		}
	}
	return rules
}

// RuleInfo describes a rule of the device, or one that waits for a device.
type RuleInfo struct {
	dv.RuleInfo
	// Waiting says why the device does not have the rule; "": it has.
	Waiting string `json:"waiting,omitempty"`
	// Program gives the number of the XDP program that has the rule; 0: the device has it.
	Program uint32 `json:"program,omitempty"`
}

// Rules lists the rules of each device at work, in their order, then those that wait; or those of
// an interface's XDP program.
func (e *Endpoint) Rules() (list []RuleInfo) {
	h := e.rules
	h.lock()
	defer h.unlock()
	queues := e.queues.Load().backend
	for _, dev := range devicesOf(queues) {
		for _, r := range dev.Rules() {
			list = append(list, RuleInfo{RuleInfo: r})
		}
	}
	if s, ok := partOf(queues, 0).(inMemory); ok {
		list = append(list, rulesOfProgram(s.Interface)...)
	}
	for r := range h.inOrder() {
		if len(r.at) > 0 && r.err == nil {
			continue
		}
		why := "no device"
		if r.err != nil {
			why = r.err.Error()
		}
		list = append(list, RuleInfo{RuleInfo: dv.RuleInfo{Priority: uint16(r.Priority),
			To: "queues", Match: r.HostRule.String()}, Waiting: why})
	}
	return list
}

// rulesOfProgram lists the rules of an interface's XDP program, if it has one.
func rulesOfProgram(port packet.Interface) (list []RuleInfo) {
	by, ok := port.(packet.Steered)
	if !ok {
		return nil
	}
	for _, r := range by.Rules() {
		list = append(list, RuleInfo{dv.RuleInfo{Match: r.Match, To: r.To}, r.Waiting, r.Program})
	}
	return list
}

// switchTo gives the rules to the backend that use is about to take into use, and returns those of
// the one before. A rule that is refused waits, with the reason: frames of the others must come.
// No rule is changed while use runs.
func (h *hostRules) switchTo(next backend, use func()) (old []*dv.Rule) {
	h.lock()
	defer h.unlock()
	for r := range h.inOrder() {
		old = append(old, r.leave(devicesOf(next))...)
		_ = r.install(next) // kept in r.err
	}
	use()
	return old
}

// follow removes the rules of the backend before, and adds those that were in the way of next.
func (h *hostRules) follow(next backend, old []*dv.Rule) {
	for _, r := range old {
		_ = r.Close() // what cannot be removed goes with its device
	}
	if len(old) == 0 {
		return
	}
	h.lock()
	defer h.unlock()
	for r := range h.inOrder() {
		if r.err != nil {
			_ = r.install(next) // kept in r.err
		}
	}
}

// close removes all rules. What the device cannot remove goes with it.
func (h *hostRules) close() {
	h.lock()
	defer h.unlock()
	for e := h.list.Back(); e != nil; e = e.Prev() {
		_ = e.Value.(*hostRule).remove()
	}
	h.list.Init()
	clear(h.of)
}
