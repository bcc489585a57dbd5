package uverbs

import "encoding/binary"

// Counters counts the frames and bytes that one or more flow rules match, in the device.
type Counters struct{ object }

// indexes of the array that a counters read returns, as bound by counterBinding.
const (
	slotPackets = 0
	slotBytes   = 1
	slotCount   = 2
)

// CreateCounters creates a counters object for Count in a rule. EOPNOTSUPP or EPROTONOSUPPORT: the
// device or kernel has no counters.
func (c *Context) CreateCounters() (*Counters, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const noun = "flow counters"
	var handle uint64
	err := c.callLocked(opCreateCounters, noun, nil, 0, ObjectCounters, MethodCountersCreate,
		[]attr{{id: AttrCountersHandle, dir: dirNew, value: &handle}})
	if err != nil {
		return nil, err
	}
	n := new(Counters)
	n.completeNew(c, write{noun: noun}, uint32(handle))
	return n, nil
}

// counterBinding returns the driver's part of a rule that counts: which count a read returns at
// which index. The table of counts is outside the struct and referred to by address.
func counterBinding() ([]byte, *embeddedBytes) {
	var table [slotCount * 8]byte
	PutStruct(table[slotPackets*8:],
		Mlx5FlowCountersDesc{Description: FlowCounterPackets, Index: slotPackets})
	PutStruct(table[slotBytes*8:],
		Mlx5FlowCountersDesc{Description: FlowCounterBytes, Index: slotBytes})
	b := bytesOf(Mlx5CreateFlowReq{NCountersData: 1})
	at := len(b)
	return append(b, bytesOf(Mlx5FlowCountersData{NCounters: slotCount})...),
		&embeddedBytes{at: at, bytes: table[:]}
}

// Read returns how many frames and bytes matched since creation. Before the first rule is bound it
// fails with EINVAL.
func (n *Counters) Read() (packets, bytes uint64, err error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	handle := uint64(n.handle)
	var values [slotCount * 8]byte
	err = n.c.callLocked(opReadCounters, n.noun, []*object{&n.object}, 0, ObjectCounters,
		MethodCountersRead, []attr{
			{id: AttrCountersHandle, dir: dirHandle, value: &handle},
			{id: AttrCountersBuffer, dir: dirOut, bytes: values[:]},
			{id: AttrCountersFlags, dir: dirIn, bytes: make([]byte, 4)},
		})
	return binary.NativeEndian.Uint64(values[slotPackets*8:]),
		binary.NativeEndian.Uint64(values[slotBytes*8:]), err
}

// Close destroys the object; EBUSY while a rule uses it.
func (n *Counters) Close() error {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.gone || n.c.kernel == nil {
		return nil
	}
	handle := uint64(n.handle)
	err := n.c.callLocked(opDestroyCount, n.noun, nil, 0, ObjectCounters, MethodCountersDestroy,
		[]attr{{id: AttrCountersHandle, dir: dirHandle, value: &handle}})
	n.settleDestroy(err)
	return err
}
