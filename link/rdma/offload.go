package rdma

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/filter"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// What Options.Filter drops in numbers is dropped ahead of the rings: by rules of the devices, or
// by the filters of packet sockets. All of it is judged by Options.Filter, too, so that what finds
// no room there, or passes while rules change, is dropped nevertheless.

// offload keeps the rules ahead of an endpoint's filter. A timer is its only goroutine: it runs
// once a second while something is dropped, and at once after a change.
type offload struct {
	e      *Endpoint
	filter *filter.Filter
	timer  clock.Timer

	mu      sync.Mutex // taken after hostRules' turn
	closed  bool
	devices map[*dv.Device]*offloadedTo
	ports   map[packet.SourceDropper]string // the error that a line of the log was about
}

// offloadedTo holds the rules of one device.
type offloadedTo struct {
	rules   map[dv.DropRule]*offloaded
	room    int  // rules that it may have
	refused bool // one was refused, and a line of the log has said so
}

// offloaded is one rule of a device.
type offloaded struct {
	drop *dv.Drop
	of   filter.Offload
	told uint64 // packets that the filter knows of
}

const (
	// offloadEvery says how often the rules follow what is busy.
	offloadEvery = time.Second
	// maxOffloaded bounds the rules of a device, which take it some 100 us each; a table of the
	// kernel's has room for 9,362 of each of the first six masks (MLX5_FS_MAX_ENTRIES and
	// MLX5_FS_MAX_TYPES in linux drivers/infiniband/hw/mlx5/fs.h).
	maxOffloaded = 1024
	// maxMasks bounds the kinds of masks, each of which is one more look-up per frame.
	maxMasks = 8
	// maxAtOnce bounds the rules that are added at a time, while rules of host mode wait.
	maxAtOnce = 256
)

func newOffload(e *Endpoint) *offload {
	o := &offload{e: e, filter: e.opts.Filter, devices: map[*dv.Device]*offloadedTo{},
		ports: map[packet.SourceDropper]string{}}
	if o.filter == nil {
		return o
	}
	o.timer = e.opts.Clock.NewStopped(o.followBusy)
	o.filter.OnDrops(o.wakeSoon)
	return o
}

// wakeSoon makes the rules follow soon.
func (o *offload) wakeSoon() {
	if o.filter != nil {
		o.timer.Reset(0)
	}
}

// followBusy makes the rules those of what is busy now.
func (o *offload) followBusy() {
	h := o.e.rules
	h.lock()
	defer h.unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.countDropped()
	wanted, more := o.filter.Busiest()
	queues := o.e.queues.Load().backend
	all := devicesOf(queues)
	for dev := range o.devices {
		if !slices.Contains(all, dev) {
			o.leaveDevice(dev)
		}
	}
	rules, waiting := 0, 0
	for _, dev := range all {
		if dev.Err() == nil {
			waiting = max(waiting, o.giveDevice(dev, o.rulesOf(dev, wanted)))
			rules += len(o.devices[dev].rules)
		}
	}
	for _, p := range droppersOf(queues) {
		n, out := o.givePort(p, wanted)
		rules += n
		if len(all) == 0 {
			waiting = out
		}
	}
	if len(all) == 0 && len(droppersOf(queues)) == 0 {
		waiting = len(wanted)
	}
	o.filter.SetOffloaded(rules, waiting)
	if more {
		o.timer.Reset(offloadEvery)
	}
}

// rulesOf returns the rules of a device for what is busy, the busiest first. In host mode each of
// our ports has its own. The turn of hostRules is held.
func (o *offload) rulesOf(dev *dv.Device, wanted []filter.Offload) (all []wantedRule) {
	for _, k := range wanted {
		r := dv.DropRule{From: k.From, Proto: k.Proto, Port: k.Port, Mask: k.Mask}
		if !dev.HostMode() {
			all = append(all, wantedRule{r, k})
			continue
		}
		for h := range o.e.rules.inOrder() {
			if h.Priority == dv.PriorityListener && h.Ports == 1 && h.Proto == k.Proto &&
				h.Port&k.Mask == k.Port && h.Addr.Is4() == k.From.Addr().Is4() && h.at[dev] != nil {
				r.To, r.Port, r.Mask = h.Addr, h.Port, 1<<16-1
				all = append(all, wantedRule{r, k})
			}
		}
	}
	return all
}

// wantedRule is a rule and what of the filter's it is for.
type wantedRule struct {
	dv.DropRule
	of filter.Offload
}

// mask identifies the mask of a rule.
type mask struct {
	bits  int
	is4   bool
	proto uint8
	port  uint16
}

