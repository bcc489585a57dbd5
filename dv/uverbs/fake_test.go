package uverbs

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// fakeKernel executes commands with bytes at offsets, like a kernel with native GET_CONTEXT and a
// single-port ConnectX-6 Dx. It does not use this package's structs.
type fakeKernel struct {
	t testing.TB

	mu      sync.Mutex
	calls   []*call
	handles map[uint32]string // existing objects: handle -> "QP" and so on
	refuse  func(c *call) error
	patch   func(c *call) // changes a reply before it is returned
	mmaps   []mmapCall
	mmapErr error
	wcErr   error          // of write-combining pages
	mem     []*mmio.Region // pages of registers; used if not nil, as on hardware
	stores  []uint64
	peers   []int // our ends of event descriptors: async first, if native
	closed  int
}

type mmapCall struct {
	offset   int64
	length   int
	writable bool
}

// call is one ioctl as the kernel sees it.
type call struct {
	name           string
	raw            []byte // header and attributes
	object, method uint16
	driver         uint32
	cmd            uint32
	in             map[uint16][]byte // by attribute id
	out            map[uint16][]byte // memory of the caller
	newAt          int               // offset of a new handle's data in raw memory
}

func newFake(t testing.TB) *fakeKernel {
	k := &fakeKernel{t: t, handles: map[uint32]string{}}
	t.Cleanup(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, fd := range k.peers {
			unix.Close(fd)
		}
		k.peers = nil
	})
	return k
}

var (
	u16 = binary.NativeEndian.Uint16
	u32 = binary.NativeEndian.Uint32
	u64 = binary.NativeEndian.Uint64
	p16 = binary.NativeEndian.PutUint16
	p32 = binary.NativeEndian.PutUint32
	p64 = binary.NativeEndian.PutUint64
)

// outputs of each method, by attribute id.
var fakeOutputs = map[string]map[uint16]bool{
	"0/0":  {1: true, 0x1001: true},
	"0/3":  {0: true, 1: true, 0x1001: true},
	"15/2": {1: true},
}

var fakeNames = map[string]string{
	"0/0/0": "GET_CONTEXT", "0/0/2": "QUERY_PORT", "0/0/3": "ALLOC_PD",
	"0/0/4": "DEALLOC_PD", "0/0/9": "REG_MR", "0/0/13": "DEREG_MR",
	"0/0/17": "CREATE_COMP_CHANNEL", "0/0/20": "DESTROY_CQ", "0/0/25": "QUERY_QP",
	"0/0/26": "MODIFY_QP", "0/0/27": "DESTROY_QP",
	"0/0/2147483649": "QUERY_DEVICE", "0/0/2147483666": "CREATE_CQ", "0/0/2147483672": "CREATE_QP",
	"0/0/2147483674": "EX_MODIFY_QP",
	"0/0/2147483698": "CREATE_FLOW", "0/0/2147483699": "DESTROY_FLOW",
	"0/0/2147483700": "CREATE_WQ", "0/0/2147483701": "MODIFY_WQ",
	"0/0/2147483702": "DESTROY_WQ", "0/0/2147483703": "CREATE_RWQ_IND_TBL",
	"0/0/2147483704": "DESTROY_RWQ_IND_TBL", "0/0/2147483705": "MODIFY_CQ",
	"0/3": "native GET_CONTEXT", "16/0": "ASYNC_EVENT_ALLOC", "15/0": "COUNTERS_CREATE",
	"15/1": "COUNTERS_DESTROY", "15/2": "COUNTERS_READ", "9/4096": "CREATE_RAW_FLOW",
	"4099/4096": "FLOW_MATCHER_CREATE", "4099/4097": "FLOW_MATCHER_DESTROY",
}

func (k *fakeKernel) parse(buf []byte) *call {
	c := &call{raw: append([]byte(nil), buf...), object: u16(buf[2:]),
		method: u16(buf[4:]), driver: u32(buf[16:]),
		in: map[uint16][]byte{}, out: map[uint16][]byte{}}
	if int(u16(buf)) != len(buf) || int(u16(buf[6:]))*16+24 != len(buf) ||
		u64(buf[8:]) != 0 || u32(buf[20:]) != 0 {
		k.t.Errorf("malformed header % x", buf[:24])
	}
	key := fmt.Sprintf("%d/%d", c.object, c.method)
	for at := 24; at < len(buf); at += 16 {
		id, n, data := u16(buf[at:]), int(u16(buf[at+2:])), u64(buf[at+8:])
		if u16(buf[at+4:]) != 1 || u16(buf[at+6:]) != 0 {
			k.t.Errorf("%s attribute %#x: flags % x", key, id, buf[at+4:at+8])
		}
		switch {
		case fakeOutputs[key][id]:
			c.out[id] = mmio.View(data, n).Bytes()
		case n > 8:
			c.in[id] = append([]byte(nil), mmio.View(data, n).Bytes()...)
		case n > 0:
			c.in[id] = append([]byte(nil), buf[at+8:at+8+n]...)
		default:
			c.in[id] = append([]byte(nil), buf[at+8:at+16]...)
			c.newAt = at + 8
		}
	}
	if key == "0/0" {
		c.cmd = u32(c.in[2])
		key = fmt.Sprintf("%s/%d", key, c.cmd)
	}
	c.name = fakeNames[key]
	if c.name == "" {
		k.t.Errorf("unexpected command %s", key)
	}
	return c
}

