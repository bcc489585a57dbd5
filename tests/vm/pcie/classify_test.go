package pcie

import (
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// tcpTo matches TCP to ports of 10.77.0.2 that agree with port in the bits of mask.
func tcpTo(port, mask uint16) (m simnic.Match) {
	m.SetIPVersion(4)
	m.SetIPv4([4]byte{}, [4]byte{}, [4]byte{10, 77, 0, 2}, [4]byte{255, 255, 255, 255})
	m.SetTCP(0, 0, port, mask)
	return m
}

// Tables as linux 6.12 orders them for received frames (root_fs in drivers/net/ethernet/mellanox/
// mlx5/core/fs_core.c): priorities 0, 2 and 3 of verbs, then those of ethtool, then the netdev's.
const (
	tableZero uint32 = iota + 1
	tableListeners
	tableBlocks
	tableEthtool
	tableNetdev
)

// TestClassify follows frames through rules by port, as the driver puts them into tables.
func TestClassify(t *testing.T) {
	ours, second, netdev := new(simnic.TIR), new(simnic.TIR), new(simnic.TIR)
	const forward, drop = actionForward, actionDrop
	to := func(index uint32, m simnic.Match, tirs ...*simnic.TIR) *flowEntry {
		return &flowEntry{index: index, match: m, action: forward, tag: 7, tirs: tirs}
	}
	p := &pipeline{root: tableZero, tables: map[uint32]stage{
		tableZero: {tableListeners, []*flowEntry{
			// FWD_NEXT_NS: the first table of the next namespace (find_next_fwd_ft)
			{match: tcpTo(61450, 0xffff), action: forward, tables: []uint32{tableEthtool}},
			// add_rule_fg appends the destination of an equal rule
			{index: 1, match: tcpTo(61451, 0xffff), action: forward, tirs: []*simnic.TIR{ours},
				tables: []uint32{tableEthtool}}}},
		tableListeners: {tableBlocks, []*flowEntry{to(0, tcpTo(443, 0xffff), ours),
			to(1, tcpTo(444, 0xffff), ours, second),
			to(2, tcpTo(61500, 0xffff), second)}},
		tableBlocks: {tableEthtool, []*flowEntry{to(0, tcpTo(61440, 0xff00), ours),
			to(9000, tcpTo(61460, 0xffff), second)}},
		tableEthtool: {tableNetdev, []*flowEntry{{match: tcpTo(443, 0xffff), action: drop},
			{index: 1, match: tcpTo(80, 0xffff), action: drop}}},
		tableNetdev: {0, []*flowEntry{{action: forward, tirs: []*simnic.TIR{netdev}}}},
	}}
	for _, c := range []struct {
		name string
		port uint16
		want []*simnic.TIR // nil: dropped
	}{
		{"no rule", 22, []*simnic.TIR{netdev}},
		{"listener, though ethtool drops", 443, []*simnic.TIR{ours}},
		{"ethtool drops", 80, nil},
		{"two processes without tags", 444, []*simnic.TIR{ours, second}},
		{"first of the block", 61440, []*simnic.TIR{ours}},
		{"last of the block", 61695, []*simnic.TIR{ours}},
		{"before the block", 61439, []*simnic.TIR{netdev}},
		{"behind the block", 61696, []*simnic.TIR{netdev}},
		{"left to Linux", 61450, []*simnic.TIR{netdev}},
		{"left to Linux and taken", 61451, []*simnic.TIR{ours, netdev}},
		{"listener before the block", 61500, []*simnic.TIR{second}},
		{"lowest index of a table", 61460, []*simnic.TIR{ours}},
	} {
		key := tcpTo(c.port, 0xffff).Value
		var got []*simnic.TIR
		dropped := false
		for _, d := range p.classify(&key, nil) {
			if dropped = dropped || d.Drop; d.TIR != nil {
				got = append(got, d.TIR)
			}
		}
		if !slices.Equal(got, c.want) || dropped != (c.want == nil) {
			t.Errorf("%s: %d destinations, dropped %v", c.name, len(got), dropped)
		}
	}
}
