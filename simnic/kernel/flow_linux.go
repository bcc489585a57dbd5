package kernel

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Limits of a flow rule.
const (
	flowSpecMax       = 88 // sizeof(struct ib_uverbs_flow_spec), a union
	flowFlagsReserved = 8  // and above
)

// exCreateFlow implements CREATE_FLOW: the checks of the core (ib_uverbs_ex_create_flow in
// uverbs_cmd.c).
func exCreateFlow(c *call) unix.Errno {
	var req uverbs.CreateFlowReq
	r := reader{in: &c.core.in}
	if errno := r.readStruct(&req); errno != 0 {
		return errno
	}
	n, a := c.node, &req.FlowAttr
	if errno := n.flowHeader(&req); errno != 0 {
		return errno
	}
	var specs []byte
	if a.NumOfSpecs != 0 {
		var errno unix.Errno
		if specs, errno = r.readBytes(int(a.Size)); errno != 0 {
			return errno
		}
	}
	if errno := r.refuseTrailing(); errno != 0 {
		return errno
	}
	if errno := n.checkContext(); errno != 0 {
		return errno
	}
	if a.Port != 1 && !n.linux.isRelease(Linux54) {
		return unix.EINVAL
	}
	target, q, errno := findObject[*qp](n, uverbs.ObjectQP, req.QPHandle)
	if errno != 0 {
		return errno
	}
	rule := &rule{node: n, uses: []*uobject{target}}
	if errno := rule.parseSpecs(specs, int(a.NumOfSpecs), int(a.Size)); errno != 0 {
		return errno
	}
	f, errno := c.driverCreateFlow(a, q, rule)
	if errno != 0 {
		return errno
	}
	o := &uobject{kind: uverbs.ObjectFlow, impl: f, uses: rule.uses, release: f.Destroy}
	return c.finishCreate(o,
		func() unix.Errno { return c.writeReply(uverbs.CreateFlowResp{FlowHandle: o.handle}) })
}

// flowHeader checks what comes before the specifications.
func (n *node) flowHeader(req *uverbs.CreateFlowReq) unix.Errno {
	a := &req.FlowAttr
	leftover := a.Type == uverbs.FlowAllDefault || a.Type == uverbs.FlowMCDefault
	switch {
	case req.CompMask != 0:
		return unix.EINVAL
	case n.linux.cfg.NoNetRaw:
		return unix.EPERM
	case a.Flags >= flowFlagsReserved,
		a.Flags&uverbs.FlowFlagDontTrap != 0 && leftover,
		a.NumOfSpecs > uverbs.MaxFlowSpecs,
		int(a.Size) > int(a.NumOfSpecs)*flowSpecMax,
		a.Reserved != [2]byte{}:
		return unix.EINVAL
	}
	return 0
}

// driverCreateFlow returns the driver's part (mlx5_ib_create_flow in
// drivers/infiniband/hw/mlx5/fs.c).
func (c *call) driverCreateFlow(a *uverbs.FlowAttrHdr, q *qp, r *rule) (*simnic.Flow, unix.Errno) {
	binding, errno := c.countersBinding()
	if errno != 0 {
		return nil, errno
	}
	egress := a.Flags&uverbs.FlowFlagEgress != 0
	leftover := a.Type == uverbs.FlowAllDefault || a.Type == uverbs.FlowMCDefault
	caps := c.node.nic.Caps()
	switch {
	case a.Priority > simnic.MaxPriority:
		return nil, unix.ENOMEM
	case a.Flags&^(uverbs.FlowFlagDontTrap|uverbs.FlowFlagEgress) != 0,
		leftover && (egress || a.NumOfSpecs > 0 && c.node.linux.isRelease(Linux72)):
		return nil, unix.EINVAL
	case egress, a.Type > uverbs.FlowSniffer, // no other type has a table
		a.Flags&uverbs.FlowFlagDontTrap != 0 && !caps.MultiPathFlows:
		return nil, unix.EOPNOTSUPP
	}
	attr, errno := r.flowAttr(a, binding)
	if errno != 0 {
		return nil, errno
	}
	if !attr.Drop {
		if attr.TIR = q.tir; attr.TIR == nil {
			// a queue pair that only sends cannot be a destination
			return nil, unix.EINVAL
		}
	}
	f, err := c.node.nic.CreateFlow(attr)
	return f, errnoOf(err)
}

