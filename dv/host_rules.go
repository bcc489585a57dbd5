package dv

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Rule is a HostRule at work. It ends with Close, with its device, or with the process, whatever
// ends that: the kernel removes what was made through an open node.
type Rule struct {
	d    *Device
	rule HostRule

	// guarded by d.hashed.mu
	flow   flow // nil: closed
	counts *uverbs.Counters
	past   Hits // of rules that this one replaced
}

// flow is a rule of the kernel: *uverbs.Flow or *uverbs.MissFlow.
type flow interface{ Close() error }

// Hits is how many frames a rule has matched, and the sum of their lengths.
type Hits struct{ Packets, Bytes uint64 }

// AddRule steers the frames of r to the receive queues, or with PriorityLinux to Linux, from now
// on. A rule of another process for the same frames makes it fail with unix.EADDRINUSE, which
// includes other devices of this process; a second rule of this device is added to the first.
// ErrNotSupported: the device or the kernel has no rules that lead to Linux. It may be called while
// frames come in, and takes some 100 us of the firmware's time.
func (d *Device) AddRule(r HostRule) (*Rule, error) {
	if !d.config.HostMode {
		return nil, errorf(ErrConfig, "%s takes its frames by MAC: set HostMode for rules by "+
			"address and port", d.Name())
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return nil, err
	}
	rule := &Rule{d: d, rule: r}
	var err error
	if r.Priority == PriorityLinux {
		rule.flow, err = d.leaveToLinux(r.headerMatch(d.unicast()))
	} else {
		rule.flow, rule.counts, err = d.countedRule(h, r)
	}
	if err != nil {
		return nil, d.inUse(r, err)
	}
	h.byPort = append(h.byPort, rule)
	return rule, nil
}

// Close ends the rule: its frames go to Linux. Closing again does nothing.
func (r *Rule) Close() error {
	h := &r.d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byPort = slices.DeleteFunc(h.byPort, func(o *Rule) bool { return o == r })
	err := r.end()
	if errors.Is(r.d.Err(), ErrFailed) {
		return nil // it went with the device
	}
	return err
}

// end is Close, with the lock held.
func (r *Rule) end() error {
	if r.flow == nil {
		return nil
	}
	r.past = r.hits()
	err := r.flow.Close()
	r.flow = nil
	if r.counts != nil {
		err = errors.Join(err, r.counts.Close())
		r.counts = nil
	}
	if err != nil {
		return fmt.Errorf("remove the rule for %v: %w", r.rule, err)
	}
	return nil
}

// hits is what the rule has matched so far. Called with the lock held.
func (r *Rule) hits() Hits {
	h := r.past
	if r.counts != nil {
		if packets, bytes, err := r.counts.Read(); err == nil {
			h.Packets += packets
			h.Bytes += bytes
		}
	}
	return h
}

// attr is the kernel's rule for r. The tag is as in unicastRule.
func (d *Device) attr(r HostRule, p Priority) uverbs.FlowAttr {
	ports := uverbs.PortMatch{Dst: r.Port, DstMask: r.mask()}
	specs := []uverbs.FlowSpec{d.unicast().Spec(), addressSpec(r), ports.TCP()}
	if r.Proto == protoUDP {
		specs[2] = ports.UDP()
	}
	return uverbs.FlowAttr{Priority: uint16(p), Port: d.port,
		Specs: append(specs, uverbs.Tag(d.flowTag))}
}

// addressSpec matches the destination address.
func addressSpec(r HostRule) uverbs.FlowSpec {
	if r.Addr.Is4() {
		return uverbs.IPv4Match{Dst: r.Addr.As4(),
			DstMask: [4]byte{0xff, 0xff, 0xff, 0xff}}.Spec()
	}
	m := uverbs.IPv6Match{Dst: r.Addr.As16()}
	for i := range m.DstMask {
		m.DstMask[i] = 0xff
	}
	return m.Spec()
}

// countedRule makes a rule to a target of h, with counters if the device and the kernel have them.
func (d *Device) countedRule(h *hashed, r HostRule) (*uverbs.Flow, *uverbs.Counters, error) {
	attr, target := d.attr(r, r.Priority), h.targets[r.class()]
	counts, err := d.context.CreateCounters()
	if err != nil {
		rule, err := target.CreateFlow(attr)
		return rule, nil, err
	}
	counted := attr
	counted.Specs = append(slices.Clip(attr.Specs), uverbs.Count(counts))
	rule, err := target.CreateFlow(counted)
	if err == nil {
		return rule, counts, nil
	}
	if !errors.Is(err, unix.EEXIST) {
		rule, err = target.CreateFlow(attr)
	}
	return rule, nil, errors.Join(err, counts.Close())
}

// moveTo leads the rule's frames to the targets of another table, without a frame lost or doubled.
// A rule before it takes the frames meanwhile. At its own priority the new rule joins the old one,
// as they have one tag, so that no other process can have the port in between.
func (r *Rule) moveTo(h *hashed) error {
	if r.rule.Priority == PriorityLinux {
		return nil
	}
	before, err := h.targets[r.rule.class()].CreateFlow(r.d.attr(r.rule, r.rule.Priority-1))
	if err != nil {
		return err
	}
	next, counts, err := r.d.countedRule(h, r.rule)
	if err != nil {
		return errors.Join(err, before.Close())
	}
	err = r.end()
	r.flow, r.counts = next, counts
	return errors.Join(err, before.Close())
}

// moveRules moves all rules to the targets of next, or none.
func (h *hashed) moveRules(next *hashed) error {
	for i, r := range h.byPort {
		if err := r.moveTo(next); err != nil {
			errs := []error{fmt.Errorf("rule for %v: %w", r.rule, err)}
			for _, moved := range h.byPort[:i+1] {
				errs = append(errs, moved.moveTo(h))
			}
			return errors.Join(errs...)
		}
	}
	next.byPort, h.byPort = h.byPort, nil
	return nil
}

// closePorts ends all rules.
func (h *hashed) closePorts() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, r := range slices.Backward(h.byPort) {
		errs = append(errs, r.end())
	}
	h.byPort = nil
	return errors.Join(errs...)
}
