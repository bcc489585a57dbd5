package pcie

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// umrQP creates the driver's queue pair for memory keys and makes it ready to send.
func (d *driver) umrQP(cqn uint32) uint32 {
	d.t.Helper()
	in := input(0x500, 0, 280)
	ctx := in[qpContext:]
	qpcType.set(ctx, qpUMR)
	qpcLogSQ.set(ctx, 6)
	qpcRQKind.set(ctx, 1)
	qpcUAR.set(ctx, firstUAR)
	qpcPD.set(ctx, 1)
	qpcSendCQ.set(ctx, uint64(cqn))
	qpcRecord.set(ctx, recordAt+64)
	binary.BigEndian.PutUint64(in[qpPages:], sqAt)
	qpn := number.u32(d.do("CREATE_QP", in, 16))
	for _, op := range []uint16{0x502, 0x503, 0x504} {
		d.do("a step to RTS", about(op, qpn, 272), 16)
	}
	return qpn
}

// mkey creates a key over pages, or a free key if there are no pages.
func (d *driver) mkey(pd uint32, start, length uint64, pages ...uint64) uint32 {
	d.t.Helper()
	in := input(0x200, 0, 272)
	ctx := in[mkeyContext:]
	mkcMode.set(ctx, modeMTT)
	mkcUMR.set(ctx, 1)
	mkcLocalWrite.set(ctx, 1)
	mkcVariant.set(ctx, 0x5a)
	mkcPD.set(ctx, uint64(pd))
	mkcStart.set(ctx, start)
	mkcLength.set(ctx, length)
	mkcTranslations.set(ctx, 16)
	mkcLogPageSize.set(ctx, 12)
	mkcFree.set(ctx, flag(len(pages) == 0))
	for _, p := range pages {
		in = binary.BigEndian.AppendUint64(in, p)
	}
	return number.u32(d.do("CREATE_MKEY", in, 16))<<8 | 0x5a
}

// umrWQE is a UMR WQE with an inline list of translations.
type umrWQE struct {
	flags   uint8
	mask    uint64
	first   uint16 // in units of two translations
	context [64]byte
	list    []uint64
}

func (u umrWQE) bytes(index uint16, qpn, key uint32) []byte {
	size := 128 + (8*len(u.list)+15)/16*16
	b := make([]byte, (size+63)/64*64)
	b[3] = 0x25
	binary.BigEndian.PutUint16(b[1:], index)
	binary.BigEndian.PutUint32(b[4:], qpn<<8|uint32(size/16))
	b[11] = 8 // completion requested
	binary.BigEndian.PutUint32(b[12:], key)
	b[16] = u.flags
	binary.BigEndian.PutUint16(b[20:], uint16((8*len(u.list)+15)/16))
	binary.BigEndian.PutUint16(b[22:], u.first)
	binary.BigEndian.PutUint64(b[24:], u.mask)
	copy(b[64:], u.context[:])
	for i, v := range u.list {
		binary.BigEndian.PutUint64(b[128+8*i:], v)
	}
	return b
}

// mkc builds a memory key context.
func mkc(pd uint32, write, free uint64, start, length uint64) (c [64]byte) {
	mkcPD.set(c[:], uint64(pd))
	mkcLocalWrite.set(c[:], write)
	mkcFree.set(c[:], free)
	mkcStart.set(c[:], start)
	mkcLength.set(c[:], length)
	mkcVariant.set(c[:], 0x5b)
	return c
}

