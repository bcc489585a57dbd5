package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Descriptors, frames and completions below were made from the layouts of the
// mlx5 headers by a program outside this project. SQN, lkey and addresses in
// them are placeholders that patch replaces.

const (
	goldenSQN  = 0x000123
	goldenKey  = 0x000012a4
	goldenAddr = 0x00007f0012345000
)

var frame60 = dump(`
0000: 02000000 00020200 00000001 08004500
0010: 002e1234 40004011 14890a00 00010a00
0020: 000203e8 07d0001a 97ae0001 02030405
0030: 06070809 0a0b0c0d 0e0f1011`)

// patch replaces the placeholders in data segments by a real key and address.
func patch(w []byte, key uint32, addr uint64) []byte {
	w = append([]byte(nil), w...)
	for at := 16; at+16 <= len(w); at += 16 {
		if binary.BigEndian.Uint32(w[at+4:]) == goldenKey {
			binary.BigEndian.PutUint32(w[at+4:], key)
			binary.BigEndian.PutUint64(w[at+8:], binary.BigEndian.Uint64(w[at+8:])-goldenAddr+addr)
		}
	}
	return w
}

// sendRig is a NIC on a recording wire with one send queue and a buffer.
type sendRig struct {
	nic  *NIC
	wire *recorder
	cq   *testCQ
	sq   *testSQ
	buf  []byte
	key  *MKey
	addr uint64
}

func newSendRig(t testing.TB, cfg Config, start uint16) *sendRig {
	r := &sendRig{nic: newNIC(t, cfg), wire: &recorder{}}
	if err := r.nic.ConnectWire(r.wire); err != nil {
		t.Fatal(err)
	}
	r.cq = newCQ(t, r.nic, 6, nil)
	r.sq = newSQ(t, r.nic, r.cq, 5, func(a *SQAttr) { a.StartIndex = start })
	m := mem(t, 32768)
	r.buf, r.addr = m.Bytes(), m.Addr()
	r.key = newKey(t, r.nic, m, nil)
	return r
}

// post posts a golden WQE with the real key and address in it.
func (r *sendRig) post(w string) {
	r.sq.post(patch(dump(w), r.key.Key(), r.addr))
}

// clean fails the test if the model saw a broken rule.
func clean(t testing.TB, n *NIC) {
	t.Helper()
	for _, v := range n.Violations() {
		t.Errorf("violation: %s", v)
	}
}

func TestGoldenSend(t *testing.T) {
	tagged := append(append(append([]byte(nil), frame60[:12]...), 0x81, 0, 0x60, 0x64),
		frame60[12:]...)
	tests := []struct {
		name  string
		start uint16
		wqe   string
		buf   int // frame60 goes here in the buffer
		want  [][]byte
		ce    bool
	}{
		{"A: 18 inline and a pointer", 5, `
0000: 0000050a 00012304 00000008 00000000
0010: 00000000 00000000 00000000 00120200
0020: 00000002 02000000 00010800 4500002e
0030: 0000002a 000012a4 00007f00 12345012`, 0, [][]byte{frame60}, true},
		{"B: tag inserted, checksums", 6, `
0000: 0000060a 00012303 00000004 00000000
0010: 00000000 c0000000 00000000 80006064
0020: 0000003c 000012a4 00007f00 12345000`, 0, [][]byte{tagged}, false},
		{"FULLINL", 13, `
0000: 00000d0a 00012306 00000008 00000000
0010: 00000000 00000000 00000000 003c0200
0020: 00000002 02000000 00010800 4500002e
0030: 12344000 40111489 0a000001 0a000002
0040: 03e807d0 001a97ae 00010203 04050607
0050: 08090a0b 0c0d0e0f 10110000 00000000`, 0, [][]byte{frame60}, true},
		{"INLDSEG", 15, `
0000: 00000f0a 00012306 00000008 00000000
0010: 00000000 00000000 00000000 00120200
0020: 00000002 02000000 00010800 4500002e
0030: 8000002a 12344000 40111489 0a000001
0040: 0a000002 03e807d0 001a97ae 00010203
0050: 04050607 08090a0b 0c0d0e0f 10110000`, 0, [][]byte{frame60}, true},
		{"NOP", 12, `00000c00 00012301 00000008 00000000`, 0, nil, true},
	}
	caps := DefaultCaps()
	caps.VLANInsert = true
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			now := uint64(0x1122334455)
			r := newSendRig(t, Config{Caps: caps, Clock: fixedClock(&now)}, tc.start)
			copy(r.buf[tc.buf:], frame60)
			if tc.start == 6 { // the contents of the checksum fields do not matter
				r.buf[24], r.buf[40] = 0x55, 0x55
			}
			r.post(tc.wqe)
			r.sq.doorbell()
			got := r.wire.drain()
			if len(got) != len(tc.want) {
				t.Fatalf("%d frames sent, want %d", len(got), len(tc.want))
			}
			for i := range got {
				expect(t, "frame", got[i].Data, tc.want[i])
			}
			clean(t, r.nic)
			e := r.cq.poll()
			if (e != nil) != tc.ce {
				t.Fatalf("completion %x, want one: %v", e, tc.ce)
			}
			if tc.ce {
				want := dump(`
0000: 00000000 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000007 00000000 00000000 00000000
0030: 00000011 22334455 0a000123 00050000`)
				want[0x38] = dump(tc.wqe)[3]
				binary.BigEndian.PutUint16(want[0x3c:], tc.start)
				putSQN(want, r.sq)
				expect(t, "completion", e, want)
			}
		})
	}
}

