package pcie

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// Where the test keeps the command queue and its mailboxes in guest memory.
const (
	queueAt  = 0x1000
	inBoxAt  = 0x10000
	outBoxAt = 0x20000
)

// command runs one firmware command through the queue, as the driver does: entry and
// mailboxes in guest memory, then the doorbell. It returns the whole output.
func (c *client) command(in []byte, outLen int) []byte {
	c.t.Helper()
	c.store(segCmdQueueHigh, 0)
	c.store(segCmdQueueLow, queueAt)
	e := c.ram[queueAt : queueAt+cmdEntrySize]
	clear(e)
	e[0] = 7 // transport: PCIe
	binary.BigEndian.PutUint32(e[entryInLen:], uint32(len(in)))
	binary.BigEndian.PutUint32(e[entryOutLen:], uint32(outLen))
	rest := in[copy(e[entryIn:entryIn+entryInline], in):]
	if len(rest) > 0 {
		binary.BigEndian.PutUint64(e[entryInPtr:], inBoxAt)
		chain(c.ram, inBoxAt, len(rest), func(b []byte) { rest = rest[copy(b, rest):] })
	}
	if outLen > entryInline {
		binary.BigEndian.PutUint64(e[entryOutPtr:], outBoxAt)
		chain(c.ram, outBoxAt, outLen-entryInline, func(b []byte) {
			for i := range b {
				b[i] = 0xa5
			}
		})
	}
	e[entryToken], e[entryToken+3] = 0x77, ownerHardware
	c.store(segDoorbell, 1)
	if e[entryToken+3]&ownerHardware != 0 {
		c.t.Fatal("the device kept the command")
	}
	return c.output(e, outLen)
}

// chain links mailboxes for n bytes; fill writes the data of each.
func chain(ram []byte, at, n int, fill func([]byte)) {
	for ; n > 0; n -= boxData {
		b := ram[at : at+boxSize]
		fill(b[:boxData])
		at += 0x400
		binary.BigEndian.PutUint64(b[boxNext:], uint64(at))
	}
}

func (c *client) output(e []byte, n int) []byte {
	out := append([]byte{}, e[entryOut:entryOut+min(n, entryInline)]...)
	for at := outBoxAt; len(out) < n; at += 0x400 {
		if c.ram[at+boxToken] != 0x77 {
			c.t.Errorf("output mailbox at %#x has token %#x", at, c.ram[at+boxToken])
		}
		out = append(out, c.ram[at:at+min(boxData, n-len(out))]...)
	}
	return out
}

// in builds a command's input: opcode, op_mod and size.
func input(op, mod uint16, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b[0:], op)
	binary.BigEndian.PutUint16(b[6:], mod)
	return b
}

// TestShortQueries: a query answers with what fits, as firmware does: rdma-core's tests ask for
// 2,064 bytes of capabilities.
func TestShortQueries(t *testing.T) {
	c, _, _ := newClient(t)
	c.mapRAM()
	for op, spec := range commands {
		if !strings.HasPrefix(spec.name, "QUERY_") {
			continue
		}
		in := input(uint16(op), 0, max(spec.in, 16))
		whole := c.command(in, max(spec.out, 16))
		for n := 16; n < spec.out; n += 1 + n/4 {
			if got := c.command(in, n); !bytes.Equal(got, whole[:n]) {
				t.Errorf("%s into %d bytes: %x, want %x", spec.name, n, got, whole[:n])
			}
		}
	}
}

