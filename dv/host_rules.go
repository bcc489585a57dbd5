package dv

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
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
	place  *list.Element // in d.hashed.byPort; nil: closed
	flow   flow          // nil: closed
	counts *uverbs.Counters
	past   Hits // of rules that this one replaced
}

// flow is a rule of the kernel: *uverbs.Flow or *uverbs.MissFlow.
type flow interface{ Close() error }

// Hits says how many frames a rule has matched, and the sum of their lengths.
type Hits struct{ Packets, Bytes uint64 }

// AddRule steers the frames of r to the receive queues, or with PriorityLinux to Linux, from now
// on. A rule of another process for the same frames makes it fail with unix.EADDRINUSE, which
// includes other devices of this process; a second rule of this device is added to the first.
// ErrNotSupported: the device or the kernel has no rules that lead to Linux. It may be called while
// frames come in, and takes some 100 us of the firmware's time.
func (d *Device) AddRule(r HostRule) (*Rule, error) {
	if !d.config.HostMode {
		return nil, errorOfKind(ErrConfig, "%s takes its frames by MAC: set HostMode for rules by "+
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
		rule.flow, err = d.leaveToLinux(r.headerMatch(d.anyUnicast()))
	} else {
		rule.flow, rule.counts, err = d.countedRule(h, r)
	}
	if err != nil {
		return nil, d.inUse(r, err)
	}
	rule.place = h.byPort.PushBack(rule)
	return rule, nil
}

// Close ends the rule: its frames go to Linux. Closing again does nothing.
func (r *Rule) Close() error {
	h := &r.d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.place != nil {
		h.byPort.Remove(r.place)
		r.place = nil
	}
	err := r.closeLocked()
	if errors.Is(r.d.Err(), ErrFailed) {
		return nil // it went with the device
	}
	return err
}

// closeLocked does what Close does, with the lock held.
func (r *Rule) closeLocked() error {
	if r.flow == nil {
		return nil
	}
	r.past = r.countHits()
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

// countHits returns what the rule has matched so far. Called with the lock held.
func (r *Rule) countHits() Hits {
	h := r.past
	if r.counts != nil {
		if packets, bytes, err := r.counts.Read(); err == nil {
			h.Packets += packets
			h.Bytes += bytes
		}
	}
	return h
}

// flowAttrOf returns the kernel's rule for r: for any unicast MAC, as the netdev's may change, and
// what comes to another one with this address has been flooded by a switch. The tag is as in
// unicastRule.
func (d *Device) flowAttrOf(r HostRule, p Priority) uverbs.FlowAttr {
	ports := uverbs.PortMatch{Dst: r.Port, DstMask: r.portMask()}
	specs := []uverbs.FlowSpec{d.anyUnicast().Spec(), addressSpec(r), ports.TCP()}
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
	attr, target := d.flowAttrOf(r, r.Priority), h.targets[r.targetClass()]
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
	before, err := h.targets[r.rule.targetClass()].CreateFlow(r.d.flowAttrOf(r.rule,
		r.rule.Priority-1))
	if err != nil {
		return err
	}
	next, counts, err := r.d.countedRule(h, r.rule)
	if err != nil {
		return errors.Join(err, before.Close())
	}
	err = r.closeLocked()
	r.flow, r.counts = next, counts
	return errors.Join(err, before.Close())
}

// moveRules moves all rules to the targets of next, or none.
func (h *hashed) moveRules(next *hashed) error {
	for r := range h.portRules() {
		if err := r.moveTo(next); err != nil {
			errs := []error{fmt.Errorf("rule for %v: %w", r.rule, err)}
			for moved := range h.portRules() {
				errs = append(errs, moved.moveTo(h))
				if moved == r {
					break
				}
			}
			return errors.Join(errs...)
		}
	}
	return nil
}

// portRules returns the rules of host mode in order of their addition.
func (h *hashed) portRules() iter.Seq[*Rule] {
	return func(yield func(*Rule) bool) {
		for e := h.byPort.Front(); e != nil && yield(e.Value.(*Rule)); e = e.Next() {
		}
	}
}

// closePorts ends all rules.
func (h *hashed) closePorts() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for e := h.byPort.Back(); e != nil; e = h.byPort.Back() {
		r := h.byPort.Remove(e).(*Rule)
		r.place = nil
		errs = append(errs, r.closeLocked())
	}
	return errors.Join(errs...)
}

// Priority says which of several rules that match a frame takes it: the one of the lowest.
// Listeners and blocks have priorities of their own because a device has room for six kinds of
// masks in each (MLX5_FS_MAX_TYPES in linux drivers/infiniband/hw/mlx5/fs.c).
type Priority uint8

// The priorities of host mode.
const (
	// PriorityLinux leaves frames to Linux that a rule behind it would take.
	PriorityLinux Priority = iota
	// PriorityHandOver takes frames from a listener's rule that is about to go.
	PriorityHandOver
	PriorityListener
	PriorityBlock
	hostPriorities
)

var priorityNames = [hostPriorities]string{"linux", "hand-over", "listener", "block"}

// String implements fmt.Stringer.
func (p Priority) String() string {
	if p < hostPriorities {
		return priorityNames[p]
	}
	return fmt.Sprintf("Priority(%d)", uint8(p))
}

// BlockPorts is the size of a block of ports for outgoing connections, and FirstBlock the first
// port of the first one: above the ports that Linux gives out by default (ip_local_port_range,
// 32768 to 60999). The last block ends at 65535.
const (
	BlockPorts = 256
	FirstBlock = 0xf000
)

// HostRule is the frames that a rule of host mode takes: TCP or UDP to one address of the port's
// netdev and one port, or an aligned block of ports, in the device's VLAN. Fragments have no ports
// and do not match. Values may be compared.
type HostRule struct {
	Priority Priority
	Proto    uint8      // 6 (TCP) or 17 (UDP)
	Addr     netip.Addr // the destination, without a zone
	Port     uint16     // the first port
	// Ports says how many there are from Port on: a power of two that divides Port. 0 is 1.
	Ports int
}

// portCount returns Ports, or its default.
func (r HostRule) portCount() int { return max(r.Ports, 1) }

// portMask returns the bits of a port that must be those of Port.
func (r HostRule) portMask() uint16 { return ^uint16(r.portCount() - 1) }

// String says which frames these are: "TCP port 443 of 10.0.0.1".
func (r HostRule) String() string {
	proto := fmt.Sprintf("protocol %d", r.Proto)
	switch r.Proto {
	case protoTCP:
		proto = "TCP"
	case protoUDP:
		proto = "UDP"
	}
	if r.portCount() == 1 {
		return fmt.Sprintf("%s port %d of %v", proto, r.Port, r.Addr)
	}
	return fmt.Sprintf("%s ports %d to %d of %v", proto, r.Port, int(r.Port)+r.portCount()-1,
		r.Addr)
}

// Validate says in one sentence what is wrong with r, or nil.
func (r HostRule) Validate() error {
	n := r.Ports
	switch {
	case r.Priority >= hostPriorities:
		return errorOfKind(ErrConfig, "rule for %v: its priority is %v, the last is %v", r,
			r.Priority,
			PriorityBlock)
	case r.Proto != protoTCP && r.Proto != protoUDP:
		return errorOfKind(ErrConfig, "rule for %v: only TCP (6) and UDP (17) have ports", r)
	case !r.Addr.IsValid() || r.Addr.Zone() != "" || r.Addr.Is4In6():
		return errorOfKind(ErrConfig, "rule for %v: give an IPv4 or IPv6 address, without a zone",
			r)
	case r.Addr.IsUnspecified() || r.Addr.IsMulticast():
		return errorOfKind(ErrConfig, "rule for %v: give one address of the netdev", r)
	case n < 0 || n > 1<<15 || n&(n-1) != 0 || int(r.Port)%r.portCount() != 0 || r.Port == 0:
		return errorOfKind(ErrConfig,
			"rule for %d ports from %d on: give a power of two that divides "+
				"the first port", n, r.Port)
	}
	return nil
}

// targetClass returns the number of the target, in the order of unicastClasses.
func (r HostRule) targetClass() int {
	i := 0
	if r.Proto == protoUDP {
		i++
	}
	if r.Addr.Is6() {
		i += 2
	}
	return i
}

// inUse makes the kernel's EEXIST about a rule a sentence: a rule with the same match and another
// tag is there. Which, the kernel tells its log only.
func (d *Device) inUse(r HostRule, err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule for %v: %w", r, err)
	}
	return &refusal{unix.EADDRINUSE, err,
		fmt.Sprintf("%v is steered by another process (tag %#06x "+
			"is ours, that of the other is in the kernel's log): stop it, or use another port", r,
			d.flowTag)}
}