func putSQN(e []byte, sq *testSQ) {
	binary.BigEndian.PutUint32(e[0x38:], uint32(e[0x38])<<24|sq.Number())
}

func TestGoldenWrapInsideWQE(t *testing.T) {
	r := newSendRig(t, Config{MTU: 16000}, 0xfffe)
	var want []byte
	for i := range r.buf {
		r.buf[i] = byte(i * 7)
	}
	for _, s := range []int{0, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000} {
		want = append(want, r.buf[s:s+2048]...)
	}
	want = append(want, r.buf[0x7000:0x7000+664]...)
	r.post(`
0000: 00fffe0a 0001230a 00000008 00000000
0010: 00000000 c0000000 00000000 00000000
0020: 00000800 000012a4 00007f00 12345000
0030: 00000800 000012a4 00007f00 12346000
0040: 00000800 000012a4 00007f00 12347000
0050: 00000800 000012a4 00007f00 12348000
0060: 00000800 000012a4 00007f00 12349000
0070: 00000800 000012a4 00007f00 1234a000
0080: 00000800 000012a4 00007f00 1234b000
0090: 00000298 000012a4 00007f00 1234c000`)
	if r.sq.pc != 1 {
		t.Fatalf("pc %#x, want 1", r.sq.pc)
	}
	r.sq.doorbell()
	got := r.wire.drain()
	if len(got) != 1 || len(got[0].Data) != 15000 {
		t.Fatalf("%d frames", len(got))
	}
	expect(t, "frame", got[0].Data, want)
	if e := r.cq.mustPoll(t); binary.BigEndian.Uint16(e[0x3c:]) != 0xfffe {
		t.Errorf("completion of %#x", e[0x3c:0x3e])
	}
	clean(t, r.nic)
}

func TestGoldenLSO(t *testing.T) {
	const wqe = `
0000: 0000080e 00012308 00000008 00000000
0010: 00000000 c00005b4 00000000 00360200
0020: 00000002 02000000 00010800 45000fc8
0030: 10004000 40060000 0a000001 0a000002
0040: 9c400050 10000000 20000000 5019ffff
0050: 00000000 00000000 00000000 00000000
0060: 00000bb8 000012a4 00007f00 12345000
0070: 000003e8 000012a4 00007f00 12346000`
	r := newSendRig(t, Config{}, 8)
	payload := lsoPayload(r.buf)
	r.post(wqe)
	r.sq.doorbell()
	got := r.wire.drain()
	checkLSOFrames(t, got, payload)
	if c := r.nic.Counters(); c.LSOWQEs != 1 || c.ChecksumWQEs != 1 {
		t.Errorf("counted %d WQEs for segmentation and %d for checksums", c.LSOWQEs, c.ChecksumWQEs)
	}
	clean(t, r.nic)

	// the same WQE over a wire that carries unsegmented frames; the receiving side segments it
	a, b := newSendRig(t, Config{}, 8), newNIC(t, Config{})
	a.wire.can = frame.OffloadCsum | frame.OffloadTSO4
	lsoPayload(a.buf)
	a.post(wqe)
	a.sq.doorbell()
	whole := a.wire.drain()
	if len(whole) != 1 || whole[0].GSO != frame.GSOTCPv4 || whole[0].MSS != 1460 ||
		whole[0].HdrLen != 54 || len(whole[0].Data) != 4054 {
		t.Fatalf("unsegmented frame %+v", whole)
	}
	back := &recorder{}
	if err := b.ConnectWire(back); err != nil {
		t.Fatal(err)
	}
	nd := &recorder{}
	if err := b.ConnectNetdev(nd); err != nil {
		t.Fatal(err)
	}
	if err := b.SetMAC([]byte{2, 0, 0, 0, 0, 2}); err != nil {
		t.Fatal(err)
	}
	back.recv(whole)
	checkLSOFrames(t, nd.drain(), payload)
}

