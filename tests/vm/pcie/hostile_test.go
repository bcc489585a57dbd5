package pcie

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Tests of a hostile guest and a hostile monitor. The function may refuse their input, but must not
// panic, hang, or access memory that it was not given.

// hostile is a hostile guest. Its input is a list of actions.
type hostile struct {
	t     testing.TB
	fn    *Function
	nic   *simnic.NIC
	s     *server
	wire  *hostileWire
	ram   []byte
	ramFD int
	input []byte
	ops   []opcode // all known commands, in order
}

// hostileWire receives the frames that the NIC sends.
type hostileWire struct{ recv func([]frame.Frame) }

func (w *hostileWire) Start(recv func([]frame.Frame)) error { w.recv = recv; return nil }
func (w *hostileWire) Send(f []frame.Frame) (int, error)    { return len(f), nil }
func (w *hostileWire) Close() error                         { return nil }
func (w *hostileWire) Offloads() frame.Offload              { return 0 }

// Guest memory: guestRAM bytes at 0, ROM that the device must not write, and a hole
// without a descriptor.
const romAt, romSize, holeAt = 4 << 20, 1 << 16, 8 << 20

func newHostile(t testing.TB) *hostile {
	t.Helper()
	h := &hostile{t: t, wire: &hostileWire{}}
	var err error
	if h.nic, err = simnic.New(simnic.Config{Seed: 1}); err != nil {
		t.Fatal(err)
	}
	if err := h.nic.ConnectWire(h.wire); err != nil {
		t.Fatal(err)
	}
	h.fn = New(h.nic, Config{})
	h.s = &server{fn: h.fn}
	h.ramFD, h.ram = ramFile(t, guestRAM)
	h.message(cmdDMAMap, dmaMapBody(0, guestRAM, 3), h.ramFD)
	rom, _ := ramFile(t, romSize)
	h.message(cmdDMAMap, dmaMapBody(romAt, romSize, 1), rom)
	h.message(cmdDMAMap, dmaMapBody(holeAt, romSize, 3), -1)
	for op := range commands {
		h.ops = append(h.ops, op)
	}
	slices.Sort(h.ops)
	return h
}

// ramFile is memory behind a file descriptor, as a monitor passes it.
func ramFile(t testing.TB, size int) (fd int, mem []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ram")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem); unix.Close(fd) })
	return fd, mem
}

func (h *hostile) close() {
	h.fn.reset()
	h.fn.dma.close()
	h.fn.Close()
	h.nic.Close()
}

// message sends a message of the monitor, with a copy of fd unless fd is negative.
func (h *hostile) message(c command, body []byte, fd int) []byte {
	m := &message{command: c, body: body}
	if fd >= 0 {
		if d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			m.fds = []int{d}
		}
	}
	payload, err := h.s.handle(m)
	closeAll(m.fds)
	if err == nil && len(m.reply(payload, 0)) < headerSize {
		h.t.Error("a reply without header")
	}
	return payload
}

func (h *hostile) byte() byte {
	if len(h.input) == 0 {
		return 0
	}
	b := h.input[0]
	h.input = h.input[1:]
	return b
}

func (h *hostile) next(n int) []byte {
	b := make([]byte, n)
	h.input = h.input[copy(b, h.input):]
	return b
}