// In host mode Linux keeps the port's MAC and addresses, and all frames but those of
// Device.AddRule.

// hostMAC returns the MAC of a device in host mode.
func hostMAC(cfg *Config, f *PortFacts) (net.HardwareAddr, error) {
	switch {
	case cfg.Steering.Promiscuous:
		return nil, errorOfKind(ErrConfig,
			"Promiscuous takes all frames, HostMode those of AddRule: "+
				"set one of them")
	case f.Representor:
		return nil, errorOfKind(ErrNotSupported, "%s is the representor of a function behind the "+
			"e-switch (switchdev): what a rule here takes is what that function sent, and not "+
			"what came from outside; use the function's own netdev, or that of the uplink",
			f.linuxName())
	case cfg.MAC == nil && len(f.MAC) != macLen:
		return nil, errorOfKind(ErrMAC,
			"the MAC of the netdev of %s cannot be read, which may be in another network "+
				"namespace: set MAC to it", f.Name)
	case cfg.MAC == nil, bytes.Equal(cfg.MAC, f.MAC):
		return bytes.Clone(f.MAC), nil
	case len(f.MAC) == macLen || len(cfg.MAC) != macLen:
		return nil, errorOfKind(ErrMAC, "in host mode the MAC is that of %s, %v: leave MAC unset",
			f.linuxName(), f.MAC)
	}
	return bytes.Clone(cfg.MAC), nil
}

