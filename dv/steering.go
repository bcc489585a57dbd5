package dv

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// class describes one kind of unicast traffic. A hash covers one family and one transport, so each
// class has a target ("RSS queue pair") of its own, and a rule that leads its frames there. Rules
// of a lower priority number come first: frames that are TCP are also IPv4, and all are frames.
type class struct {
	name      string
	priority  uint16 // behind the first class
	fields    uint64 // what is hashed
	etherType uint16 // 0: any
	above     []uverbs.FlowSpec
}

// unicastClasses returns every kind of unicast traffic but the last, see classOther.
// Fragments have no ports, and go with the rest of their family.
func unicastClasses() []class {
	v4, v6 := uverbs.IPv4Match{}.Spec(), uverbs.IPv6Match{}.Spec()
	tcp, udp := uverbs.PortMatch{}.TCP(), uverbs.PortMatch{}.UDP()
	return []class{
		{"TCP over IPv4", 0, uverbs.HashFieldsTCPv4, 0, []uverbs.FlowSpec{v4, tcp}},
		{"UDP over IPv4", 0, uverbs.HashFieldsUDPv4, 0, []uverbs.FlowSpec{v4, udp}},
		{"TCP over IPv6", 0, uverbs.HashFieldsTCPv6, 0, []uverbs.FlowSpec{v6, tcp}},
		{"UDP over IPv6", 0, uverbs.HashFieldsUDPv6, 0, []uverbs.FlowSpec{v6, udp}},
		{"IPv4", 1, uverbs.HashFieldsIPv4, etherIPv4, nil},
		{"IPv6", 1, uverbs.HashFieldsIPv6, etherIPv6, nil},
	}
}

// classOther returns what no other class took: ARP, mostly. It is not hashed, and
// comes to receive queue 0 with broadcast and multicast.
func classOther() class { return class{name: "other frames"} }

// Priorities of the rules for a MAC of our own. The hashed classes have two sets of them, see
// Device.Rebalance.
const (
	takeOverPriority = 0 // the classes and other frames, see Device.TakeOver
	firstPriority    = takeOverPriority + hashedPriorities + 1
	secondPriority   = firstPriority + hashedPriorities
	otherPriority    = secondPriority + hashedPriorities
	// groupPriority is behind all classes. All group rules share it: a frame that two of different
	// priorities matched would come twice.
	groupPriority = otherPriority + 1
)

// hashedPriorities says how many priorities the hashed classes use at a time.
const hashedPriorities = 2

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
)

// unicastRule returns the rule for our frames of class c. It carries the device's flow tag:
// the kernel refuses an equal rule with another tag, and would else have both devices get
// each frame (check_conflicting_ftes, add_rule_fg in linux 6.12 drivers/net/ethernet/
// mellanox/mlx5/core/fs_core.c).
func (d *Device) unicastRule(c class) uverbs.FlowAttr {
	dst := d.unicastMatch()
	dst.EtherType = c.etherType
	specs := append([]uverbs.FlowSpec{dst.Spec()}, c.above...)
	return uverbs.FlowAttr{Priority: c.priority, Port: d.port,
		Specs: append(specs, uverbs.Tag(d.flowTag))}
}

// newFlowTag returns 24 random bits, not all 0: 0 is what rules without a tag have.
func newFlowTag(r random.Source) uint32 { return 1 + r.Rand().Uint32N(1<<24-1) }

// unicastMatch returns what our frames have in common: the MAC, or in promiscuous mode
// only that the group bit is clear.
func (d *Device) unicastMatch() uverbs.EthMatch {
	if d.config.Steering.Promiscuous {
		return d.anyUnicast()
	}
	return d.withVLANTag(uverbs.EthMatch{Dst: [macLen]byte(d.MAC()), DstMask: uverbs.ExactMAC})
}

