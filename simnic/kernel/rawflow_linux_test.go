package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// rawRule is the attributes of a matcher and of a rule, as a client gives them. Nil: not given.
type rawRule struct {
	mask, priority, criteria, flags, table []byte
	kind                                   uint16 // of the matcher
	value, tag, ruleFlags                  []byte
	qp                                     *uint32
}

// toLinux is a good one: priority 1, destination MAC 02:00:00:00:00:02, on to Linux.
func toLinux() rawRule {
	mac := append(make([]byte, 8), 2, 0, 0, 0, 0, 2)
	mask := append(make([]byte, 8), 255, 255, 255, 255, 255, 255)
	return rawRule{mask: mask, priority: []byte{1, 0}, criteria: []byte{1}, value: mac,
		ruleFlags: []byte{1, 0, 0, 0}}
}

const atMask, atValue = atCore, atUHW

// create makes matcher and rule, and returns the errors of both; neither is destroyed.
func (c rawRule) create(r *rawNode) (matcher, rule unix.Errno) {
	handle := uverbs.IoctlAttr{AttrID: 0x1000, Flags: uverbs.AttrMandatory}
	kind := r.input(0x1002, atOut, c.priority)
	kind.AttrData = c.kind
	attrs := []uverbs.IoctlAttr{handle, r.input(0x1001, atMask, c.mask), kind,
		r.input(0x1003, atOut, c.criteria)}
	for id, b := range map[uint16][]byte{0x1004: c.flags, 0x1005: c.table} {
		if b != nil {
			attrs = append(attrs, r.input(id, atOut, b))
		}
	}
	if errno := r.ioctl(r.command(uverbs.ObjectFlowMatcher, 0x1000, attrs...)); errno != 0 {
		return errno, 0
	}
	made := binary.NativeEndian.Uint64(r.mem.Slice(ioctlHdrLen+8, 8))
	attrs = []uverbs.IoctlAttr{handle, r.input(0x1001, atValue, c.value),
		{AttrID: 0x1004, Flags: uverbs.AttrMandatory, Data: made}}
	if c.qp != nil {
		attrs = append(attrs, uverbs.IoctlAttr{AttrID: 0x1002, Flags: uverbs.AttrMandatory,
			Data: uint64(*c.qp)})
	}
	for id, b := range map[uint16][]byte{0x1006: c.tag, 0x1009: c.ruleFlags} {
		if b != nil {
			attrs = append(attrs, r.input(id, atOut, b))
		}
	}
	return 0, r.ioctl(r.command(uverbs.ObjectFlow, 0x1000, attrs...))
}

