package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// The device says which time stamps it has, has both clocks in BAR 0 (linux
// include/linux/mlx5/device.h, struct mlx5_init_seg), and a queue's context selects one
// (mlx5_ifc.h, ts_format of rqc).
func TestRealTimeStamps(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	caps := d.do("QUERY_HCA_CAP", input(0x100, capGeneral<<1|1, 16), 16+capSize)[16:]
	if got := caps[0x440/8] >> 4; got != 0xa {
		t.Errorf("formats of send and receive queues %#x, want 2 and 2", got)
	}
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	for i, format := range []simnic.TimestampFormat{simnic.FreeRunning, simnic.RealTime} {
		cqn := d.cq(4)
		_, tirn := d.receiverOf(cqn, func(ctx []byte) { ctx[3] = ctx[3]&^0x30 | byte(format)<<4 })
		d.buffers(d.mkey(1, 0, 1<<16, pages(16)...), 1)
		d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac, actionForward,
			[]uint32{tirn}, nil), 16)
		clocks := func() uint64 {
			if format == simnic.RealTime {
				return binary.BigEndian.Uint64(d.load(0x1040, 8))
			}
			return binary.BigEndian.Uint64(d.load(0x1000, 8))
		}
		before := clocks()
		w.recv([]frame.Frame{frameTo(mac, 0x1111)})
		stamp, after := binary.BigEndian.Uint64(d.cqe(0)[48:]), clocks()
		if stamp < before || stamp > after {
			t.Errorf("format %d: %#x, by the clock %#x to %#x", i, stamp, before, after)
		}
	}
	in := d.receiveContext(d.cq(4), func(ctx []byte) { ctx[3] |= 0x30 })
	d.refused("CREATE_RQ with format 3", in, 16, simnic.StatusBadParam)
}
