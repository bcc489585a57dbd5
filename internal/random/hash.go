package random

import "hash/maphash"

// HashKey holds the key of a hash for tables in memory, of which strangers can choose the entries.
// The zero value is not valid.
type HashKey struct{ key *hashKey } // as small as a maphash.Seed

type hashKey struct {
	system maphash.Seed // of a source that is the system's
	seeded uint64       // else not 0
}

// HashKey draws a key. With the system's source the hash is package maphash's, whose keys cannot be
// chosen.
func (s Source) HashKey() HashKey {
	if s.Seeded() {
		return HashKey{&hashKey{seeded: s.Uint64() | 1}}
	}
	return HashKey{&hashKey{system: maphash.MakeSeed()}}
}

// Bytes returns the hash of b.
func (k HashKey) Bytes(b []byte) uint64 {
	if k.key.seeded != 0 {
		return hashFNV(k.key.seeded, b)
	}
	return maphash.Bytes(k.key.system, b)
}

// hashFNV is FNV-1a of b from h on, mixed once more, as the upper half of FNV is poor.
func hashFNV(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}
