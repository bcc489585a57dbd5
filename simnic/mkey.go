package simnic

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// MKeyAttr describes a memory key.
type MKeyAttr struct {
	PD         uint32 // protection domain the key belongs to
	Start      uint64 // address a WQE uses for the first byte; 0 for a physical-address key
	Len        uint64 // bytes; 0 with Start 0 means all of Mem
	Mem        *Memory
	LocalWrite bool   // receive queues may write
	Variant    *uint8 // low byte of the key; nil: the core chooses

	Free bool             // no memory yet: UMR WQEs fill it in; Mem may be nil
	UMR  *KeyTranslations // UMR WQEs may change the key; nil: they may not
}

// KeyTranslations holds what a key consists of, where UMR WQEs may change that. The key owns it.
type KeyTranslations struct {
	Of           Translation
	LogPage      int       // bytes of a page, or of each of EqualParts, log2
	List         []uint64  // of Pages: bus addresses; the low three bits are flags
	Parts        []KeyPart // of others; without memory: not filled in yet
	Translations int       // maximum length of List or Parts
	// Page finds n bytes at a bus address. It is called with the key locked.
	Page func(addr uint64, n int) (*mmio.Region, error)
}

// MKey represents a registered memory region. A WQE may access [Start, Start+Len) through its key,
// from queues of the same protection domain.
type MKey struct {
	nic  *NIC
	attr MKeyAttr
	key  uint32

	mu   sync.RWMutex // read-held by a keyHold; guards what follows, and attr and key
	dead bool
}

// keyTable finds keys without a lock. Writers replace the whole map.
type keyTable struct {
	mu   sync.Mutex
	keys atomic.Pointer[map[uint32]*MKey]
}

func (t *keyTable) initTable() { t.keys.Store(&map[uint32]*MKey{}) }

func (t *keyTable) editKeys(change func(map[uint32]*MKey)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(*t.keys.Load())
	change(next)
	t.keys.Store(&next)
}

// CreateMKey registers memory.
func (n *NIC) CreateMKey(a MKeyAttr) (*MKey, error) {
	if err := n.Usable(); err != nil {
		return nil, err
	}
	if err := a.checkAttr(); err != nil {
		return nil, err
	}
	k := &MKey{nic: n, attr: a}
	index := n.numbers.addObject(k, 22)
	variant := uint8(index * 7)
	if a.Variant != nil {
		variant = *a.Variant
	}
	k.key = index<<8 | uint32(variant)
	n.keys.editKeys(func(m map[uint32]*MKey) { m[k.key] = k })
	return k, nil
}

// checkAttr refuses a key that names memory it does not have. A length of 0 at 0 becomes
// all of the memory.
func (a *MKeyAttr) checkAttr() error {
	if a.Free {
		if a.UMR == nil {
			return statusErrorf(StatusBadParam, "free memory key that no WQE can fill in")
		}
		return nil
	}
	if a.Mem == nil {
		return statusErrorf(StatusBadParam, "memory key without memory")
	}
	if a.Len == 0 && a.Start == 0 {
		a.Len = a.Mem.Len()
	}
	if a.Len > a.Mem.Len() || a.Start+a.Len < a.Start {
		return statusErrorf(StatusBadParam, "memory key of %d bytes at %#x over %d bytes of memory",
			a.Len, a.Start, a.Mem.Len())
	}
	return nil
}

// Key returns the lkey: index in the upper 24 bits, variant in the low 8.
func (k *MKey) Key() uint32 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.key
}

// Attr returns the attributes the key was created with, as changed by UMR WQEs.
func (k *MKey) Attr() MKeyAttr {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.attr
}

// Destroy invalidates the key and waits for copies in progress: afterwards the
// memory may be unmapped. Queues that still use the key get protection errors.
func (k *MKey) Destroy() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return statusErrorf(StatusBadRes, "memory key %#x", k.key)
	}
	k.dead = true
	k.nic.keys.editKeys(func(m map[uint32]*MKey) { delete(m, k.key) })
	k.nic.numbers.removeNumber(k.key >> 8)
	return nil
}

// keySpan finds the offset of [addr, addr+n) of a key in its memory. The caller holds k.mu for
// reading.
func (k *MKey) keySpan(pd uint32, addr uint64, n int) (off uint64, ok, mine bool) {
	if k.dead || k.attr.Free || k.attr.PD != pd {
		return 0, false, false
	}
	off = addr - k.attr.Start
	if addr < k.attr.Start || off > k.attr.Len || uint64(n) > k.attr.Len-off {
		return 0, false, true
	}
	return off, true, true
}

// keyHold holds the memory key a queue used last, locked against destruction until
// released, so that many descriptors cost one look-up.
type keyHold struct{ key *MKey }

// findKey returns the key of that number, nil if there is none. It is held until releaseKey, or
// until find holds another key.
func (h *keyHold) findKey(n *NIC, lkey uint32) *MKey {
	if h.key != nil && h.key.key == lkey {
		return h.key
	}
	h.releaseKey()
	if k := (*n.keys.keys.Load())[lkey]; k != nil {
		k.mu.RLock()
		h.key = k
	}
	return h.key
}

func (h *keyHold) releaseKey() {
	if h.key != nil {
		h.key.mu.RUnlock()
		h.key = nil
	}
}

// readMemory copies len(dst) bytes at addr out of the memory lkey names, for a send queue.
func (h *keyHold) readMemory(sq *SQ, lkey uint32, addr uint64, dst []byte) fault {
	k := h.findKey(sq.nic, lkey)
	if k == nil {
		return faultNoKey
	}
	off, ok, mine := k.keySpan(sq.attr.PD, addr, len(dst))
	switch {
	case !mine:
		return faultKey
	case !ok:
		return faultBounds
	case !k.attr.Mem.Gather(off, dst):
		return faultBus
	}
	return fault{}
}

// writeMemory copies src to addr in the memory lkey names, for a receive queue. room is the length
// that the WQE allows there: if it exceeds the registered memory, write fails even if this packet
// fits.
func (h *keyHold) writeMemory(rq *RQ, lkey uint32, addr uint64, src []byte, room int) fault {
	k := h.findKey(rq.nic, lkey)
	if k == nil {
		return faultRxKey
	}
	off, ok, mine := k.keySpan(rq.attr.PD, addr, len(src))
	switch {
	case !mine:
		return faultRxKey
	case !ok:
		return faultRxBounds
	case !k.attr.LocalWrite:
		return faultRxAccess
	case !k.attr.Mem.Scatter(off, src):
		return faultRxBus
	}
	if uint64(room) > k.attr.Len-off {
		rq.nic.strict.addViolation(
			"receive segment of %d bytes at %#x runs out of the memory of key %#x",
			room, addr, lkey)
	}
	return fault{}
}
