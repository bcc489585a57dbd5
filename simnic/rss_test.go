package simnic

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// rssVectors are Microsoft's published vectors for the default key.
var rssVectors = []struct {
	src, dst     string
	addrs, ports uint32
}{
	{"66.9.149.187:2794", "161.142.100.80:1766", 0x323e8fc2, 0x51ccc178},
	{"199.92.111.2:14230", "65.69.140.83:4739", 0xd718262a, 0xc626b0ea},
	{"24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0a5de, 0x5c2b394a},
	{"38.27.205.30:48228", "209.142.163.6:2217", 0x82989176, 0xafc7327f},
	{"153.39.163.191:44251", "202.188.127.2:1303", 0x5d1809c5, 0x10e828a2},
	{"[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc18cd5, 0x40207d3d},
	{"[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c461c, 0xdde51bbf},
	{"[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x4b61e985,
		0x02d1feef},
}

// packetBetween is a TCP or UDP frame between two endpoints, checksums right
// only for IPv4.
func packetBetween(src, dst netip.AddrPort, udp bool) []byte {
	f := append([]byte(nil), 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1)
	proto, l4 := byte(6), 20
	if udp {
		proto, l4 = 17, 8
	}
	if src.Addr().Is4() {
		f = append(f, 8, 0, 0x45, 0, 0, byte(20+l4), 0, 0, 0, 0, 64, proto, 0, 0)
	} else {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(l4), proto, 64)
	}
	f = append(append(f, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	tail := make([]byte, l4)
	tail[0], tail[1], tail[2], tail[3] = byte(src.Port()>>8), byte(src.Port()),
		byte(dst.Port()>>8), byte(dst.Port())
	if udp {
		tail[5] = 8
	} else {
		tail[12], tail[13] = 5<<4, 0x10
	}
	f = append(f, tail...)
	if src.Addr().Is4() {
		fixChecksums(f)
	}
	return f
}

func TestRSSVectors(t *testing.T) {
	const two, four = HashSrcIP | HashDstIP, HashSrcIP | HashDstIP | HashSrcPort | HashDstPort
	n := newNIC(t, Config{})
	cq := newCQ(t, n, 4, nil)
	rq := newRQ(t, n, cq, 4, 4, nil)
	for _, v := range rssVectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		v6 := src.Addr().Is6()
		ip, tcp, udp := uint8(0x05), uint8(0x55), uint8(0xa5)
		if v6 {
			ip, tcp, udp = 0x0a, 0x5a, 0xaa
		}
		for _, tc := range []struct {
			udp, wantUDP bool
			fields       HashFields
			hash         uint32
			kind         uint8
		}{
			{false, false, two, v.addrs, ip},
			{true, false, two, v.addrs, ip},
			{false, false, four, v.ports, tcp},
			{true, true, four, v.ports, udp},
			{true, false, four, 0, 0},
			{false, true, four, 0, 0},
		} {
			t.Run(fmt.Sprintf("%s udp=%v fields=%d", v.src, tc.udp, tc.fields), func(t *testing.T) {
				a := TIRAttr{RQ: rq.RQ, Hash: HashToeplitz, Key: DefaultHashKey,
					Selection: HashSelection{IPv6: v6, UDP: tc.wantUDP, Fields: tc.fields}}
				tir := newTIR(t, n, a)
				f := packetBetween(src, dst, tc.udp)
				p := frame.Parse(f)
				if hash, kind := tir.hashOf(&a, f, &p); hash != tc.hash || kind != tc.kind {
					t.Errorf("hash %08x type %02x, want %08x %02x", hash, kind, tc.hash, tc.kind)
				}
				a.Selection.IPv6 = !v6
				if hash, kind := tir.hashOf(&a, f, &p); hash != 0 || kind != 0 {
					t.Errorf("hash %08x type %02x for the other IP version", hash, kind)
				}
			})
		}
	}
}

func TestRSSFragmentsAndARP(t *testing.T) {
	n := newNIC(t, Config{})
	rq := newRQ(t, n, newCQ(t, n, 4, nil), 4, 4, nil)
	four, two := hashTIR(false, true), hashTIR(false, true)
	two.Selection.Fields = HashSrcIP | HashDstIP
	four.RQ, two.RQ = rq.RQ, rq.RQ
	tir := newTIR(t, n, two)
	f := append([]byte(nil), frame60...)
	for _, flags := range []byte{0x20, 0x00} { // first fragment, last fragment
		f[20], f[21] = flags, 1-flags>>5
		p := frame.Parse(f)
		if h, k := tir.hashOf(&four, f, &p); h != 0 || k != 0 || !p.Fragment {
			t.Errorf("ports of a fragment hash to %08x type %02x", h, k)
		}
		if h, k := tir.hashOf(&two, f, &p); h != 0x02b7c9b1 || k != 5 {
			t.Errorf("addresses of a fragment hash to %08x type %02x", h, k)
		}
	}
	f[12], f[13] = 8, 6
	p := frame.Parse(f)
	if h, k := tir.hashOf(&two, f, &p); h != 0 || k != 0 {
		t.Errorf("ARP hashes to %08x type %02x", h, k)
	}
}

func TestRSSTable(t *testing.T) {
	n := newNIC(t, Config{})
	w := &recorder{}
	if err := n.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	var cqs []*testCQ
	var rqs []*RQ
	m := mem(t, 65536)
	k := newKey(t, n, m, nil)
	for range 4 {
		cq := newCQ(t, n, 5, nil)
		rq := newRQ(t, n, cq, 4, 4, nil)
		rq.post(seg(2048, k.Key(), m.Addr()))
		rq.post(seg(2048, k.Key(), m.Addr()))
		cqs, rqs = append(cqs, cq), append(rqs, rq.RQ)
	}
	entries := make([]*RQ, 128)
	for i := range entries {
		entries[i] = rqs[3]
	}
	entries[0], entries[120] = rqs[1], rqs[2] // 0x51ccc178 & 127 = 120
	table, err := n.CreateRQT(RQTAttr{RQs: entries})
	if err != nil {
		t.Fatal(err)
	}
	a := hashTIR(false, false)
	a.Table = table
	flowTo(t, n, macTwo, newTIR(t, n, a))
	w.recv([]frame.Frame{{Data: tcpFrame72}, {Data: frame60}}) // the second is UDP: hash 0, entry 0
	if e := cqs[2].poll(); e == nil {
		t.Error("hash 51ccc178 did not go to entry 120")
	}
	if e := cqs[1].poll(); e == nil {
		t.Error("a packet of another kind did not go to entry 0")
	}
	if err := table.Modify(append(append([]*RQ(nil), entries[1:]...), rqs[0])); err != nil {
		t.Fatal(err)
	}
	w.recv([]frame.Frame{{Data: tcpFrame72}})
	if e := cqs[3].poll(); e == nil {
		t.Error("changed table not used")
	}
}

func TestSymmetricHash(t *testing.T) {
	n := newNIC(t, Config{})
	rq := newRQ(t, n, newCQ(t, n, 4, nil), 4, 4, nil)
	for _, v := range rssVectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		a := hashTIR(src.Addr().Is6(), false)
		a.RQ, a.Symmetric = rq.RQ, true
		tir := newTIR(t, n, a)
		there, back := packetBetween(src, dst, false), packetBetween(dst, src, false)
		pt, pb := frame.Parse(there), frame.Parse(back)
		h1, _ := tir.hashOf(&a, there, &pt)
		h2, _ := tir.hashOf(&a, back, &pb)
		if h1 != h2 || h1 == 0 {
			t.Errorf("%s: %08x one way, %08x the other", v.src, h1, h2)
		}
	}
}

// The exclusive or of addresses and ports, with bits in reverse order.
func TestXOR8(t *testing.T) {
	n := newNIC(t, Config{})
	w := &recorder{}
	if err := n.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	m, cq := mem(t, 4096), newCQ(t, n, 5, nil)
	rq := newRQ(t, n, cq, 4, 4, nil)
	rq.post(seg(2048, newKey(t, n, m, nil).Key(), m.Addr()))
	a := hashTIR(false, false)
	a.Hash, a.RQ = HashXOR8, rq.RQ
	flowTo(t, n, macTwo, newTIR(t, n, a))
	w.recv([]frame.Frame{{Data: tcpFrame72}})
	var x byte
	p := frame.Parse(tcpFrame72)
	for _, b := range tcpFrame72[p.L3At+12 : p.L3At+24] {
		x ^= b
	}
	want := uint32(bits.Reverse8(x))
	if e := cq.mustPoll(t); binary.BigEndian.Uint32(e[12:]) != want || want == 0 {
		t.Errorf("hash %#x, want %#x", e[12:16], want)
	}
}
