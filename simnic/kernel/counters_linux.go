package kernel

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// counterSet represents a counters object: the counts of its flow rules, and which count a read
// returns at which index.
type counterSet struct {
	hits  simnic.FlowCount
	descs []uverbs.Mlx5FlowCountersDesc // nil until a rule is bound
}

// countersMethods lists those of UVERBS_OBJECT_COUNTERS.
func countersMethods(t map[methodKey]*method) {
	old := attrSpec{id: uverbs.AttrCountersHandle, kind: attrHandle,
		object: uverbs.ObjectCounters, mandatory: true}
	t[methodKey{uverbs.ObjectCounters, uverbs.MethodCountersCreate}] = &method{
		attrs: []attrSpec{{id: uverbs.AttrCountersHandle, kind: attrNew, mandatory: true}},
		run:   createCounters}
	t[methodKey{uverbs.ObjectCounters,
		uverbs.MethodCountersDestroy}] = &method{attrs: []attrSpec{old}, run: destroyCounters}
	t[methodKey{uverbs.ObjectCounters, uverbs.MethodCountersRead}] = &method{attrs: []attrSpec{
		old,
		{id: uverbs.AttrCountersBuffer, kind: attrOut, mandatory: true},
		{id: uverbs.AttrCountersFlags, kind: attrIn, min: 4, max: 8},
	}, run: readCounters}
}

func createCounters(c *call) unix.Errno {
	o := &uobject{kind: uverbs.ObjectCounters, impl: new(counterSet),
		release: func() error { return nil }}
	return c.finishCreate(o, func() unix.Errno {
		c.returnHandle(uverbs.AttrCountersHandle, uint64(o.handle))
		return 0
	})
}

func destroyCounters(c *call) unix.Errno {
	return c.runDestroy(uverbs.ObjectCounters, uint32(c.inputAttr(uverbs.AttrCountersHandle).addr))
}

// readCounters fills an array of counts (UVERBS_METHOD_COUNTERS_READ in
// uverbs_std_types_counters.c, mlx5_ib_read_counters in counters.c).
func readCounters(c *call) unix.Errno {
	o, s, errno := findObject[*counterSet](c.node, uverbs.ObjectCounters,
		uint32(c.inputAttr(uverbs.AttrCountersHandle).addr))
	if errno != 0 {
		return errno
	}
	if o.users == 0 {
		return unix.EINVAL
	}
	if flags := c.inputAttr(uverbs.AttrCountersFlags); flags.given {
		v := flags.addr
		if flags.n == 4 {
			v = uint64(uint32(v))
		}
		if v&^uint64(uverbs.CountersPreferCached) != 0 {
			return unix.EINVAL
		}
	}
	out := c.outputAttr(uverbs.AttrCountersBuffer)
	values := make([]byte, out.n/8*8)
	for _, d := range s.descs {
		at := int(d.Index) * 8
		if d.Index >= uint32(len(values)/8) {
			return unix.EINVAL
		}
		v := s.hits.Packets()
		if d.Description == uverbs.FlowCounterBytes {
			v = s.hits.Bytes()
		}
		have := binary.NativeEndian.Uint64(values[at:])
		binary.NativeEndian.PutUint64(values[at:], have+v)
	}
	if errno := out.putAll(values); errno != 0 {
		return errno
	}
	c.markWritten(out)
	return 0
}

// maxCounterDescs repeats MAX_COUNTERS_NUM, the maximum number of descriptions in one binding.
const maxCounterDescs = 64

// countersBinding reads the driver's part of CREATE_FLOW: at most one list of count types and their
// indexes. Without a list it returns nil.
func (c *call) countersBinding() ([]uverbs.Mlx5FlowCountersDesc, unix.Errno) {
	in := &c.uhw.in
	if in.n == 0 {
		return nil, 0
	}
	var hdr uverbs.Mlx5CreateFlowReq
	var data uverbs.Mlx5FlowCountersData
	at := uverbs.SizeOf(hdr)
	if in.n < at {
		return nil, unix.EOPNOTSUPP
	}
	if errno := in.copyStruct(&hdr); errno != 0 {
		return nil, errno
	}
	whole := at + int(min(hdr.NCountersData, 2))*uverbs.SizeOf(data)
	switch {
	case hdr.NCountersData > 1:
		return nil, unix.EINVAL
	case in.n > whole && !in.zeroFrom(whole):
		return nil, unix.EOPNOTSUPP
	case hdr.NCountersData == 0:
		return nil, 0
	case in.n < whole:
		return nil, unix.EINVAL
	}
	b, errno := in.copyIn(at, uverbs.SizeOf(data))
	if errno != 0 {
		return nil, errno
	}
	uverbs.GetStruct(b, &data)
	return readDescs(data)
}

// readDescs reads the list of a binding.
func readDescs(data uverbs.Mlx5FlowCountersData) ([]uverbs.Mlx5FlowCountersDesc, unix.Errno) {
	if data.NCounters == 0 {
		return nil, 0
	}
	if data.NCounters > maxCounterDescs {
		return nil, unix.EINVAL
	}
	const size = 8 // struct mlx5_ib_flow_counters_desc
	table := userIn{given: true, n: int(data.NCounters) * size, addr: data.CountersData}
	descs := make([]uverbs.Mlx5FlowCountersDesc, data.NCounters)
	for i := range descs {
		b, errno := table.readFar(i*size, size)
		if errno != 0 {
			return nil, errno
		}
		uverbs.GetStruct(b, &descs[i])
	}
	return descs, 0
}

// bindRule makes the object count for one more rule. The first rule has the list of count types and
// indexes, the others must have none.
func (s *counterSet) bindRule(descs []uverbs.Mlx5FlowCountersDesc) (*simnic.FlowCount, unix.Errno) {
	if (s.descs == nil) == (descs == nil) {
		return nil, unix.EINVAL
	}
	for _, d := range descs {
		if d.Description > uverbs.FlowCounterBytes {
			return nil, unix.EINVAL
		}
	}
	if descs != nil {
		s.descs = descs
	}
	return &s.hits, 0
}