// anyUnicast is frames to any unicast MAC.
func (d *Device) anyUnicast() uverbs.EthMatch {
	return d.withVLANTag(uverbs.EthMatch{DstMask: [macLen]byte{1}})
}

// withVLANTag narrows m to frames of our VLAN, if we are in one, whatever their priority.
func (d *Device) withVLANTag(m uverbs.EthMatch) uverbs.EthMatch {
	if d.config.VLAN != 0 {
		m.VLAN, m.VLANMask = d.config.VLAN, vlanID
	}
	return m
}

// group holds a set of multicast addresses that we get a copy of.
type group struct {
	name      string
	dst, mask [macLen]byte
}

// groupClasses lists broadcast and the multicast of IPv6 (RFC 2464) and IPv4 (RFC 1112).
func groupClasses() []group {
	return []group{
		{"broadcast", uverbs.ExactMAC, uverbs.ExactMAC},
		{"IPv6 multicast", [macLen]byte{0x33, 0x33}, [macLen]byte{0xff, 0xff}},
		{"IPv4 multicast", [macLen]byte{0x01, 0x00, 0x5e}, [macLen]byte{0xff, 0xff, 0xff, 0x80}},
	}
}

// ethMatch returns the group's frames.
func (g group) ethMatch() uverbs.EthMatch { return uverbs.EthMatch{Dst: g.dst, DstMask: g.mask} }

// copyRule copies the frames of match for us; they go on to Linux. It has no tag, so
// that the equal rules of other slices on this port are merged with it: each gets a copy.
func copyRule(match uverbs.EthMatch, port uint8) uverbs.FlowAttr {
	return uverbs.FlowAttr{Priority: groupPriority, Port: port, DontTrap: true,
		Specs: []uverbs.FlowSpec{match.Spec()}}
}

// createSteering makes the tables, targets and rules, as steps of the cleanup, rules last:
// each works from its creation on. With Config.TakesOver those for unicast come later.
func (d *Device) createSteering() error {
	if d.config.HostMode {
		return d.steerByPort()
	}
	other, err := d.createTargets()
	if err != nil {
		return err
	}
	d.hashed.rest = other
	if err := d.stepForDrops(); err != nil {
		return err
	}
	claim := func() error { return d.hashed.claimMAC(d, firstPriority, otherPriority) }
	if d.config.TakesOver {
		claim = func() error { return nil }
	}
	if err := d.cleanup.runStep("rules by class", claim, d.hashed.closeRules); err != nil {
		return d.explainClaimed(err)
	}
	for _, g := range groupClasses() {
		if err := d.addGroup(g, other); err != nil {
			return err
		}
	}
	return nil
}

// stepForDrops has the rules of AddDrop end before the targets do.
func (d *Device) stepForDrops() error {
	return d.cleanup.runStep("rules that drop", func() error { return nil }, d.hashed.closeDrops)
}

// explainClaimed makes the kernel's EEXIST about a unicast rule a sentence.
func (d *Device) explainClaimed(err error) error {
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	what, fix := fmt.Sprintf("MAC %v", d.MAC()), "stop it, or set another MAC"
	if d.config.Steering.Promiscuous {
		what, fix = "all unicast", "stop it, or do not set Promiscuous"
	}
	if d.config.VLAN != 0 {
		what += fmt.Sprintf(" in VLAN %d", d.config.VLAN)
	}
	return &refusal{ErrMAC, err, fmt.Sprintf("another program has %s on this port: %s", what, fix)}
}

// createTargets makes one RSS queue pair per class over a table of all queues, and
// one without a hash for all other frames over a table of one entry.
func (d *Device) createTargets() (other *uverbs.QP, err error) {
	single, err := d.addTable("indirection table of one entry", []*uverbs.WQ{d.rxObjects[0].wq}, 0)
	if err != nil {
		return nil, err
	}
	if err := d.classTargets(); err != nil {
		return nil, err
	}
	return d.addTarget(classOther(), single)
}

