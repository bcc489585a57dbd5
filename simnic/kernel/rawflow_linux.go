package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// Rules in the device's own format, of mlx5 (drivers/infiniband/hw/mlx5/fs.c): a matcher has mask
// and priority, a rule the value.

const (
	matchParamsMax = 640 // sizeof(struct mlx5_ib_match_params)
	matchOuterMax  = 64  // of it, the outer headers
	tableTypeRX    = 0   // MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX
)

// matcher is a flow matcher (struct mlx5_ib_flow_matcher).
type matcher struct {
	kind     simnic.FlowType // in the numbers of enum mlx5_ib_flow_type: 0 is normal
	priority uint16
	receives bool // table of received frames
	criteria uint8
	mask     []byte // matchParamsMax bytes
}

// rawFlowMethods lists those of MLX5_IB_OBJECT_FLOW_MATCHER, and the driver's of
// UVERBS_OBJECT_FLOW.
func rawFlowMethods(t map[methodKey]*method, r Release) {
	oldMatcher := attrSpec{id: uverbs.AttrFlowMatcherHandle, kind: attrHandle,
		object: uverbs.ObjectFlowMatcher, mandatory: true}
	t[methodKey{uverbs.ObjectFlowMatcher, uverbs.MethodFlowMatcherCreate}] = &method{
		attrs: []attrSpec{
			{id: uverbs.AttrFlowMatcherHandle, kind: attrNew, mandatory: true},
			{id: uverbs.AttrFlowMatcherMask, kind: attrIn, min: 1, max: matchParamsMax,
				mandatory: true},
			{id: uverbs.AttrFlowMatcherType, kind: attrEnum, sizes: []int{2, 0, 0, 0},
				mandatory: true},
			{id: uverbs.AttrFlowMatcherCriteria, kind: attrIn, min: 1, max: 1, mandatory: true},
			{id: uverbs.AttrFlowMatcherFlags, kind: attrIn, min: 4, max: 8},
			{id: uverbs.AttrFlowMatcherTable, kind: attrIn, min: 8, max: 8},
		}, run: createMatcher}
	t[methodKey{uverbs.ObjectFlowMatcher, uverbs.MethodFlowMatcherDestroy}] = &method{
		attrs: []attrSpec{oldMatcher}, run: destroyMatcher}
	create := []attrSpec{
		{id: uverbs.AttrRawFlowHandle, kind: attrNew, mandatory: true},
		{id: uverbs.AttrRawFlowValue, kind: attrIn, min: 1, max: matchParamsMax, mandatory: true},
		{id: uverbs.AttrRawFlowQP, kind: attrHandle, object: uverbs.ObjectQP},
		{id: uverbs.AttrRawFlowMatcher, kind: attrHandle, object: uverbs.ObjectFlowMatcher,
			mandatory: true},
		{id: uverbs.AttrRawFlowTag, kind: attrIn, min: 4, max: 4},
	}
	if r != Linux54 {
		create = append(create, attrSpec{id: uverbs.AttrRawFlowFlags, kind: attrIn, min: 4,
			max: 8})
	}
	t[methodKey{uverbs.ObjectFlow, uverbs.MethodRawFlowCreate}] = &method{attrs: create,
		run: createRawFlow}
	t[methodKey{uverbs.ObjectFlow, uverbs.MethodRawFlowDestroy}] = &method{attrs: []attrSpec{
		{id: uverbs.AttrRawFlowHandle, kind: attrHandle, object: uverbs.ObjectFlow,
			mandatory: true}}, run: destroyRawFlow}
}

// createMatcher implements MLX5_IB_METHOD_FLOW_MATCHER_CREATE.
func createMatcher(c *call) unix.Errno {
	m := &matcher{kind: simnic.FlowType(c.enumAttr(uverbs.AttrFlowMatcherType)), receives: true,
		mask: make([]byte, matchParamsMax)}
	if errno := c.copyIn(m.mask, uverbs.AttrFlowMatcherMask); errno != 0 {
		return errno
	}
	if m.kind == simnic.FlowNormal {
		m.priority = uint16(c.inputAttr(uverbs.AttrFlowMatcherType).addr)
	}
	m.criteria = uint8(c.inputAttr(uverbs.AttrFlowMatcherCriteria).addr)
	if errno := m.namespace(c); errno != 0 {
		return errno
	}
	o := &uobject{kind: uverbs.ObjectFlowMatcher, impl: m, release: func() error { return nil }}
	return c.finishCreate(o, func() unix.Errno {
		c.returnHandle(uverbs.AttrFlowMatcherHandle, uint64(o.handle))
		return 0
	})
}

// namespace is mlx5_ib_matcher_ns: which tables the matcher is for.
func (m *matcher) namespace(c *call) unix.Errno {
	table := c.inputAttr(uverbs.AttrFlowMatcherTable)
	flags, errno := c.flagsAttr(uverbs.AttrFlowMatcherFlags, uint64(uverbs.FlowFlagEgress))
	switch {
	case table.given && c.inputAttr(uverbs.AttrFlowMatcherFlags).given:
		return unix.EINVAL
	case table.given && table.addr > 6:
		return unix.EINVAL
	case errno != 0:
		return errno
	}
	m.receives = flags == 0 && (!table.given || table.addr == tableTypeRX)
	return 0
}

