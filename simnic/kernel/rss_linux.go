package kernel

import (
	"encoding/binary"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// indTable represents an indirection table of the client.
type indTable struct {
	hw      *simnic.RQT
	entries int
}

// exCreateIndTable implements CREATE_RWQ_IND_TBL.
func exCreateIndTable(c *call) unix.Errno {
	var req uverbs.ExCreateRWQIndTblReq
	r := reader{in: &c.core.in}
	if errno := r.readStruct(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 {
		return unix.EOPNOTSUPP
	}
	if req.LogIndTblSize > uverbs.MaxLogIndTblSize {
		return unix.EINVAL
	}
	handles, errno := r.readBytes(4 << req.LogIndTblSize)
	if errno != 0 {
		return errno
	}
	if errno := r.refuseTrailing(); errno != 0 {
		return errno
	}
	uses, rqs, errno := c.node.tableEntries(handles)
	if errno != 0 {
		return errno
	}
	if errno := c.node.checkContext(); errno != 0 {
		return errno
	}
	if errno := c.tableDriver(req); errno != 0 {
		return errno
	}
	hw, err := c.node.nic.CreateRQT(simnic.RQTAttr{RQs: rqs})
	if err != nil {
		return errnoOf(err)
	}
	if c.uhw.out.n != 0 {
		if errno := c.uhw.out.putAll(make([]byte, 8)); errno != 0 {
			_ = hw.Destroy()
			return errno
		}
	}
	o := &uobject{kind: uverbs.ObjectRWQIndTable, impl: &indTable{hw, len(rqs)},
		uses: uses, release: hw.Destroy}
	return c.finishCreate(o, func() unix.Errno {
		resp := uverbs.ExCreateRWQIndTblResp{IndTblHandle: o.handle, IndTblNum: hw.Number()}
		resp.ResponseLength = c.responseLength(resp)
		return c.writeReply(resp)
	})
}

// tableEntries looks up the work queues of a table.
func (n *node) tableEntries(handles []byte) (uses []*uobject, rqs []*simnic.RQ, errno unix.Errno) {
	for ; len(handles) > 0; handles = handles[4:] {
		o, q, errno := findObject[*wq](n, uverbs.ObjectWQ, binary.NativeEndian.Uint32(handles))
		if errno != 0 {
			return nil, nil, errno
		}
		uses, rqs = append(uses, o), append(rqs, q.hw)
	}
	return uses, rqs, 0
}

// tableDriver makes the driver's checks (mlx5_ib_create_rwq_ind_table in
// drivers/infiniband/hw/mlx5/qp.c).
func (c *call) tableDriver(req uverbs.ExCreateRWQIndTblReq) unix.Errno {
	if !c.uhw.in.zeroFrom(0) {
		return unix.EOPNOTSUPP
	}
	if int(req.LogIndTblSize) > c.node.nic.Caps().LogMaxRQT || c.uhw.out.n != 0 && c.uhw.out.n < 8 {
		return unix.EINVAL
	}
	return 0
}

// exDestroyIndTable implements DESTROY_RWQ_IND_TBL.
func exDestroyIndTable(c *call) unix.Errno {
	var req uverbs.ExDestroyRWQIndTblReq
	if errno := c.readRequest(&req); errno != 0 {
		return errno
	}
	if req.CompMask != 0 {
		return unix.EOPNOTSUPP
	}
	return c.runDestroy(uverbs.ObjectRWQIndTable, req.IndTblHandle)
}

// Hash fields in groups that exclude each other.
const (
	hashV4  = uverbs.HashSrcIPv4 | uverbs.HashDstIPv4
	hashV6  = uverbs.HashSrcIPv6 | uverbs.HashDstIPv6
	hashTCP = uverbs.HashSrcTCP | uverbs.HashDstTCP
	hashUDP = uverbs.HashSrcUDP | uverbs.HashDstUDP
	hashSPI = uverbs.HashIPsecSPI

	supportedHash = hashV4 | hashV6 | hashTCP | hashUDP
)

// createRSS creates the receive side of an RSS queue pair, which has no send side
// (create_rss_raw_qp_tir in qp.c).
func (c *call) createRSS(q *qp, req uverbs.ExCreateQPReq, objs qpObjects) unix.Errno {
	var drv uverbs.Mlx5CreateQPRSSReq
	if c.uhw.in.n < uverbs.SizeOf(drv) || c.uhw.out.n < 4 ||
		!c.uhw.in.zeroFrom(uverbs.SizeOf(drv)) {
		return unix.EINVAL
	}
	if errno := c.uhw.in.copyStruct(&drv); errno != 0 {
		return errno
	}
	if drv.Flags&^qpFlagsSelfLB != 0 || req.CreateFlags != 0 || objs.send != nil {
		return unix.EINVAL
	}
	attr, errno := rssAttr(drv, objs.table.entries)
	if errno != 0 {
		return errno
	}
	attr.TD, attr.Table = c.node.ctx.td, objs.table.hw
	tir, err := c.node.createTIR(attr)
	if err != nil {
		return errnoOf(err)
	}
	if errno := c.uhw.out.putUpTo(uverbs.Mlx5CreateQPResp{}); errno != 0 {
		_ = c.node.destroyTIR(tir)
		return errno
	}
	q.rss, q.tir = true, tir
	return 0
}

// createTIR creates a TIR; one that may receive what its own context sends enables the port's
// loopback.
func (n *node) createTIR(a simnic.TIRAttr) (*simnic.TIR, error) {
	t, err := n.nic.CreateTIR(a)
	if err == nil {
		n.nic.UseLoopback(0, selfLoopbacks(a))
	}
	return t, err
}

// destroyTIR undoes createTIR.
func (n *node) destroyTIR(t *simnic.TIR) error {
	err := t.Destroy()
	if err == nil {
		n.nic.UseLoopback(0, -selfLoopbacks(t.Attr()))
	}
	return err
}

// selfLoopbacks returns 1 for a TIR that may receive what its own context sends, else 0.
func selfLoopbacks(a simnic.TIRAttr) int {
	if a.SelfLoopbackUnicast || a.SelfLoopbackMulticast {
		return 1
	}
	return 0
}

// rssAttr translates the hash.
func rssAttr(drv uverbs.Mlx5CreateQPRSSReq, entries int) (a simnic.TIRAttr, errno unix.Errno) {
	fields := drv.RxHashFieldsMask
	switch {
	case drv.CompMask != 0, fields&uverbs.HashInner != 0:
		return a, unix.EOPNOTSUPP
	case drv.RxHashFunction != uverbs.Mlx5HashToeplitz:
		return a, unix.EOPNOTSUPP
	case drv.RxKeyLen != uverbs.Mlx5QPRSSKeyLen:
		return a, unix.EINVAL
	case fields == 0 && entries > 1:
		return a, unix.EINVAL
	case fields&hashV4 != 0 && fields&hashV6 != 0:
		return a, unix.EINVAL
	case requestedKinds(fields, hashTCP, hashUDP, hashSPI) > 1:
		return a, unix.EINVAL
	}
	a.SelfLoopbackUnicast = drv.Flags&uverbs.Mlx5QPFlagAllowSelfLBUC != 0
	a.SelfLoopbackMulticast = drv.Flags&uverbs.Mlx5QPFlagAllowSelfLBMC != 0
	if fields == 0 {
		return a, 0
	}
	a.Hash = simnic.HashToeplitz
	copy(a.Key[:], drv.RxHashKey[:])
	a.Selection = simnic.HashSelection{IPv6: fields&hashV6 != 0, UDP: fields&hashUDP != 0,
		Fields: hashFields(fields)}
	return a, 0
}

// requestedKinds counts the groups with a requested field.
func requestedKinds(fields uint64, groups ...uint64) (n int) {
	for _, g := range groups {
		n += min(1, bits.OnesCount64(fields&g))
	}
	return n
}

// hashFields returns the hardware's fields for the client's.
func hashFields(f uint64) (h simnic.HashFields) {
	for _, m := range []struct {
		client uint64
		hw     simnic.HashFields
	}{
		{uverbs.HashSrcIPv4 | uverbs.HashSrcIPv6, simnic.HashSrcIP},
		{uverbs.HashDstIPv4 | uverbs.HashDstIPv6, simnic.HashDstIP},
		{uverbs.HashSrcTCP | uverbs.HashSrcUDP, simnic.HashSrcPort},
		{uverbs.HashDstTCP | uverbs.HashDstUDP, simnic.HashDstPort},
	} {
		if f&m.client != 0 {
			h |= m.hw
		}
	}
	return h
}
