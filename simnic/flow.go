package simnic

import (
	"errors"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// FlowType is the position of a rule in the order of tables.
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
