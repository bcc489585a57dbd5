package pcie

import (
	"encoding/binary"
	"testing"
)

// TestFunctionReset asks for a function-level reset while a queue is in use: the queue is gone, the
// bit reads 0, what the monitor wrote to the configuration space stays, a driver can begin anew.
func TestFunctionReset(t *testing.T) {
	d := newDriver(t)
	old := d.cq(4)
	word := func(off uint64, v uint16) {
		t.Helper()
		errno, _ := d.call(cmdRegionWrite,
			binary.LittleEndian.AppendUint16(access(regionConfig, off, 2), v))
		if errno != 0 {
			t.Fatalf("write at %#x: errno %d", off, errno)
		}
	}
	word(pciCommand, 0x0406)
	word(expressControl, initiateFLR<<8|0x2810)
	if got := binary.LittleEndian.Uint16(d.config(expressControl, 2)); got != 0x2810 {
		t.Errorf("device control %#x", got)
	}
	if got := binary.LittleEndian.Uint16(d.config(pciCommand, 2)); got != 0x0406 {
		t.Errorf("command register %#x", got)
	}
	if got := binary.BigEndian.Uint32(d.load(segCmdQueueLow, 4)) &^ 0xfff; got != 0 {
		t.Errorf("command queue at %#x", got)
	}
	d.refused("a queue of before the reset", about(0x401, old, 16), 16, statusBadResource)
	d.bringUp()
	if d.cq(4) == 0 {
		t.Error("no queue after the reset")
	}
}

// bringUp is what a driver does with a function that it does not know: firmware first, then an
// event queue.
func (d *driver) bringUp() {
	d.t.Helper()
	issi := input(0x10b, 0, 16)
	currentISSI.set(issi, 1)
	d.do("ENABLE_HCA", input(0x104, 0, 16), 16)
	d.do("SET_ISSI", issi, 16)
	d.do("INIT_HCA", input(0x102, 0, 16), 16)
	in := input(0x301, 0, 280)
	eqcLogSize.set(in[createEQContext:], 4)
	binary.BigEndian.PutUint64(in[createEQPages:], eqAt)
	d.eqn = number.u32(d.do("CREATE_EQ", in, 16))
}

// TestTeardownAndReturn has a driver leave in order, with queues that it forgot, and another find
// the function as new, many times: nothing is used up.
func TestTeardownAndReturn(t *testing.T) {
	d := newDriver(t)
	for range 100 {
		d.cq(4)
		d.do("ALLOC_PD", input(0x800, 0, 16), 16)
		d.do("TEARDOWN_HCA", input(0x103, 0, 16), 16)
		d.do("DISABLE_HCA", input(0x105, 0, 16), 16)
		if out := d.command(input(0x102, 0, 16), 16); out[0] == 0 {
			t.Fatal("INIT_HCA before ENABLE_HCA")
		}
		d.bringUp()
	}
	d.between(func() {
		if n := len(d.fn.objects.cqs); n != 0 {
			t.Errorf("%d completion queues are left", n)
		}
	})
	if pd := number.u32(d.do("ALLOC_PD", input(0x800, 0, 16), 16)); pd != 1 {
		t.Errorf("the next protection domain is %d: those of before are kept", pd)
	}
}