// UMR WQEs of linux mlx5_ib and mlx5e: change PD and access (ibv_rereg_mr), revoke, fill in a free
// key; and refused WQEs, each with its CQE.
func TestUMR(t *testing.T) {
	d := newDriver(t)
	qpn := d.umrQP(d.cq(4))
	full := d.mkey(5, 0x7000, 4096, dataAt)
	empty := d.mkey(5, 0, 1<<16)
	const setPD, setAccess, setFree, setStart, setLength = 1 << 7, 1 << 18, 1 << 29, 1 << 6, 1
	const inline, offset, ifFree, ifTaken = 1 << 7, 1 << 4, 1 << 5, 1 << 6
	tests := []struct {
		name string
		key  uint32
		wqe  umrWQE
		fail bool
		want simnic.MKeyAttr // PD, LocalWrite, Free, Start, Len
		read map[uint64]byte // bytes read at offsets of the memory
	}{
		{"PD and access", full, umrWQE{flags: inline | ifTaken, mask: setPD | setAccess,
			context: mkc(7, 0, 0, 0, 0)}, false,
			simnic.MKeyAttr{PD: 7, Start: 0x7000, Len: 4096}, map[uint64]byte{0: 1}},
		{"fill in what is not free", full, umrWQE{flags: inline | ifFree, mask: setPD,
			context: mkc(9, 0, 0, 0, 0)}, true,
			simnic.MKeyAttr{PD: 7, Start: 0x7000, Len: 4096}, nil},
		{"revoke", full, umrWQE{flags: inline, mask: setPD | setFree,
			context: mkc(1, 0, 1, 0, 0)}, false,
			simnic.MKeyAttr{PD: 1, Free: true, Start: 0x7000, Len: 4096}, nil},
		{"fill in", empty, umrWQE{flags: inline | ifFree, mask: setFree | setStart | setLength,
			context: mkc(0, 0, 0, 0x3010, 0x2000),
			list:    []uint64{dataAt + 0x1000 | 3, dataAt | 3, dataAt + 0x2000 | 3, 0}}, false,
			simnic.MKeyAttr{PD: 5, LocalWrite: true, Start: 0x3010, Len: 0x2000},
			map[uint64]byte{0: 2, 0xff0: 1, 0x1ff0: 3}},
		{"other pages at an offset", empty, umrWQE{flags: inline | offset, first: 1,
			list: []uint64{dataAt | 2, dataAt + 0x1000 | 2}}, false,
			simnic.MKeyAttr{PD: 5, LocalWrite: true, Start: 0x3010, Len: 0x2000},
			map[uint64]byte{0: 2, 0xff0: 1, 0x1ff0: 1}},
		{"more than there is room for", empty, umrWQE{flags: inline | offset, first: 16,
			list: []uint64{dataAt, dataAt}}, true,
			simnic.MKeyAttr{PD: 5, LocalWrite: true, Start: 0x3010, Len: 0x2000}, nil},
	}
	for i := range 3 {
		clear(d.ram[dataAt+i<<12:][:4096])
		for j := range 4096 {
			d.ram[dataAt+i<<12+j] = byte(i + 1)
		}
	}
	pc, done := uint32(0), 0
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.wqe.bytes(uint16(pc), qpn, tt.key)
			for i := 0; i < len(w); i += 64 {
				copy(d.ram[sqAt+64*int(pc&63):], w[i:i+64])
				pc++
			}
			d.ring(w, pc)
			e := d.cqe(done)
			done++
			if failed := e[63]>>4 == 0xd; failed != tt.fail || e[56] != 0x25 {
				t.Fatalf("completion with opcode %#x of WQE %#x, failed wanted: %v", e[63]>>4,
					e[56],
					tt.fail)
			}
			key := d.fn.objects.mkeys[tt.key>>8]
			defer key.Attr() // its lock is between the reads below and the next WQE
			a := key.Attr()
			mem := a.Mem
			if a.Mem, a.UMR, a.Variant = nil, nil, nil; a != tt.want {
				t.Errorf("key %+v, want %+v", a, tt.want)
			}
			for off, want := range tt.read {
				if got := mem.Slice(off, 1); len(got) != 1 || got[0] != want {
					t.Errorf("byte %#x is %v, want %d", off, got, want)
				}
			}
			if tt.fail { // as the driver recovers
				for _, op := range []uint16{0x50a, 0x502, 0x503, 0x504} {
					d.do("a step of recovery", about(op, qpn, 272), 16)
				}
				pc = 0
			}
		})
	}
	if v := d.nic.Violations(); len(v) != 0 {
		t.Errorf("violations: %q", v)
	}
}