// giveDevice makes the rules of a device those that are wanted, and returns how many found no room.
// mu is held.
func (o *offload) giveDevice(dev *dv.Device, wanted []wantedRule) (waiting int) {
	at := o.devices[dev]
	if at == nil {
		at = &offloadedTo{rules: map[dv.DropRule]*offloaded{}, room: maxOffloaded}
		o.devices[dev] = at
	}
	keep, masks := map[dv.DropRule]filter.Offload{}, map[mask]bool{}
	for _, w := range wanted {
		m := mask{w.From.Bits(), w.From.Addr().Is4(), w.Proto, w.Mask}
		if _, twice := keep[w.DropRule]; twice || len(keep) == at.room ||
			len(masks) == maxMasks && !masks[m] {
			continue
		}
		masks[m] = true
		keep[w.DropRule] = w.of
	}
	for r, have := range at.rules {
		if _, stays := keep[r]; !stays {
			o.endRule(at, r, have)
		}
	}
	added := 0
	for _, w := range wanted {
		if _, kept := keep[w.DropRule]; !kept || at.rules[w.DropRule] != nil {
			continue
		}
		if added++; added > maxAtOnce || len(at.rules) >= at.room {
			continue
		}
		drop, err := dev.AddDrop(w.DropRule)
		if err != nil {
			o.refuseMore(dev, at, err)
			continue
		}
		at.rules[w.DropRule] = &offloaded{drop: drop, of: w.of}
	}
	return len(wanted) - len(at.rules)
}

// refuseMore notes that a device does not take more rules than it has. mu is held.
func (o *offload) refuseMore(dev *dv.Device, at *offloadedTo, err error) {
	if errors.Is(err, dv.ErrClosed) || dev.Err() != nil {
		return
	}
	at.room = len(at.rules)
	place := dev.Name()
	if at.refused {
		place = ""
	}
	at.refused = true
	o.filter.CountRefused(place, err)
}

// countDropped tells the filter what devices and ports have dropped. mu is held.
func (o *offload) countDropped() {
	for _, at := range o.devices {
		for _, r := range at.rules {
			r.tellFilter(o.filter)
		}
	}
	for p := range o.ports {
		o.countAtPort(p)
	}
}

// countAtPort tells the filter what a port has dropped, if that is counted there. mu is held.
func (o *offload) countAtPort(p packet.SourceDropper) {
	if c, counts := p.(packet.SourceCounter); counts {
		c.CountDropped(func(d packet.SourceDrop, frames uint64) {
			o.filter.CountOffloaded(filter.Offload(d), frames)
		})
	}
}

// tellFilter tells the filter what a rule has dropped.
func (r *offloaded) tellFilter(f *filter.Filter) {
	if n, ok := r.drop.Counted(); ok && n.Packets > r.told {
		f.CountOffloaded(r.of, n.Packets-r.told)
		r.told = n.Packets
	}
}

// endRule ends a rule. mu is held.
func (o *offload) endRule(at *offloadedTo, r dv.DropRule, have *offloaded) {
	have.tellFilter(o.filter)
	_ = have.drop.Close() // what cannot be removed goes with its device
	delete(at.rules, r)
}

// leaveDevice ends the rules of a device. mu is held.
func (o *offload) leaveDevice(dev *dv.Device) {
	at := o.devices[dev]
	for r, have := range at.rules {
		o.endRule(at, r, have)
	}
	delete(o.devices, dev)
}

// endTo ends what drops frames for a rule of host mode that is about to go: they are Linux's then.
// The turn of hostRules is held.
func (o *offload) endTo(h dv.HostRule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range o.devices {
		for r, have := range at.rules {
			if r.To == h.Addr && r.Proto == h.Proto && r.Port == h.Port {
				o.endRule(at, r, have)
			}
		}
	}
}

// leaveUnused ends the rules of devices that are not in use any more.
func (o *offload) leaveUnused(queues backend) {
	o.mu.Lock()
	for dev := range o.devices {
		if !slices.Contains(devicesOf(queues), dev) {
			o.leaveDevice(dev)
		}
	}
	clear(o.ports)
	o.mu.Unlock()
	o.wakeSoon()
}

// close ends all rules.
func (o *offload) close() {
	if o.filter == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.timer.Stop()
	for dev := range o.devices {
		o.leaveDevice(dev)
	}
	for p := range o.ports {
		_, _ = p.DropSources(nil) // a closed one has no sockets
		o.countAtPort(p)
	}
	o.filter.SetOffloaded(0, 0)
}

// givePort makes the kernel drop ahead of sockets as much as there is room for. mu is held.
func (o *offload) givePort(p packet.SourceDropper, wanted []filter.Offload) (n, waiting int) {
	var all []packet.SourceDrop
	for _, k := range wanted {
		all = append(all, packet.SourceDrop(k))
	}
	n, err := p.DropSources(all)
	told := o.ports[p]
	if err != nil {
		place := "the kernel, for sockets"
		if told == err.Error() {
			place = ""
		}
		told = err.Error()
		o.filter.CountRefused(place, err)
	}
	o.ports[p] = told
	return n, len(wanted) - n
}

// droppersOf returns the sockets that queues receive by.
func droppersOf(queues backend) (all []packet.SourceDropper) {
	add := func(s sockets) {
		if p, ok := s.Interface.(packet.SourceDropper); ok {
			all = append(all, p)
		}
	}
	switch q := queues.(type) {
	case sockets:
		add(q)
	case withSockets:
		if of, ok := q.backend.(inMemory); ok {
			add(of.sockets) // which tells what is beside it
		} else {
			add(q.sockets)
		}
	case ringsAndSockets:
		add(q.sockets)
	case *members:
		add(q.sockets)
	}
	return all
}
