package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// buffers posts receive WQEs of 2 KiB in a row from dataAt on, and returns those buffers.
func (d *driver) buffers(key uint32, n int) [][]byte {
	var all [][]byte
	for i := range n {
		w := d.ram[rqAt+16*i:]
		binary.BigEndian.PutUint32(w, 2048)
		binary.BigEndian.PutUint32(w[4:], key)
		binary.BigEndian.PutUint64(w[8:], uint64(2048*i))
		all = append(all, d.ram[dataAt+2048*i:][:2048])
	}
	binary.BigEndian.PutUint32(d.ram[recordAt+128:], uint32(n))
	return all
}

// Sniffer tables of both directions lead to one TIR, as linux mlx5_ib builds them for
// IBV_FLOW_ATTR_SNIFFER: it gets copies of received and of sent frames, and all other delivery is
// unchanged.
func TestSniffer(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	cqn := d.cq(4)
	_, tirn := d.receiver(cqn, 0)
	got := d.buffers(d.mkey(1, 0, 1<<16, pages(16)...), 8)
	mac, other := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	rx, rxGroup := d.table(tableNICReceive)
	d.do("a drop rule", entry(tableNICReceive, rx, rxGroup, 0, mac, actionDrop, nil, nil), 16)
	caps := d.do("QUERY_HCA_CAP", input(0x100, capFlowTable<<1|1, 16), 16+capSize)[16:]
	for _, k := range []tableKind{tableSniffRx, tableSniffTx} {
		at := map[tableKind]int{tableSniffRx: 192, tableSniffTx: 384}[k]
		if caps[0]&0x20 == 0 || caps[at]&0x80 == 0 {
			t.Errorf("sniffer tables of type %d are not advertised", k)
		}
		in := input(0x930, 0, 64)
		ftType.set(in, uint64(k))
		id := number.u32(d.do("CREATE_FLOW_TABLE", in, 16))
		in = input(0x933, 0, 1024)
		ftTableID.set(in, uint64(id))
		group := number.u32(d.do("CREATE_FLOW_GROUP", in, 16))
		in = input(0x92f, 0, 64)
		ftTableID.set(in, uint64(id))
		d.do("SET_FLOW_TABLE_ROOT", in, 16)
		d.do("SET_FLOW_TABLE_ENTRY", entry(k, id, group, 0, [6]byte{}, actionForward,
			[]uint32{tirn}, nil), 16)
	}
	w.recv([]frame.Frame{frameTo(mac, 0x1111), frameTo(other, 0x2222)})
	send := make([]byte, 128)
	binary.BigEndian.PutUint32(send[4:], d.sender(cqn)[0].n<<8|6)
	send[3], send[29] = 0x0a, 60 // SEND with the frame inline
	copy(send[30:], frameTo(other, 0x3333).Data)
	copy(d.ram[sqAt:], send)
	d.ring(send, 2)
	for i, typ := range []uint16{0x1111, 0x2222, 0x3333} {
		if e := d.cqe(i); binary.BigEndian.Uint32(e[44:]) != 60 ||
			binary.BigEndian.Uint16(got[i][12:]) != typ {
			t.Errorf("copy %d: % x", i, got[i][:16])
		}
	}
	if c := d.nic.Counters(); c.Drops.FlowDropped != 1 || c.Drops.SteerMissed != 1 {
		t.Errorf("%+v", c.Drops)
	}
	if err := d.nic.Counters().Check(); err != nil {
		t.Error(err)
	}
}

// pages are n pages of guest memory from dataAt on.
func pages(n int) (p []uint64) {
	for i := range n {
		p = append(p, uint64(dataAt+i<<12))
	}
	return p
}
