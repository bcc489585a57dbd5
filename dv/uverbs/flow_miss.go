package uverbs

import (
	"encoding/binary"
	"fmt"
)

// HeaderMatch holds the conditions of a rule that the kernel takes as the device's own match of the
// outer headers (fte_match_set_lyr_2_4 in linux include/linux/mlx5/mlx5_ifc.h). It has fields that
// FlowSpec lacks. Zero fields match any frame.
type HeaderMatch struct {
	Dst, DstMask   [6]byte
	VLAN, VLANMask uint16 // id of a customer tag, 12 bits
	IPVersion      uint8  // 4 or 6
	Addr           []byte // destination, of 4 or 16 bytes; the IP version must say which
	Proto          uint8  // IP protocol; 6 and 17 have ports
	Port, PortMask uint16 // destination port
	Fragment       bool   // fragments of a datagram, the first included
	Tagged         bool   // frames with a customer tag, whatever its id
}

// matchSize gives the size of fte_match_set_lyr_2_4 in bytes.
const matchSize = 64

// IP protocol numbers with ports.
const (
	protoTCP = 6
	protoUDP = 17
)

// encodeMatch returns value and mask.
func (m HeaderMatch) encodeMatch() (value, mask [matchSize]byte) {
	be := binary.BigEndian
	put := func(word int, shift, v, bits uint64) {
		be.PutUint64(value[8*word:], be.Uint64(value[8*word:])|v<<shift)
		be.PutUint64(mask[8*word:], be.Uint64(mask[8*word:])|bits<<shift)
	}
	copy(value[8:], m.Dst[:])
	copy(mask[8:], m.DstMask[:])
	if m.VLANMask != 0 {
		put(1, 0, uint64(m.VLAN), uint64(m.VLANMask))
	}
	if m.VLANMask != 0 || m.Tagged {
		put(2, 47, 1, 1) // cvlan_tag
	}
	if m.Proto != 0 {
		put(2, 56, uint64(m.Proto), 0xff)
	}
	if m.Fragment {
		put(2, 45, 1, 1)
	}
	if m.IPVersion != 0 {
		put(2, 41, uint64(m.IPVersion), 0xf)
	}
	switch m.Proto {
	case protoTCP:
		put(2, 0, uint64(m.Port), uint64(m.PortMask))
	case protoUDP:
		put(3, 0, uint64(m.Port), uint64(m.PortMask))
	}
	copy(value[matchSize-len(m.Addr):], m.Addr)
	for i := range m.Addr {
		mask[matchSize-1-i] = 0xff
	}
	return value, mask
}

// MissFlow is an installed rule that ends the walk through the rules of users: its frames go on to
// Linux, as if no rule had matched (DEFAULT_MISS).
type MissFlow struct {
	matcher object
	flow    Flow
}

// CreateMissFlow installs such a rule among those of the same priority, 0 to 15. Two equal ones are
// one, of other processes, too; an equal rule to a queue pair gets copies. EOPNOTSUPP: the
// device cannot; EPROTONOSUPPORT: the kernel cannot (before linux 5.6). EPERM means CAP_NET_RAW is
// missing.
func (c *Context) CreateMissFlow(priority uint16, m HeaderMatch) (*MissFlow, error) {
	noun := fmt.Sprintf("flow rule of priority %d that leads to Linux", priority)
	value, mask := m.encodeMatch()
	f := new(MissFlow)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.createMatcher(&f.matcher, noun, priority, mask[:]); err != nil {
		return nil, err
	}
	var handle uint64
	matcher := uint64(f.matcher.handle)
	flags := make([]byte, 4)
	binary.NativeEndian.PutUint32(flags, RawFlowDefaultMiss)
	err := c.callLocked(opCreateMiss, noun, []*object{&f.matcher}, 0, ObjectFlow,
		MethodRawFlowCreate, []attr{
			{id: AttrRawFlowMatcher, dir: dirHandle, value: &matcher},
			{id: AttrRawFlowHandle, dir: dirNew, value: &handle},
			{id: AttrRawFlowValue, dir: dirIn, bytes: value[:]},
			{id: AttrRawFlowFlags, dir: dirIn, bytes: flags},
		})
	if err != nil {
		_ = f.closeMatcher() // the refusal of the rule says more
		return nil, err
	}
	f.flow.completeNew(c, write{noun: noun}, uint32(handle))
	return f, nil
}

// createMatcher makes o a matcher: the mask of rules of one priority. c.mu is held.
func (c *Context) createMatcher(o *object, noun string, priority uint16, mask []byte) error {
	var handle uint64
	level := make([]byte, 2)
	binary.NativeEndian.PutUint16(level, priority)
	err := c.callLocked(opCreateMatcher, noun, nil, 0, ObjectFlowMatcher, MethodFlowMatcherCreate,
		[]attr{
			{id: AttrFlowMatcherHandle, dir: dirNew, value: &handle},
			{id: AttrFlowMatcherMask, dir: dirIn, bytes: mask},
			{id: AttrFlowMatcherType, dir: dirIn, bytes: level},
			{id: AttrFlowMatcherCriteria, dir: dirIn, bytes: []byte{MatchOuterHeaders}},
		})
	if err == nil {
		o.completeNew(c, write{noun: "matcher of a " + noun}, uint32(handle))
	}
	return err
}

// Close removes the rule. It may be called again if it fails.
func (f *MissFlow) Close() error {
	if err := f.flow.Close(); err != nil {
		return err
	}
	c := f.matcher.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return f.closeMatcher()
}

// closeMatcher destroys the matcher; c.mu is held.
func (f *MissFlow) closeMatcher() error {
	o := &f.matcher
	if o.gone || o.c.kernel == nil {
		return nil
	}
	handle := uint64(o.handle)
	err := o.c.callLocked(opDestroyMatcher, o.noun, nil, 0, ObjectFlowMatcher,
		MethodFlowMatcherDestroy, []attr{{id: AttrFlowMatcherHandle, dir: dirHandle,
			value: &handle}})
	o.settleDestroy(err)
	return err
}
