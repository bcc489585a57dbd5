package simnic

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

// keyHold is the memory key a queue used last, locked against destruction until
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
		return faultKey
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
