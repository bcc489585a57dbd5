package pcie

import (
	"sort"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Flow counters (linux include/linux/mlx5/mlx5_ifc.h, alloc_flow_counter_in and the like).
// One command allocates one, or adjacent ones in units of bulkUnit.
var (
	counterID        = field{64, 32} // in ALLOC's reply and in DEALLOC
	counterBulk      = field{120, 8}
	queryCounterID   = field{224, 32}
	queryCounters    = field{194, 30}
	queryClear       = field{192, 1} // of flow counters and of sets of queue counters
	queryToMemory    = field{193, 1}
	queryKey         = field{96, 32}
	queryAddress     = field{128, 64}
	statisticPackets = field{0, 64}
	statisticOctets  = field{64, 64}
)

const (
	bulkUnit       = 128
	statisticsAt   = 16
	statisticsSize = 16
	// maxFlowCounters is max_flow_counter.
	maxFlowCounters = 1 << 15
	// logMaxCounterQuery is how many counters one query reads, log2 (log_max_flow_counter_bulk).
	logMaxCounterQuery = 10
)

// flowCounters are adjacent counters that one command allocated.
type flowCounters struct {
	base   uint32
	counts []simnic.FlowCount
}

func (c *flowCounters) end() uint32 { return c.base + uint32(len(c.counts)) }

// allocFlowCounter executes ALLOC_FLOW_COUNTER: it takes the lowest free numbers.
func (f *Function) allocFlowCounter(in, out []byte) error {
	n := max(1, bulkUnit*counterBulk.u32(in))
	all := f.objects.counters
	at, base := 0, uint32(1)
	for ; at < len(all) && all[at].base-base < n; at++ {
		base = all[at].end()
	}
	if base+n > maxFlowCounters {
		return errorf(statusLimit, "%d more flow counters than the %d there are", n,
			maxFlowCounters)
	}
	all = append(all, nil)
	copy(all[at+1:], all[at:])
	all[at] = &flowCounters{base: base, counts: make([]simnic.FlowCount, n)}
	f.objects.counters = all
	counterID.set(out, uint64(base))
	return nil
}

// flowCounter finds a counter by its number: nil if it is not allocated.
func (t *objectTable) flowCounter(n uint32) *simnic.FlowCount {
	i := sort.Search(len(t.counters), func(i int) bool { return t.counters[i].end() > n })
	if i == len(t.counters) || n < t.counters[i].base {
		return nil
	}
	return &t.counters[i].counts[n-t.counters[i].base]
}

// deallocFlowCounter executes DEALLOC_FLOW_COUNTER for all counters of one allocation.
func (f *Function) deallocFlowCounter(in, _ []byte) error {
	n, all := counterID.u32(in), f.objects.counters
	for i, c := range all {
		if c.base != n {
			continue
		}
		if f.objects.counting(c) {
			return errorf(statusBusy, "flow counter %d is used by a flow entry", n)
		}
		f.objects.counters = append(all[:i:i], all[i+1:]...)
		return nil
	}
	return errorf(statusBadResource, "flow counter %d is not allocated", n)
}

// counting reports whether a flow entry counts into one of the counters.
func (t *objectTable) counting(c *flowCounters) bool {
	for _, table := range t.tables {
		for _, e := range table.entries {
			for _, n := range e.counters {
				if n >= c.base && n < c.end() {
					return true
				}
			}
		}
	}
	return false
}

// queryFlowCounter executes QUERY_FLOW_COUNTER: adjacent counters, as many as the reply has room
// for, or into memory. A counter that is not allocated reads as zero; if none is allocated, the
// command fails.
func (f *Function) queryFlowCounter(in, out []byte) error {
	n := max(1, queryCounters.u32(in))
	if n > 1<<logMaxCounterQuery {
		return errorf(statusBadParam, "query of %d flow counters, at most %d", n,
			1<<logMaxCounterQuery)
	}
	if !queryToMemory.is(in) {
		return f.readCounters(in, n, out[statisticsAt:])
	}
	list := make([]byte, statisticsSize*n)
	if err := f.readCounters(in, n, list); err != nil {
		return err
	}
	return f.writeMemory(queryKey.u32(in), queryAddress.get(in), list)
}

// writeMemory writes to an address of a memory key.
func (f *Function) writeMemory(key uint32, addr uint64, b []byte) error {
	k, err := find(f.objects.mkeys, "memory key", key>>8)
	if err != nil {
		return err
	}
	a := k.Attr()
	if k.Key() != key || !a.LocalWrite || a.Mem == nil || addr < a.Start ||
		addr-a.Start > a.Len || uint64(len(b)) > a.Len-(addr-a.Start) ||
		!a.Mem.Scatter(addr-a.Start, b) {
		return errorf(statusBadParam, "%d bytes at %#x of memory key %#x cannot be written",
			len(b), addr, key)
	}
	return nil
}

// readCounters writes n counters to out, as many as there is room for.
func (f *Function) readCounters(in []byte, n uint32, out []byte) error {
	first, found := queryCounterID.u32(in), false
	for i := range n {
		c := f.objects.flowCounter(first + i)
		if c == nil {
			continue
		}
		found = true
		packets, octets := c.Packets(), c.Bytes()
		if queryClear.is(in) {
			packets, octets = c.Clear()
		}
		if at := statisticsSize * int(i); at+statisticsSize <= len(out) {
			statisticPackets.set(out[at:], packets)
			statisticOctets.set(out[at:], octets)
		}
	}
	if !found {
		return errorf(statusBadResource, "flow counter %d is not allocated", first)
	}
	return nil
}

// Sets of queue counters. Only out_of_buffer counts: the others count RoCE events.
var (
	rqcCounterSet = field{96, 8}
	queryQueueSet = field{248, 8}
	outOfBuffer   = field{384, 32}
)

// maxQueueCounters is max_qp_cnt.
const maxQueueCounters = 64

func (f *Function) allocQueueCounter(_, out []byte) error {
	n, err := f.numbers[kindCounter].alloc(1)
	if err != nil {
		return err
	}
	if n > maxQueueCounters {
		f.numbers[kindCounter].give(n)
		return errorf(statusLimit, "all %d sets of queue counters are in use", maxQueueCounters)
	}
	f.objects.queueCounters[n] = &simnic.QueueCount{}
	number.set(out, uint64(n))
	return nil
}

func (f *Function) deallocQueueCounter(in, _ []byte) error {
	n := number.u32(in)
	if _, err := find(f.objects.queueCounters, "set of queue counters", n); err != nil {
		return err
	}
	delete(f.objects.queueCounters, n)
	f.numbers[kindCounter].give(n)
	return nil
}

func (f *Function) queryQueueCounter(in, out []byte) error {
	c, err := find(f.objects.queueCounters, "set of queue counters", queryQueueSet.u32(in))
	if err != nil {
		return err
	}
	n := c.OutOfBuffer()
	if queryClear.is(in) {
		n = c.Clear()
	}
	outOfBuffer.set(out, n)
	return nil
}