// flowAttr returns the rule without its destination. The specifications of a sniffer are parsed
// only (create_sniffer_rule in fs.c).
func (r *rule) flowAttr(a *uverbs.FlowAttrHdr,
	binding []uverbs.Mlx5FlowCountersDesc) (simnic.FlowAttr, unix.Errno) {
	attr := simnic.FlowAttr{Type: simnic.FlowType(a.Type)}
	if attr.Type == simnic.FlowSniffer {
		return attr, 0
	}
	attr.Priority, attr.DontTrap = uint8(a.Priority), a.Flags&uverbs.FlowFlagDontTrap != 0
	if errno := r.translate(&attr); errno != 0 || r.counters == nil {
		return attr, errno
	}
	var errno unix.Errno
	attr.Count, errno = r.counters.bindRule(binding)
	return attr, errno
}

// exDestroyFlow implements DESTROY_FLOW.
func exDestroyFlow(c *call) unix.Errno {
	var req uverbs.DestroyFlowReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 {
		return unix.EINVAL
	}
	return c.runDestroy(uverbs.ObjectFlow, req.FlowHandle)
}

// rule describes a rule as the client wrote it, with its specifications parsed.
type rule struct {
	node     *node
	uses     []*uobject
	specs    []flowSpec
	counters *counterSet
}

// flowSpec holds one specification: value and mask have the length of the kernel's
// own filter of that type.
type flowSpec struct {
	kind        uint32
	value, mask []byte
	tag         uint32
}

// parseSpecs parses the specifications (kern_spec_to_ib_spec).
func (r *rule) parseSpecs(b []byte, count, size int) unix.Errno {
	parsed := 0
	for parsed < count && len(b) >= 8 {
		kind, n := binary.NativeEndian.Uint32(b), int(binary.NativeEndian.Uint16(b[4:]))
		if n > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[6:]) != 0 || n < 8 {
			return unix.EINVAL
		}
		var errno unix.Errno
		if kind >= uverbs.FlowSpecTypeActionTag {
			errno = r.parseAction(kind, b[:n])
		} else {
			errno = r.readFilter(kind, b[8:n])
		}
		if errno != 0 {
			return errno
		}
		b, size = b[n:], size-n
		parsed++
	}
	if size != 0 || parsed != count {
		return unix.EINVAL
	}
	return 0
}

// actionSizes gives the sizes of action specifications.
var actionSizes = map[uint32]int{uverbs.FlowSpecTypeActionTag: 16, uverbs.FlowSpecTypeActionDrop: 8,
	uverbs.FlowSpecTypeActionCount: 16}

func (r *rule) parseAction(kind uint32, b []byte) unix.Errno {
	if size, known := actionSizes[kind]; !known || len(b) != size {
		return unix.EINVAL
	}
	s := flowSpec{kind: kind}
	if len(b) > 8 {
		s.tag = binary.NativeEndian.Uint32(b[8:])
	}
	if kind == uverbs.FlowSpecTypeActionCount {
		o, counters, errno := findObject[*counterSet](r.node, uverbs.ObjectCounters, s.tag)
		if errno != 0 {
			return errno
		}
		if r.counters != nil {
			return unix.EINVAL
		}
		r.counters = counters
		r.uses = append(r.uses, o)
	}
	r.specs = append(r.specs, s)
	return 0
}

// filterSizes gives the bytes of the kernel's filters.
var filterSizes = map[uint32]int{
	uverbs.FlowSpecTypeEth:   16,
	uverbs.FlowSpecTypeIPv4:  12,
	uverbs.FlowSpecTypeIPv6:  39,
	uverbs.FlowSpecTypeTCP:   4,
	uverbs.FlowSpecTypeUDP:   4,
	uverbs.FlowSpecTypeVXLAN: 4,
	uverbs.FlowSpecTypeGRE:   8,
}