func (k *fakeKernel) Ioctl(buf []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed > 0 {
		k.t.Error("ioctl after close")
		return unix.EBADF
	}
	c := k.parse(buf)
	k.calls = append(k.calls, c)
	if k.refuse != nil {
		if err := k.refuse(c); err != nil {
			return err
		}
	}
	err := k.answer(c, buf)
	if k.patch != nil {
		k.patch(c)
	}
	return err
}

// answer fills in the kernel's reply. Offsets are those of the uAPI structs.
func (k *fakeKernel) answer(c *call, buf []byte) error {
	core, uhw := c.out[1], c.out[0x1001]
	switch c.name {
	case "native GET_CONTEXT":
		p32(c.out[0], 8)
		p64(c.out[1], 1)
		k.ucontext(c.in[0x1000], uhw)
	case "GET_CONTEXT":
		p32(core, uint32(k.newFD()))
		p32(core[4:], 8)
		k.ucontext(c.in[0x1000], uhw)
	case "ASYNC_EVENT_ALLOC":
		p64(buf[c.newAt:], uint64(k.newFD()))
	case "QUERY_DEVICE":
		k.device(core, uhw)
	case "QUERY_PORT":
		core[26], core[34], core[35], core[36], core[37] = 4, 2, 32, 5, 2
	case "CREATE_COMP_CHANNEL":
		p32(core, uint32(k.newFD()))
	case "ALLOC_PD":
		p32(core, k.born("PD"))
		p32(uhw, 0x77)
	case "REG_MR":
		h := k.born("MR")
		p32(core, h)
		p32(core[4:], 0x1000+h<<8)
		p32(core[8:], 0x2000+h<<8)
	case "CREATE_CQ":
		h := k.born("CQ")
		p32(core, h)
		p32(core[4:], u32(c.in[0][8:]))
		p32(uhw, 0x80+h)
	case "CREATE_QP":
		h := k.born("QP")
		p32(core, h)
		if u32(c.in[0][48:]) == 0 { // not RSS
			p32(core[4:], 0x100+h)
			p32(uhw, 1)
		}
	case "CREATE_WQ":
		h := k.born("WQ")
		p32(core[8:], h)
		p32(core[20:], 0x200+h)
	case "CREATE_RWQ_IND_TBL":
		p32(core[8:], k.born("TBL"))
	case "CREATE_FLOW":
		p32(core[4:], k.born("FLOW"))
	case "FLOW_MATCHER_CREATE", "CREATE_RAW_FLOW", "COUNTERS_CREATE":
		kind := map[string]string{"FLOW_MATCHER_CREATE": "MATCHER", "CREATE_RAW_FLOW": "FLOW",
			"COUNTERS_CREATE": "COUNTERS"}[c.name]
		p64(buf[c.newAt:], uint64(k.born(kind)))
	case "COUNTERS_READ":
		p64(c.out[1], 11)
		p64(c.out[1][8:], 1111)
	case "QUERY_QP":
		core[108], core[109], core[116] = 3, 3, 1
	case "MODIFY_QP", "EX_MODIFY_QP", "MODIFY_WQ", "MODIFY_CQ":
	default:
		return k.destroy(c)
	}
	return nil
}

// destroy executes a destroying command; each has its handle at a different offset.
func (k *fakeKernel) destroy(c *call) error {
	d := map[string]struct {
		kind string
		at   int
		id   uint16 // of the attribute
	}{"DEALLOC_PD": {"PD", 0, 0}, "DEREG_MR": {"MR", 0, 0}, "DESTROY_CQ": {"CQ", 8, 0},
		"DESTROY_QP": {"QP", 8, 0}, "DESTROY_WQ": {"WQ", 4, 0},
		"DESTROY_RWQ_IND_TBL": {"TBL", 4, 0}, "DESTROY_FLOW": {"FLOW", 4, 0},
		"COUNTERS_DESTROY":     {"COUNTERS", 0, 0},
		"FLOW_MATCHER_DESTROY": {"MATCHER", 0, 0x1000}}[c.name]
	h := u32(c.in[d.id][d.at:])
	if k.handles[h] != d.kind {
		return unix.ENOENT
	}
	delete(k.handles, h)
	return nil
}