func destroyMatcher(c *call) unix.Errno {
	return c.runDestroy(uverbs.ObjectFlowMatcher,
		uint32(c.inputAttr(uverbs.AttrFlowMatcherHandle).addr))
}

// createRawFlow implements MLX5_IB_METHOD_CREATE_FLOW. Of the destinations there are queue pairs,
// and of the tables that of received frames.
func createRawFlow(c *call) unix.Errno {
	n := c.node
	if n.linux.cfg.NoNetRaw {
		return unix.EPERM
	}
	object, m, errno := findObject[*matcher](n, uverbs.ObjectFlowMatcher,
		uint32(c.inputAttr(uverbs.AttrRawFlowMatcher).addr))
	if errno != 0 {
		return errno
	}
	uses := []*uobject{object}
	a, target, errno := c.rawDestination()
	if errno != 0 {
		return unix.EINVAL // whatever get_dests said
	}
	if target != nil {
		uses = append(uses, target)
	}
	if tag := c.inputAttr(uverbs.AttrRawFlowTag); tag.given {
		if a.HasTag, a.Tag = true, uint32(tag.addr); a.Tag >= 1<<24 {
			return unix.EINVAL
		}
	}
	value := make([]byte, matchParamsMax)
	if errno := c.copyIn(value, uverbs.AttrRawFlowValue); errno != 0 {
		return errno
	}
	if errno := m.completeRule(&a, value, n.nic.Caps()); errno != 0 {
		return errno
	}
	f, err := n.nic.CreateFlow(a)
	if err != nil {
		return errnoOf(err)
	}
	o := &uobject{kind: uverbs.ObjectFlow, impl: f, uses: uses, release: f.Destroy}
	return c.finishCreate(o, func() unix.Errno {
		c.returnHandle(uverbs.AttrRawFlowHandle, uint64(o.handle))
		return 0
	})
}

// rawDestination is get_dests for received frames.
func (c *call) rawDestination() (a simnic.FlowAttr, target *uobject, errno unix.Errno) {
	flags, errno := c.flagsAttr(uverbs.AttrRawFlowFlags,
		uint64(uverbs.RawFlowDefaultMiss|uverbs.RawFlowDrop))
	if errno != 0 {
		return a, nil, errno
	}
	a.Miss, a.Drop = flags&uint64(uverbs.RawFlowDefaultMiss) != 0,
		flags&uint64(uverbs.RawFlowDrop) != 0
	to := c.inputAttr(uverbs.AttrRawFlowQP)
	if a.Miss && a.Drop || to.given && flags != 0 {
		return a, nil, unix.EINVAL
	}
	if !to.given {
		return a, nil, 0
	}
	target, q, errno := findObject[*qp](c.node, uverbs.ObjectQP, uint32(to.addr))
	if errno != 0 {
		return a, nil, errno
	}
	if a.TIR = q.tir; a.TIR == nil {
		return a, nil, unix.EINVAL
	}
	return a, target, 0
}

// completeRule adds match and priority to a rule, with the checks of raw_fs_rule_add,
// mlx5_add_flow_rules and, as it were, of the firmware.
func (m *matcher) completeRule(a *simnic.FlowAttr, value []byte, caps simnic.Caps) unix.Errno {
	switch {
	case m.kind != simnic.FlowNormal, !m.receives:
		return unix.EOPNOTSUPP
	case m.priority > simnic.MaxPriority:
		return unix.ENOMEM
	case a.Miss && !caps.MultiPathFlows:
		return unix.EOPNOTSUPP // fwd_next_prio_supported
	}
	for i, v := range value {
		if v&^m.mask[i] != 0 || i >= matchOuterMax && m.mask[i] != 0 {
			return unix.EINVAL // check_valid_spec; a field that the device does not match
		}
	}
	if m.criteria&^uverbs.MatchOuterHeaders != 0 || a.TIR == nil && !a.Drop && !a.Miss {
		return unix.EINVAL
	}
	a.Priority = uint8(m.priority)
	if m.criteria == 0 {
		return 0
	}
	for i := range matchOuterMax / 8 {
		a.Match.Value[i] = binary.BigEndian.Uint64(value[8*i:])
		a.Match.Mask[i] = binary.BigEndian.Uint64(m.mask[8*i:])
	}
	return 0
}

func destroyRawFlow(c *call) unix.Errno {
	return c.runDestroy(uverbs.ObjectFlow, uint32(c.inputAttr(uverbs.AttrRawFlowHandle).addr))
}

// copyIn fills the beginning of b with an attribute's bytes, which are no more.
func (c *call) copyIn(b []byte, id uint16) unix.Errno {
	in := c.inputAttr(id)
	got, errno := in.copyIn(0, in.n)
	copy(b, got)
	return errno
}

// flagsAttr returns an attribute of flags, 0 if it is not given (uverbs_get_flags64).
func (c *call) flagsAttr(id uint16, known uint64) (uint64, unix.Errno) {
	in := c.inputAttr(id)
	if !in.given {
		return 0, 0
	}
	v := in.addr
	if in.n == 4 {
		v = uint64(uint32(v))
	}
	if v&^known != 0 {
		return 0, unix.EINVAL
	}
	return v, 0
}
