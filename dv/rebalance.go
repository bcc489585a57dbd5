package dv

import (
	"container/list"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// hashed holds what spreads the hashed classes over the receive queues: a table, a
// target per class, and a rule that leads to each.
type hashed struct {
	mu       sync.Mutex
	table    *uverbs.IndTable
	targets  []*uverbs.QP
	rules    []*uverbs.Flow // of the classes, in their order; none in host mode
	byPort   list.List      // of *Rule in host mode, in order of addition
	drops    list.List      // of *Drop, in order of addition
	priority uint16         // of the first class

	rest         *uverbs.QP   // the target of all other frames, see classOther
	other        *uverbs.Flow // that leads there; nil: there are no rules
	restPriority uint16       // of other

	// retired says what was used before, without rules. A frame may have been on its
	// way to it when its rule went, so it is kept until the next change.
	retired *hashed
}

// addTargets makes the table, in which entry i leads to queue at[i], and the targets.
func (h *hashed) addTargets(d *Device, at []int) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, h.closeTargets())
		}
	}()
	wqs := make([]*uverbs.WQ, len(at))
	for i, q := range at {
		wqs[i] = d.rxObjects[q].wq
	}
	if h.table, err = d.context.CreateIndirectionTable(wqs, bits.Len(uint(len(at)))-1); err != nil {
		return err
	}
	for _, c := range unicastClasses() {
		qp, err := d.pd.CreateRSSQP(uverbs.RSSAttr{Table: h.table,
			Fields: c.fields, Key: d.config.RSSKey})
		if err != nil {
			return fmt.Errorf("target for %s: %w", c.name, err)
		}
		h.targets = append(h.targets, qp)
	}
	return nil
}

// claimMAC makes the rules for our MAC, at these priorities and those behind the first. The rule
// that all our unicast matches comes first: if another device has an equal one, this one is refused
// before it has taken any frame.
func (h *hashed) claimMAC(d *Device, priority, rest uint16) error {
	c := classOther()
	c.priority = rest
	other, err := h.rest.CreateFlow(d.unicastRule(c))
	if err != nil {
		return fmt.Errorf("rule for %s: %w", c.name, err)
	}
	before := h.priority
	h.priority = priority
	if err := h.addRules(d); err != nil {
		h.priority = before
		return errors.Join(err, other.Close())
	}
	h.other, h.restPriority = other, rest
	return nil
}

// addRules leads the classes to their targets, the most particular first.
func (h *hashed) addRules(d *Device) (err error) {
	for i, c := range unicastClasses() {
		c.priority += h.priority
		rule, err := h.targets[i].CreateFlow(d.unicastRule(c))
		if err != nil {
			return errors.Join(fmt.Errorf("rule for %s: %w", c.name, err), h.closeRules())
		}
		h.rules = append(h.rules, rule)
	}
	return nil
}

// closeRules takes the rules back, the most general first: what they led here
// falls to the rules behind them.
func (h *hashed) closeRules() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.endRules()
}

// endRules is closeRules, with the lock held.
func (h *hashed) endRules() error {
	var errs []error
	for _, r := range slices.Backward(h.rules) {
		errs = append(errs, r.Close())
	}
	h.rules = nil
	if h.other != nil {
		errs = append(errs, h.other.Close())
		h.other = nil
	}
	return errors.Join(errs...)
}

func (h *hashed) closeTargets() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, qp := range slices.Backward(h.targets) {
		errs = append(errs, qp.Close())
	}
	if h.table != nil {
		errs = append(errs, h.table.Close())
	}
	h.targets, h.table = nil, nil
	if h.retired != nil {
		errs = append(errs, h.retired.closeTargets())
		h.retired = nil
	}
	return errors.Join(errs...)
}

// Rebalance gives each receive queue a share of the flows in proportion to its weight; a queue of
// weight 0 gets none. No frame is lost or doubled meanwhile, as long as frames take less time
// through the NIC than passes between two calls, but flows that change queues may be seen out of
// order. Frames that are not IP, broadcast and multicast stay with queue 0. ErrConfig: not one
// weight per queue, or all of them 0, or before Device.Settle.
//
// A device cannot change the table that its targets use, so new ones take over: the classes have
// two sets of priorities, in turn. New rules of the first set take the frames from those of the
// second at once; rules of the second wait behind those of the first until these are gone.
func (d *Device) Rebalance(weights []int) error {
	at, err := weightedTable(weights, len(d.rx), len(d.spread.Load().queueAt))
	if err != nil {
		return err
	}
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	if d.takesOver(h) {
		return errorOfKind(ErrConfig,
			"%s takes its MAC over from another process: Settle comes before "+
				"Rebalance", d.Name())
	}
	if h.retired != nil {
		if err := h.retired.closeTargets(); err != nil {
			return fmt.Errorf("rebalance %s: %w", d.Name(), err)
		}
		h.retired = nil
	}
	next := &hashed{priority: firstPriority + secondPriority - h.priority}
	if err := next.addTargets(d, at); err != nil {
		return fmt.Errorf("rebalance %s: %w", d.Name(), err)
	}
	take := func() error { return next.addRules(d) }
	if d.config.HostMode {
		take = func() error { return h.moveRules(next) }
	}
	if err := take(); err != nil {
		return errors.Join(fmt.Errorf("rebalance %s: %w", d.Name(), err), next.closeTargets())
	}
	if d.config.HostMode {
		d.moveDrops(next)
	}
	h.retired = &hashed{table: h.table, targets: h.targets, rules: h.rules}
	h.table, h.targets, h.rules, h.priority = next.table, next.targets, next.rules, next.priority
	d.spread.Store(&spread{d.spread.Load().hash, at})
	d.rebalances.Add(1)
	return h.retired.closeRules()
}

// weightedTable returns a table of entries queues in proportion to their weights, each next to
// its due as it goes (the queue furthest behind comes next).
func weightedTable(weights []int, queues, entries int) ([]int, error) {
	total := 0
	for _, w := range weights {
		if w < 0 || w > 1<<20 {
			return nil, errorOfKind(ErrConfig, "a weight of %d: 0 to %d will do", w, 1<<20)
		}
		total += w
	}
	if len(weights) != queues || total == 0 {
		return nil, errorOfKind(ErrConfig, "%d weights that add up to %d for %d receive queues",
			len(weights), total, queues)
	}
	at, credit := make([]int, entries), make([]int, queues)
	for i := range at {
		best := 0
		for q, w := range weights {
			if credit[q] += w; credit[q] > credit[best] || weights[best] == 0 {
				best = q
			}
		}
		credit[best] -= total
		at[i] = best
	}
	return at, nil
}
