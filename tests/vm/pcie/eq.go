package pcie

import (
	"encoding/binary"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Event types (linux include/linux/mlx5/device.h, enum mlx5_event).
const (
	eventCompletion = 0x00
	eventCQError    = 0x04
	eventWQCatas    = 0x05
	eventPort       = 0x09
	eventCommand    = 0x0a
	eventPages      = 0x0b
	eventInternal   = 0x08
)

// Sub-types of the port event.
const (
	portDown = 1
	portUp   = 4
)

// Event queue entry, 64 bytes: type at 1, sub-type at 3, data at 32, owner bit in the last word.
const (
	eqeSize    = 64
	eqeType    = 1
	eqeSubType = 3
	eqeData    = 32
	eqeOwner   = 60
)

// Event queue context and the command that creates it.
var (
	eqcLogSize     = field{99, 5}
	eqcIntr        = field{180, 12}
	eqcLogPageSize = field{195, 5}
)

const (
	createEQContext = 16
	createEQMask    = 88
	createEQPages   = 272
)

// maxLogEQ is the maximum size of an event queue, log2 entries.
const maxLogEQ = 16

// eq is an event queue in guest memory. The device owns the producer index; the driver
// publishes its consumer index through the UAR when it arms the queue.
type eq struct {
	number uint32
	vector int
	log    int
	mask   uint64 // subscribed event types
	pages  []*mmio.Region

	mu    sync.Mutex
	pi    uint32 // guarded by mu; free running
	ci    uint32 // guarded by mu; 24 bits as published
	armed bool   // guarded by mu
	lost  uint64 // guarded by mu; events dropped because the queue was full
}

// slot returns the memory of entry i.
func (q *eq) slot(i uint32) *mmio.Region {
	per := uint32(q.pages[0].Len() / eqeSize)
	i &= 1<<q.log - 1
	return q.pages[i/per].Sub(int(i%per)*eqeSize, eqeSize)
}

// push writes an event, its owner bit last, and reports whether the vector must fire.
func (q *eq) push(typ, sub byte, data [28]byte) (fire bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if (q.pi-q.ci)&0xffffff >= 1<<q.log {
		q.lost++
		return false
	}
	s := q.slot(q.pi)
	b := s.Bytes()
	clear(b[:eqeOwner])
	b[eqeType], b[eqeSubType] = typ, sub
	copy(b[eqeData:eqeOwner], data[:])
	s.StoreBE32(eqeOwner, q.pi>>q.log&1)
	q.pi++
	fire, q.armed = q.armed, false
	return fire
}

// update takes a new consumer index, and arms the queue if asked. Arming a queue that holds events
// the driver has not consumed fires at once.
func (q *eq) update(ci uint32, arm bool) (fire bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ci = ci
	if !arm {
		return false
	}
	q.armed = (q.pi-ci)&0xffffff == 0
	return !q.armed
}

// eqTable holds the function's event queues.
type eqTable struct {
	irq *irqs
	mu  sync.RWMutex
	m   map[uint32]*eq // guarded by mu
}

func (t *eqTable) get(n uint32) *eq {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[n]
}

// listeners returns the queues that subscribe to an event type.
func (t *eqTable) listeners(typ byte) []*eq {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []*eq
	for _, q := range t.m {
		if q.mask>>typ&1 != 0 {
			out = append(out, q)
		}
	}
	return out
}

// raise pushes an event to queues and fires their vectors where armed.
func (t *eqTable) raise(queues []*eq, typ, sub byte, data [28]byte) {
	for _, q := range queues {
		if q.push(typ, sub, data) {
			t.irq.fire(q.vector)
		}
	}
}

// completion raises the completion event of a CQ on its event queue.
func (t *eqTable) completion(eqn, cqn uint32) {
	q := t.get(eqn)
	if q == nil {
		return
	}
	var data [28]byte
	binary.BigEndian.PutUint32(data[24:], cqn)
	t.raise([]*eq{q}, eventCompletion, 0, data)
}

// updateEQ executes the driver's store to an EQ doorbell of a UAR page.
func (f *Function) updateEQ(eqn, ci uint32, arm bool) {
	if q := f.eqs.get(eqn); q != nil && q.update(ci, arm) {
		f.irq.fire(q.vector)
	}
}

// portEvent tells the driver that the link of the port changed.
func (f *Function) portEvent(sub byte) {
	var data [28]byte
	data[8] = 1 << 4
	f.eqs.raise(f.eqs.listeners(eventPort), eventPort, sub, data)
}

// createEQ executes CREATE_EQ.
func (f *Function) createEQ(in, out []byte) error {
	ctx := part(in, createEQContext, 64)
	q := &eq{
		vector: int(eqcIntr.get(ctx)),
		log:    int(eqcLogSize.get(ctx)),
		mask:   be64(part(in, createEQMask, 8), 0),
	}
	if q.log > maxLogEQ {
		return errorf(statusBadParam, "event queue of 2^%d entries", q.log)
	}
	pages, err := f.pages(in, createEQPages, 12+int(eqcLogPageSize.get(ctx)), eqeSize<<q.log)
	if err != nil {
		return err
	}
	q.pages = pages
	if q.vector >= numVectors {
		return errorf(statusBadParam, "event queue on vector %d of %d", q.vector, numVectors)
	}
	for i := range uint32(1) << q.log {
		q.slot(i).StoreBE32(eqeOwner, 1) // owned by the device in the first pass
	}
	f.eqs.mu.Lock()
	defer f.eqs.mu.Unlock()
	for q.number = 1; f.eqs.m[q.number] != nil; q.number++ {
	}
	f.eqs.m[q.number] = q
	number.set(out, uint64(q.number))
	return nil
}

// destroyEQ executes DESTROY_EQ.
func (f *Function) destroyEQ(in, _ []byte) error {
	n := number.u32(in)
	f.eqs.mu.Lock()
	defer f.eqs.mu.Unlock()
	if f.eqs.m[n] == nil {
		return errorf(statusBadResource, "event queue %d does not exist", n)
	}
	delete(f.eqs.m, n)
	return nil
}

// pages maps the page list of a queue: the physical addresses from off to the end of the command,
// one per page of 1<<shift bytes, together at least size bytes.
func (f *Function) pages(in []byte, off, shift, size int) ([]*mmio.Region, error) {
	return f.mapPages(addresses(in, off), shift, size)
}

// mapPages maps as many of the listed pages as size bytes need.
func (f *Function) mapPages(list []uint64, shift, size int) ([]*mmio.Region, error) {
	var out []*mmio.Region
	for _, a := range list {
		if len(out)<<shift >= size {
			break
		}
		r, err := f.dma.region(a&^7, 1<<shift)
		if err != nil {
			return nil, errorf(statusBadParam, "page list: %v", err)
		}
		out = append(out, r)
	}
	if len(out)<<shift < size {
		return nil, errorf(statusBadParam, "%d pages of %d bytes for a queue of %d bytes", len(out),
			1<<shift, size)
	}
	return out, nil
}
