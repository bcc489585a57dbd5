package pcie

import (
	"sort"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// destroyer is an object of the NIC's core.
type destroyer interface{ Destroy() error }

// objectTable holds the objects that the driver has created, by object number. The core's numbers
// are unique across kinds. The server's goroutine owns it.
type objectTable struct {
	cqs    map[uint32]*simnic.CQ
	sqs    map[uint32]*simnic.SQ
	rqs    map[uint32]*simnic.RQ
	rqts   map[uint32]*simnic.RQT
	tirs   map[uint32]*simnic.TIR
	mkeys  map[uint32]*simnic.MKey
	qps    map[uint32]*queuePair
	srqs   map[uint32]*sharedQueue
	tis    map[uint32]uint32 // transport domain of a TIS
	tables map[uint32]*flowTable
	roots  map[tableKind]uint32 // flow tables where frames start

	contexts map[uint32]*userContext
	umems    map[uint32]*umem
	inUMEM   map[uint32]umemUse // by the number of the object that uses UMEMs

	rates map[uint16]sendRate // of SET_PP_RATE_LIMIT, by index

	counters      []*flowCounters // in order of their numbers
	queueCounters map[uint32]*simnic.QueueCount
}

// destroyAll destroys all objects, each before the objects it uses.
func (t *objectTable) destroyAll(f *Function) {
	f.nic.SetClassifier(nil)
	f.nic.SetSniffers(nil, nil)
	destroyEach(t.tirs)
	destroyEach(t.rqts)
	destroyEach(t.rqs)
	destroyEach(t.sqs)
	destroyEach(t.qps)
	destroyEach(t.cqs)
	destroyEach(t.mkeys)
	*t = objectTable{
		cqs: map[uint32]*simnic.CQ{}, sqs: map[uint32]*simnic.SQ{}, rqs: map[uint32]*simnic.RQ{},
		rqts: map[uint32]*simnic.RQT{}, tirs: map[uint32]*simnic.TIR{},
		mkeys: map[uint32]*simnic.MKey{}, qps: map[uint32]*queuePair{},
		srqs: map[uint32]*sharedQueue{},
		tis:  map[uint32]uint32{}, tables: map[uint32]*flowTable{},
		roots:    map[tableKind]uint32{},
		contexts: map[uint32]*userContext{}, umems: map[uint32]*umem{},
		inUMEM:        map[uint32]umemUse{},
		rates:         map[uint16]sendRate{},
		queueCounters: map[uint32]*simnic.QueueCount{},
	}
}

// destroyEach destroys the objects of a map in a fixed order, so that runs are repeatable.
func destroyEach[T destroyer](m map[uint32]T) {
	var keys []uint32
	for n := range m {
		keys = append(keys, n)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	for _, n := range keys {
		m[n].Destroy()
	}
}

// find returns object n of a kind.
func find[T any](m map[uint32]T, kind string, n uint32) (T, error) {
	o, ok := m[n]
	if !ok {
		return o, errorf(statusBadResource, "%s %#x does not exist", kind, n)
	}
	return o, nil
}

// destroy destroys the object that a command names.
func destroy[T destroyer](pick func(*objectTable) map[uint32]T,
	kind string) func(*Function, []byte, []byte) error {
	return func(f *Function, in, _ []byte) error {
		m, n := pick(&f.objects), number.u32(in)
		o, err := find(m, kind, n)
		if err != nil {
			return err
		}
		if err := o.Destroy(); err != nil {
			return err
		}
		delete(m, n)
		delete(f.objects.inUMEM, n)
		return nil
	}
}

// record is the 8 bytes of a doorbell record in guest memory.
func (f *Function) record(addr uint64) (*simnic.Memory, error) {
	if addr&7 != 0 {
		return nil, errorf(statusBadParam, "doorbell record at %#x is not aligned", addr)
	}
	r, err := f.dma.region(addr, 8)
	if err != nil {
		return nil, errorf(statusBadParam, "doorbell record: %v", err)
	}
	return simnic.NewMemory(r), nil
}

// ring is a queue's memory: the page list of the command from off on, pages of 1<<shift
// bytes, size bytes from offset on.
func (f *Function) ring(in []byte, off, shift, offset, size int) (*simnic.Memory, error) {
	pages, err := f.pages(in, off, shift, offset+size)
	if err != nil {
		return nil, err
	}
	return simnic.NewPagedMemory(pages, offset, size)
}

// firstPlain keeps these numbers apart from the core's, which need fewer than 20 bits.
const firstPlain = 1 << 21

// banks returns the guest's physical memory, for keys that address it directly.
func (d *dmaMap) banks() []simnic.Bank {
	var out []simnic.Bank
	for _, r := range d.snapshot() {
		if r.mem != nil {
			out = append(out, simnic.Bank{Addr: r.addr, Mem: r.mem})
		}
	}
	return out
}
