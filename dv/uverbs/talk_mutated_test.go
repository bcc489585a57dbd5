package uverbs_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// anything is the errno of steps without an expected errno: every kernel must return the same.
const anything = unix.Errno(0xfffe)

// template is a correct request of which words are changed.
type template struct {
	name       string
	cmd        uint32
	core, uhw  func(c *talker) []byte
	keepCore   []int // offsets of constant words: addresses and sizes of memory, descriptors
	keepUHW    []int
	coreLen    int // length of the reply
	uhwLen     int
	handle     int // offset of a new object's handle in the reply, -1: none
	undo       func(h func(*talker) *uint32) func(*talker) error
	mutateFrom int // the first word of core that may change
}

func templates() []template {
	return []template{
		{name: "region", cmd: uverbs.CmdRegMR, coreLen: 12, handle: 0,
			keepCore: []int{8, 12, 16, 20, 24, 28},
			core: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.RegMRReq{Start: c.at(dataAt), HCAVA: c.at(dataAt),
					Length: 4096, PDHandle: c.pd, AccessFlags: 1})
			},
			undo: func(h func(*talker) *uint32) func(*talker) error {
				return func(c *talker) error {
					return c.ask(uverbs.CmdDeregMR, uverbs.DeregMRReq{MRHandle: *h(c)}, nil, nil,
						nil)
				}
			}},
		{name: "completion queue", cmd: uverbs.ExCmdCreateCQ, coreLen: 16, uhwLen: 8, handle: 0,
			keepCore: []int{8, 16}, keepUHW: []int{0, 4, 8, 12},
			core: func(*talker) []byte {
				return uverbs.Bytes(uverbs.ExCreateCQReq{CQE: 63,
					CompChannel: -1})
			},
			uhw: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.Mlx5CreateCQReq{BufAddr: c.at(rxCQAt),
					DBAddr: c.record(1), CQESize: 64})
			}, undo: destroyCQ},
		{name: "queue pair", cmd: uverbs.ExCmdCreateQP, coreLen: 40, uhwLen: 40, handle: 0,
			keepUHW: []int{0, 4, 8, 12, 16, 20, 24, 40, 44}, mutateFrom: 8,
			core: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.ExCreateQPReq{PDHandle: c.pd, SendCQHandle: c.txCQ,
					RecvCQHandle: c.txCQ, MaxSendWR: 64, MaxSendSGE: 1,
					QPType: uverbs.QPTypeRawPacket})
			},
			uhw: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.Mlx5CreateQPReq{DBAddr: c.record(5), SQWQECount: 64,
					UIDX: 1, SQBufAddr: c.at(sqAt)})
			}, undo: destroyQP},
		{name: "receive queue", cmd: uverbs.ExCmdCreateWQ, coreLen: 24, handle: 8,
			keepUHW: []int{0, 4, 8, 12, 16, 20},
			core: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.ExCreateWQReq{PDHandle: c.pd,
					CQHandle: c.rxCQ, MaxWR: 64, MaxSGE: 1})
			},
			uhw: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.Mlx5CreateWQReq{BufAddr: c.at(rq2At),
					DBAddr: c.record(6), RQWQECount: 64, RQWQEShift: 4})
			}, undo: destroyWQ},
		{name: "RSS queue pair", cmd: uverbs.ExCmdCreateQP, coreLen: 40,
			uhwLen: 40, handle: 0, mutateFrom: 8,
			core: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.ExCreateQPReq{PDHandle: c.pd,
					QPType: uverbs.QPTypeRawPacket, CompMask: uverbs.CreateQPMaskIndTable,
					RWQIndTblHandle: c.table})
			},
			uhw: func(*talker) []byte {
				return uverbs.Bytes(
					uverbs.Mlx5CreateQPRSSReq{RxHashFieldsMask: uverbs.HashFieldsUDPv6,
						RxHashFunction: 1, RxKeyLen: 40})
			}, undo: destroyQP},
		{name: "rule", cmd: uverbs.ExCmdCreateFlow, coreLen: 8, handle: 4,
			core: func(c *talker) []byte {
				return slices.Concat(uverbs.Bytes(uverbs.CreateFlowReq{QPHandle: c.rss,
					FlowAttr: uverbs.FlowAttrHdr{
						Size: uint16(len(ours) + len(ipv4) + len(tcp)), Priority: 5, NumOfSpecs: 3,
						Port: 1}}), ours, ipv4, tcp)
			}, undo: destroyFlow},
		{name: "state of a queue pair", cmd: uverbs.CmdModifyQP, handle: -1, mutateFrom: 64,
			core: func(c *talker) []byte {
				return uverbs.Bytes(uverbs.ModifyQPReq{QPHandle: c.txQP,
					AttrMask: uverbs.QPAttrState, QPState: qpRTS, PortNum: 1})
			}},
		{name: "moderation", cmd: uverbs.ExCmdModifyCQ, handle: -1, core: func(c *talker) []byte {
			return uverbs.Bytes(uverbs.ExModifyCQReq{CQHandle: c.txCQ,
				AttrMask: uverbs.CQAttrModerate, CQCount: 8, CQPeriod: 8})
		}},
	}
}