func TestCommandStatus(t *testing.T) {
	tests := []struct {
		name   string
		in     []byte
		out    int
		status simnic.Status
	}{
		{"ENABLE_HCA", input(0x104, 0, 16), 16, 0},
		{"unknown command", input(0xfff, 0, 16), 16, statusBadOp},
		{"input too short", input(0x930, 0, 32), 16, statusBadInput},
		{"query into less than there is", input(0x10a, 0, 16), 16, 0},
		{"destroy what is not there", input(0x401, 0, 16), 16, statusBadResource},
		{"completion queue without pages", input(0x400, 0, 272), 16, statusBadParam},
		{"send queue on no completion queue", input(0x904, 0, 280), 16, statusBadResource},
		{"flow table of another kind",
			func() []byte { b := input(0x930, 0, 64); b[16] = 1; return b }(), 16, statusBadParam},
		{"group of no table", input(0x933, 0, 1024), 16, statusBadResource},
	}
	c, fn, _ := newClient(t)
	c.mapRAM()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := c.command(tt.in, tt.out)
			if got := simnic.Status(out[0]); got != tt.status {
				t.Fatalf("status %v, want %v", got, tt.status)
			}
			if syndrome := binary.BigEndian.Uint32(out[4:]); (syndrome != 0) != (tt.status != 0) {
				t.Errorf("syndrome %#x with status %v", syndrome, tt.status)
			}
		})
	}
	if s := fn.Commands()["ENABLE_HCA"]; s.Done != 1 {
		t.Errorf("ENABLE_HCA counted %+v", s)
	}
}

func TestCommandAcrossMailboxes(t *testing.T) {
	c, fn, _ := newClient(t)
	c.mapRAM()
	out := c.command(input(0x100, 1, 16), 16+capSize)
	for _, v := range append(fn.nicCaps(), generalCaps...) {
		if got := v.f.get(out[16:]); got != v.v {
			t.Errorf("%s = %d, want %d", v.name, got, v.v)
		}
	}
	give := append(input(0x108, pagesGive, 16), make([]byte, 8*100)...)
	binary.BigEndian.PutUint32(give[12:], 100)
	for i := range 100 {
		binary.BigEndian.PutUint64(give[16+8*i:], uint64(i)<<12)
	}
	if out := c.command(give, 16); out[0] != 0 {
		t.Fatalf("MANAGE_PAGES: status %#x", out[0])
	}
	take := input(0x108, pagesTake, 16)
	binary.BigEndian.PutUint32(take[12:], 200)
	out = c.command(take, 16+8*200)
	if n := binary.BigEndian.Uint32(out[8:]); n != 100 {
		t.Fatalf("%d pages came back, 100 were given", n)
	}
	if a := binary.BigEndian.Uint64(out[16:]); a != 99<<12 {
		t.Errorf("first page back %#x", a)
	}
}

func TestEventQueue(t *testing.T) {
	c, fn, nic := newClient(t)
	c.mapRAM()
	const eqAt = 0x40000
	in := append(input(0x301, 0, 272), make([]byte, 8)...)
	ctx := in[createEQContext:]
	eqcLogSize.set(ctx, 2)
	binary.BigEndian.PutUint64(in[createEQMask:], 1<<eventPort)
	binary.BigEndian.PutUint64(in[createEQPages:], eqAt)
	out := c.command(in, 16)
	n := number.u32(out)
	if out[0] != 0 || n == 0 {
		t.Fatalf("CREATE_EQ: status %#x, number %d", out[0], n)
	}
	nic.SetLink(false)
	for i := range 6 { // two more than fit
		nic.SetLink(i%2 == 0)
	}
	for i, sub := range []byte{portDown, portUp, portDown, portUp} {
		e := c.ram[eqAt+i*eqeSize:]
		if e[eqeType] != eventPort || e[eqeSubType] != sub || e[eqeSize-1] != 0 {
			t.Errorf("event %d: type %d.%d owner %d, want port.%d owner 0", i, e[eqeType],
				e[eqeSubType], e[eqeSize-1], sub)
		}
	}
	if lost := fn.eqs.get(n).lost; lost != 3 {
		t.Errorf("%d events lost, want 3", lost)
	}
	c.store(firstUAR<<uarShift+uarEQArm, n<<24|4)
	nic.SetLink(true)
	if e := c.ram[eqAt:]; e[eqeSubType] != portUp || e[eqeSize-1] != 1 {
		t.Errorf("second lap: sub-type %d owner %d", e[eqeSubType], e[eqeSize-1])
	}
}
