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

// steering holds the flow tables. Frames read a snapshot without a lock; a change makes the next,
// which shares with it all that stays.
type steering struct {
	nic   *NIC
	mu    sync.Mutex
	count int // of rules in force
	now   atomic.Pointer[tables]
}

// tables is a snapshot: never changed once published.
type tables struct {
	before []table // ahead of the netdev
	after  []table
	sniff  []table    // of copies
	macs   entryGroup // unicast destinations that rules require
}

// table is rules of one priority. The first match wins.
type table struct {
	order  int
	groups []entryGroup // in order of their creation
}

// entry describes a match and the destinations of matching frames.
type entry struct {
	match    Match
	flows    []*Flow // its rules, in order of creation; of tables.macs none
	rules    int     // of tables.macs: how many require the destination
	tirs     []*TIR
	counts   []*FlowCount
	tag      uint32
	drop     bool
	dontTrap bool
	miss     bool
}

func (s *steering) initTables(n *NIC) {
	s.nic = n
	s.now.Store(&tables{macs: entryGroup{mask: macMatch(0).Mask}})
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
	if s.count >= 1<<s.nic.caps.LogMaxFlows {
		return ErrFlowFull
	}
	next := *s.now.Load()
	flows := next.rulesBeside(&f.attr)
	for _, o := range flows {
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
	next.replaceEntry(&f.attr, append(slices.Clip(flows), f))
	next.countMAC(&f.attr, 1)
	s.count++
	s.now.Store(&next)
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
	next := *s.now.Load()
	flows := next.rulesBeside(&f.attr)
	i := slices.Index(flows, f)
	if i < 0 {
		return statusErrorf(StatusBadRes, "destroy flow rule")
	}
	next.replaceEntry(&f.attr, slices.Delete(slices.Clone(flows), i, i+1))
	next.countMAC(&f.attr, -1)
	s.count--
	s.now.Store(&next)
	if f.attr.TIR != nil {
		f.attr.TIR.use.dropUser()
	}
	return nil
}

// entryMatch returns the match of the entry that the rule is in.
func (a *FlowAttr) entryMatch() Match {
	switch a.Type {
	case FlowNormal:
		return a.Match
	case FlowMulticastDefault:
		var m Match
		m.SetDstMAC([6]byte{1}, [6]byte{1})
		return m
	}
	return Match{}
}

// tablesOf returns the tables that the rule's is one of.
func (t *tables) tablesOf(a *FlowAttr) *[]table {
	switch order := a.tableOf(); {
	case order < tableNetdev:
		return &t.before
	case order == tableSniffer:
		return &t.sniff
	}
	return &t.after
}

// findTable returns the place of the table of that order, or where it would be.
func findTable(ts []table, order int) (i int, found bool) {
	return slices.BinarySearchFunc(ts, order,
		func(t table, order int) int { return cmp.Compare(t.order, order) })
}

// findGroup returns the place of the group with that mask, -1: there is none.
func (t *table) findGroup(mask *MatchKey) int {
	return slices.IndexFunc(t.groups, func(g entryGroup) bool { return g.mask == *mask })
}

// rulesBeside returns the rules of the entry that a rule is in, or would be.
func (t *tables) rulesBeside(a *FlowAttr) []*Flow {
	ts, m := *t.tablesOf(a), a.entryMatch()
	if i, found := findTable(ts, a.tableOf()); found {
		if j := ts[i].findGroup(&m.Mask); j >= 0 {
			if e := ts[i].groups[j].find(&m.Value); e != nil {
				return e.flows
			}
		}
	}
	return nil
}

// replaceEntry makes flows the rules of the entry that a rule is in: in a new group behind the
// others of its table if it is the first with its mask. An entry without rules goes, as do a group
// and a table without entries.
func (t *tables) replaceEntry(a *FlowAttr, flows []*Flow) {
	all, m := t.tablesOf(a), a.entryMatch()
	ts := slices.Clone(*all)
	i, found := findTable(ts, a.tableOf())
	if !found {
		ts = slices.Insert(ts, i, table{order: a.tableOf()})
	}
	groups := slices.Clone(ts[i].groups)
	j := ts[i].findGroup(&m.Mask)
	if j < 0 {
		j = len(groups)
		groups = append(groups, entryGroup{mask: m.Mask})
	}
	if len(flows) > 0 {
		groups[j] = groups[j].with(newEntry(m, flows))
	} else if groups[j] = groups[j].without(&m.Value); groups[j].root == nil {
		groups = slices.Delete(groups, j, j+1)
	}
	if ts[i].groups = groups; len(groups) == 0 {
		ts = slices.Delete(ts, i, i+1)
	}
	*all = ts
}

// newEntry makes the entry of rules, of which there is at least one.
func newEntry(m Match, flows []*Flow) *entry {
	first := flows[0]
	e := &entry{match: m, flows: flows, tag: first.tag, drop: first.attr.Drop,
		dontTrap: first.attr.DontTrap}
	for _, f := range flows {
		if tir := f.attr.TIR; tir != nil && !slices.Contains(e.tirs, tir) {
			e.tirs = append(e.tirs, tir)
		}
		e.miss = e.miss || f.attr.Miss
		e.countInto(f.attr.Count)
	}
	return e
}

// countInto makes the entry also count into c.
func (e *entry) countInto(c *FlowCount) {
	if c != nil && !slices.Contains(e.counts, c) {
		e.counts = append(e.counts, c)
	}
}

// firstMatch returns the table's first entry that matches the frame.
func (t *table) firstMatch(k *MatchKey) *entry {
	for i := range t.groups {
		if e := t.groups[i].find(k); e != nil {
			return e
		}
	}
	return nil
}

// countMAC counts one rule more or less that requires a unicast destination, if this one does.
func (t *tables) countMAC(a *FlowAttr, by int) {
	mac, ok := a.Match.exactDst()
	if !ok {
		return
	}
	e := &entry{match: macMatch(mac)}
	if had := t.macs.find(&e.match.Value); had != nil {
		e.rules = had.rules
	}
	if e.rules += by; e.rules == 0 {
		t.macs = t.macs.without(&e.match.Value)
	} else {
		t.macs = t.macs.with(e)
	}
}

// macMatch matches a destination.
func macMatch(mac uint64) (m Match) {
	fieldDstMAC.putField(&m.Value, mac)
	fieldDstMAC.putField(&m.Mask, 1<<48-1)
	return m
}

// requiresMAC reports whether a rule requires that unicast destination.
func (t *tables) requiresMAC(mac uint64) bool {
	var k MatchKey
	fieldDstMAC.putField(&k, mac)
	return t.macs.find(&k) != nil
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
