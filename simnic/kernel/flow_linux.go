package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
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

// flowSpec is one specification: value and mask have the length of the kernel's
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
