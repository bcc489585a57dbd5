package pcie

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// joinedIn is the input that creates a key over pieces of other keys: klm entries.
func (p *program) joinedIn(addr uint64, size int, list ...[]byte) []byte {
	in := p.in(0x200, mkeyPages)
	ctx := in[mkeyContext:]
	mkcLocalWrite.set(ctx, 1)
	mkcMode.set(ctx, modeKLM)
	mkcPD.set(ctx, 2)
	mkcStart.set(ctx, addr)
	mkcLength.set(ctx, uint64(size))
	for len(list)%4 != 0 {
		list = append(list, make([]byte, simnic.KeyPartLen))
	}
	mkeyListed.set(in, uint64(len(list)))
	return append(in, bytes.Join(list, nil)...)
}

// TestKeyOfKeys: a key over pieces of other keys is written by a query of counters, and read by
// a send queue.
func TestKeyOfKeys(t *testing.T) {
	d := newDriver(t)
	w := &sentFrames{}
	if err := d.nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	p := d.newProgram()
	a, b := p.register(0, 0x94000, 0x90000), p.register(512, 0x98000)
	keyA, keyB := p.key(a, userAddress), p.key(b, 0x10000200)
	// the last 40 bytes of A's first page and 8 of its second, then 100 bytes of B
	const joinedAt = 0x20000004
	key := number.u32(p.do("CREATE_MKEY of keys", p.joinedIn(joinedAt, 148,
		pointer(48, keyA, userAddress+4056), pointer(100, keyB, 0x10000300)), 16)) << 8
	c := counterID.u32(p.do("ALLOC_FLOW_COUNTER", p.in(0x939, 16), 16))
	copy(a.at(4056), bytes.Repeat([]byte{0xee}, 40))
	copy(a.at(4096), bytes.Repeat([]byte{0xee}, 16))
	copy(b.at(0x100), bytes.Repeat([]byte{0xee}, 100))
	query := p.in(0x93b, 32)
	queryToMemory.set(query, 1)
	queryCounters.set(query, 1)
	queryCounterID.set(query, uint64(c))
	queryKey.set(query, uint64(key))
	queryAddress.set(query, joinedAt+40)
	p.do("QUERY_FLOW_COUNTER", query, 32)
	want := append(bytes.Repeat([]byte{0}, 8), bytes.Repeat([]byte{0xee}, 8)...)
	if got := a.bytes(4096, 16); !bytes.Equal(got, want) {
		t.Errorf("piece of A % x, want % x", got, want)
	}
	if got := b.bytes(0x100, 16); !bytes.Equal(got, want) {
		t.Errorf("piece of B % x, want % x", got, want)
	}

	f := frameTo([6]byte{2, 0, 0, 0, 0, 9}, 0x88b5).Data
	copy(f[14:], "from two keys, as one")
	copy(a.at(4056), f[:40])
	copy(a.at(4096), f[40:48])
	copy(b.at(0x100), f[48:])
	rings := p.register(192, 0x9c000, 0xa0000)
	rings.at(umemCQ)[63] = 0xf1
	cqn := p.cq(rings, umemCQ, umemRecords)
	tis, _ := p.tis()
	sqn := number.u32(p.do("CREATE_SQ", p.sqIn(rings, cqn, tis), 16))
	p.ready(0x905, sqn)
	wqe := sendWQE(sqn, 0, pointer(60, key, joinedAt))
	copy(rings.at(umemSQ), wqe)
	binary.BigEndian.PutUint32(rings.at(umemRecords + 64)[4:], 1)
	d.store64(firstUAR<<uarShift|0x800, binary.BigEndian.Uint64(wqe))
	if got := w.take(); len(got) != 1 || !bytes.Equal(got[0], f) {
		t.Errorf("sent % x\nwant % x", got, f)
	}
}

// TestKeyOfKeysRefused: pieces that are not there.
func TestKeyOfKeysRefused(t *testing.T) {
	d := newDriver(t)
	p := d.newProgram()
	a := p.register(0, 0x94000)
	key := p.key(a, userAddress)
	long := p.joinedIn(userAddress, 64, pointer(64, key, userAddress))
	mkeyListed.set(long, 5)
	other := p.joinedIn(userAddress, 64, pointer(64, key, userAddress))
	mkcPD.set(other[mkeyContext:], 3)
	for _, c := range []struct {
		name string
		in   []byte
		want uint8
	}{
		{"no such key", p.joinedIn(userAddress, 64, pointer(64, 0x12345600, userAddress)),
			uint8(statusBadResource)},
		{"another variant", p.joinedIn(userAddress, 64, pointer(64, key+1, userAddress)),
			uint8(statusBadResource)},
		{"before the key", p.joinedIn(userAddress, 64, pointer(64, key, userAddress-1)),
			uint8(statusBadParam)},
		{"behind the key", p.joinedIn(userAddress, 64, pointer(64, key, userAddress+4096-63)),
			uint8(statusBadParam)},
		{"longer than its pieces", p.joinedIn(userAddress, 65, pointer(64, key, userAddress)),
			uint8(statusBadParam)},
		{"more pieces than the command has", long, uint8(statusBadInput)},
		{"pieces of another protection domain", other, uint8(statusBadParam)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := d.command(c.in, 16); out[0] != c.want {
				t.Errorf("status %#x, want %#x", out[0], c.want)
			}
		})
	}
}