// steerByPort makes the targets, and the rules that leave to Linux what no rule of a port is to
// take: fragments, as it depends on the device whether the first of a datagram, which has ports,
// matches a rule for these; and without Config.VLAN frames with a tag, as Linux has an interface of
// its own for each VLAN, and a rule matches frames of all.
func (d *Device) steerByPort() error {
	if err := d.classTargets(); err != nil {
		return err
	}
	if err := d.stepForDrops(); err != nil {
		return err
	}
	if err := d.cleanup.runStep("rules by port", func() error { return nil },
		d.hashed.closePorts); err != nil {
		return err
	}
	if err := d.leaveOrWarn("fragments",
		"the first of a datagram may be taken, and the datagram lost",
		func(m *uverbs.HeaderMatch) { m.Fragment = true }); err != nil || d.config.VLAN != 0 {
		return err
	}
	return d.leaveOrWarn("frames with a VLAN tag", "a port's rule takes those of its address, too",
		func(m *uverbs.HeaderMatch) { m.Tagged = true })
}

// leftRule leaves to Linux some of the frames to our MAC.
type leftRule struct {
	what  string
	match func() uverbs.HeaderMatch // with the MAC of now
	flow  flow
}

// leaveOrWarn leaves frames to our MAC, those that which marks, to Linux while the device is open.
// Where no rule can, it says in the log what that means.
func (d *Device) leaveOrWarn(what, otherwise string, which func(*uverbs.HeaderMatch)) error {
	l := &leftRule{what: what, match: func() uverbs.HeaderMatch {
		m := headerMatch(d.unicastMatch())
		which(&m)
		return m
	}}
	err := d.cleanup.runStep("rule for "+what, func() (err error) {
		if l.flow, err = d.leaveToLinux(l.match()); err == nil {
			d.left = append(d.left, l)
		}
		return err
	}, func() error {
		d.hashed.mu.Lock()
		defer d.hashed.mu.Unlock()
		d.left = slices.DeleteFunc(d.left, func(o *leftRule) bool { return o == l })
		return l.flow.Close()
	})
	if errors.Is(err, ErrNotSupported) {
		d.log.Warn("no rule can leave "+what+" to Linux: "+otherwise, "device", d.Name(),
			"error", err)
		return nil
	}
	return err
}

