package uverbs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// A C program over the uAPI headers wrote the vectors below (little-endian host), groups of 4 bytes
// in memory order. Addresses in them are invented; the tests use regions at those addresses that
// are never accessed.

// vec reads a vector.
func vec(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// same compares bytes, 4 at a time.
func same(t *testing.T, what string, have, want []byte) {
	t.Helper()
	if len(have) != len(want) {
		t.Errorf("%s: %d bytes, want %d", what, len(have), len(want))
	}
	for i := 0; i < min(len(have), len(want)); i += 4 {
		e := min(i+4, len(have), len(want))
		if !bytes.Equal(have[i:e], want[i:e]) {
			t.Errorf("%s: at %#x: % x, want % x", what, i, have[i:e], want[i:e])
		}
	}
}

// rebase replaces the pointers of an ioctl buffer, which point into scratch memory, by the same
// offsets from base.
func rebase(raw []byte, from, base uint64) []byte {
	b := append([]byte(nil), raw...)
	for at := 24; at < len(b); at += 16 {
		if p := u64(b[at+8:]); p >= from && p < from+scratchLen {
			p64(b[at+8:], p-from+base)
		}
	}
	return b
}

func TestVectorGetContext(t *testing.T) {
	k, c := openFake(t, Options{})
	call := k.last("native GET_CONTEXT")
	first := c.scratch.Addr() + uint64(align8(len(call.raw)))
	same(t, "buffer", rebase(call.raw, first, 0x1111111111110000), vec(t, `
		58000000 03000400 00000000 00000000 01000000 00000000 00000400 01000000
		00001111 11111111 01000800 01000000 08001111 11111111 00102000 01000000
		10001111 11111111 01104800 01000000 30001111 11111111`))
	same(t, "driver part", call.in[0x1000],
		vec(t, `10000000 0f000000 00000000 00000000 01000000 00000000 01000000 00000000`))
}

func TestVectorDeallocPD(t *testing.T) {
	k, c := openFake(t, Options{})
	pd := &PD{object{c: c, handle: 5}}
	k.handles[5] = "PD"
	if err := pd.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, "buffer", k.last("DEALLOC_PD").raw, vec(t, `
		38000000 00000200 00000000 00000000 01000000 00000000 00000400 01000000
		05000000 00000000 02000800 01000000 04000000 00000000`))
}

func TestVectorCreateCQ(t *testing.T) {
	k, c := openFake(t, Options{})
	ch := &CompChannel{c: c, fd: 9}
	c.channels[ch] = struct{}{}
	defer delete(c.channels, ch)
	cq, err := c.CreateCQ(CQAttr{Entries: 1024, Buf: mmio.View(0x7f0000010000, 1024*64),
		DBR: mmio.View(0x7f0000020040, 8), Channel: ch, UserHandle: 0xc1})
	if err != nil {
		t.Fatal(err)
	}
	call := k.last("CREATE_CQ")
	same(t, "core", call.in[0], vec(t,
		`c1000000 00000000 ff030000 00000000 09000000 00000000 00000000 00000000`))
	same(t, "driver part", call.in[0x1000],
		vec(t, `00000100 007f0000 40000200 007f0000 40000000 00000000`))
	if cq.Handle() != 0 || cq.CQN != 0x80 || cq.ArmPage != c.uars[0] || cq.ArmOffset != 0x20 {
		t.Errorf("decoded %+v", cq)
	}
}

func TestVectorCreateQP(t *testing.T) {
	k, c := openFake(t, Options{})
	pd := &PD{object{c: c, handle: 1}}
	cq := &CQ{object: object{c: c, handle: 2}}
	qp, err := pd.CreateRawQP(QPAttr{CQ: cq, Entries: 1024, MaxSendWR: 512, UserIndex: 1,
		DBR:   mmio.View(0x7f0000020000, 8),
		SQBuf: mmio.View(0x7f0000030000, 1024*64), UserHandle: 0xa1})
	if err != nil {
		t.Fatal(err)
	}
	call := k.last("CREATE_QP")
	same(t, "core", call.in[0], vec(t, `
		a1000000 00000000 01000000 02000000 02000000 00000000 00020000 00000000
		01000000 00000000 00000000 00080000 00000000 00000000 00000000 00000000`))
	same(t, "driver part", call.in[0x1000], vec(t, `
		00000000 00000000 00000200 007f0000 00040000 00000000 00000000 00000000
		01000000 00000000 00000300 007f0000`))
	if qp.SQN != 0x100 || qp.Reg != c.uars[0] || qp.RegOffset != 0xa00 || qp.BlueFlameSize != 0 {
		t.Errorf("decoded %+v", qp)
	}
}

