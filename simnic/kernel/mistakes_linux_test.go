package kernel

import (
	"os"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"golang.org/x/sys/unix"
)

// unmapped gives the address of the second page, which nobody maps.
var unmapped = uint64(os.Getpagesize())

// orders are, for each command, its possible mistakes in the order in which linux 6.12 checks them
// (drivers/infiniband/core/uverbs_cmd.c and hw/mlx5). Of two mistakes at once, the earlier one
// determines the error.
func orders(r *rawNode, o objects) map[string]order {
	return map[string]order{
		"REG_MR":           regMRMistakes(r, o),
		"EX_CREATE_CQ":     createCQMistakes(r, o),
		"EX_MODIFY_CQ":     modifyCQMistakes(r, o),
		"EX_CREATE_QP":     createQPMistakes(r, o),
		"EX_CREATE_QP RSS": createRSSMistakes(r, o),
		"MODIFY_QP":        modifyQPMistakes(r, o),
		"EX_CREATE_WQ":     createWQMistakes(r, o),
		"EX_MODIFY_WQ":     modifyWQMistakes(r, o),
		"IND_TBL":          tableMistakes(r, o),
		"EX_CREATE_FLOW":   flowMistakes(r, o),
	}
}

func regMRMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.regMR(o) }, []mistake{
		tail(unix.EOPNOTSUPP),
		{"page offsets differ", func(_ *rawNode, w *write) { w.core[24] ^= 8 }, unix.EINVAL},
		set32("access nobody knows", 36, 0x401, unix.EINVAL),
		set32("remote write without local", 36, 2, unix.EINVAL),
		set32("on demand", 36, 0x41, unix.EOPNOTSUPP),
		set32("pd", 32, nobody, unix.ENOENT),
		set32("wraps around", 20, 0xffffffff, unix.EINVAL),
		machine("no memlock at all", func(c *Config) { c.Memlock = -1 }, unix.EPERM),
		{"no length", func(_ *rawNode, w *write) { clear(w.core[16:24]) }, unix.EINVAL},
		machine("memlock too low", func(c *Config) { c.Memlock = int64(os.Getpagesize()) },
			unix.ENOMEM),
		{"not mapped", func(_ *rawNode, w *write) {
			copy(w.core[8:], bytesOf(unmapped))
			copy(w.core[24:], bytesOf(unmapped))
		}, unix.EFAULT},
	}}
}

func createCQMistakes(r *rawNode, o objects) order {
	return order{r.createCQ, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("comp_mask", 20, 1, unix.EINVAL),
		set32("reserved", 28, 1, unix.EINVAL),
		set32("vector", 12, 8, unix.EINVAL),
		set32("channel is no descriptor", 16, nobody, unix.EBADF),
		set32("channel is another file", 16, 0, unix.EBADF),
		set32("too many", 8, 1<<22+1, unix.EINVAL),
		set32("too many, signed", 8, 1<<31, unix.EINVAL),
		set32("flags", 24, 4, unix.EOPNOTSUPP),
		set32("too many when rounded", 8, 1<<22, unix.EINVAL),
		uhwLen("driver's part short", 21, unix.EINVAL),
		uhw32("driver's flags", 20, 0x80000, unix.EINVAL),
		uhw32("entry size", 16, 96, unix.EINVAL),
		{"buffer not mapped", func(_ *rawNode, w *write) { copy(w.uhw, bytesOf(unmapped)) },
			unix.EFAULT},
		{"record not mapped", func(_ *rawNode,
			w *write) {
			copy(w.uhw[8:], bytesOf(unmapped))
		}, unix.EFAULT},
		{"mini format", func(_ *rawNode, w *write) { w.uhw[20], w.uhw[21] = 1, 3 }, unix.EINVAL},
		uhw32("padding", 20, 0x10000, unix.EOPNOTSUPP),
	}}
}

func modifyCQMistakes(r *rawNode, o objects) order {
	return order{func() write {
		return write{cmd: uverbs.ExCmdModifyCQ, out: -1, uhwOut: -1,
			core: bytesOf(uverbs.ExModifyCQReq{CQHandle: o.cq, AttrMask: 1,
				CQCount: 1, CQPeriod: 1})}
	}, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("no mask", 4, 0, unix.EINVAL),
		set32("reserved", 12, 1, unix.EINVAL),
		set32("mask", 4, 2, unix.EOPNOTSUPP),
		set32("cq", 0, nobody, unix.ENOENT),
		{"period", func(_ *rawNode, w *write) { w.core[11] = 0x10 }, unix.EINVAL},
	}}
}

func createQPMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.createQP(o) }, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("comp_mask", 48, 2, unix.EINVAL),
		{"reserved", func(_ *rawNode, w *write) { w.core[47] = 1 }, unix.EINVAL},
		machine("CAP_NET_RAW", func(c *Config) { c.NoNetRaw = true }, unix.EPERM),
		set32("receive cq", 16, nobody, unix.ENOENT),
		set32("send cq", 12, nobody, unix.ENOENT),
		set32("pd", 8, nobody, unix.ENOENT),
		set32("create_flags nobody knows", 52, 1<<20, unix.EINVAL),
		machine("InfiniBand", func(c *Config) { c.InfiniBand = true }, unix.EINVAL),
		uhwLen("driver's part short", 47, unix.EINVAL),
		uhwLen("driver's tail", 60, unix.EINVAL),
		uhw32("driver's flags", 28, 1<<31, unix.EINVAL),
		uhw32("uidx", 32, 1<<24, unix.EINVAL),
		set32("create_flags not served", 52, 2, unix.EOPNOTSUPP),
		set32("max_recv_wr", 28, 1<<15+1, unix.EINVAL),
		uhw32("rq_wqe_count without receive queue", 20, 1, unix.EINVAL),
		uhw32("sq_wqe_count too large", 16, 1<<16, unix.EINVAL),
		uhw32("sq_wqe_count", 16, 63, unix.EINVAL),
		uhw32("no queue at all", 16, 0, unix.EINVAL),
		{"record not mapped", func(_ *rawNode, w *write) {
			if len(w.uhw) >= 48 {
				copy(w.uhw[8:], bytesOf(unmapped))
			}
		}, unix.EFAULT},
		{"ring not mapped", func(_ *rawNode, w *write) {
			if len(w.uhw) >= 48 {
				copy(w.uhw[40:], bytesOf(unmapped))
			}
		}, unix.EFAULT},
	}}
}

func createRSSMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.createRSS(o) }, []mistake{
		machine("CAP_NET_RAW", func(c *Config) { c.NoNetRaw = true }, unix.EPERM),
		set32("table", 56, nobody, unix.ENOENT),
		set32("receive fields", 36, 1, unix.EINVAL),
		set32("pd", 8, nobody, unix.ENOENT),
		set32("create_flags nobody knows", 52, 1<<20, unix.EINVAL),
		uhwLen("driver's part short", 151, unix.EINVAL),
		{"driver's answer short", func(_ *rawNode, w *write) { w.uhwOut = 3 }, unix.EINVAL},
		uhwLen("driver's tail", 160, unix.EINVAL),
		uhw32("driver's flags", 148, 1, unix.EINVAL),
		set32("create_flags", 52, 0x100, unix.EINVAL),
		uhw32("driver's comp_mask", 144, 1, unix.EOPNOTSUPP),
		{"inner without tunnel", func(_ *rawNode, w *write) { w.uhw[3] = 0x80 }, unix.EOPNOTSUPP},
		{"function", func(_ *rawNode, w *write) { w.uhw[8] = 2 }, unix.EOPNOTSUPP},
		{"key length", func(_ *rawNode, w *write) { w.uhw[9] = 41 }, unix.EINVAL},
		uhw32("no fields with a table of two", 0, 0, unix.EINVAL),
		uhw32("both versions", 0, 0x5, unix.EINVAL),
		uhw32("two kinds of L4", 0, 0x53, unix.EINVAL),
	}}
}

func modifyQPMistakes(r *rawNode, o objects) order {
	return order{func() write {
		return write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1,
			core: bytesOf(uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: 0x21, QPState: 0,
				CurQPState: 0, PortNum: 1})}
	}, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("mask nobody knows", 68, 0x2000021, unix.EOPNOTSUPP),
		set32("qp", 64, nobody, unix.ENOENT),
		{"port", func(_ *rawNode, w *write) { w.core[104] = 2 }, unix.EINVAL},
		{"state", func(_ *rawNode, w *write) { w.core[96] = 7 }, unix.EINVAL},
		set32("rss", 64, o.rss, unix.ENOSYS),
		{"driver's part short", func(_ *rawNode, w *write) { w.uhw = make([]byte, 15) },
			unix.EINVAL},
		{"driver's comp_mask", func(_ *rawNode, w *write) {
			if len(w.uhw) == 0 {
				w.uhw = bytesOf(uverbs.Mlx5ModifyQPReq{CompMask: 1})
			}
		}, unix.EOPNOTSUPP},
		{"reset needs no port", func(_ *rawNode, w *write) {}, unix.EINVAL},
	}}
}

func createWQMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.createWQ(o) }, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("comp_mask", 0, 1, unix.EOPNOTSUPP),
		set32("pd", 16, nobody, unix.ENOENT),
		set32("cq", 20, nobody, unix.ENOENT),
		{"driver's answer short", func(_ *rawNode, w *write) { w.uhwOut = 7 }, unix.EINVAL},
		{"delay drop", func(r *rawNode, w *write) { w.core[32] |= 4; r.linux.cfg.NoRawIO = true },
			unix.EPERM},
		set32("type", 4, 1, unix.EINVAL),
		uhwLen("driver's part short", 39, unix.EINVAL),
		uhwLen("driver's tail", 52, unix.EOPNOTSUPP),
		uhw32("driver's comp_mask", 32, 2, unix.EOPNOTSUPP),
		{"stride", func(_ *rawNode, w *write) {
			if len(w.uhw) >= 48 {
				w.uhw[32] |= 1
				w.uhw[36] = 20
			}
		}, unix.EINVAL},
		set32("max_wr", 24, 1<<15+1, unix.EINVAL),
		uhw32("count", 16, 0, unix.EINVAL),
		{"no buffer", func(_ *rawNode, w *write) { clear(w.uhw[:8]) }, unix.EINVAL},
		{"buffer not mapped", func(_ *rawNode, w *write) { copy(w.uhw, bytesOf(unmapped)) },
			unix.EFAULT},
		{"record not mapped", func(_ *rawNode,
			w *write) {
			copy(w.uhw[8:], bytesOf(unmapped))
		}, unix.EFAULT},
	}}
}

func modifyWQMistakes(r *rawNode, o objects) order {
	return order{func() write {
		return write{cmd: uverbs.ExCmdModifyWQ, out: -1, uhwOut: -1, uhw: make([]byte, 8),
			core: bytesOf(uverbs.ExModifyWQReq{AttrMask: 1, WQHandle: o.wq})}
	}, []mistake{
		tail(unix.EOPNOTSUPP),
		set32("no mask", 0, 0, unix.EINVAL),
		set32("mask", 0, 8, unix.EINVAL),
		set32("wq", 4, nobody, unix.ENOENT),
		set32("state", 8, 3, unix.EINVAL),
		uhwLen("driver's part short", 7, unix.EINVAL),
		{"driver's part not zero", func(_ *rawNode, w *write) { w.uhw[0] = 1 }, unix.EOPNOTSUPP},
		{"padding", func(_ *rawNode, w *write) { w.core[0] |= 4; w.core[20] = 8 }, unix.EOPNOTSUPP},
		{"wrong current state", func(_ *rawNode, w *write) { w.core[0] |= 2; w.core[12] = 1 },
			unix.EINVAL},
	}}
}

func tableMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.createTable(o) }, []mistake{
		set32("comp_mask", 0, 1, unix.EOPNOTSUPP),
		set32("log too large for anybody", 4, 14, unix.EINVAL),
		set32("more entries than given", 4, 3, unix.ENOSPC),
		tail(unix.EOPNOTSUPP),
		set32("wq", 12, nobody, unix.ENOENT),
		{"driver's part", func(_ *rawNode, w *write) { w.uhw = []byte{1, 0, 0, 0, 0, 0, 0, 0} },
			unix.EOPNOTSUPP},
	}}
}

func flowMistakes(r *rawNode, o objects) order {
	return order{func() write { return r.createFlow(o) }, []mistake{
		set32("comp_mask", 0, 1, unix.EINVAL),
		machine("CAP_NET_RAW", func(c *Config) { c.NoNetRaw = true }, unix.EPERM),
		set32("flags", 20, 8, unix.EINVAL),
		{"copy of leftovers", func(_ *rawNode, w *write) {
			w.core[8], w.core[20] = 1,
				w.core[20]|2
		}, unix.EINVAL},
		{"too many specs", func(_ *rawNode, w *write) { w.core[16] = 11 }, unix.EINVAL},
		{"reserved", func(_ *rawNode, w *write) { w.core[17] = 1 }, unix.EINVAL},
		tail(unix.EOPNOTSUPP),
		{"port", func(_ *rawNode, w *write) { w.core[19] = 2 }, unix.EINVAL},
		set32("qp", 4, nobody, unix.ENOENT),
		set32("spec nobody knows", flowIPv4At, 0x38, unix.EINVAL),
		{"driver's part short", func(_ *rawNode, w *write) { w.uhw = make([]byte, 7) },
			unix.EOPNOTSUPP},
		{"priority", func(_ *rawNode, w *write) { w.core[14] = 16 }, unix.ENOMEM},
		{"type without a table", func(_ *rawNode, w *write) {
			if w.core[8] == 0 {
				w.core[8] = 4
			}
		}, unix.EOPNOTSUPP},
		{"type and IP differ", func(_ *rawNode, w *write) { w.core[flowEthAt+8+13] = 6 },
			unix.EINVAL},
		{"TTL", func(_ *rawNode, w *write) { w.core[flowIPv4At+20+10] = 0xff }, unix.EOPNOTSUPP},
		{"value outside mask", func(_ *rawNode, w *write) { w.core[flowEthAt+8+6] = 1 },
			unix.EINVAL},
	}}
}
