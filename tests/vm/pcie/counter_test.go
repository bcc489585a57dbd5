package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// wired connects the NIC to a wire of the test.
func (d *driver) wired() *hostileWire {
	d.t.Helper()
	w := &hostileWire{}
	if err := d.nic.ConnectWire(w); err != nil {
		d.t.Fatal(err)
	}
	return w
}

// frameTo is a frame of 60 bytes with a destination address and an EtherType.
func frameTo(mac [6]byte, etherType uint16) frame.Frame {
	b := make([]byte, 60)
	copy(b, mac[:])
	copy(b[6:], []byte{2, 0, 0, 0, 0, 9})
	binary.BigEndian.PutUint16(b[12:], etherType)
	return frame.Frame{Data: b}
}

// table creates a flow table of a type with one group that matches destination addresses,
// and makes it the root.
func (d *driver) table(kind tableKind) (id, group uint32) {
	d.t.Helper()
	in := input(0x930, 0, 64)
	ftType.set(in, uint64(kind))
	ftcLogSize.set(in[ftContext:], 4)
	id = number.u32(d.do("CREATE_FLOW_TABLE", in, 16))
	in = input(0x933, 0, 1024)
	ftType.set(in, uint64(kind))
	ftTableID.set(in, uint64(id))
	fgEnd.set(in, 15)
	fgEnable.set(in, enableOuter)
	for i := range 6 {
		in[fgCriteria+8+i] = 0xff
	}
	group = number.u32(d.do("CREATE_FLOW_GROUP", in, 16))
	in = input(0x92f, 0, 64)
	ftType.set(in, uint64(kind))
	ftTableID.set(in, uint64(id))
	d.do("SET_FLOW_TABLE_ROOT", in, 16)
	return id, group
}

// entry is SET_FLOW_TABLE_ENTRY for a destination address.
func entry(kind tableKind, table, group, index uint32, mac [6]byte, action uint64,
	tirs, counters []uint32) []byte {
	in := input(0x936, 0, flowEntryIn)
	ftType.set(in, uint64(kind))
	ftTableID.set(in, uint64(table))
	fteIndex.set(in, uint64(index))
	ctx := in[flowContext:]
	fcGroup.set(ctx, uint64(group))
	fcAction.set(ctx, action)
	fcDestCount.set(ctx, uint64(len(tirs)))
	fcCounters.set(ctx, uint64(len(counters)))
	copy(in[flowMatch+8:], mac[:])
	for _, n := range tirs {
		in = binary.BigEndian.AppendUint32(in, destTIR<<24|n)
		in = binary.BigEndian.AppendUint32(in, 0)
	}
	for _, n := range counters {
		in = binary.BigEndian.AppendUint32(in, n)
		in = binary.BigEndian.AppendUint32(in, 0)
	}
	return in
}

// count reads flow counters.
func (d *driver) count(first, n uint32, clear bool) []byte {
	d.t.Helper()
	in := input(0x93b, 0, 32)
	queryCounterID.set(in, uint64(first))
	queryCounters.set(in, uint64(n))
	queryClear.set(in, flag(clear))
	return d.do("QUERY_FLOW_COUNTER", in, 16+16*max(1, int(n)))[16:]
}

func TestFlowCounters(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	one := counterID.u32(d.do("ALLOC_FLOW_COUNTER", input(0x939, 0, 16), 16))
	in := input(0x939, 0, 16)
	counterBulk.set(in, 1)
	bulk := counterID.u32(d.do("ALLOC_FLOW_COUNTER of 128", in, 16))
	if one == 0 || bulk <= one {
		t.Fatalf("counters %d and %d", one, bulk)
	}
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac,
		actionDrop|actionCount, nil, []uint32{one, bulk + 2}), 16)
	d.refused("a counter that is not allocated", entry(tableNICReceive, table, group, 1, mac,
		actionDrop|actionCount, nil, []uint32{bulk + 128}), 16, statusBadResource)
	for range 3 {
		w.recv([]frame.Frame{frameTo(mac, 0x88b5), frameTo([6]byte{2, 0, 0, 0, 0, 2}, 0x88b5)})
	}
	check := func(what string, got []byte, packets uint64) {
		t.Helper()
		if p, n := be64(got, 0), be64(got, 8); p != packets || n != 60*packets {
			t.Errorf("%s: %d packets of %d bytes, want %d of 60", what, p, n, packets)
		}
	}
	check("one", d.count(one, 0, false), 3)
	check("one of the bulk, cleared", d.count(bulk, 4, true)[2*statisticsSize:], 3)
	check("after that", d.count(bulk, 4, false)[2*statisticsSize:], 0)
	if c := d.nic.Counters(); c.Drops.FlowDropped != 3 || c.Drops.SteerMissed != 3 {
		t.Errorf("%+v", c.Drops)
	}
	dealloc := input(0x93a, 0, 16)
	counterID.set(dealloc, uint64(one))
	d.refused("a counter in use", dealloc, 16, statusBusy)
	del := input(0x938, 0, 64)
	ftTableID.set(del, uint64(table))
	d.do("DELETE_FLOW_TABLE_ENTRY", del, 16)
	d.do("DEALLOC_FLOW_COUNTER", dealloc, 16)
	d.refused("twice", dealloc, 16, statusBadResource)
	if again := counterID.u32(d.do("ALLOC_FLOW_COUNTER", input(0x939, 0, 16), 16)); again != one {
		t.Errorf("counter %d after %d was free", again, one)
	}
}