// readFilter reads a filter, which may be shorter than the kernel's, or longer if the rest of its
// mask is zero (ib_uverbs_kern_spec_to_ib_spec_filter).
func (r *rule) readFilter(kind uint32, b []byte) unix.Errno {
	half := len(b) / 2
	size, known := filterSizes[kind&^uverbs.FlowSpecTypeInner]
	if half == 0 || half%4 != 0 || !known ||
		kind == uverbs.FlowSpecTypeInner|uverbs.FlowSpecTypeVXLAN {
		return unix.EINVAL
	}
	s := flowSpec{kind: kind, value: make([]byte, size), mask: make([]byte, size)}
	copy(s.value, b[:half])
	copy(s.mask, b[half:])
	for i := size; i < half; i++ {
		if b[half+i] != 0 {
			return unix.EINVAL
		}
	}
	if kind&^uverbs.FlowSpecTypeInner == uverbs.FlowSpecTypeIPv6 && (s.value[32]|s.mask[32]) != 0 ||
		kind == uverbs.FlowSpecTypeVXLAN && (s.value[0]|s.mask[0]) != 0 {
		return unix.EINVAL // a flow label of more than 20 bits, a tunnel id of more than 24
	}
	if kind&^uverbs.FlowSpecTypeInner == uverbs.FlowSpecTypeIPv6 &&
		(s.value[33]|s.mask[33])&0xf0 != 0 {
		return unix.EINVAL
	}
	r.specs = append(r.specs, s)
	return 0
}

// enotsupp equals ENOTSUPP of include/linux/errno.h, which older drivers return to user space.
const enotsupp unix.Errno = 524

// translate turns the specifications into the hardware's match (is_valid_attr, parse_flow_attr in
// drivers/infiniband/hw/mlx5/fs.c).
func (r *rule) translate(a *simnic.FlowAttr) unix.Errno {
	if !r.typesAgree() || !r.protocolsAgree() {
		return unix.EINVAL
	}
	for i := range r.specs {
		if errno := r.specs[i].translate(a); errno != 0 {
			if errno == unix.EOPNOTSUPP && r.node.linux.isRelease(Linux54) {
				return enotsupp
			}
			return errno
		}
	}
	if a.Type != simnic.FlowNormal {
		a.HasTag, a.Tag = false, 0
		return 0 // created without these conditions
	}
	for i := range r.specs {
		if r.specs[i].outsideMask(r.hasTransport()) {
			return unix.EINVAL
		}
	}
	return 0
}

// typesAgree reports whether an Ethernet type fits the IP specification after it: it is that of the
// IP version, with a full mask.
func (r *rule) typesAgree() bool {
	mask, etherType := uint16(0), uint16(0)
	agree := func(want uint16) bool { return mask == 0 || mask == 0xffff && etherType == want }
	for _, s := range r.specs {
		switch {
		case s.kind == uverbs.FlowSpecTypeEth:
			mask, etherType = binary.BigEndian.Uint16(s.mask[12:]),
				binary.BigEndian.Uint16(s.value[12:])
		case s.kind == uverbs.FlowSpecTypeIPv4 && !agree(frame.EtherIPv4),
			s.kind == uverbs.FlowSpecTypeIPv6 && !agree(frame.EtherIPv6):
			return false
		}
	}
	return true
}

// protocolsAgree reports whether the IP protocol, if matched, is that of the transport
// specification after it (set_proto in fs.c).
func (r *rule) protocolsAgree() bool {
	mask, proto := uint8(0), uint8(0)
	agree := func(want uint8) bool { return mask == 0 || mask == 0xff && proto == want }
	for _, s := range r.specs {
		switch {
		case s.kind == uverbs.FlowSpecTypeIPv4:
			mask, proto = s.mask[8], s.value[8]
		case s.kind == uverbs.FlowSpecTypeIPv6:
			mask, proto = s.mask[36], s.value[36]
		case s.kind == uverbs.FlowSpecTypeTCP && !agree(frame.ProtoTCP),
			s.kind == uverbs.FlowSpecTypeUDP && !agree(frame.ProtoUDP):
			return false
		}
	}
	return true
}

