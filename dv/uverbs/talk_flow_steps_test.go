package uverbs_test

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

func rssSteps() []step {
	type core = *uverbs.ExCreateQPReq
	type drv = *uverbs.Mlx5CreateQPRSSReq
	wrong := func(change rssChange) func(*talker) error { return createRSS(nil, change) }
	both := func(c *talker) []uint32 { return []uint32{c.wq, c.wq2} }
	return []step{
		{"table", createTable(table, 3, both), 0, 0},
		{"table of one", createTable(one, 0, both), 0, 0},
		{"table too large", createTable(nil, 14, both), unix.EINVAL, 0},
		{"table of nothing",
			createTable(nil, 1, func(*talker) []uint32 { return []uint32{nowhere} }), unix.ENOENT,
			0},
		{"receive queue in use", destroyWQ(wq), unix.EBUSY, 0},
		{"on no table", wrong(func(_ *talker, r core, _ drv) { r.RWQIndTblHandle = nowhere }),
			unix.ENOENT, 0},
		{"with a receive ring", wrong(func(_ *talker, r core, _ drv) { r.MaxRecvWR = 1 }),
			unix.EINVAL, 0},
		{"with a send ring",
			wrong(func(c *talker, r core, _ drv) { r.MaxSendWR, r.SendCQHandle = 1, c.txCQ }),
			unix.EINVAL, 0},
		{"flag of creation",
			wrong(func(_ *talker, r core, _ drv) { r.CreateFlags = uverbs.QPCreateCVLANStripping }),
			unix.EINVAL, 0},
		{"unknown hash", wrong(func(_ *talker, _ core, d drv) { d.RxHashFunction = 2 }),
			unix.EOPNOTSUPP, 0},
		{"short key", wrong(func(_ *talker, _ core, d drv) { d.RxKeyLen = 20 }), unix.EINVAL, 0},
		{"both families",
			wrong(func(_ *talker, _ core, d drv) { d.RxHashFieldsMask |= uverbs.HashSrcIPv6 }),
			unix.EINVAL, 0},
		{"both transports",
			wrong(func(_ *talker, _ core, d drv) { d.RxHashFieldsMask |= uverbs.HashSrcUDP }),
			unix.EINVAL, 0},
		{"nothing hashed over many queues",
			wrong(func(_ *talker, _ core, d drv) { d.RxHashFieldsMask = 0 }), unix.EINVAL, 0},
		{"inner headers without tunnels",
			wrong(func(_ *talker, _ core, d drv) { d.RxHashFieldsMask |= uverbs.HashInner }),
			unix.EOPNOTSUPP, 0},
		{"unknown mask", wrong(func(_ *talker, _ core, d drv) { d.CompMask = 1 }), unix.EOPNOTSUPP,
			0},
		{"unknown driver flag", wrong(func(_ *talker, _ core, d drv) { d.Flags = 1 << 20 }),
			unix.EINVAL, 0},
		{"RSS queue pair", createRSS(rss, nil), 0, 0},
		{"RSS queue pair that hashes nothing",
			createRSS(anyQP,
				func(c *talker, r core, d drv) {
					r.RWQIndTblHandle, d.RxHashFieldsMask = c.one,
						0
				}), 0, 0},
		{"table in use", destroyTable(table), unix.EBUSY, 0},
		{"state of an RSS queue pair", func(c *talker) error {
			return c.ask(uverbs.CmdModifyQP,
				uverbs.ModifyQPReq{QPHandle: c.rss, AttrMask: uverbs.QPAttrState, QPState: qpRTS},
				nil, nil, nil)
		}, unix.ENOSYS, 0},
	}
}

// Conditions of the rules.
var (
	ours = uverbs.EthMatch{Dst: [6]byte{2, 0, 0, 0, 0, 0x42}, DstMask: uverbs.ExactMAC}.Spec().Raw()
	ipv4 = uverbs.IPv4Match{}.Spec().Raw()
	tcp  = uverbs.PortMatch{}.TCP().Raw()
	bc   = uverbs.EthMatch{Dst: uverbs.ExactMAC, DstMask: uverbs.ExactMAC}.Spec().Raw()
	tag  = uverbs.Tag(0x123456).Raw()
)