// leaveToLinux makes a rule ahead of all others.
func (d *Device) leaveToLinux(m uverbs.HeaderMatch) (flow, error) {
	rule, err := d.context.CreateMissFlow(uint16(PriorityLinux), m)
	if err == nil {
		return rule, nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		d.caps.RulesToLinux = false
		err = withKind(ErrNotSupported, err)
	}
	return nil, err
}

// headerMatch is m in the device's own format.
func headerMatch(m uverbs.EthMatch) uverbs.HeaderMatch {
	return uverbs.HeaderMatch{Dst: m.Dst, DstMask: m.DstMask, VLAN: m.VLAN, VLANMask: m.VLANMask}
}

// headerMatch returns the frames of r among those of m, in the device's own format.
func (r HostRule) headerMatch(m uverbs.EthMatch) uverbs.HeaderMatch {
	h := headerMatch(m)
	h.Proto, h.Port, h.PortMask = r.Proto, r.Port, r.portMask()
	h.IPVersion, h.Addr = 4, r.Addr.AsSlice()
	if r.Addr.Is6() {
		h.IPVersion = 6
	}
	return h
}

// RuleInfo describes one rule of a device as the kernel has it.
type RuleInfo struct {
	Priority uint16 `json:"priority"` // 0 to 15; the lowest that matches a frame counts
	Match    string `json:"match"`
	To       string `json:"to"`
	// of the device's rules; 0: it has none, so that others share it
	Tag     uint32 `json:"tag"`
	Counted bool   `json:"counted"` // whether the device counts what it matches
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Rules lists the rules at work, in their order. Each that is counted is asked from the device,
// which takes it some 10 us.
func (d *Device) Rules() []RuleInfo {
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Err() != nil {
		return nil // they are gone, or going
	}
	list := slices.Clone(d.fixedRules)
	for _, l := range d.left {
		list = append(list, RuleInfo{Match: d.describeMatch(l.what), To: toLinux})
	}
	for i := range h.rules {
		c := unicastClasses()[i]
		list = append(list, RuleInfo{Priority: c.priority + h.priority, To: "queues",
			Match: d.describeMatch(c.name), Tag: d.flowTag})
	}
	if h.other != nil {
		list = append(list, RuleInfo{Priority: h.restPriority, To: "queue 0",
			Match: d.describeMatch(classOther().name), Tag: d.flowTag})
	}
	for r := range h.portRules() {
		info := RuleInfo{Priority: uint16(r.rule.Priority), To: "queues", Tag: d.flowTag,
			Match: d.describeAny(r.rule.String()), Counted: r.counts != nil}
		if r.rule.Priority == PriorityLinux {
			info.To, info.Tag = toLinux, 0
		}
		hits := r.countHits()
		info.Packets, info.Bytes = hits.Packets, hits.Bytes
		list = append(list, info)
	}
	for e := h.drops.Front(); e != nil; e = e.Next() {
		list = append(list, e.Value.(*Drop).describeDrop())
	}
	slices.SortStableFunc(list, func(a, b RuleInfo) int {
		return int(a.Priority) - int(b.Priority)
	})
	return list
}

// toLinux is RuleInfo.To of a rule that leads to Linux.
const toLinux = "Linux"

// describeMatch adds to what a rule matches what all of our MAC have in common.
func (d *Device) describeMatch(what string) string {
	if d.config.Steering.Promiscuous {
		return d.describeAny(what)
	}
	return d.inVLAN(fmt.Sprintf("%s, MAC %v", what, d.MAC()))
}

// describeAny describes what a rule matches that is for any unicast MAC.
func (d *Device) describeAny(what string) string { return d.inVLAN(what + ", MAC any unicast") }

func (d *Device) inVLAN(what string) string {
	if d.config.VLAN != 0 {
		what += fmt.Sprintf(", VLAN %d", d.config.VLAN)
	}
	return what
}