// classTargets makes the targets of the hashed classes.
func (d *Device) classTargets() error {
	return d.cleanup.runStep("targets by class",
		func() error { return d.hashed.addTargets(d, d.spread.Load().queueAt) },
		d.hashed.closeTargets)
}

// logTable is log2 of the size of the indirection table for n queues.
func logTable(caps uverbs.DeviceCaps, n int) int {
	if n == 1 {
		return 0
	}
	return caps.LogTableSize(n)
}

func (d *Device) addTable(name string, wqs []*uverbs.WQ, log int) (t *uverbs.IndTable, err error) {
	err = d.cleanup.runStep(name, func() error {
		t, err = d.context.CreateIndirectionTable(wqs, log)
		return err
	}, func() error { return t.Close() })
	return t, err
}

func (d *Device) addTarget(c class, table *uverbs.IndTable) (qp *uverbs.QP, err error) {
	err = d.cleanup.runStep("target for "+c.name, func() error {
		qp, err = d.pd.CreateRSSQP(uverbs.RSSAttr{Table: table,
			Fields: c.fields, Key: d.config.RSSKey})
		return err
	}, func() error { return qp.Close() })
	return qp, err
}

func (d *Device) addRule(name string, qp *uverbs.QP, rule uverbs.FlowAttr) error {
	var flow *uverbs.Flow
	return d.cleanup.runStep("rule for "+name, func() (err error) {
		if flow, err = qp.CreateFlow(rule); err == nil {
			d.fixedRules = append(d.fixedRules, fixedRule(name, rule))
		}
		return err
	}, func() error { return flow.Close() })
}

// fixedRule describes a rule that is made once.
func fixedRule(name string, rule uverbs.FlowAttr) RuleInfo {
	info := RuleInfo{Priority: rule.Priority, To: "queue 0", Match: name}
	if rule.DontTrap {
		info.To = "queue 0 and " + toLinux
	}
	return info
}

// addGroup installs a group rule that copies or, on a device that cannot copy
// and with leave of the configuration, takes.
func (d *Device) addGroup(g group, qp *uverbs.QP) error {
	rule := copyRule(d.withVLANTag(g.ethMatch()), d.port)
	err := d.addRule(g.name, qp, rule)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	if !d.config.TakeMulticast {
		return errorOfKind(ErrNotSupported,
			"%s cannot share %s with Linux, and taking it would cut Linux off: set TakeMulticast "+
				"if Linux does not need the port (%w)",
			d.Name(), g.name, err)
	}
	d.caps.SharedMulticast = false
	d.log.Warn("device cannot copy multicast: Linux does not receive these frames any more",
		"device", d.Name(), "frames", g.name)
	rule.DontTrap = false
	return d.addRule(g.name, qp, rule)
}

// DropRule says which of our frames the device is to drop: TCP or UDP from a prefix to ports. With
// Config.HostMode To is needed, as the rule would else drop Linux's frames. Values may be compared.
type DropRule struct {
	From  netip.Prefix
	Proto uint8 // 6 (TCP) or 17 (UDP)
	// Port holds those bits of the destination port that Mask sets, the first ones.
	Port, Mask uint16
	To         netip.Addr // the destination; the zero Addr: any of our MAC
}

// String says which frames these are.
func (r DropRule) String() string {
	proto := "TCP"
	if r.Proto == protoUDP {
		proto = "UDP"
	}
	to := ""
	if r.To.IsValid() {
		to = fmt.Sprintf(" of %v", r.To)
	}
	first, last := int(r.Port), int(r.Port|^r.Mask)
	switch {
	case first == last:
		return fmt.Sprintf("%s from %v to port %d%s", proto, r.From, first, to)
	case r.Mask == 0:
		return fmt.Sprintf("%s from %v", proto, r.From)
	}
	return fmt.Sprintf("%s from %v to ports %d to %d%s", proto, r.From, first, last, to)
}