// values are the new values of a changed word; the last ones modify the present value.
var values = []uint32{0, 1, 2, 3, 4, 7, 8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x800, 0x1000, 0xffff,
	1 << 16, 1 << 20, 1 << 24, 1 << 31, ^uint32(0)}

// mutatedSteps are correct requests with one or two words changed. Objects that they create are
// destroyed at once.
func mutatedSteps() []step {
	random := rand.New(rand.NewPCG(7, 7))
	var steps []step
	for i, tm := range templates() {
		for range 40 {
			var seed [8]uint64
			for j := range seed {
				seed[j] = random.Uint64()
			}
			name := fmt.Sprintf("%s with words changed (%d)", tm.name, i)
			steps = append(steps, step{name, func(c *talker) error { return tm.ask(c, seed[:]) },
				anything, 0})
		}
	}
	return steps
}

func (tm *template) ask(c *talker, random []uint64) error {
	core := tm.core(c)
	var uhw []byte
	if tm.uhw != nil {
		uhw = tm.uhw(c)
	}
	for i := range 1 + random[0]%2 {
		r := random[1+i]
		if len(uhw) > 0 && r%2 == 0 {
			change(uhw, 0, tm.keepUHW, r>>1)
		} else {
			change(core, tm.mutateFrom, tm.keepCore, r>>1)
		}
	}
	return tm.exchange(c, core, uhw, tm.coreLen, tm.uhwLen)
}

// send sends a core part with the correct driver's part.
func (tm *template) send(c *talker, core []byte, coreRoom, uhwRoom int) error {
	if tm.uhw == nil {
		return tm.exchange(c, core, nil, coreRoom, uhwRoom)
	}
	return tm.exchange(c, core, tm.uhw(c), coreRoom, uhwRoom)
}

// exchange runs the command, and destroys the object it created.
func (tm *template) exchange(c *talker, core, uhw []byte, coreRoom, uhwRoom int) error {
	out := make([]byte, coreRoom)
	var coreAnswer, uhwIn, uhwAnswer any
	if coreRoom > 0 {
		coreAnswer = out
	}
	if uhw != nil {
		uhwIn = uhw
	}
	if uhwRoom > 0 {
		uhwAnswer = make([]byte, uhwRoom)
	}
	err := c.ask(tm.cmd, core, coreAnswer, uhwIn, uhwAnswer)
	if err == nil && tm.handle >= 0 {
		h := binary.NativeEndian.Uint32(out[tm.handle:])
		if undo := tm.undo(func(*talker) *uint32 { return &h })(c); undo != nil {
			c.t.Errorf("undo %s: %v", tm.name, undo)
		}
	}
	return err
}

// change changes one word from offset first on, except those to keep.
func change(b []byte, first int, keep []int, r uint64) {
	at := first + int(r>>8)%((len(b)-first)/4)*4
	if slices.Contains(keep, at) {
		return
	}
	v := values[r%uint64(len(values))]
	if r>>40&1 != 0 {
		v ^= binary.NativeEndian.Uint32(b[at:])
	}
	binary.NativeEndian.PutUint32(b[at:], v)
}