func TestVectorModifyQP(t *testing.T) {
	k, c := openFake(t, Options{})
	qp := &QP{object: object{c: c, handle: 3}, Reg: c.uars[0]}
	if err := qp.Init(1); err != nil {
		t.Fatal(err)
	}
	want := append(make([]byte, 64),
		vec(t,
			`03000000 21000000 00000000 00000000 00000000 00000000 00000000 00000000 01000000 00000000 01000000 00000000`)...)
	same(t, "core", k.last("MODIFY_QP").in[0], want)
}

// The rate, and the driver's part only with a burst or a typical packet size: linux
// include/uapi/rdma/ib_user_verbs.h, ib_uverbs_ex_modify_qp; mlx5-abi.h, mlx5_ib_modify_qp.
func TestVectorPace(t *testing.T) {
	k, c := openFake(t, Options{})
	qp := &QP{object: object{c: c, handle: 3}, Reg: c.uars[0], state: QPRTS}
	want := append(make([]byte, 64), vec(t, `
		03000000 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 40420f00 00000000`)...)
	if err := qp.Pace(Pacing{Kbps: 1_000_000}); err != nil {
		t.Fatal(err)
	}
	call := k.last("EX_MODIFY_QP")
	same(t, "core", call.in[0], want)
	if drv, ok := call.in[0x1000]; ok {
		t.Errorf("driver part % x without a burst", drv)
	}
	if err := qp.Pace(Pacing{Kbps: 1_000_000, MaxBurst: 65536, TypicalPacket: 1514}); err != nil {
		t.Fatal(err)
	}
	call = k.last("EX_MODIFY_QP")
	same(t, "core", call.in[0], want)
	same(t, "driver part", call.in[0x1000], vec(t, `00000000 00000100 ea050000 00000000`))
	for _, s := range []QPState{QPReset, QPInit, QPRTR, QPErr} {
		qp.state = s
		if err := qp.Pace(Pacing{Kbps: 1}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("a rate in %v: %v", s, err)
		}
	}
}

func TestVectorCreateWQ(t *testing.T) {
	k, c := openFake(t, Options{})
	pd := &PD{object{c: c, handle: 1}}
	cq := &CQ{object: object{c: c, handle: 2}}
	wq, err := pd.CreateWQ(WQAttr{CQ: cq, Entries: 512, UserIndex: 2, Buf: mmio.View(0x7f0000040000,
		512*16), DBR: mmio.View(0x7f0000020080, 8), UserHandle: 0xb1})
	if err != nil {
		t.Fatal(err)
	}
	call := k.last("CREATE_WQ")
	same(t, "core", call.in[0], vec(t, `
		00000000 00000000 b1000000 00000000 01000000 02000000 00020000 01000000
		00000000 00000000`))
	same(t, "driver part", call.in[0x1000], vec(t, `
		00000400 007f0000 80000200 007f0000 00020000 04000000 02000000 00000000
		00000000 00000000 00000000 00000000`))
	if wq.WQN != 0x200 {
		t.Errorf("decoded %+v", wq)
	}
}

func TestVectorModifyWQ(t *testing.T) {
	k, c := openFake(t, Options{})
	wq := &WQ{object: object{c: c, handle: 4}}
	if err := wq.Ready(); err != nil {
		t.Fatal(err)
	}
	call := k.last("MODIFY_WQ")
	same(t, "core", call.in[0], vec(t, `03000000 04000000 01000000 00000000 00000000 00000000`))
	same(t, "driver part", call.in[0x1000], make([]byte, 8))
}

// microsoftKey is the Toeplitz key of the published test vectors.
var microsoftKey = [40]byte{0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d,
	0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7,
	0x3b, 0xbe, 0xac, 0x01, 0xfa}

