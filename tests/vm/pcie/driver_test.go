package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// driver acts as the driver of a guest: it writes commands, WQEs and doorbells as bytes.
type driver struct {
	*client
	fn  *Function
	nic *simnic.NIC
	eqn uint32
}

// Addresses of the driver's queues in guest memory.
const (
	eqAt     = 0x40000
	cqAt     = 0x50000
	resizeAt = 0x58000
	sqAt     = 0x60000
	rqAt     = 0x68000
	recordAt = 0x70000
	dataAt   = 0x80000
)

func newDriver(t *testing.T) *driver {
	t.Helper()
	c, fn, nic := newClient(t)
	return driverOf(c, fn, nic)
}

// driverOf returns the driver of a client's function.
func driverOf(c *client, fn *Function, nic *simnic.NIC) *driver {
	c.t.Helper()
	c.mapRAM()
	d := &driver{client: c, fn: fn, nic: nic}
	in := input(0x301, 0, 280)
	eqcLogSize.set(in[createEQContext:], 4)
	binary.BigEndian.PutUint64(in[createEQPages:], eqAt)
	d.eqn = number.u32(d.do("CREATE_EQ", in, 16))
	return d
}

// do runs a command that must succeed.
func (d *driver) do(what string, in []byte, outLen int) []byte {
	d.t.Helper()
	out := d.command(in, outLen)
	if out[0] != 0 {
		d.t.Fatalf("%s: status %v", what, simnic.Status(out[0]))
	}
	return out
}

// refused runs a command that must not succeed.
func (d *driver) refused(what string, in []byte, outLen int, want simnic.Status) {
	d.t.Helper()
	if out := d.command(in, outLen); simnic.Status(out[0]) != want {
		d.t.Errorf("%s: status %v, want %v", what, simnic.Status(out[0]), want)
	}
}

// about is the input of a command on one object.
func about(op uint16, n uint32, size int) []byte {
	in := input(op, 0, size)
	number.set(in, uint64(n))
	return in
}

// cq creates a completion queue of 1<<log entries.
func (d *driver) cq(log int) uint32 {
	d.t.Helper()
	in := input(0x400, 0, 280)
	ctx := in[createCQContext:]
	cqcLogSize.set(ctx, uint64(log))
	cqcEQ.set(ctx, uint64(d.eqn))
	cqcRecord.set(ctx, recordAt)
	binary.BigEndian.PutUint64(in[createCQPages:], cqAt)
	for i := range 1 << log {
		d.ram[cqAt+64*i+63] = 0xf1
	}
	return number.u32(d.do("CREATE_CQ", in, 16))
}

// store64 is a store of 8 bytes to BAR 0.
func (d *driver) store64(off, v uint64) {
	d.t.Helper()
	body := binary.BigEndian.AppendUint64(access(regionBAR0, off, 8), v)
	if errno, _ := d.call(cmdRegionWrite, body); errno != 0 {
		d.t.Fatalf("write of BAR 0 at %#x: errno %d", off, errno)
	}
}

// ring rings the doorbell of a send queue with producer counter pc (basic blocks); w is the last
// WQE.
func (d *driver) ring(w []byte, pc uint32) {
	d.t.Helper()
	binary.BigEndian.PutUint32(d.ram[recordAt+64+4:], pc)
	d.store64(firstUAR<<uarShift|0x800, binary.BigEndian.Uint64(w))
}

// cqe returns entry i of the completion queue, which must be owned by the driver in the first pass.
func (d *driver) cqe(i int) []byte {
	d.t.Helper()
	e := d.ram[cqAt+64*i : cqAt+64*i+64]
	if e[63]&1 != 0 || e[63]>>4 == 0xf {
		d.t.Fatalf("completion %d is not there: owner byte %#x", i, e[63])
	}
	return e
}

// between calls look between two commands, in which it may touch what the function's goroutine
// owns: locks order it behind the last command and before the next.
func (d *driver) between(look func()) {
	d.fn.Commands()
	d.fn.eqs.mu.Lock()
	defer d.fn.eqs.mu.Unlock()
	look()
}