// born allocates the lowest free handle.
func (k *fakeKernel) born(kind string) uint32 {
	h := uint32(0)
	for k.handles[h] != "" {
		h++
	}
	k.handles[h] = kind
	return h
}

// newFD creates an event descriptor and keeps the other end.
func (k *fakeKernel) newFD() int {
	r, w, err := packetPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	k.peers = append(k.peers, w)
	return r
}

// ucontext is mlx5_ib_alloc_ucontext_resp of a modern single-port function.
func (k *fakeKernel) ucontext(ask, b []byte) {
	p32(b[0:], 1<<18)
	p32(b[4:], 512)
	copy(b[8:12], ask[0:4])
	p32(b[12:], 64)
	p16(b[16:], 1024)
	p16(b[18:], 512)
	p32(b[20:], 32768)
	p32(b[24:], 32768)
	p16(b[32:], 1)
	p32(b[36:], 1|2|4|8|16)
	p32(b[40:], 72)
	b[44], b[45], b[46], b[47] = 1, 3, 1, 1
	p32(b[56:], 12)
	p32(b[60:], 1)
}

// device is ib_uverbs_ex_query_device_resp and mlx5_ib_query_device_resp.
func (k *fakeKernel) device(b, d []byte) {
	p64(b[0:], 22<<32|31<<16|1014)
	copy(b[8:16], []byte{1, 2, 3, 4, 5, 6, 7, 8})
	p32(b[40:], 0x2c9)
	p32(b[44:], 0x101d)
	p32(b[76:], 1<<22-1)
	b[171] = 1
	p64(b[208:], 1<<63-1)
	p64(b[216:], 1000000)
	p64(b[224:], 1<<29|1<<26|1<<34|1<<36)
	p32(b[232:], 0x100)
	p32(b[236:], 1<<20)
	p32(b[240:], 2048)
	p32(b[252:], 7)
	p16(b[280:], 65535)
	p16(b[282:], 4095)

	p32(d[8:], 1<<18)
	p32(d[12:], 0x100)
	p64(d[16:], 0x800000ff)
	d[24] = 1
	p32(d[32:], 64)
	p32(d[36:], 7)
	p32(d[56:], 6)
	for i, v := range []uint32{6, 13, 9, 16, 0x100} {
		p32(d[72+4*i:], v)
	}
	p32(d[96:], 7)
}

func (k *fakeKernel) Mmap(offset int64, length int, writable bool) (*Page, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mmaps = append(k.mmaps, mmapCall{offset, length, writable})
	if k.mmapErr != nil {
		return nil, k.mmapErr
	}
	if k.wcErr != nil && offset/int64(length)>>8&0xff == MmapWCPage {
		return nil, k.wcErr
	}
	if k.mem != nil {
		m, err := mmio.Alloc(length)
		k.mem = append(k.mem, m)
		return &Page{Mem: m}, err
	}
	return &Page{Trap: func(off int, v uint64) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.stores = append(k.stores, v)
	}}, nil
}

func (k *fakeKernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed++
	return nil
}

// names lists the commands so far.
func (k *fakeKernel) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var n []string
	for _, c := range k.calls {
		n = append(n, c.name)
	}
	return n
}

// last returns the latest call of that name.
func (k *fakeKernel) last(name string) *call {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := len(k.calls) - 1; i >= 0; i-- {
		if k.calls[i].name == name {
			return k.calls[i]
		}
	}
	k.t.Fatalf("no %s among the calls", name)
	return nil
}

// refuseWith makes commands of that name fail.
func (k *fakeKernel) refuseWith(name string, errno unix.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = func(c *call) error {
		if c.name == name {
			return errno
		}
		return nil
	}
}

// alive returns how many objects the kernel still has.
func (k *fakeKernel) alive() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.handles)
}

// openFake opens a context on a fake kernel.
func openFake(t testing.TB, o Options) (*fakeKernel, *Context) {
	t.Helper()
	k := newFake(t)
	if o.pageSize == 0 {
		o.pageSize = fakePages
	}
	c, err := Open(k, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return k, c
}

// fakePages gives the page size of the fake kernel: not the one of the machine that tests run on.
const fakePages = 4096

// region returns n bytes of ring memory.
func region(t testing.TB, n int) *mmio.Region {
	t.Helper()
	r, err := mmio.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}
