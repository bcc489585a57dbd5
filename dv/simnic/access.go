package simnic

// span finds where [addr, addr+n) of a key lies in its memory. The caller holds
// k.mu for reading.
func (k *MKey) span(pd uint32, addr uint64, n int) (off uint64, ok, mine bool) {
	if k.dead || k.attr.PD != pd {
		return 0, false, false
	}
	off = addr - k.attr.Start
	if addr < k.attr.Start || off > k.attr.Len || uint64(n) > k.attr.Len-off {
		return 0, false, true
	}
	return off, true, true
}

// read copies len(dst) bytes at addr out of the memory lkey names, for a send
// queue of protection domain pd.
func (n *NIC) read(pd, lkey uint32, addr uint64, dst []byte) fault {
	k := (*n.keys.keys.Load())[lkey]
	if k == nil {
		return faultKey
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	off, ok, mine := k.span(pd, addr, len(dst))
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

// write copies src to addr in the memory lkey names, for a receive queue of
// protection domain pd. room is what the WQE says may be written there: a driver
// that promises more than is registered is told so, even if this packet fits.
func (n *NIC) write(pd, lkey uint32, addr uint64, src []byte, room int) fault {
	k := (*n.keys.keys.Load())[lkey]
	if k == nil {
		return faultRxKey
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	off, ok, mine := k.span(pd, addr, len(src))
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
		n.strict.add("receive segment of %d bytes at %#x runs out of the memory of key %#x", room, addr, lkey)
	}
	return fault{}
}
