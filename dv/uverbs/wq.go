package uverbs

import (
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// WQAttr describes a receive work queue.
type WQAttr struct {
	// CQ receives the completions.
	CQ *CQ

	// Entries gives the number of work requests in the ring: a power of two, at most
	// DeviceCaps.MaxRecvWR.
	Entries int

	// LogStride is log2 of the bytes of one work request, 4 + log2 of its data segments; default 4,
	// one segment.
	LogStride uint32

	// Buf gives the ring: Entries<<LogStride bytes, page aligned.
	Buf *mmio.Region

	// DBR gives the doorbell record: 8 bytes, 8-aligned, zero. Word 0 is the receive counter.
	DBR *mmio.Region

	// UserIndex comes back in completions, 24 bits.
	UserIndex uint32

	// UserHandle comes back in events of the queue (not on linux 5.4).
	UserHandle uint64

	// Features of DeviceCaps with these names; creation fails with EOPNOTSUPP on a device without.
	VLANStrip, ScatterFCS, DelayDrop, WriteEndPadding bool

	// Striding, if not nil, makes each work request hold many frames.
	Striding *Striding
}

// Striding describes a multi-packet receive queue: each work request is a buffer of 1<<LogStrides
// strides.
type Striding struct {
	LogStrideBytes uint32 // 6 to 13
	LogStrides     uint32 // 9 to 16, or from 3 where DeviceCaps.MinLogStridesInWQE says so
	// 1: frames start 2 bytes into their first stride, so that IP headers are aligned
	TwoByteShift uint32
}

// WQState is the state of a work queue (enum ib_wq_state).
type WQState uint32

// States of a work queue. It receives in RDY.
//
//	RESET ──> RDY ──> ERR      RDY ──> RESET
//	  ^                │
//	  └────────────────┘
//
// Forbidden: RESET to ERR, ERR to RDY.
const (
	WQReset WQState = 0
	WQReady WQState = 1
	WQErr   WQState = 2
)

var wqStateNames = []string{"RESET", "RDY", "ERR"}

// String returns the kernel's name of the state.
func (s WQState) String() string {
	if int(s) < len(wqStateNames) {
		return wqStateNames[s]
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// mayBecome reports whether a transition is possible; staying is allowed.
func (s WQState) mayBecome(to WQState) bool {
	if s > WQErr || to > WQErr {
		return false
	}
	return !(s == WQReset && to == WQErr || s == WQErr && to == WQReady)
}

// WQ is a receive work queue. It receives through an indirection table and an RSS queue pair.
type WQ struct {
	object
	WQN uint32 // number of the queue in the device
}

// CreateWQ creates a receive work queue in state RESET. The caller owns the memory of a, which must
// stay mapped until Close returned nil.
func (pd *PD) CreateWQ(a WQAttr) (*WQ, error) {
	if a.LogStride == 0 {
		a.LogStride = 4
	}
	noun := fmt.Sprintf("receive queue of %d entries", a.Entries)
	if err := a.checkAttr(noun); err != nil {
		return nil, err
	}
	wq := new(WQ)
	var r ExCreateWQResp
	err := pd.c.runCreate(&wq.object, &r.WQHandle,
		write{op: opCreateWQ, noun: noun, in: a.coreReq(pd),
			out: &r, uhwIn: a.driverReq(),
			uses: []*object{&pd.object, &a.CQ.object}, needs: pageBytes(a.Entries << a.LogStride)})
	if err != nil {
		return nil, err
	}
	wq.WQN = r.WQN
	return wq, nil
}

func (a WQAttr) checkAttr(noun string) error {
	switch {
	case a.CQ == nil:
		return refuseArgs(opCreateWQ, noun, "it needs a completion queue")
	case a.LogStride < 4 || a.LogStride > 16:
		return refuseArgs(opCreateWQ, noun, "a work request of 1<<%d bytes is outside 16 to 65536",
			a.LogStride)
	case a.Striding != nil && a.LogStride < 5:
		return refuseArgs(opCreateWQ, noun, "a striding work request has at least 32 bytes")
	case a.UserIndex > 0xffffff:
		return refuseArgs(opCreateWQ, noun, "user index %#x has more than 24 bits", a.UserIndex)
	}
	return checkRing(opCreateWQ, noun, a.Entries, 1<<a.LogStride, a.Buf, a.DBR)
}

func (a WQAttr) coreReq(pd *PD) ExCreateWQReq {
	return ExCreateWQReq{WQType: WQTypeRQ, UserHandle: a.UserHandle,
		PDHandle: pd.handle, CQHandle: a.CQ.handle,
		MaxWR: uint32(a.Entries), MaxSGE: a.dataSegments(), CreateFlags: a.createFlags()}
}

// dataSegments returns the number of data segments in a work request; a striding one starts with
// another kind of segment.
func (a WQAttr) dataSegments() uint32 {
	n := uint32(1) << (a.LogStride - 4)
	if a.Striding != nil {
		n--
	}
	return n
}

func (a WQAttr) createFlags() (f uint32) {
	for _, x := range []struct {
		on  bool
		bit uint32
	}{
		{a.VLANStrip, WQFlagCVLANStripping},
		{a.ScatterFCS, WQFlagScatterFCS},
		{a.DelayDrop, WQFlagDelayDrop},
		{a.WriteEndPadding, WQFlagPCIWriteEndPadding},
	} {
		if x.on {
			f |= x.bit
		}
	}
	return f
}

func (a WQAttr) driverReq() Mlx5CreateWQReq {
	r := Mlx5CreateWQReq{BufAddr: a.Buf.Addr(), DBAddr: a.DBR.Addr(), RQWQECount: uint32(a.Entries),
		RQWQEShift: a.LogStride, UserIndex: a.UserIndex}
	if s := a.Striding; s != nil {
		r.CompMask = Mlx5CreateWQMaskStridingRQ
		r.StrideLogBytes, r.WQELogNumStrides, r.TwoByteShiftEn = s.LogStrideBytes,
			s.LogStrides, s.TwoByteShift
	}
	return r
}

// Ready takes the queue from RESET to RDY, in which it receives.
func (wq *WQ) Ready() error { return wq.Modify(WQReset, WQReady) }

// Modify takes the queue from state from, which must be the hardware's, to state to. The kernel's
// own record is not used: it does not follow errors. After a queue that hit an error is back in
// WQReset: drop its stale completions, clear the doorbell record, Ready, fill the ring from index
// 0. Indirection tables and RSS queue pairs stay valid.
func (wq *WQ) Modify(from, to WQState) error {
	noun := fmt.Sprintf("%s from %v to %v", wq.noun, from, to)
	if !from.mayBecome(to) {
		return refuseArgs(opModifyWQ, noun, "there is no such step")
	}
	return wq.sendModify(noun, ExModifyWQReq{AttrMask: WQAttrState | WQAttrCurState,
		WQState: uint32(to), CurrWQState: uint32(from)})
}

// sendModify sends a change. The driver's part must be present and zero.
func (wq *WQ) sendModify(noun string, r ExModifyWQReq) error {
	r.WQHandle = wq.handle
	return wq.c.runWrite(write{op: opModifyWQ, noun: noun, in: r, uhwIn: Mlx5ModifyWQReq{},
		uses: []*object{&wq.object}})
}

// Close destroys the queue; EBUSY while an indirection table names it.
func (wq *WQ) Close() error {
	return wq.destroyOnce(write{op: opDestroyWQ,
		in: ExDestroyWQReq{WQHandle: wq.handle}, out: &ExDestroyWQResp{}})
}