// Validate says in one sentence what is wrong with r, or nil.
func (r DropRule) Validate() error {
	switch {
	case r.Proto != protoTCP && r.Proto != protoUDP:
		return errorOfKind(ErrConfig, "drop %v: only TCP (6) and UDP (17) have ports", r)
	case !r.From.IsValid() || r.From != r.From.Masked() || r.From.Addr().Is4In6():
		return errorOfKind(ErrConfig, "drop %v: give a prefix, such as 192.0.2.0/24", r)
	case r.Port&^r.Mask != 0:
		return errorOfKind(ErrConfig, "drop %v: the port has bits outside of its mask", r)
	case r.To.IsValid() && (r.To.Is4In6() || r.To.Zone() != "" ||
		r.To.Is4() != r.From.Addr().Is4()):
		return errorOfKind(ErrConfig, "drop %v: both addresses are of one version of IP", r)
	}
	return nil
}

// Drop represents a DropRule at work. It ends with Close, with its device or with the process.
type Drop struct {
	d    *Device
	rule DropRule

	// guarded by d.hashed.mu
	place  *list.Element // in d.hashed.drops; nil: closed
	flow   *uverbs.Flow  // nil: closed, or lost by a change of targets
	counts *uverbs.Counters
	past   Hits // of rules that this one replaced
}

// Priorities of rules that drop: ahead of all that lead their frames to us, and in host mode behind
// those that leave frames to Linux. Within one priority their order is not known, so that frames
// pass while a process takes over or queues change. What passes is to be dropped by who gets it.
const (
	dropPriority     = takeOverPriority
	dropPriorityHost = uint16(PriorityHandOver)
)

// AddDrop makes the device drop the frames of r, from now on. Frames of Linux are not touched: the
// rule has our MAC, or with Config.HostMode an address and port that a rule of AddRule leads here.
// unix.ENOSPC, ENOMEM, EOPNOTSUPP: the device has no room, or no such rules.
func (d *Device) AddDrop(r DropRule) (*Drop, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if d.config.HostMode && (!r.To.IsValid() || r.Mask != 1<<16-1) {
		return nil, errorOfKind(ErrConfig, "drop %v: in host mode give one address and port", r)
	}
	h := &d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := d.Err(); err != nil {
		return nil, err
	}
	drop := &Drop{d: d, rule: r}
	if err := drop.installDrop(h); err != nil {
		return nil, err
	}
	drop.place = h.drops.PushBack(drop)
	return drop, nil
}

// installDrop makes the kernel's rule, with counters if the device and the kernel have them. The
// lock is held.
func (x *Drop) installDrop(h *hashed) error {
	d, attr, target := x.d, x.d.dropAttr(x.rule), h.rest
	if d.config.HostMode {
		target = h.targets[0] // which gets nothing
	}
	counts, err := d.context.CreateCounters()
	if err == nil {
		counted := attr
		counted.Specs = append(slices.Clip(attr.Specs), uverbs.Count(counts))
		if x.flow, err = target.CreateFlow(counted); err == nil {
			x.counts = counts
			return nil
		}
		_ = counts.Close() // what follows says more
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop %v: %w", x.rule, err)
		}
	}
	if x.flow, err = target.CreateFlow(attr); err != nil {
		return fmt.Errorf("drop %v: %w", x.rule, err)
	}
	return nil
}

// dropAttr returns the kernel's rule. It has no tag: an equal one of the process that this one
// takes over from is the same rule.
func (d *Device) dropAttr(r DropRule) uverbs.FlowAttr {
	ports := uverbs.PortMatch{Dst: r.Port, DstMask: r.Mask}
	proto := ports.TCP()
	if r.Proto == protoUDP {
		proto = ports.UDP()
	}
	a := uverbs.FlowAttr{Priority: dropPriority, Port: d.port}
	dst := d.unicastMatch()
	if d.config.HostMode {
		a.Priority, dst = dropPriorityHost, d.anyUnicast()
	}
	a.Specs = []uverbs.FlowSpec{dst.Spec(), dropAddresses(r), proto, uverbs.Drop()}
	return a
}