// number reads up to n big-endian bytes.
func (h *hostile) number(n int) (v uint64) {
	for _, b := range h.next(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

// Actions: the first byte of each selects one.
const (
	// a well-formed firmware command: index of the opcode, op_mod, length, bytes from 8 on
	doCommand = iota
	doEntry   // raw bytes of a command queue entry
	doBAR
	doConfig
	doUAR
	doPoke // writes guest memory
	doFrame
	doMessage
	kinds
)

func (h *hostile) run(input []byte) {
	h.input = input
	for len(h.input) > 0 {
		h.step()
	}
}

func (h *hostile) step() {
	switch h.byte() % kinds {
	case doCommand:
		op := h.ops[int(h.byte())%len(h.ops)]
		mod, n := uint16(h.byte()), int(h.number(2))%2048
		h.command(op, mod, h.next(n))
	case doEntry:
		copy(h.ram[queueAt:], h.next(cmdEntrySize))
		h.doorbell()
	case doBAR:
		off := h.number(3)
		h.fn.write(regionBAR0, off, h.next(4))
		h.fn.read(regionBAR0, off, make([]byte, 8))
	case doConfig:
		off := h.number(2)
		h.fn.write(regionConfig, off, h.next(4))
		h.fn.read(regionConfig, off, make([]byte, 4))
	case doUAR:
		off := []int{uarEQArm, uarEQUpdate, 0x20, 0x800, 0x900, 0xa00, 0xb00}[h.byte()%7]
		h.fn.writeUAR(firstUAR+uint32(h.byte()%4), off, h.next(4+4*int(h.byte()%2)))
	case doPoke:
		at := int(h.number(3)) % guestRAM
		copy(h.ram[at:], h.next(int(h.byte())))
	case doFrame:
		h.wire.recv([]frame.Frame{{Data: append(h.next(int(h.byte())+14), make([]byte, 50)...)}})
	case doMessage:
		c, n, fd := command(h.byte()%16), int(h.byte()), -1
		if h.byte()%2 == 0 {
			fd = h.ramFD
		}
		h.message(c, h.next(n), fd)
	}
}

// command runs a command whose input has its minimum length, with body from byte 8 on.
func (h *hostile) command(op opcode, mod uint16, body []byte) (out []byte) {
	spec := commands[op]
	in := make([]byte, max(spec.in, 8+len(body), entryInline))
	binary.BigEndian.PutUint16(in, uint16(op))
	binary.BigEndian.PutUint16(in[6:], mod)
	copy(in[8:], body)
	e := h.ram[queueAt : queueAt+cmdEntrySize]
	clear(e)
	binary.BigEndian.PutUint32(e[entryInLen:], uint32(len(in)))
	binary.BigEndian.PutUint32(e[entryOutLen:], uint32(max(spec.out, entryInline)))
	copy(e[entryIn:entryIn+entryInline], in)
	binary.BigEndian.PutUint64(e[entryInPtr:], inBoxAt)
	binary.BigEndian.PutUint64(e[entryOutPtr:], outBoxAt)
	rest := in[entryInline:]
	chain(h.ram, inBoxAt, len(rest), func(b []byte) { rest = rest[copy(b, rest):] })
	chain(h.ram, outBoxAt, max(spec.out, entryInline)-entryInline, func(b []byte) { clear(b) })
	h.doorbell()
	return e[entryOut : entryOut+entryInline]
}

func (h *hostile) doorbell() {
	h.fn.write(regionBAR0, segCmdQueueLow, binary.BigEndian.AppendUint32(nil, queueAt))
	h.fn.write(regionBAR0, segDoorbell, binary.BigEndian.AppendUint32(nil, 1))
}

// TestHostileMailboxes: a command with malformed mailboxes is either not completed, or executed
// with the readable part of its input. The next command is executed.
func TestHostileMailboxes(t *testing.T) {
	loop := func(ram []byte, at uint64) { binary.BigEndian.PutUint64(ram[at+boxNext:], at) }
	for _, c := range []struct {
		name          string
		inLen, outLen uint32
		in, out       uint64
		prepare       func(ram []byte)
		done          bool // ownership returned
	}{
		{"input chain that loops", maxCommand, 16, inBoxAt, outBoxAt,
			func(ram []byte) { loop(ram, inBoxAt) }, true},
		{"output chain that loops", 16, maxCommand, inBoxAt, outBoxAt,
			func(ram []byte) { loop(ram, outBoxAt) }, true},
		{"chains in each other", maxCommand, maxCommand, inBoxAt, inBoxAt,
			func(ram []byte) { loop(ram, inBoxAt) }, true},
		{"input longer than any", maxCommand + 1, 16, inBoxAt, outBoxAt, nil, false},
		{"output longer than any", 16, 1<<32 - 1, inBoxAt, outBoxAt, nil, false},
		{"no input at all", 0, 16, inBoxAt, outBoxAt, nil, false},
		{"no output at all", 16, 0, inBoxAt, outBoxAt, nil, false},
		{"input outside memory", 32, 16, guestRAM, outBoxAt, nil, false},
		{"input at the end of memory", 32, 16, guestRAM - 0x200, outBoxAt, nil, false},
		{"input at the end of addresses", 32, 16, 1<<64 - 0x200, outBoxAt, nil, false},
		{"output outside memory", 16, 32, inBoxAt, 1 << 40, nil, false},
		{"output in ROM", 16, 32, inBoxAt, romAt, nil, false},
		{"output in a hole", 16, 32, inBoxAt, holeAt, nil, false},
		{"chain that leaves memory", 1024, 16, inBoxAt, outBoxAt, func(ram []byte) {
			binary.BigEndian.PutUint64(ram[inBoxAt+boxNext:], guestRAM)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			if c.prepare != nil {
				c.prepare(h.ram)
			}
			e := h.ram[queueAt : queueAt+cmdEntrySize]
			binary.BigEndian.PutUint32(e[entryInLen:], c.inLen)
			binary.BigEndian.PutUint32(e[entryOutLen:], c.outLen)
			binary.BigEndian.PutUint64(e[entryInPtr:], c.in)
			binary.BigEndian.PutUint64(e[entryOutPtr:], c.out)
			binary.BigEndian.PutUint16(e[entryIn:], 0x104) // ENABLE_HCA
			e[entryToken+3] = ownerHardware
			h.doorbell()
			if done := e[entryToken+3]&ownerHardware == 0; done != c.done {
				t.Errorf("done: %v, want %v", done, c.done)
			}
			if out := h.command(0x104, 0, nil); out[0] != 0 {
				t.Errorf("the next command: status %#x", out[0])
			}
		})
	}
}

// TestHostileFlowTables: a loop of tables would keep a frame in it for ever, and tables whose
// entries name the next table many times would multiply it.
func TestHostileFlowTables(t *testing.T) {
	h := newHostile(t)
	defer h.close()
	table := func(level byte) uint32 {
		body := make([]byte, 56)
		body[ftContext-8+1] = level
		return number.u32(h.command(0x930, 0, body))
	}
	entry := func(from, to uint32, times int) byte {
		group := make([]byte, 1016)
		ftTableID.set(group[:], 0)
		putU24(group[21-8:], from)
		if out := h.command(0x933, 0, group); out[0] != 0 && out[0] != byte(statusBadParam) {
			t.Fatalf("group: status %#x", out[0])
		}
		rule := make([]byte, flowDest-8+8*times)
		putU24(rule[21-8:], from)
		ctx := rule[flowContext-8:]
		fcGroup.set(ctx, 1)
		fcAction.set(ctx, actionForward)
		fcDestCount.set(ctx, uint64(times))
		for i := range times {
			d := rule[flowDest-8+8*i:]
			d[0] = destTable
			putU24(d[1:], to)
		}
		return h.command(0x936, 0, rule)[0]
	}
	tables := make([]uint32, 40)
	for i := range tables {
		tables[i] = table(byte(i + 1))
	}
	if got := entry(tables[1], tables[1], 1); got != byte(statusBadParam) {
		t.Errorf("a table that leads to itself: status %#x", got)
	}
	if got := entry(tables[1], tables[0], 1); got != byte(statusBadParam) {
		t.Errorf("a table that leads back: status %#x", got)
	}
	for i := range len(tables) - 1 {
		if got := entry(tables[i], tables[i+1], 200); got != 0 {
			t.Fatalf("table %d to the next: status %#x", i, got)
		}
	}
	root := make([]byte, 56)
	putU24(root[21-8:], tables[0])
	if out := h.command(0x92f, 0, root); out[0] != 0 {
		t.Fatalf("root: status %#x", out[0])
	}
	before := h.nic.Counters().Drops.SteerMissed
	h.wire.recv([]frame.Frame{{Data: make([]byte, 60)}})
	if n := h.nic.Counters().Drops.SteerMissed - before; n != 1 {
		t.Errorf("the frame was missed %d times", n)
	}
}

// TestHostileMonitor: invalid requests of a monitor are refused.
func TestHostileMonitor(t *testing.T) {
	for _, c := range []struct {
		name string
		cmd  command
		body []byte
	}{
		{"map beyond the file", cmdDMAMap, dmaMapBody(1<<32, guestRAM+1, 3)},
		{"map at a negative offset", cmdDMAMap,
			func() []byte { b := dmaMapBody(1<<32, 4096, 3); b[15] = 0x80; return b }()},
		{"map of half the address space", cmdDMAMap, dmaMapBody(1<<32, 1<<62, 3)},
		{"interrupts whose numbers wrap", cmdSetIRQs, words(20, 0x24, irqMSIX, 1<<32-1, 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHostile(t)
			defer h.close()
			m := &message{command: c.cmd, body: c.body}
			fd, err := unix.FcntlInt(uintptr(h.ramFD), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			m.fds = []int{fd}
			if _, err := h.s.handle(m); err == nil {
				t.Error("done")
			}
			closeAll(m.fds)
		})
	}
}