func TestVectorCreateRSSQP(t *testing.T) {
	k, c := openFake(t, Options{})
	pd := &PD{object{c: c, handle: 1}}
	tbl := &IndTable{object: object{c: c, handle: 6}}
	if _, err := pd.CreateRSSQP(RSSAttr{Table: tbl, Fields: HashFieldsTCPv4, Key: microsoftKey,
		UserHandle: 0xa2}); err != nil {
		t.Fatal(err)
	}
	call := k.last("CREATE_QP")
	same(t, "core", call.in[0], vec(t, `
		a2000000 00000000 01000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 00000000 00080000 01000000 00000000 06000000 00000000`))
	same(t, "driver part", call.in[0x1000], append(vec(t, `
		33000000 00000000 01280000 00000000 6d5a56da 255b0ec2 4167253d 43a38fb0
		d0ca2bcb ae7b30b4 77cb2da3 8030f20c 6a42b73b beac01fa 00000000 00000000`), make([]byte, 152-64)...))
}

func TestVectorCreateFlow(t *testing.T) {
	k, c := openFake(t, Options{})
	qp := &QP{object: object{c: c, handle: 7}}
	_, err := qp.CreateFlow(FlowAttr{Specs: []FlowSpec{
		EthMatch{Dst: [6]byte{2, 0, 0, 0, 0, 1}, DstMask: ExactMAC, EtherType: 0x0800}.Spec(),
		IPv4Match{Dst: [4]byte{192, 168, 1, 2}, DstMask: [4]byte{255, 255, 255, 255}}.Spec(),
		PortMatch{Dst: 80, DstMask: 0xffff}.TCP(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "core", k.last("CREATE_FLOW").in[0], vec(t, `
		00000000 07000000 00000000 58000000 03000001 00000000 20000000 28000000
		02000000 00010000 00000000 08000000 ffffffff ffff0000 00000000 ffff0000
		30000000 20000000 00000000 c0a80102 00000000 00000000 ffffffff 00000000
		40000000 10000000 00500000 ffff0000`))
}

func TestDoorbellArithmetic(t *testing.T) {
	for _, tc := range []struct {
		name             string
		n                uint32 // register number as the kernel counts usable ones
		perPage, regSize uint32
		index            uint32
		page, offset     int
	}{
		{"first private", 1, 1, 512, 1, 0, 0xa00},
		{"second UAR", 2, 1, 512, 4, 1, 0x800},
		{"second UAR, second register", 3, 1, 512, 5, 1, 0xa00},
		{"third UAR", 4, 1, 512, 8, 2, 0x800},
		{"last of sixteen", 15, 1, 512, 29, 7, 0xa00},
		{"64 KiB page", 4, 16, 512, 8, 0, 0x2800},
		{"no write combining", 15, 1, 0, 29, 7, 0x800},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if index := tc.n/2*4 + tc.n%2; index != tc.index {
				t.Fatalf("the test's own index %d, want %d", index, tc.index)
			}
			page, offset := bfregAddress(tc.index, tc.perPage, tc.regSize)
			if page != tc.page || offset != tc.offset {
				t.Errorf("register %d is at %d/%#x, want %d/%#x", tc.index, page,
					offset, tc.page, tc.offset)
			}
		})
	}
}

func TestMmapOffsets(t *testing.T) {
	for _, tc := range []struct {
		command, index, page int
		want                 int64
	}{
		{MmapNCPage, 0, 4096, 0x300000}, {MmapNCPage, 1, 4096, 0x301000},
		{MmapNCPage, 7, 4096, 0x307000},
		{MmapNCPage, 0x101, 4096, 0x10301000}, // the index is split around the command
		{MmapCoreClock, 0, 4096, 0x500000}, {MmapClockInfo, 0, 4096, 0x700000},
		{MmapNCPage, 1, 65536, 0x3010000},
	} {
		if have := mmapOffset(tc.command, tc.index, tc.page); have != tc.want {
			t.Errorf("command %d index %d page %d: %#x, want %#x", tc.command,
				tc.index, tc.page, have, tc.want)
		}
	}
}

func TestContextRequest(t *testing.T) {
	for _, tc := range []struct {
		nTx, page  int
		total, low uint32
	}{
		{1, 4096, 16, 15}, {15, 4096, 16, 15}, {16, 4096, 18, 17},
		{511, 4096, 512, 511}, {5000, 4096, 512, 511},
		{1, 65536, 32, 31}, {32, 65536, 64, 63},
	} {
		r := contextRequest(tc.nTx, tc.page)
		if r.TotalNumBfregs != tc.total || r.NumLowLatencyBfregs != tc.low ||
			r.MaxCQEVersion != 1 || r.LibCaps != 1 || r.Flags != 0 {
			t.Errorf("%d queues, %d-byte pages: %+v, want %d and %d", tc.nTx,
				tc.page, r, tc.total, tc.low)
		}
	}
}