// outsideMask reports whether the value has bits outside the mask, which the steering code refuses.
// It ignores a tag whose mask is zero, and fields that cannot be matched. A transport specification
// sets the IP protocol.
func (s *flowSpec) outsideMask(transport bool) bool {
	for i, v := range s.value {
		var ignored bool
		switch s.kind {
		case uverbs.FlowSpecTypeEth:
			ignored = i >= 14 && s.mask[14]|s.mask[15] == 0
		case uverbs.FlowSpecTypeIPv4:
			ignored = i >= 10 || i == 8 && transport
		case uverbs.FlowSpecTypeIPv6:
			ignored = i >= 38 || i == 36 && transport
		}
		if v&^s.mask[i] != 0 && !ignored {
			return true
		}
	}
	return false
}

func (r *rule) hasTransport() bool {
	return slices.ContainsFunc(r.specs, func(s flowSpec) bool {
		return s.kind == uverbs.FlowSpecTypeTCP || s.kind == uverbs.FlowSpecTypeUDP
	})
}

func (s *flowSpec) translate(a *simnic.FlowAttr) unix.Errno {
	switch s.kind {
	case uverbs.FlowSpecTypeEth:
		s.ethMatch(&a.Match)
	case uverbs.FlowSpecTypeIPv4:
		if s.mask[10]|s.mask[11] != 0 {
			return unix.EOPNOTSUPP // TTL, flags
		}
		s.ipv4(&a.Match)
	case uverbs.FlowSpecTypeIPv6:
		if s.mask[38] != 0 {
			return unix.EOPNOTSUPP // hop limit
		}
		s.ipv6(&a.Match)
	case uverbs.FlowSpecTypeTCP:
		a.Match.SetTCP(s.portMasks())
	case uverbs.FlowSpecTypeUDP:
		a.Match.SetUDP(s.portMasks())
	case uverbs.FlowSpecTypeActionTag:
		if s.tag >= 1<<24 {
			return unix.EINVAL
		}
		a.HasTag, a.Tag = true, s.tag
	case uverbs.FlowSpecTypeActionDrop:
		a.Drop = true
	case uverbs.FlowSpecTypeActionCount:
	default:
		return unix.EOPNOTSUPP // tunnels and inner headers
	}
	return 0
}

func (s *flowSpec) ethMatch(m *simnic.Match) {
	be := binary.BigEndian
	m.SetDstMAC([6]byte(s.value), [6]byte(s.mask))
	m.SetSrcMAC([6]byte(s.value[6:]), [6]byte(s.mask[6:]))
	m.SetEtherType(be.Uint16(s.value[12:]), be.Uint16(s.mask[12:]))
	m.SetVLAN(be.Uint16(s.value[14:]), be.Uint16(s.mask[14:]))
}

func (s *flowSpec) ipv4(m *simnic.Match) {
	m.SetIPVersion(4)
	m.SetIPv4([4]byte(s.value), [4]byte(s.mask), [4]byte(s.value[4:]), [4]byte(s.mask[4:]))
	m.SetProto(s.value[8], s.mask[8])
	m.SetTOS(s.value[9], s.mask[9])
}

func (s *flowSpec) ipv6(m *simnic.Match) {
	be := binary.BigEndian
	m.SetIPVersion(6)
	m.SetIPv6([16]byte(s.value), [16]byte(s.mask), [16]byte(s.value[16:]), [16]byte(s.mask[16:]))
	m.SetFlowLabel(be.Uint32(s.value[32:]), be.Uint32(s.mask[32:]))
	m.SetProto(s.value[36], s.mask[36])
	m.SetTOS(s.value[37], s.mask[37])
}

// portMasks returns the source and destination port with their masks.
func (s *flowSpec) portMasks() (src, srcMask, dst, dstMask uint16) {
	be := binary.BigEndian
	return be.Uint16(s.value[2:]), be.Uint16(s.mask[2:]), be.Uint16(s.value), be.Uint16(s.mask)
}

// Rules in the device's own format, of mlx5 (drivers/infiniband/hw/mlx5/fs.c): a matcher has mask
// and priority, a rule the value.

const (
	matchParamsMax = 640 // sizeof(struct mlx5_ib_match_params)
	matchOuterMax  = 64  // of it, the outer headers
	tableTypeRX    = 0   // MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX
)

// matcher describes a flow matcher (struct mlx5_ib_flow_matcher).
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

// namespace names mlx5_ib_matcher_ns: which tables the matcher is for.
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

// rawDestination follows get_dests for received frames.
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
