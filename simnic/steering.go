package simnic

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Order of flow tables (linux 6.12 drivers/net/ethernet/mellanox/mlx5/core/fs_core.c): normal rules
// by priority, those that do not trap first; multicast rules that trap, whatever their priority;
// then the netdev; then the leftovers.
const (
	tableMulticast = 2 * 16
	tableNetdev    = 100
	tableLeftover  = 101
	tableSniffer   = 102 // beside this order: it gets copies of all frames
)

// MaxPriority gives the highest priority of a flow rule; 0 comes first.
const MaxPriority = 15

// steering holds the flow tables. Frames read a snapshot without a lock; changes build the next.
type steering struct {
	nic   *NIC
	mu    sync.Mutex
	flows []*Flow // in force, in order of creation
	now   atomic.Pointer[tables]
}

// tables is a snapshot: never changed once published.
type tables struct {
	before []table // ahead of the netdev
	after  []table
	sniff  []table  // of copies
	macs   []uint64 // unicast destinations that rules require, sorted
}

// table is rules of one priority. The first match wins.
type table struct {
	order   int
	entries []entry // grouped by mask in order of the masks' first appearance
}

// entry describes a match and the destinations of matching frames.
type entry struct {
	match    Match
	tirs     []*TIR
	counts   []*FlowCount
	tag      uint32
	drop     bool
	dontTrap bool
	miss     bool
}

func (s *steering) initTables(n *NIC) {
	s.nic = n
	s.now.Store(&tables{})
}

// tableOf returns the table of the rule.
func (a *FlowAttr) tableOf() int {
	switch {
	case a.Type == FlowSniffer:
		return tableSniffer
	case a.Type != FlowNormal:
		return tableLeftover
	case a.DontTrap:
		return 2 * int(a.Priority)
	case a.Match.multicast():
		return tableMulticast
	}
	return 2*int(a.Priority) + 1
}

// addFlow puts f in force.
func (s *steering) addFlow(f *Flow) error {
	if err := s.checkAttr(&f.attr); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flows) >= 1<<s.nic.caps.LogMaxFlows {
		return ErrFlowFull
	}
	for _, o := range s.flows {
		if !o.attr.equalRule(&f.attr) {
			continue
		}
		if o.conflicts(&f.attr) {
			return ErrFlowConflict
		}
		f.tag = o.tag
	}
	if f.attr.TIR != nil {
		if err := f.attr.TIR.use.addUser(); err != nil {
			return statusErrorf(StatusBadRes, "flow rule to a destroyed object")
		}
	}
	s.flows = append(s.flows, f)
	s.publishSnapshot()
	return nil
}

func (s *steering) checkAttr(a *FlowAttr) error {
	switch {
	case a.Type > FlowSniffer:
		return statusErrorf(StatusBadParam, "flow rule of type %d", a.Type)
	case a.Priority > MaxPriority || a.Tag >= 1<<24 || a.Tag != 0 && !a.HasTag:
		return statusErrorf(StatusBadParam, "flow rule with priority %d, tag %#x", a.Priority,
			a.Tag)
	case (a.TIR == nil) != (a.Drop || a.Miss) || a.Drop && a.Miss:
		return statusErrorf(StatusBadParam,
			"flow rule needs one of a destination, to drop and to miss")
	case a.Miss && (a.Type != FlowNormal || a.DontTrap || !s.nic.caps.MultiPathFlows):
		return statusErrorf(StatusBadParam, "flow rule that leads to the netdev")
	case a.DontTrap && (a.Type != FlowNormal || !s.nic.caps.MultiPathFlows):
		return statusErrorf(StatusBadParam, "flow rule that does not trap")
	}
	return a.Match.checkMatch()
}

// equalRule reports whether two rules are one entry of a table.
func (a *FlowAttr) equalRule(b *FlowAttr) bool {
	return a.tableOf() == b.tableOf() && a.Type == b.Type && a.Match == b.Match
}

// conflicts reports whether a rule cannot join the entry that f is in, which has one
// tag and one action (check_conflicting_ftes in fs_core.c).
func (f *Flow) conflicts(newcomer *FlowAttr) bool {
	return newcomer.HasTag && newcomer.Tag != f.tag || newcomer.Drop != f.attr.Drop
}

// removeFlow removes f from the rules in force.
func (s *steering) removeFlow(f *Flow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.flows, f)
	if i < 0 {
		return statusErrorf(StatusBadRes, "destroy flow rule")
	}
	s.flows = slices.Delete(s.flows, i, i+1)
	s.publishSnapshot()
	if f.attr.TIR != nil {
		f.attr.TIR.use.dropUser()
	}
	return nil
}

// publishSnapshot builds the snapshot of the rules in force. Called with the lock held.
func (s *steering) publishSnapshot() {
	t := &tables{}
	for _, f := range s.flows {
		a := &f.attr
		if mac, ok := a.Match.exactDst(); ok && !slices.Contains(t.macs, mac) {
			t.macs = append(t.macs, mac)
		}
		switch order := a.tableOf(); {
		case order < tableNetdev:
			t.before = addRule(t.before, f, a.Match)
		case order == tableSniffer:
			t.sniff = addRule(t.sniff, f, Match{})
		default:
			t.after = addRule(t.after, f, a.defaultMatch())
		}
	}
	slices.Sort(t.macs)
	s.now.Store(t)
}

