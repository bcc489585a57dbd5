package pcie

// Counters as the driver reads them.

// queryContextOut is the offset of the queue's context in the reply of QUERY_SQ and QUERY_RQ.
const queryContextOut = 32

func (f *Function) querySQ(in, out []byte) error {
	sq, err := find(f.objects.sqs, "send queue", number.u32(in))
	if err != nil {
		return err
	}
	queueState.set(out[queryContextOut:], uint64(sq.State()))
	return nil
}

func (f *Function) queryRQ(in, out []byte) error {
	rq, err := find(f.objects.rqs, "receive queue", number.u32(in))
	if err != nil {
		return err
	}
	queueState.set(out[queryContextOut:], uint64(rq.State()))
	return nil
}

// Vport counters (mlx5_ifc.h, query_vport_counter_out): packets, then octets.
var (
	vportRxUnicast       = field{0x480, 64}
	vportRxUnicastOctets = field{0x4c0, 64}
	vportTxUnicast       = field{0x500, 64}
	vportTxUnicastOctets = field{0x540, 64}
)

// queryVportCounter executes QUERY_VPORT_COUNTER: all traffic of the function, of the netdev and of
// programs.
func (f *Function) queryVportCounter(_, out []byte) error {
	c := f.nic.Counters()
	vportRxUnicast.set(out, c.Slice.RxPackets+c.Netdev.RxPackets)
	vportRxUnicastOctets.set(out, c.Slice.RxBytes+c.Netdev.RxBytes)
	vportTxUnicast.set(out, c.Slice.TxPackets+c.Netdev.TxPackets)
	vportTxUnicastOctets.set(out, c.Slice.TxBytes+c.Netdev.TxBytes)
	return nil
}

// PPCNT group 0, IEEE 802.3 counters: frames and octets, sent and received (mlx5_ifc.h,
// eth_802_3_cntrs_grp_data_layout).
var (
	ieeeTxFrames = field{64 + 0*64, 64}
	ieeeRxFrames = field{64 + 1*64, 64}
	ieeeTxOctets = field{64 + 4*64, 64}
	ieeeRxOctets = field{64 + 5*64, 64}
)

const groupIEEE = 0

// fcsBytes is the length of the FCS, which frames of the model do not have.
const fcsBytes = 4

// portCounters fills in the counter group that a PPCNT access selects. Groups that the model does
// not have read as zero.
func (f *Function) portCounters(data []byte) {
	group := ppcntGroup.get(data)
	if len(data) > 8 {
		clear(data[8:])
	}
	if group != groupIEEE {
		return
	}
	w := f.nic.Counters().Wire
	ieeeTxFrames.set(data, w.TxPackets)
	ieeeRxFrames.set(data, w.RxPackets)
	ieeeTxOctets.set(data, w.TxBytes+fcsBytes*w.TxPackets)
	ieeeRxOctets.set(data, w.RxBytes+fcsBytes*w.RxPackets)
}

// Bits of MODIFY_TIR that select the fields to change.
var modifyTIRBits = field{128, 64}

const (
	modifyMerge        = 1 << 0
	modifyTable        = 1 << 1
	modifyHash         = 1 << 2
	modifySelfLoopback = 1 << 4
)

func (f *Function) modifyTIR(in, _ []byte) error {
	t, err := find(f.objects.tirs, "TIR", number.u32(in))
	if err != nil {
		return err
	}
	want := tirAttr(part(in, queueContext, tircSize))
	a, what := t.Attr(), modifyTIRBits.get(in)
	if what&modifySelfLoopback != 0 {
		a.SelfLoopbackUnicast, a.SelfLoopbackMulticast = want.SelfLoopbackUnicast,
			want.SelfLoopbackMulticast
	}
	if what&modifyHash != 0 {
		a.Hash, a.Key, a.Symmetric, a.Selection = want.Hash, want.Key,
			want.Symmetric, want.Selection
	}
	if what&modifyMerge != 0 {
		a.LRO = want.LRO
	}
	if what&modifyTable != 0 {
		table := tircTable.u32(part(in, queueContext, tircSize))
		if a.Table, err = find(f.objects.rqts, "indirection table", table); err != nil {
			return err
		}
	}
	return t.Modify(a)
}