// dropAddresses matches the addresses of r.
func dropAddresses(r DropRule) uverbs.FlowSpec {
	if r.From.Addr().Is4() {
		m := uverbs.IPv4Match{Src: r.From.Addr().As4()}
		setBits(m.SrcMask[:], r.From.Bits())
		if r.To.IsValid() {
			m.Dst = r.To.As4()
			setBits(m.DstMask[:], r.To.BitLen())
		}
		return m.Spec()
	}
	m := uverbs.IPv6Match{Src: r.From.Addr().As16()}
	setBits(m.SrcMask[:], r.From.Bits())
	if r.To.IsValid() {
		m.Dst = r.To.As16()
		setBits(m.DstMask[:], r.To.BitLen())
	}
	return m.Spec()
}

// setBits sets the first bits of a mask.
func setBits(mask []byte, bits int) {
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
}

// Counted returns what the device has dropped by the rule; ok is false if it does not count.
func (x *Drop) Counted() (n Hits, ok bool) {
	h := &x.d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	return x.countDropped()
}

// countDropped does what Counted does, with the lock held.
func (x *Drop) countDropped() (n Hits, ok bool) {
	n = x.past
	if x.counts == nil {
		return n, false
	}
	packets, bytes, err := x.counts.Read()
	return Hits{n.Packets + packets, n.Bytes + bytes}, err == nil
}

// describeDrop returns what Rules tells of the rule. The lock is held.
func (x *Drop) describeDrop() RuleInfo {
	hits, counted := x.countDropped()
	info := RuleInfo{Priority: dropPriority, Match: x.d.describeMatch(x.rule.String()),
		To: "nobody (dropped)", Counted: counted, Packets: hits.Packets, Bytes: hits.Bytes}
	if x.d.config.HostMode {
		info.Priority, info.Match = dropPriorityHost, x.d.describeAny(x.rule.String())
	}
	return info
}

// Close ends the rule: its frames come to us again. Closing again does nothing.
func (x *Drop) Close() error {
	h := &x.d.hashed
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.place != nil {
		h.drops.Remove(x.place)
		x.place = nil
	}
	err := x.removeDrop()
	if errors.Is(x.d.Err(), ErrFailed) {
		return nil // it went with the device
	}
	return err
}

// removeDrop takes the kernel's rule back. The lock is held.
func (x *Drop) removeDrop() error {
	if x.flow == nil {
		return nil
	}
	if n, ok := x.countDropped(); ok { // while the counters are bound to the rule
		x.past = n
	}
	err := x.flow.Close()
	x.flow = nil
	if x.counts != nil {
		err = errors.Join(err, x.counts.Close())
		x.counts = nil
	}
	if err != nil {
		return fmt.Errorf("drop %v no more: %w", x.rule, err)
	}
	return nil
}

// moveDrops makes the rules anew, at the targets of h and for the MAC of now. A rule that cannot be
// is left out: its frames come to us. The lock is held.
func (d *Device) moveDrops(h *hashed) {
	var errs []error
	for e := d.hashed.drops.Front(); e != nil; e = e.Next() {
		x := e.Value.(*Drop)
		errs = append(errs, x.removeDrop(), x.installDrop(h))
	}
	if err := errors.Join(errs...); err != nil {
		d.log.Warn("some sources are dropped by the process and not by the device any more",
			"device", d.Name(), "error", err)
	}
}

// closeDrops ends all rules.
func (h *hashed) closeDrops() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for e := h.drops.Front(); e != nil; e = h.drops.Front() {
		x := e.Value.(*Drop)
		h.drops.Remove(e)
		x.place = nil
		errs = append(errs, x.removeDrop())
	}
	return errors.Join(errs...)
}
