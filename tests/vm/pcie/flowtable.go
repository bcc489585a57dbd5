package pcie

import (
	"encoding/binary"
	"sort"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Flow tables of the receive side, as the driver builds them: a table has groups of entries, and a
// group has one match mask. A frame starts at the root table. The matching entry with the lowest
// index applies; if none matches, the table's miss action.

// flow_table_context, at byte 24 of CREATE_FLOW_TABLE.
var (
	ftTableID   = field{168, 24}
	ftType      = field{128, 8}
	ftcMiss     = field{4, 4}
	ftcLevel    = field{8, 8}
	ftcLogSize  = field{24, 8}
	ftcMissID   = field{40, 24}
	fgStart     = field{224, 32}
	fgEnd       = field{288, 32}
	fgGroupID   = field{192, 32}
	fgEnable    = field{504, 8}
	fteIndex    = field{256, 32}
	fcGroup     = field{32, 32}
	fcTag       = field{72, 24}
	fcAction    = field{112, 16}
	fcDestCount = field{136, 24}
	fcCounters  = field{168, 24}
	destType    = field{0, 8}
	destID      = field{8, 24}
	listCounter = field{0, 32}
)

const (
	ftContext     = 24
	ftContextSize = 40
	fgCriteria    = 64 // match criteria of a group
	flowContext   = 64 // flow context of an entry's command
	flowMatch     = flowContext + 64
	flowDest      = flowContext + 0x300
	flowEntryIn   = flowDest
	matchOuter    = 64 // bytes of fte_match_set_lyr_2_4
	enableOuter   = 1
)

// tableKind is the table_type of the commands: which frames a flow table classifies.
type tableKind uint8

// Kinds of flow tables: frames received, and copies of those received and sent.
const (
	tableNICReceive tableKind = 0
	tableSniffRx    tableKind = 5
	tableSniffTx    tableKind = 6
)

// Actions, destinations and the miss action.
const (
	missForward   = 1
	actionAllow   = 1 << 0
	actionDrop    = 1 << 1
	actionForward = 1 << 2
	actionCount   = 1 << 3
	destTable     = 1
	destTIR       = 2
	matchSetSize  = 512
)

// flowTable is one table. Classification reads it from any goroutine, so once in use it is
// replaced, never changed.
type flowTable struct {
	id      uint32
	kind    tableKind
	level   int
	size    uint32
	miss    uint32 // next table, 0: none
	groups  map[uint32]*flowGroup
	entries []*flowEntry // by index
}

// flowGroup is a range of entries with one mask.
type flowGroup struct {
	start, end uint32
	mask       simnic.MatchKey
}

// flowEntry is one rule.
type flowEntry struct {
	index  uint32
	group  uint32
	match  simnic.Match
	action uint64
	tag    uint32
	tables []uint32
	tirs   []*simnic.TIR

	counters []uint32 // numbers of flow counters
	counts   []*simnic.FlowCount
}

// RuleAt names the entry of a flow table that holds a rule.
type RuleAt struct{ Table, Index uint32 }

// reportRule tells the user of the function of a rule that was set, or deleted if m is nil.
func (f *Function) reportRule(table, index uint32, m *simnic.Match) {
	if f.cfg.Rules != nil {
		f.cfg.Rules(RuleAt{table, index}, m)
	}
}

func (f *Function) createFlowTable(in, out []byte) error {
	kind := tableKind(ftType.get(in))
	if kind != tableNICReceive && kind != tableSniffRx && kind != tableSniffTx {
		return errorf(statusBadParam, "flow table of type %d: there are NIC receive (0) and "+
			"sniffer (5, 6)", kind)
	}
	ctx := part(in, ftContext, ftContextSize)
	if ftcLogSize.get(ctx) > 16 {
		return errorf(statusBadParam, "flow table of 2^%d entries", ftcLogSize.get(ctx))
	}
	t := &flowTable{kind: kind, level: int(ftcLevel.get(ctx)), size: 1 << ftcLogSize.get(ctx),
		groups: map[uint32]*flowGroup{}}
	if len(f.objects.tables) >= maxNumbers {
		return errorf(statusLimit, "all %d flow tables are in use", maxNumbers)
	}
	if err := f.setMiss(t, ctx); err != nil {
		return err
	}
	for t.id = 1; f.objects.tables[t.id] != nil; t.id++ {
	}
	f.objects.tables[t.id] = t
	number.set(out, uint64(t.id))
	return nil
}

// modifyFlowTable changes the miss action.
func (f *Function) modifyFlowTable(in, _ []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	if err := f.setMiss(t, part(in, ftContext, ftContextSize)); err != nil {
		return err
	}
	f.publish()
	return nil
}

// setMiss sets the miss action of a table: the next table, which must have a higher level, or none.
func (f *Function) setMiss(t *flowTable, ctx []byte) error {
	if ftcMiss.get(ctx) != missForward {
		t.miss = 0
		return nil
	}
	id := ftcMissID.u32(ctx)
	if err := f.leads(t, id); err != nil {
		return err
	}
	t.miss = id
	return nil
}

// leads reports whether frames may go from table t to another.
func (f *Function) leads(t *flowTable, id uint32) error {
	next, err := find(f.objects.tables, "flow table", id)
	if err != nil {
		return err
	}
	if next.kind != t.kind {
		return errorf(statusBadParam, "flow table %d of type %d after one of type %d", id,
			next.kind,
			t.kind)
	}
	if next.level <= t.level {
		return errorf(statusBadParam, "flow table %d of level %d after one of level %d", id,
			next.level, t.level)
	}
	return nil
}

func (f *Function) destroyFlowTable(in, _ []byte) error {
	id := ftTableID.u32(in)
	t, err := find(f.objects.tables, "flow table", id)
	if err != nil {
		return err
	}
	if len(t.entries) > 0 || f.objects.roots[t.kind] == id && f.objects.ofKind(t.kind) > 1 {
		return errorf(statusBusy, "flow table %d is in use", id)
	}
	delete(f.objects.tables, id)
	if f.objects.roots[t.kind] == id {
		delete(f.objects.roots, t.kind)
	}
	f.publish()
	return nil
}

func (f *Function) setFlowTableRoot(in, _ []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	f.objects.roots[t.kind] = t.id
	f.publish()
	return nil
}

// ofKind returns the number of flow tables of a kind.
func (t *objectTable) ofKind(k tableKind) (n int) {
	for _, table := range t.tables {
		if table.kind == k {
			n++
		}
	}
	return n
}

func (f *Function) createFlowGroup(in, out []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	g := &flowGroup{start: fgStart.u32(in), end: fgEnd.u32(in)}
	if g.start > g.end || g.end >= t.size {
		return errorf(statusBadParam, "flow group %d to %d in a table of %d", g.start, g.end,
			t.size)
	}
	for _, o := range t.groups {
		if g.start <= o.end && o.start <= g.end {
			return errorf(statusBadParam, "flow group %d to %d overlaps %d to %d",
				g.start, g.end, o.start, o.end)
		}
	}
	if err := g.setMask(fgEnable.get(in), part(in, fgCriteria, matchSetSize)); err != nil {
		return err
	}
	id := uint32(1)
	for t.groups[id] != nil {
		id++
	}
	t.groups[id] = g
	number.set(out, uint64(id))
	return nil
}

// setMask sets the match criteria of the group. Only outer headers can be matched.
func (g *flowGroup) setMask(enable uint64, criteria []byte) error {
	if enable&^enableOuter != 0 {
		return errorf(statusBadParam, "flow group with match criteria %#x", enable)
	}
	if enable&enableOuter != 0 {
		g.mask = matchKey(criteria)
	}
	return nil
}

// matchKey reads the outer headers of a match set.
func matchKey(b []byte) (k simnic.MatchKey) {
	for i := range matchOuter / 8 {
		k[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return k
}

func (f *Function) destroyFlowGroup(in, _ []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	id := fgGroupID.u32(in)
	if t.groups[id] == nil {
		return errorf(statusBadResource, "flow group %d of table %d does not exist", id, t.id)
	}
	for _, e := range t.entries {
		if e.group == id {
			return errorf(statusBusy, "flow group %d of table %d has entries", id, t.id)
		}
	}
	delete(t.groups, id)
	return nil
}

// setFlowEntry adds or replaces the entry at an index.
func (f *Function) setFlowEntry(in, _ []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	e, err := f.flowEntry(t, in)
	if err != nil {
		return err
	}
	t.entries = append(without(t.entries, e.index), e)
	sort.Slice(t.entries, func(i, j int) bool { return t.entries[i].index < t.entries[j].index })
	f.publish()
	match := e.match
	f.reportRule(t.id, e.index, &match)
	return nil
}

// flowEntry decodes an entry.
func (f *Function) flowEntry(t *flowTable, in []byte) (*flowEntry, error) {
	ctx := part(in, flowContext, flowMatch-flowContext)
	e := &flowEntry{index: fteIndex.u32(in), group: fcGroup.u32(ctx), tag: fcTag.u32(ctx),
		action: fcAction.get(ctx)}
	g := t.groups[e.group]
	if g == nil || e.index < g.start || e.index > g.end {
		return nil, errorf(statusBadParam, "flow entry %d is not in group %d of table %d", e.index,
			e.group, t.id)
	}
	if e.action&^(actionAllow|actionDrop|actionForward|actionCount) != 0 {
		return nil, errorf(statusBadParam, "flow entry with action %#x", e.action)
	}
	e.match.Mask, e.match.Value = g.mask, matchKey(part(in, flowMatch, matchSetSize))
	for i := range e.match.Value {
		e.match.Value[i] &= g.mask[i]
	}
	n := int(fcDestCount.get(ctx))
	if err := f.destinations(t, e, in, n); err != nil || e.action&actionCount == 0 {
		return e, err
	}
	return e, f.entryCounters(e, in, flowDest+8*n, int(fcCounters.get(ctx)))
}

// entryCounters decodes the list of n counters that starts at byte at of the command.
func (f *Function) entryCounters(e *flowEntry, in []byte, at, n int) error {
	if n > 256 {
		return errorf(statusBadParam, "flow entry with %d counters", n)
	}
	for list := part(in, at, 8*n); len(list) >= 8; list = list[8:] {
		id := listCounter.u32(list)
		c := f.objects.flowCounter(id)
		if c == nil {
			return errorf(statusBadResource, "flow counter %d is not allocated", id)
		}
		e.counters, e.counts = append(e.counters, id), append(e.counts, c)
	}
	return nil
}

// destinations decodes the destinations of an entry.
func (f *Function) destinations(t *flowTable, e *flowEntry, in []byte, n int) error {
	if n > 256 {
		return errorf(statusBadParam, "flow entry with %d destinations", n)
	}
	list := part(in, flowDest, 8*n)
	for ; len(list) >= 8; list = list[8:] {
		id := destID.u32(list)
		switch destType.get(list) {
		case destTable:
			if err := f.leads(t, id); err != nil {
				return err
			}
			e.tables = append(e.tables, id)
		case destTIR:
			tir, err := find(f.objects.tirs, "TIR", id)
			if err != nil {
				return err
			}
			e.tirs = append(e.tirs, tir)
		default:
			return errorf(statusBadParam, "flow destination of type %d", destType.get(list))
		}
	}
	return nil
}

func (f *Function) deleteFlowEntry(in, _ []byte) error {
	t, err := find(f.objects.tables, "flow table", ftTableID.u32(in))
	if err != nil {
		return err
	}
	rest := without(t.entries, fteIndex.u32(in))
	if len(rest) == len(t.entries) {
		return errorf(statusBadResource,
			"entry %d of flow table %d does not exist", fteIndex.u32(in), t.id)
	}
	t.entries = rest
	f.publish()
	f.reportRule(t.id, fteIndex.u32(in), nil)
	return nil
}

// without returns a copy of entries without the one at index.
func without(entries []*flowEntry, index uint32) []*flowEntry {
	var out []*flowEntry
	for _, e := range entries {
		if e.index != index {
			out = append(out, e)
		}
	}
	return out
}