// defaultMatch returns the match of a default rule.
func (a *FlowAttr) defaultMatch() Match {
	var m Match
	if a.Type == FlowMulticastDefault {
		m.SetDstMAC([6]byte{1}, [6]byte{1})
	}
	return m
}

// addRule adds a rule: to the entry with the same match, else after the last entry with the same
// mask, else at the end.
func addRule(ts []table, f *Flow, m Match) []table {
	a := &f.attr
	i, found := slices.BinarySearchFunc(ts, a.tableOf(),
		func(t table, order int) int { return cmp.Compare(t.order, order) })
	if !found {
		ts = slices.Insert(ts, i, table{order: a.tableOf()})
	}
	t := &ts[i]
	at := len(t.entries)
	for j := range t.entries {
		e := &t.entries[j]
		if e.match == m {
			if a.TIR != nil && !slices.Contains(e.tirs, a.TIR) {
				e.tirs = append(e.tirs, a.TIR)
			}
			e.miss = e.miss || a.Miss
			e.countInto(a.Count)
			return ts
		}
		if e.match.Mask == m.Mask {
			at = j + 1
		}
	}
	e := entry{match: m, tag: f.tag, drop: a.Drop, dontTrap: a.DontTrap, miss: a.Miss}
	if a.TIR != nil {
		e.tirs = []*TIR{a.TIR}
	}
	e.countInto(a.Count)
	t.entries = slices.Insert(t.entries, at, e)
	return ts
}

// countInto makes the entry also count into c.
func (e *entry) countInto(c *FlowCount) {
	if c != nil && !slices.Contains(e.counts, c) {
		e.counts = append(e.counts, c)
	}
}

// firstMatch returns the table's first entry that matches the frame.
func (t *table) firstMatch(k *MatchKey) *entry {
	for i := range t.entries {
		if e := &t.entries[i]; e.match.Takes(k) {
			return e
		}
	}
	return nil
}

// requiresMAC reports whether a rule requires that unicast destination.
func (t *tables) requiresMAC(mac uint64) bool {
	_, ok := slices.BinarySearch(t.macs, mac)
	return ok
}

// FlowType gives the position of a rule in the order of tables.
type FlowType uint8

// Flow types, in the numbers of verbs (IB_FLOW_ATTR_*).
const (
	FlowNormal           FlowType = 0 // before the netdev
	FlowAllDefault       FlowType = 1 // frames that the netdev does not accept
	FlowMulticastDefault FlowType = 2 // multicast that the netdev does not accept
	FlowSniffer          FlowType = 3 // copies of all frames received from the wire and of all sent
)

// Refusals of a flow rule that are not statuses of the firmware but decisions of
// the steering code above it.
var (
	ErrFlowConflict = errors.New("same match with another tag or action exists")
	ErrFlowFull     = errors.New("flow table is full")
)

// FlowAttr describes a flow rule.
type FlowAttr struct {
	Type     FlowType
	Priority uint8 // 0 first, 15 last; only of normal rules
	DontTrap bool  // copy, and let the next tables see the frame too
	Match    Match
	TIR      *TIR       // where the frame goes; nil with Drop or Miss
	Drop     bool       // instead of a TIR
	Miss     bool       // instead of a TIR: past the other normal rules, to the netdev's tables
	HasTag   bool       // Tag was asked for, 0 included
	Tag      uint32     // 24 bits, appears in the completion; 0 without HasTag
	Count    *FlowCount // nil: not counted
}

// FlowCount counts what flow rules matched. Several rules may share one.
type FlowCount struct{ packets, bytes atomic.Uint64 }

// Packets returns how many packets matched so far.
func (c *FlowCount) Packets() uint64 { return c.packets.Load() }

// Bytes returns the sum of their lengths, without FCS.
func (c *FlowCount) Bytes() uint64 { return c.bytes.Load() }

// Clear sets both to zero and returns the previous values.
func (c *FlowCount) Clear() (packets, bytes uint64) {
	return c.packets.Swap(0), c.bytes.Swap(0)
}

func (c *FlowCount) countFrame(f *frame.Frame) {
	c.packets.Add(uint64(f.Packets()))
	c.bytes.Add(uint64(f.Bytes()))
}

// Flow describes a rule in force.
type Flow struct {
	nic  *NIC
	attr FlowAttr
	tag  uint32 // of its entry: the tag of the rule that created the entry
}

// Attr returns what the rule was created with.
func (f *Flow) Attr() FlowAttr { return f.attr }

// CreateFlow puts a rule in force at once. A rule with the same match in the
// same table as another one adds its TIR to it: each gets a copy. ErrFlowConflict if the other rule
// has another action, or if a has a tag and the other rule a different one or none; a rule without
// a tag gets the tag of the entry.
func (n *NIC) CreateFlow(a FlowAttr) (*Flow, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	f := &Flow{nic: n, attr: a, tag: a.Tag}
	if err := n.steering.addFlow(f); err != nil {
		return nil, err
	}
	return f, nil
}

// Destroy takes the rule out of force. A frame in progress may still arrive.
func (f *Flow) Destroy() error { return f.nic.steering.removeFlow(f) }
