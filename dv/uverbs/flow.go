package uverbs

import "fmt"

// FlowAttr is one steering rule: it selects the received frames of the port that go to the queue
// pair.
//
// Rules live in the device's tables before those of the kernel's netdev, so Linux does not get a
// matching frame, whatever the ethtool or RoCE rules, unless DontTrap copies it. Tables are ordered
// by priority (and, within one, copying rules before taking ones); in one table the first matching
// rule applies, and the order of rules with different masks is undefined. The same match in the
// same table twice, also by another process, delivers to both.
//
// One exception of the driver: a taking rule whose first specification matches an Ethernet
// multicast destination goes to a last table of its own, whatever its priority.
type FlowAttr struct {
	// Type is FlowNormal, a default type for the frames that Linux does not accept, or FlowSniffer,
	// which ignores conditions.
	Type uint32

	// Priority is 0 (first) to 15.
	Priority uint16

	// Port that receives the frame, counted from 1; default 1.
	Port uint8

	// DontTrap delivers a copy and lets later rules and Linux get the frame. Not with the default
	// types. EOPNOTSUPP if the device does not support it. A frame that two copying rules of
	// different priorities match arrives twice.
	DontTrap bool

	// Specs lists the conditions, all of which must hold, and the actions: outer headers before
	// inner ones, link layer before network before transport, at most MaxFlowSpecs. No conditions
	// match every frame.
	Specs []FlowSpec
}

// Flow is an installed rule.
type Flow struct{ object }

// CreateFlow installs a rule that delivers to qp: an RSS queue pair, or a raw packet one with a
// receive queue. It takes effect at once, so the queues must be ready. EPERM means CAP_NET_RAW is
// missing.
func (qp *QP) CreateFlow(a FlowAttr) (*Flow, error) {
	noun := fmt.Sprintf("flow rule of type %d and priority %d with %d conditions",
		a.Type, a.Priority, len(a.Specs))
	core, counters, err := a.encodeRule(noun, qp.handle)
	if err != nil {
		return nil, err
	}
	f := new(Flow)
	var r CreateFlowResp
	w := write{op: opCreateFlow, noun: noun, in: core, out: &r, uses: []*object{&qp.object}}
	if counters != nil {
		w.uses = append(w.uses, &counters.object)
		w.uhwIn, w.side = counterBinding()
	}
	if err := qp.c.runCreate(&f.object, &r.FlowHandle, w); err != nil {
		return nil, err
	}
	return f, nil
}

// encodeRule returns the command struct with its specifications, and the counters object it names,
// if any.
func (a FlowAttr) encodeRule(noun string, qp uint32) ([]byte, *Counters, error) {
	if a.Port == 0 {
		a.Port = 1
	}
	if len(a.Specs) > MaxFlowSpecs {
		return nil, nil, refuseArgs(opCreateFlow, noun, "at most %d conditions", MaxFlowSpecs)
	}
	var specs []byte
	var counters *Counters
	for i, s := range a.Specs {
		if s.wrong != "" {
			return nil, nil, refuseArgs(opCreateFlow, noun, "condition %d: %s", i, s.wrong)
		}
		specs = append(specs, s.raw...)
		if s.counters != nil {
			counters = s.counters
		}
	}
	req := CreateFlowReq{QPHandle: qp,
		FlowAttr: FlowAttrHdr{Type: a.Type, Size: uint16(len(specs)), Priority: a.Priority,
			NumOfSpecs: uint8(len(a.Specs)), Port: a.Port}}
	if a.DontTrap {
		req.FlowAttr.Flags = FlowFlagDontTrap
	}
	return append(bytesOf(req), specs...), counters, nil
}

// Close removes the rule; the remaining rules then apply to the frames it matched.
func (f *Flow) Close() error {
	return f.destroyOnce(write{op: opDestroyFlow, in: DestroyFlowReq{FlowHandle: f.handle}})
}
