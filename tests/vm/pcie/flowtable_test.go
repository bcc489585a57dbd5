package pcie

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// TestRulesTold: Config.Rules is told of a rule when it is set, when it is replaced and when it is
// deleted, and not of one that is refused.
func TestRulesTold(t *testing.T) {
	var told []string
	d := driverOf(newClientOf(t, simnic.Config{}, Config{
		Rules: func(at RuleAt, m *simnic.Match) {
			what := fmt.Sprintf("%d/%d ends", at.Table, at.Index)
			if m != nil {
				what = fmt.Sprintf("%d/%d for %x", at.Table, at.Index, m.Value[1]>>16)
			}
			told = append(told, what)
		},
	}))
	table, group := d.table(tableNICReceive)
	for _, mac := range [][6]byte{{2, 0, 0, 0, 0, 7}, {2, 0, 0, 0, 0, 8}} {
		d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 3, mac, actionDrop, nil,
			nil), 16)
	}
	d.refused("an entry outside of its group", entry(tableNICReceive, table, group, 16, [6]byte{2},
		actionDrop, nil, nil), 16, statusBadParam)
	in := input(0x938, 0, 64)
	ftTableID.set(in, uint64(table))
	fteIndex.set(in, 3)
	d.do("DELETE_FLOW_TABLE_ENTRY", in, 16)
	d.refused("an entry that was deleted", in, 16, statusBadResource)
	at := fmt.Sprintf("%d/3 ", table)
	want := []string{at + "for 20000000007", at + "for 20000000008", at + "ends"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