// TestRawFlowErrors: each line is a check of linux 6.12, with where it is.
func TestRawFlowErrors(t *testing.T) {
	const inval = unix.EINVAL
	few := simnic.DefaultCaps()
	few.MultiPathFlows = false
	for _, c := range []struct {
		name          string
		change        func(c *rawRule, o objects)
		linux         Config
		caps          simnic.Caps
		matcher, rule unix.Errno
	}{
		{name: "good", change: func(*rawRule, objects) {}},
		{name: "good, on linux 7.2", change: func(*rawRule, objects) {},
			linux: Config{Release: Linux72}},
		{name: "good, in a named table", change: func(c *rawRule, _ objects) {
			c.table = make([]byte, 8)
		}},
		{name: "no flags before linux 5.6: uverbs_set_attr", rule: unix.EPROTONOSUPPORT,
			linux: Config{Release: Linux54}, change: func(*rawRule, objects) {}},
		{name: "to a queue pair: get_dests", change: func(c *rawRule, o objects) {
			c.qp, c.ruleFlags = &o.rss, nil
		}},
		{name: "queue pair that only sends", rule: inval, change: func(c *rawRule, o objects) {
			c.qp, c.ruleFlags = &o.qp, nil
		}},
		{name: "queue pair and flags: get_dests", rule: inval,
			change: func(c *rawRule, o objects) { c.qp = &o.rss }},
		{name: "to nowhere", rule: inval, change: func(c *rawRule, _ objects) {
			c.ruleFlags = nil
		}},
		{name: "on and dropped: get_dests", rule: inval, change: func(c *rawRule, _ objects) {
			c.ruleFlags[0] = 3
		}},
		{name: "dropped", change: func(c *rawRule, _ objects) { c.ruleFlags[0] = 2 }},
		{name: "unknown flag: uverbs_get_flags64", rule: inval,
			change: func(c *rawRule, _ objects) { c.ruleFlags[0] = 4 }},
		{name: "tag of 25 bits: CREATE_FLOW", rule: inval, change: func(c *rawRule, _ objects) {
			c.tag = []byte{0, 0, 0, 1}
		}},
		{name: "priority 16: raw_fs_rule_add", rule: unix.ENOMEM,
			change: func(c *rawRule, _ objects) { c.priority[0] = 16 }},
		{name: "value outside the mask: check_valid_spec", rule: inval,
			change: func(c *rawRule, _ objects) { c.value[0] = 2 }},
		{name: "value longer than the mask: check_valid_spec", rule: inval,
			change: func(c *rawRule, _ objects) { c.value = append(c.value, 1) }},
		{name: "no privilege: CREATE_FLOW", rule: unix.EPERM, linux: Config{NoNetRaw: true},
			change: func(*rawRule, objects) {}},
		{name: "device without multi-path: fwd_next_prio_supported", rule: unix.EOPNOTSUPP,
			caps: few, change: func(*rawRule, objects) {}},
		{name: "leftovers: raw_fs_rule_add", rule: unix.EOPNOTSUPP,
			change: func(c *rawRule, _ objects) { c.kind, c.priority = 2, nil }},
		{name: "what is sent: mlx5_ib_matcher_ns", rule: unix.EOPNOTSUPP,
			change: func(c *rawRule, _ objects) { c.flags = []byte{4, 0, 0, 0} }},
		{name: "type nobody knows: uverbs_process_attr", matcher: unix.EOPNOTSUPP,
			change: func(c *rawRule, _ objects) { c.kind = 4 }},
		{name: "priority of a byte: uverbs_process_attr", matcher: inval,
			change: func(c *rawRule, _ objects) { c.priority = c.priority[:1] }},
		{name: "table and flags: mlx5_ib_matcher_ns", matcher: inval,
			change: func(c *rawRule, _ objects) {
				c.table, c.flags = make([]byte, 8), make([]byte, 4)
			}},
		{name: "table nobody knows: mlx5_ib_ft_type_to_namespace", matcher: inval,
			change: func(c *rawRule, _ objects) { c.table = []byte{7, 0, 0, 0, 0, 0, 0, 0} }},
		{name: "mask of 641 bytes: uverbs_process_attr", matcher: inval,
			change: func(c *rawRule, _ objects) { c.mask = make([]byte, 641) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			open := c.linux
			open.NoNetRaw = false // for the objects
			r := newRawNode(t, simnic.Config{Seed: 1, Caps: c.caps}, open)
			r.open()
			o := r.objects()
			r.linux.cfg.NoNetRaw = c.linux.NoNetRaw
			rule := toLinux()
			c.change(&rule, o)
			if m, f := rule.create(r); m != c.matcher || f != c.rule {
				t.Errorf("matcher %v, want %v; rule %v, want %v", m, c.matcher, f, c.rule)
			}
		})
	}
}

// TestRulesOfOneMatch: what equal matches of two processes come to, by the tags of the rules
// (check_conflicting_ftes and add_rule_fg in linux 6.12 drivers/net/ethernet/mellanox/mlx5/core/
// fs_core.c), and the order of priorities (ib_prio_to_core_prio in
// drivers/infiniband/hw/mlx5/fs.c).
func TestRulesOfOneMatch(t *testing.T) {
	tag := func(n uint32) []uverbs.FlowSpec { return []uverbs.FlowSpec{uverbs.Tag(n)} }
	for _, c := range []struct {
		name          string
		first, second []uverbs.FlowSpec
		priority      uint16 // of the second
		refused       bool
		got           [2]int // frames of one that was sent
	}{
		{"no tags: both get it", nil, nil, 0, false, [2]int{1, 1}},
		{"the first has a tag: both get it", tag(7), nil, 0, false, [2]int{1, 1}},
		{"equal tags: both get it", tag(7), tag(7), 0, false, [2]int{1, 1}},
		{"other tags: EEXIST", tag(7), tag(8), 0, true, [2]int{1, 0}},
		{"the second has a tag: EEXIST", nil, tag(8), 0, true, [2]int{1, 0}},
		{"tag 0 is none", nil, tag(0), 0, false, [2]int{1, 1}},
		{"another priority: the lower one", tag(7), tag(8), 1, false, [2]int{1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer := newClient(t, simnic.Config{Seed: 1}, Config{})
			nic := newTestNIC(t, simnic.Config{Seed: 2})
			linux := New(nic, Config{})
			a, b := openClient(t, nic, linux), openClient(t, nic, linux)
			connect(t, peer, a)
			ra, rb := a.receiver(nil), b.receiver(nil)
			for _, r := range []*receiver{ra, rb} {
				if err := r.flow.Close(); err != nil {
					t.Fatal(err)
				}
			}
			must(ra.rss.CreateFlow(toTestMAC(c.first...)))(t)
			attr := toTestMAC(c.second...)
			attr.Priority = c.priority
			_, err := rb.rss.CreateFlow(attr)
			if errnoOf(err) == unix.EEXIST != c.refused || err != nil && !c.refused {
				t.Errorf("second: %v", err)
			}
			peer.sender().send()
			for i, r := range []*receiver{ra, rb} {
				n := 0
				for r.cq.next() != nil {
					n++
				}
				if n != c.got[i] {
					t.Errorf("process %d got %d frames, want %d", i, n, c.got[i])
				}
			}
		})
	}
}