func lsoPayload(buf []byte) (payload []byte) {
	for i := range 4000 {
		payload = append(payload, byte(7*i+3))
	}
	copy(buf, payload[:3000])
	copy(buf[0x1000:], payload[3000:])
	return payload
}

func checkLSOFrames(t *testing.T, got []frame.Frame, payload []byte) {
	t.Helper()
	want := []struct {
		length          int
		total, id       uint16
		seq             uint32
		flags           byte
		ipCsum, tcpCsum uint16
	}{
		{1514, 1500, 0x1000, 0x10000000, 0x10, 0x111a, 0x4a16},
		{1514, 1500, 0x1001, 0x100005b4, 0x10, 0x1119, 0x4d69},
		{1134, 1120, 0x1002, 0x10000b68, 0x19, 0x1294, 0x1327},
	}
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	var all []byte
	for i, w := range want {
		d := got[i].Data
		if len(d) != w.length || be16(d[16:]) != w.total || be16(d[18:]) != w.id ||
			binary.BigEndian.Uint32(d[38:]) != w.seq ||
			d[47] != w.flags || be16(d[24:]) != w.ipCsum || be16(d[50:]) != w.tcpCsum {
			t.Errorf("segment %d: %d bytes, headers % x", i, len(d), d[:54])
		}
		all = append(all, d[54:]...)
	}
	expect(t, "first header", got[0].Data[:54], dump(`
0000: 02000000 00020200 00000001 08004500
0010: 05dc1000 40004006 111a0a00 00010a00
0020: 00029c40 00501000 00002000 00005010
0030: ffff4a16 0000`))
	expect(t, "payload", all, payload)
}

func TestGoldenEnhancedMPW(t *testing.T) {
	r := newSendRig(t, Config{}, 10)
	copy(r.buf, frame60)
	long := r.buf[0x800 : 0x800+1514]
	for i := range long {
		long[i] = byte(i)
	}
	copy(long, frame60[:12])
	copy(long[12:], []byte{0x88, 0xb5})
	r.post(`
0000: 00000a29 00012308 00000008 00000000
0010: 00000000 c0000000 00000000 00000000
0020: 0000003c 000012a4 00007f00 12345000
0030: 000005ea 000012a4 00007f00 12345800
0040: 8000003c 02000000 00020200 00000001
0050: 08004500 002e1234 40004011 14890a00
0060: 00010a00 000203e8 07d0001a 97ae0001
0070: 02030405 06070809 0a0b0c0d 0e0f1011`)
	r.sq.doorbell()
	got := r.wire.drain()
	if len(got) != 3 {
		t.Fatalf("%d frames", len(got))
	}
	expect(t, "first", got[0].Data, frame60)
	expect(t, "second", got[1].Data, long)
	expect(t, "third", got[2].Data, frame60)
	if e := r.cq.mustPoll(t); be16(e[0x3c:]) != 10 || r.cq.poll() != nil {
		t.Errorf("completion %x", e)
	}
	clean(t, r.nic)
}

func TestGoldenSendError(t *testing.T) {
	r := newSendRig(t, Config{}, 5)
	const wqe = `
0000: 0000050a 00012304 00000000 00000000
0010: 00000000 00000000 00000000 00120200
0020: 00000002 02000000 00010800 4500002e
0030: 0000002a 00001200 00007f00 12345012`
	r.post(wqe)
	r.post(wqe)
	r.sq.doorbell()
	failed := dump(`
0000: 00000000 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000007 00000000 00000000 00000000
0030: 00000000 9d005304 0a000123 000500d2`)
	flushed := dump(`
0000: 00000000 00000000 00000000 00000000
0010: 00000000 00000000 00000000 00000000
0020: 00000007 00000000 00000000 00000000
0030: 00000000 0000f905 0a000123 000600d2`)
	putSQN(failed, r.sq)
	putSQN(flushed, r.sq)
	failed[0x3e] = 0xc2 ^ failed[0x39] ^ failed[0x3a] ^ failed[0x3b]
	flushed[0x3e] = 0xf7 ^ flushed[0x39] ^ flushed[0x3a] ^ flushed[0x3b]
	expect(t, "error", r.cq.mustPoll(t), failed)
	expect(t, "flush", r.cq.mustPoll(t), flushed)
	if r.sq.State() != StateError || len(r.wire.drain()) != 0 {
		t.Errorf("state %v after an error", r.sq.State())
	}
}