// The list of translations may be in memory that a memory key names.
func TestUMRListInMemory(t *testing.T) {
	d := newDriver(t)
	qpn := d.umrQP(d.cq(4))
	list := d.mkey(1, 0, 4096, dataAt)
	key := d.mkey(5, 0, 0x1000)
	binary.BigEndian.PutUint64(d.ram[dataAt+32:], dataAt+0x3000|3)
	d.ram[dataAt+0x3000] = 0x77
	w := umrWQE{flags: 1 << 5, mask: 1 << 29}.bytes(0, qpn, key)
	w = append(w, make([]byte, 64)...)
	w[7] = 9
	binary.BigEndian.PutUint16(w[20:], 1)
	binary.BigEndian.PutUint32(w[128:], 16)
	binary.BigEndian.PutUint32(w[132:], list)
	binary.BigEndian.PutUint64(w[136:], 32)
	copy(d.ram[sqAt:], w)
	d.ring(w, 3)
	if e := d.cqe(0); e[63]>>4 != 0 {
		t.Fatalf("completion with opcode %#x, syndrome %#x", e[63]>>4, e[55])
	}
	if got := d.fn.objects.mkeys[key>>8].Attr().Mem.Slice(0, 1); len(got) != 1 || got[0] != 0x77 {
		t.Errorf("the key shows %v", got)
	}
}

// partsKey creates a free key over parts of other keys, as mlx5e has it for frames of AF_XDP that
// are shorter than a page (linux en_main.c, mlx5e_create_umr_mkey): the parts of list at first.
func (d *driver) partsKey(mode uint64, logSize, most int, list ...uint64) uint32 {
	d.t.Helper()
	in := input(0x200, 0, mkeyPages)
	ctx := in[mkeyContext:]
	mkcMode.set(ctx, mode)
	mkcFree.set(ctx, 1)
	mkcUMR.set(ctx, 1)
	mkcLocalWrite.set(ctx, 1)
	mkcVariant.set(ctx, 0x5a)
	mkcPD.set(ctx, 5)
	mkcLength.set(ctx, 1<<16)
	mkcTranslations.set(ctx, uint64(most))
	mkcLogPageSize.set(ctx, uint64(logSize))
	mkeyListed.set(in, uint64(len(list)/2))
	for _, v := range list {
		in = binary.BigEndian.AppendUint64(in, v)
	}
	return number.u32(d.do("CREATE_MKEY", in, 16))<<8 | 0x5a
}

// keyPart is an entry of such a key's list.
func keyPart(size int, key uint32, addr uint64) []uint64 {
	return []uint64{uint64(size)<<32 | uint64(key), addr}
}

