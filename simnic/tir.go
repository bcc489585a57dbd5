package simnic

import "sync/atomic"

// RQTAttr describes an indirection table.
type RQTAttr struct {
	RQs []*RQ // a power of two of them; queues may repeat
}

// RQT distributes packets over receive queues by the low bits of their hash.
type RQT struct {
	nic    *NIC
	number uint32
	use    refCount
	rqs    atomic.Pointer[[]*RQ]
}

// CreateRQT creates an indirection table.
func (n *NIC) CreateRQT(a RQTAttr) (*RQT, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	t := &RQT{nic: n}
	t.rqs.Store(&[]*RQ{})
	if err := t.Modify(a.RQs); err != nil {
		return nil, err
	}
	t.number = n.numbers.addObject(t, 20)
	return t, nil
}

// Number returns the RQTN.
func (t *RQT) Number() uint32 { return t.number }

// Modify replaces all entries at once. It must not run concurrently with
// another change of the same table.
func (t *RQT) Modify(rqs []*RQ) error {
	if len(rqs) == 0 || len(rqs)&(len(rqs)-1) != 0 || len(rqs) > 1<<t.nic.caps.LogMaxRQT {
		return statusErrorf(StatusBadParam,
			"indirection table of %d entries (a power of two, at most 2^%d)",
			len(rqs), t.nic.caps.LogMaxRQT)
	}
	for i, rq := range rqs {
		if err := rq.use.addUser(); err != nil {
			for _, taken := range rqs[:i] {
				taken.use.dropUser()
			}
			return statusErrorf(StatusBadRes, "entry %d of an indirection table: receive queue %#x",
				i,
				rq.number)
		}
	}
	next := append([]*RQ(nil), rqs...)
	for _, old := range *t.rqs.Swap(&next) {
		old.use.dropUser()
	}
	return nil
}

// Destroy removes the table. StatusResBusy while a TIR uses it.
func (t *RQT) Destroy() error {
	if err := t.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy indirection table %#x", t.number)
	}
	for _, rq := range *t.rqs.Swap(&[]*RQ{}) {
		rq.use.dropUser()
	}
	t.nic.numbers.removeNumber(t.number)
	return nil
}

// HashFunction of a TIR, in the numbers of the device.
type HashFunction uint8

// Hash functions. HashXOR8 is the exclusive or of all bytes, its 8 bits in reverse
// order: that is how linux mlx5e fills indirection tables for it.
const (
	HashNone     HashFunction = 0
	HashXOR8     HashFunction = 1
	HashToeplitz HashFunction = 2
)

// HashFields selects the fields of the hash, in the bits of the device.
type HashFields uint8

// Members of HashFields.
const (
	HashSrcIP   HashFields = 1 << 0
	HashDstIP   HashFields = 1 << 1
	HashSrcPort HashFields = 1 << 2
	HashDstPort HashFields = 1 << 3
)

// HashSelection describes one kind of packet and the fields of it to hash. A packet of
// another kind gets hash 0 and the table's first entry.
type HashSelection struct {
	IPv6   bool // else IPv4
	UDP    bool // else TCP; matters only when ports are selected
	Fields HashFields
}

// LROAttr lets the device merge TCP segments of one batch.
type LROAttr struct {
	IPv4, IPv6 bool
	MaxPayload int // bytes of L3 and up of a merged packet, multiple of 256
}

// TIRAttr describes a transport receive object: the destination of frames that a flow rule matched.
// Exactly one of RQ and Table is set.
type TIRAttr struct {
	TD        uint32 // transport domain
	RQ        *RQ
	Table     *RQT
	Hash      HashFunction
	Key       [40]byte
	Symmetric bool // sort addresses and ports before hashing
	Selection HashSelection
	LRO       LROAttr

	// The TIR may receive unicast or multicast frames sent from its own domain.
	SelfLoopbackUnicast, SelfLoopbackMulticast bool
}

// TIR is a transport receive object.
type TIR struct {
	nic    *NIC
	number uint32
	use    refCount
	attr   atomic.Pointer[TIRAttr]
	hash   atomic.Pointer[toeplitz]
}

// CreateTIR creates a transport receive object.
func (n *NIC) CreateTIR(a TIRAttr) (*TIR, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	t := &TIR{nic: n}
	if err := t.checkAttr(a); err != nil {
		return nil, err
	}
	use := a.targetRefs()
	if err := use.addUser(); err != nil {
		return nil, statusErrorf(StatusBadRes, "transport receive object of a destroyed queue")
	}
	t.setAttr(a)
	t.number = n.numbers.addObject(t, 20)
	return t, nil
}

func (t *TIR) checkAttr(a TIRAttr) error {
	if (a.RQ == nil) == (a.Table == nil) {
		return statusErrorf(StatusBadParam,
			"transport receive object needs a receive queue or a table")
	}
	if a.Hash > HashToeplitz {
		return statusErrorf(StatusBadParam, "hash function %d", a.Hash)
	}
	if (a.LRO.IPv4 || a.LRO.IPv6) && !t.nic.caps.LRO {
		return statusErrorf(StatusBadParam, "LRO the device lacks")
	}
	return nil
}

func (a *TIRAttr) targetRefs() *refCount {
	if a.RQ != nil {
		return &a.RQ.use
	}
	return &a.Table.use
}

func (t *TIR) setAttr(a TIRAttr) {
	if a.Hash == HashToeplitz {
		t.hash.Store(t.nic.hashTable(a.Key))
	}
	t.attr.Store(&a)
}

// Number returns the TIRN.
func (t *TIR) Number() uint32 { return t.number }

// Attr returns the current attributes of the object.
func (t *TIR) Attr() TIRAttr { return *t.attr.Load() }

// Modify replaces all attributes except a single queue; a nil Table stays as it is. It must not run
// concurrently with another change of the same object.
func (t *TIR) Modify(a TIRAttr) error {
	old := t.attr.Load()
	if a.RQ = old.RQ; a.Table == nil {
		a.Table = old.Table
	}
	if err := t.checkAttr(a); err != nil {
		return err
	}
	if a.Table != old.Table {
		if err := a.targetRefs().addUser(); err != nil {
			return statusErrorf(StatusOf(err), "indirection table %#x is destroyed",
				a.Table.Number())
		}
		defer old.targetRefs().dropUser()
	}
	t.setAttr(a)
	return nil
}

// Destroy removes the object. StatusResBusy while a flow rule uses it.
func (t *TIR) Destroy() error {
	if err := t.use.retireObject(); err != nil {
		return statusErrorf(StatusOf(err), "destroy transport receive object %#x", t.number)
	}
	t.attr.Load().targetRefs().dropUser()
	t.nic.numbers.removeNumber(t.number)
	return nil
}