func flowSteps() []step {
	type req = *uverbs.CreateFlowReq
	with := func(change func(r req)) func(*talker,
		req) {
		return func(_ *talker, r req) { change(r) }
	}
	otherTag := uverbs.Tag(0x123457).Raw()
	outside := slices.Clone(ours)
	outside[8+12] = 8 // an Ethernet type without a mask
	ttl := slices.Clone(ipv4)
	ttl[8+12+10] = 0xff
	short := slices.Clone(ours)
	short[4] = 39
	drops := []byte{0x01, 0x10, 0, 0, 8, 0, 0, 0} // IB_FLOW_SPEC_ACTION_DROP, its size
	return []step{
		{"rule", createFlow(flow, nil, ours, ipv4, tcp), 0, 0},
		{"rule with a tag",
			createFlow(tagged, with(func(r req) { r.FlowAttr.Priority = 1 }), ours, tag), 0, 0},
		{"same match, other tag",
			createFlow(nil, with(func(r req) { r.FlowAttr.Priority = 1 }), ours, otherTag),
			unix.EEXIST, 0},
		{"rule that drops",
			createFlow(dropped, with(func(r req) { r.FlowAttr.Priority = 2 }), ours, drops), 0, 0},
		{"rule that copies",
			createFlow(copied,
				with(func(r req) {
					r.FlowAttr.Priority, r.FlowAttr.Flags = 3,
						uverbs.FlowFlagDontTrap
				}), bc), 0, 0},
		{"sniffer",
			createFlow(sniffer, with(func(r req) { r.FlowAttr.Type = uverbs.FlowSniffer })), 0, 0},
		{"second sniffer, with conditions and a copy flag",
			createFlow(sniffer2,
				with(func(r req) {
					r.FlowAttr.Type, r.FlowAttr.Flags = uverbs.FlowSniffer,
						uverbs.FlowFlagDontTrap
				}), ours, tag), anything, 0},
		{"for no queue pair", createFlow(nil, with(func(r req) { r.QPHandle = nowhere }), ours),
			unix.ENOENT, 0},
		{"port 0", createFlow(nil, with(func(r req) { r.FlowAttr.Port = 0 }), ours), unix.EINVAL,
			0},
		{"port 2", createFlow(nil, with(func(r req) { r.FlowAttr.Port = 2 }), ours), unix.EINVAL,
			0},
		{"priority 16", createFlow(nil, with(func(r req) { r.FlowAttr.Priority = 16 }), ours),
			unix.ENOMEM, 0},
		{"type 4", createFlow(nil, with(func(r req) { r.FlowAttr.Type = 4 }), ours),
			unix.EOPNOTSUPP, 0},
		{"type 5", createFlow(nil, with(func(r req) { r.FlowAttr.Type = 5 })), unix.EOPNOTSUPP, 0},
		{"unknown flag", createFlow(nil, with(func(r req) { r.FlowAttr.Flags = 8 }), ours),
			unix.EINVAL, 0},
		{"default rule that copies",
			createFlow(nil, with(
				func(r req) {
					r.FlowAttr.Type, r.FlowAttr.Flags = uverbs.FlowAllDefault,
						uverbs.FlowFlagDontTrap
				})), unix.EINVAL, 0},
		{"unknown mask", createFlow(nil, with(func(r req) { r.CompMask = 1 }), ours), unix.EINVAL,
			0},
		{"too many conditions",
			createFlow(nil, with(func(r req) { r.FlowAttr.NumOfSpecs = 11 }), ours), unix.EINVAL,
			0},
		{"fewer conditions than it says",
			createFlow(nil, with(func(r req) { r.FlowAttr.NumOfSpecs = 2 }), ours), unix.EINVAL, 0},
		{"more bytes than it says",
			createFlow(nil, with(func(r req) { r.FlowAttr.NumOfSpecs = 1 }), ours, ipv4),
			unix.EINVAL, 0},
		{"condition of a wrong size", createFlow(nil, nil, short), unix.EINVAL, 0},
		{"value outside the mask",
			createFlow(nil, with(func(r req) { r.FlowAttr.Priority = 4 }), outside), unix.EINVAL,
			0},
		{"time to live", createFlow(nil, with(func(r req) { r.FlowAttr.Priority = 4 }), ours, ttl),
			unix.EOPNOTSUPP, 0},
	}
}
