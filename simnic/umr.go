package simnic

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A UMR WQE changes a memory key: after the control segment, whose immediate names the key, come 48
// bytes that select the changes, the key's context of 64 bytes, and new translations, in the WQE or
// in memory of a data segment (linux include/linux/mlx5/qp.h, struct mlx5_wqe_umr_ctrl_seg;
// context: include/linux/mlx5/mlx5_ifc.h, mkc).
const (
	umrControlAt = mlx5.CtrlSegSize
	umrContextAt = umrControlAt + 48
	umrListAt    = umrContextAt + 64
	octoword     = 16 // unit of list lengths and offsets: two pages, or a part of another key
)

// Flags of the UMR control segment.
const (
	umrOffset  = 1 << 4 // the list starts at an offset of the key's
	umrIfFree  = 1 << 5 // fail if the key is not free
	umrIfTaken = 1 << 6 // fail if it is free
	umrInline  = 1 << 7
)

// Members of a key's context that a UMR WQE may select (MLX5_MKEY_MASK_*).
const (
	umrLength     = 1 << 0
	umrPageSize   = 1 << 1
	umrStart      = 1 << 6
	umrPD         = 1 << 7
	umrKey        = 1 << 13
	umrLocalWrite = 1 << 18
	umrFree       = 1 << 29
	umrPageSize5  = 1 << 42
)

// maxTranslations gives the maximum number of translations that UMR WQEs give a key.
const maxTranslations = 1 << 20

// faultUMR gives the fault of a UMR WQE that the key refuses (MLX5_CQE_SYNDROME_MW_BIND_ERR).
var faultUMR = fault{mlx5.Syndrome(0x06), 0, 0}

// keyUpdate is a UMR WQE, decoded.
type keyUpdate struct {
	flags   uint8
	mask    uint64
	context []byte
	first   uint64    // number of the first translation that changes
	shift   int       // bytes of a page, or of each of equal parts, log2
	list    []uint64  // pages, or
	parts   []KeyPart // parts of other keys, looked up
}

// executeUMR executes a UMR WQE.
func (sq *SQ) executeUMR(w *wqe) fault {
	if len(w.raw) < umrListAt {
		return faultSize
	}
	c := w.raw[umrControlAt:]
	u := keyUpdate{flags: c[0], mask: binary.BigEndian.Uint64(c[8:]),
		context: w.raw[umrContextAt:umrListAt]}
	if u.flags&umrOffset != 0 {
		u.first = uint64(be16(c[6:])) | uint64(binary.BigEndian.Uint32(c[16:]))<<16
	}
	list, f := sq.umrList(w, u.flags, octoword*int(be16(c[4:])))
	if f.syndrome != 0 {
		return f
	}
	k := (*sq.nic.keys.keys.Load())[w.immediate()]
	sq.burst.mem.releaseKey() // it may hold this very key, or one that the list names
	if k == nil || !k.decodeList(&u, list) || !k.applyUMR(&u) {
		return faultUMR
	}
	return fault{}
}

// decodeList reads the list of a UMR WQE, whose entries are as the key's. It takes the key's lock
// for a moment only, since entries name keys, too.
func (k *MKey) decodeList(u *keyUpdate, list []byte) (ok bool) {
	k.mu.RLock()
	x := k.attr.UMR
	if x == nil {
		k.mu.RUnlock()
		return false
	}
	of, own := x.Of, k.key
	u.shift = x.LogPage
	k.mu.RUnlock()
	if u.mask&(umrPageSize|umrPageSize5) != 0 {
		u.shift = int(u.context[59] & 0x3f)
	}
	switch {
	case of == Pages && u.shift < 12, u.shift > maxPartShift:
		return false
	case of == Pages:
		u.first *= octoword / 8
		for ; len(list) >= 8; list = list[8:] {
			u.list = append(u.list, binary.BigEndian.Uint64(list))
		}
		return true
	}
	for ; len(list) > 0; list = list[octoword:] {
		p, err := k.nic.lookUpPart(of, u.shift, list)
		if err != nil || binary.BigEndian.Uint32(list[4:]) == own {
			return false
		}
		u.parts = append(u.parts, p)
	}
	return true
}