// receiver creates a receive queue without WQEs that counts into a set of queue counters,
// and a TIR for it.
func (d *driver) receiver(cqn, set uint32) (rqn, tirn uint32) {
	d.t.Helper()
	return d.receiverOf(cqn, func(ctx []byte) { rqcCounterSet.set(ctx, uint64(set)) })
}

// receiveContext is a CREATE_RQ whose context change completes.
func (d *driver) receiveContext(cqn uint32, change func(ctx []byte)) []byte {
	in := input(0x908, 0, queuePages)
	ctx := in[queueContext:]
	change(ctx)
	rqcVSD.set(ctx, 1)
	queueCQ.set(ctx, uint64(cqn))
	wq := ctx[queueWQ:]
	wqType.set(wq, wqCyclic)
	wqPD.set(wq, 1)
	wqRecord.set(wq, recordAt+128)
	wqLogStride.set(wq, 4)
	wqLogSize.set(wq, 4)
	return binary.BigEndian.AppendUint64(in, rqAt)
}

// receiverOf is receiver with a receive queue whose context change completes.
func (d *driver) receiverOf(cqn uint32, change func(ctx []byte)) (rqn, tirn uint32) {
	d.t.Helper()
	rqn = number.u32(d.do("CREATE_RQ", d.receiveContext(cqn, change), 16))
	ready := about(0x909, rqn, 272)
	queueState.set(ready[queueContext:], 1)
	d.do("MODIFY_RQ", ready, 16)
	in := input(0x900, 0, 272)
	tircRQ.set(in[queueContext:], uint64(rqn))
	return rqn, number.u32(d.do("CREATE_TIR", in, 16))
}

func TestQueueCounters(t *testing.T) {
	d := newDriver(t)
	w := d.wired()
	set := number.u32(d.do("ALLOC_Q_COUNTER", input(0x771, 0, 16), 16))
	other := number.u32(d.do("ALLOC_Q_COUNTER", input(0x771, 0, 16), 16))
	rqn, tirn := d.receiver(d.cq(4), set)
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	table, group := d.table(tableNICReceive)
	d.do("SET_FLOW_TABLE_ENTRY", entry(tableNICReceive, table, group, 0, mac, actionForward,
		[]uint32{tirn}, nil), 16)
	starved := func(set uint32, clear bool) uint64 {
		t.Helper()
		in := input(0x773, 0, 32)
		queryQueueSet.set(in, uint64(set))
		queryClear.set(in, flag(clear))
		return outOfBuffer.get(d.do("QUERY_Q_COUNTER", in, 256))
	}
	send := func() { w.recv([]frame.Frame{frameTo(mac, 0x88b5)}) }
	send()
	send()
	if n := starved(set, true); n != 2 {
		t.Errorf("out_of_buffer is %d, want 2", n)
	}
	move := about(0x909, rqn, 272)
	modifyState.set(move, 1)
	queueState.set(move[queueContext:], 1)
	modifyRQBits.set(move, modifyCounterSet)
	rqcCounterSet.set(move[queueContext:], uint64(other))
	d.do("MODIFY_RQ to another set", move, 16)
	send()
	if a, b := starved(set, false), starved(other, false); a != 0 || b != 1 {
		t.Errorf("out_of_buffer is %d and %d, want 0 and 1", a, b)
	}
	d.refused("a set that is not allocated", input(0x773, 0, 32), 256, statusBadResource)
}
