package uverbs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// IndTable is an indirection table: the low bits of a frame's hash choose the entry, the entry
// names the receive queue. Its entries cannot change.
type IndTable struct {
	object
	Entries int
}

// CreateIndirectionTable creates a table of 1<<logSize entries, at most DeviceCaps.MaxIndTableSize,
// in which entry i names wqs[i mod len(wqs)].
func (c *Context) CreateIndirectionTable(wqs []*WQ, logSize int) (*IndTable, error) {
	noun := fmt.Sprintf("indirection table of 1<<%d entries for %d queues", logSize, len(wqs))
	if logSize < 0 || logSize > MaxLogIndTblSize || len(wqs) == 0 {
		return nil, refuseArgs(opCreateIndTable, noun,
			"it takes at least one queue and at most 1<<%d entries", MaxLogIndTblSize)
	}
	t := &IndTable{Entries: 1 << logSize}
	uses := make([]*object, len(wqs))
	for i, wq := range wqs {
		uses[i] = &wq.object
	}
	var r ExCreateRWQIndTblResp
	err := c.runCreate(&t.object, &r.IndTblHandle, write{op: opCreateIndTable, noun: noun,
		in: tableBytes(wqs, logSize), out: &r, uses: uses})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// tableBytes mirrors struct ib_uverbs_ex_create_rwq_ind_table with its handles, padded to 8 bytes.
func tableBytes(wqs []*WQ, logSize int) []byte {
	entries := 1 << logSize
	head := ExCreateRWQIndTblReq{LogIndTblSize: uint32(logSize)}
	b := make([]byte, align8(SizeOf(head)+4*entries))
	n := PutStruct(b, head)
	for i := range entries {
		binary.NativeEndian.PutUint32(b[n+4*i:], wqs[i%len(wqs)].handle)
	}
	return b
}

// LogTableSize returns a sensible size for n queues: log2 of the smallest power of two that holds
// each queue at least eight times, so that uneven division costs at most an eighth, but no more
// than the device's maximum.
func (d DeviceCaps) LogTableSize(n int) int {
	want := bits.Len(uint(max(8*n, 1) - 1))
	if d.MaxIndTableSize == 0 {
		return 0
	}
	return min(want, bits.Len32(d.MaxIndTableSize)-1, MaxLogIndTblSize)
}

// Close destroys the table; EBUSY while an RSS queue pair uses it.
func (t *IndTable) Close() error {
	return t.destroyOnce(write{op: opDestroyIndTbl,
		in: ExDestroyRWQIndTblReq{IndTblHandle: t.handle}})
}

// RSSAttr describes how frames are distributed over the queues of a table.
type RSSAttr struct {
	Table *IndTable

	// Fields are the header fields that are hashed: one of the HashFields sets. A frame that lacks
	// them has hash 0. 0 hashes nothing and is allowed with a table of one entry.
	Fields uint64

	// Key gives the Toeplitz key.
	Key [Mlx5QPRSSKeyLen]byte

	// Flags are Mlx5QPFlagTunnelOffloads, Mlx5QPFlagAllowSelfLBUC and Mlx5QPFlagAllowSelfLBMC.
	Flags uint32

	// UserHandle comes back in events of the queue pair.
	UserHandle uint64
}

// CreateRSSQP creates a queue pair that is only a destination of flow rules: it has no queues and
// no states. EPERM means CAP_NET_RAW is missing.
func (pd *PD) CreateRSSQP(a RSSAttr) (*QP, error) {
	noun := fmt.Sprintf("RSS queue pair of fields %#x", a.Fields)
	if a.Table == nil {
		return nil, refuseArgs(opCreateRSSQP, noun, "it needs an indirection table")
	}
	drv := Mlx5CreateQPRSSReq{RxHashFieldsMask: a.Fields, RxHashFunction: Mlx5HashToeplitz,
		RxKeyLen: Mlx5QPRSSKeyLen, Flags: a.Flags}
	copy(drv.RxHashKey[:], a.Key[:])
	qp := &QP{pd: pd}
	var r ExCreateQPResp
	err := pd.c.runCreate(&qp.object, &r.Base.QPHandle, write{op: opCreateRSSQP, noun: noun,
		in: ExCreateQPReq{UserHandle: a.UserHandle, PDHandle: pd.handle, QPType: QPTypeRawPacket,
			CompMask: CreateQPMaskIndTable, RWQIndTblHandle: a.Table.handle},
		out: &r, uhwIn: drv, uhwOut: &Mlx5CreateQPResp{},
		uses: []*object{&pd.object, &a.Table.object}})
	if err != nil {
		return nil, err
	}
	return qp, nil
}