// umrList returns the list of n bytes that comes with a UMR WQE.
func (sq *SQ) umrList(w *wqe, flags uint8, n int) ([]byte, fault) {
	switch {
	case n == 0:
		return nil, fault{}
	case flags&umrInline != 0 && umrListAt+n > len(w.raw), len(w.raw) == umrListAt:
		return nil, faultInline
	case flags&umrInline != 0:
		return w.raw[umrListAt : umrListAt+n], fault{}
	}
	s, _, f := w.dataSegmentAt(umrListAt)
	if f.syndrome != 0 || s.inline != nil || s.n < n {
		return nil, faultFormat
	}
	b := make([]byte, n)
	return b, sq.burst.mem.readMemory(sq, s.lkey, s.addr, b)
}

// applyUMR applies a UMR WQE to the key completely or not at all.
func (k *MKey) applyUMR(u *keyUpdate) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := &k.attr
	if k.dead || u.flags&umrIfFree != 0 && !a.Free || u.flags&umrIfTaken != 0 && a.Free ||
		u.first+uint64(len(u.list)+len(u.parts)) >
			uint64(min(a.UMR.Translations, maxTranslations)) {
		return false
	}
	next := *a
	next.updateContext(u.mask, u.context)
	if a.UMR.Of == Pages {
		*a = next
		k.translate(int(u.first), u.list, u.shift)
	} else {
		parts := a.UMR.withParts(int(u.first), u.parts, u.shift)
		var err error
		if next.Mem, err = next.joinParts(parts); err != nil {
			return false
		}
		*a = next
		a.UMR.Parts, a.UMR.LogPage = parts, u.shift
	}
	if key := k.key&^0xff | uint32(u.context[7]); u.mask&umrKey != 0 && key != k.key {
		k.nic.keys.editKeys(func(m map[uint32]*MKey) { delete(m, k.key); m[key] = k })
		k.key = key
	}
	return true
}

// updateContext copies the members of the context that mask selects.
func (a *MKeyAttr) updateContext(mask uint64, context []byte) {
	if mask&umrLength != 0 {
		a.Len = binary.BigEndian.Uint64(context[24:])
	}
	if mask&umrStart != 0 {
		a.Start = binary.BigEndian.Uint64(context[16:])
	}
	if mask&umrPD != 0 {
		a.PD = binary.BigEndian.Uint32(context[12:]) & 0xffffff
	}
	if mask&umrLocalWrite != 0 {
		a.LocalWrite = context[2]&0x08 != 0
	}
	if mask&umrFree != 0 {
		a.Free = context[0]&0x40 != 0
	}
}

// translate replaces translations from number first on, with pages of 1<<shift bytes. A missing
// page faults on access.
func (k *MKey) translate(first int, list []uint64, shift int) {
	x := k.attr.UMR
	if n := first + len(list) - len(x.List); n > 0 {
		x.List = append(x.List, make([]uint64, n)...)
	}
	copy(x.List[first:], list)
	m := k.attr.Mem
	if m == nil || m.one != nil || int(m.shift) != shift {
		m, first, list = &Memory{shift: uint(shift)}, 0, x.List
	}
	x.LogPage, k.attr.Mem = shift, m
	m.skew = k.attr.Start & (1<<shift - 1)
	for len(m.pieces) < len(x.List) {
		m.pieces = append(m.pieces, piece{at: uint64(len(m.pieces)) << shift})
	}
	for i, addr := range list {
		m.pieces[first+i].mem = x.translatedPage(addr, 1<<shift)
	}
	m.size = 0
	if all := uint64(len(m.pieces)) << shift; all > m.skew {
		m.size = all - m.skew
	}
}

// translatedPage returns the memory of a translation, nil if there is none.
func (x *KeyTranslations) translatedPage(addr uint64, n int) *mmio.Region {
	if addr == 0 {
		return nil
	}
	r, err := x.Page(addr&^7, n)
	if err != nil {
		return nil
	}
	return r
}