// TestUMRParts: UMR WQEs change which parts of other keys a key consists of: of any length (KLM),
// or of one (KSM). Parts that are not there, of another protection domain or that may not be
// written to are refused, and change nothing.
func TestUMRParts(t *testing.T) {
	d := newDriver(t)
	qpn := d.umrQP(d.cq(4))
	all := d.mkey(5, 0, 4<<12, dataAt, dataAt+0x1000, dataAt+0x2000, dataAt+0x3000)
	other := d.mkey(6, 0, 4096, dataAt)
	free := d.mkey(5, 0, 4096)
	for i := range 4 << 12 {
		d.ram[dataAt+i] = byte(i>>9 + 1) // one value for each 512 bytes
	}
	garbage := keyPart(2048, all, 0x3800)
	pairs := slices.Concat(garbage, garbage, garbage, garbage, garbage, garbage)
	klm := d.partsKey(modeKLM, 0, 8, pairs...)
	ksm := d.partsKey(modeKSM, 10, 8)
	const inline, offset, setFree = 1 << 7, 1 << 4, 1 << 29
	const hole, overflow = -1, 29 // value of the garbage page
	tests := []struct {
		name string
		key  uint32
		wqe  umrWQE
		fail bool
		read map[uint64]int // values at offsets of the memory
	}{
		{"frames of 2 KiB", klm, umrWQE{flags: inline | offset, mask: setFree, first: 2,
			list: slices.Concat(keyPart(2048, all, 0x1800), garbage)}, false,
			map[uint64]int{0: overflow, 4095: overflow + 3, 4096: 13, 4096 + 2047: 16,
				4096 + 2048: overflow, 8192: overflow, 12287: overflow + 3, 12288: hole}},
		{"other frames", klm, umrWQE{flags: inline | offset, first: 2,
			list: slices.Concat(keyPart(2048, all, 0), garbage)}, false,
			map[uint64]int{4096: 1, 4096 + 2047: 4, 4096 + 2048: overflow}},
		{"parts of other lengths", klm, umrWQE{flags: inline,
			list: slices.Concat(keyPart(512, all, 512), keyPart(100, all, 0x1000))}, false,
			map[uint64]int{0: 2, 511: 2, 512: 9, 611: 9, 612: 1, 612 + 2048: overflow}},
		{"one that is not there", klm, umrWQE{flags: inline,
			list: keyPart(512, 0x12345600, 0)}, true, map[uint64]int{0: 2}},
		{"itself", klm, umrWQE{flags: inline, list: keyPart(512, klm, 0)}, true,
			map[uint64]int{0: 2}},
		{"behind its key", klm, umrWQE{flags: inline, list: keyPart(512, all, 0x3f00)}, true,
			map[uint64]int{0: 2}},
		{"of another protection domain", klm, umrWQE{flags: inline,
			list: keyPart(512, other, 0)}, true, map[uint64]int{0: 2}},
		{"without memory", klm, umrWQE{flags: inline, list: keyPart(512, free, 0)}, true,
			map[uint64]int{0: 2}},
		{"more than there is room for", klm, umrWQE{flags: inline | offset, first: 8,
			list: garbage}, true, map[uint64]int{0: 2}},
		{"of one length", ksm, umrWQE{flags: inline | offset, mask: setFree, first: 1,
			list: slices.Concat(keyPart(0, all, 0x800), keyPart(0, all, 0x200))}, false,
			map[uint64]int{0: hole, 1023: hole, 1024: 5, 2047: 6, 2048: 2, 3071: 3, 3072: hole}},
		{"the hole", ksm, umrWQE{flags: inline, list: keyPart(0, all, 0x400)}, false,
			map[uint64]int{0: 3, 1023: 4, 1024: 5}},
	}
	pc := uint32(0)
	for done, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.wqe.bytes(uint16(pc), qpn, tt.key)
			for i := 0; i < len(w); i += 64 {
				copy(d.ram[sqAt+64*int(pc&63):], w[i:i+64])
				pc++
			}
			d.ring(w, pc)
			e := d.cqe(done)
			if failed := e[63]>>4 == 0xd; failed != tt.fail {
				t.Fatalf("completion with opcode %#x, failed wanted: %v", e[63]>>4, tt.fail)
			}
			a := d.fn.objects.mkeys[tt.key>>8].Attr()
			if a.Free {
				t.Error("the key is free")
			}
			for off, want := range tt.read {
				got := hole
				if b := a.Mem.Slice(off, 1); len(b) == 1 {
					got = int(b[0])
				}
				if got != want {
					t.Errorf("byte %d is %d, want %d", off, got, want)
				}
			}
			if tt.fail { // as the driver recovers
				for _, op := range []uint16{0x50a, 0x502, 0x503, 0x504} {
					d.do("a step of recovery", about(op, qpn, 272), 16)
				}
				pc = 0
			}
		})
	}
	if v := d.nic.Violations(); len(v) != 0 {
		t.Errorf("violations: %q", v)
	}
}
