package simnic

import "encoding/binary"

// Translation says what a memory key translates addresses to (access_mode_1_0 of mkc, linux
// include/linux/mlx5/mlx5_ifc.h).
type Translation uint8

// Translations of a key.
const (
	Pages      Translation = iota // MTT
	Parts                         // KLM: of other keys, each of a length of its own
	EqualParts                    // KSM: of other keys, each as long as a page of the key
)

// KeyPart describes a part of a memory key that belongs to another one (struct mlx5_klm and
// mlx5_ksm of linux include/linux/mlx5/device.h). It has the memory that the other key had when it
// was looked up: a later change of that key does not count.
type KeyPart struct {
	mem    *Memory // of size bytes; nil: a hole
	size   uint64
	pd     uint32 // of the other key, as is what follows
	writes bool
}

// KeyPartLen gives the length of a list's entry in bytes.
const KeyPartLen = 16

// maxPartShift gives the length of the longest of equal parts, log2.
const maxPartShift = 30

// lookUpPart reads an entry of a key's list; equal parts have 1<<shift bytes. The caller has the
// lock of no key.
func (n *NIC) lookUpPart(of Translation, shift int, entry []byte) (KeyPart, error) {
	size := uint64(binary.BigEndian.Uint32(entry))
	number, addr := binary.BigEndian.Uint32(entry[4:]), binary.BigEndian.Uint64(entry[8:])
	if of == EqualParts {
		size = 1 << shift
	}
	if size == 0 || number == 0 {
		return KeyPart{size: size}, nil
	}
	k := (*n.keys.keys.Load())[number]
	if k == nil {
		return KeyPart{}, statusErrorf(StatusBadRes, "memory key %#x, a part of another", number)
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	a := &k.attr
	off, ok, _ := k.keySpan(a.PD, addr, 0)
	if !ok || size > a.Len-off {
		return KeyPart{}, statusErrorf(StatusBadParam,
			"%d bytes at %#x of memory key %#x cannot be a part of another", size, addr, number)
	}
	mem, err := NewJoinedMemory([]MemoryPart{{a.Mem, off, size}})
	return KeyPart{mem, size, a.PD, a.LocalWrite}, err
}

// JoinKeys gives a key that is to be created the parts of other keys that a list names. It may be
// written to if all of them may. With changes UMR WQEs may change its parts.
func (n *NIC) JoinKeys(a *MKeyAttr, x KeyTranslations, changes bool, list []byte) (err error) {
	if x.Of == EqualParts && x.LogPage > maxPartShift {
		return statusErrorf(StatusBadParam, "memory key with parts of 2^%d bytes", x.LogPage)
	}
	for ; len(list) > 0; list = list[KeyPartLen:] {
		p, err := n.lookUpPart(x.Of, x.LogPage, list)
		if err != nil {
			return err
		}
		a.LocalWrite = a.LocalWrite && (p.mem == nil || p.writes)
		x.Parts = append(x.Parts, p)
	}
	if a.Mem, err = a.joinParts(x.Parts); err == nil && changes {
		a.UMR = &x
	}
	return err
}

// joinParts returns the memory of parts, which must be of the key's protection domain, and writable
// if it is.
func (a *MKeyAttr) joinParts(parts []KeyPart) (*Memory, error) {
	all := make([]MemoryPart, len(parts))
	for i, p := range parts {
		if p.mem != nil && (p.pd != a.PD || a.LocalWrite && !p.writes) {
			return nil, statusErrorf(StatusBadParam,
				"part %d of a memory key is of another protection domain, or cannot be written to",
				i)
		}
		all[i] = MemoryPart{Mem: p.mem, Len: p.size}
	}
	return NewJoinedMemory(all)
}

// withParts returns the parts that a key has when those from first on are replaced. There are holes
// before first if there were fewer: of equal parts each has 1<<shift bytes.
func (x *KeyTranslations) withParts(first int, parts []KeyPart, shift int) []KeyPart {
	all := make([]KeyPart, max(len(x.Parts), first+len(parts)))
	for i := copy(all, x.Parts); i < first && x.Of == EqualParts; i++ {
		all[i].size = 1 << shift
	}
	copy(all[first:], parts)
	return all
}
