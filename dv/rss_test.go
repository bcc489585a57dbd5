package dv

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// The vectors of "Verifying the RSS hash calculation" (Windows driver documentation).
var rssVectors = []struct {
	src, dst     string
	addrs, ports uint32 // hash over addresses only, and with ports
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

func TestToeplitzVectors(t *testing.T) {
	h := newToeplitz(MicrosoftRSSKey())
	for _, v := range rssVectors {
		f := Flow{Src: netip.MustParseAddrPort(v.src), Dst: netip.MustParseAddrPort(v.dst)}
		for proto, want := range map[uint8]uint32{1: v.addrs,
			protoTCP: v.ports, protoUDP: v.ports} {
			if f.Proto = proto; h.hashFlow(f) != want {
				t.Errorf("%s -> %s proto %d: hash %08x, want %08x", v.src,
					v.dst, proto, h.hashFlow(f), want)
			}
		}
	}
}

// A 4-in-6 address is the same peer as its IPv4 form.
func TestToeplitzMappedAddress(t *testing.T) {
	h := newToeplitz(SymmetricRSSKey())
	a, b := netip.MustParseAddrPort("10.0.0.1:5"), netip.MustParseAddrPort("10.0.0.2:6")
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.0.0.1"), 5)
	if x, y := h.hashFlow(Flow{protoTCP, a, b}), h.hashFlow(Flow{protoTCP, mapped, b}); x != y {
		t.Errorf("hash %08x of the mapped address, %08x of the plain one", y, x)
	}
}

func TestSymmetricKey(t *testing.T) {
	rng := rand.New(rand.NewPCG(testSeed(t), 1))
	same, other := newToeplitz(SymmetricRSSKey()), newToeplitz(MicrosoftRSSKey())
	differs := 0
	for range 200 {
		there := randomFlow(rng)
		back := Flow{there.Proto, there.Dst, there.Src}
		if a, b := same.hashFlow(there), same.hashFlow(back); a != b {
			t.Fatalf("%v: hash %08x there, %08x back", there, a, b)
		}
		if other.hashFlow(there) != other.hashFlow(back) {
			differs++
		}
	}
	if differs == 0 {
		t.Error("the other key is symmetric too: the test cannot tell")
	}
}

func randomFlow(rng *rand.Rand) Flow {
	addr := func() netip.AddrPort {
		var b [16]byte
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return netip.AddrPortFrom(netip.AddrFrom16(b), uint16(rng.Uint32()))
	}
	return Flow{Proto: protoTCP, Src: addr(), Dst: addr()}
}

// Flows of one client spread over all queues, whichever the key.
func TestSpreadIsFair(t *testing.T) {
	for name, key := range map[string]RSSKey{"symmetric": SymmetricRSSKey(),
		"microsoft": MicrosoftRSSKey()} {
		for _, queues := range []int{1, 2, 3, 4, 7, 16} {
			s := spread{hash: newToeplitz(key),
				queueAt: evenTable(queues,
					logTable(uverbs.DeviceCaps{MaxIndTableSize: 2048}, queues))}
			count := make([]int, queues)
			src, dst := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddrPort("192.0.2.1:80")
			const flows = 4096
			for port := range flows {
				f := Flow{protoTCP, netip.AddrPortFrom(src, uint16(20000+port)), dst}
				count[s.queueOf(s.hash.hashFlow(f))]++
			}
			for q, n := range count {
				if share := flows / queues; n < share/2 || n > share*2 {
					t.Errorf("%s key, %d queues: queue %d has %d of %d flows",
						name, queues, q, n, flows)
				}
			}
		}
	}
}

func TestTableSize(t *testing.T) {
	for _, c := range []struct {
		queues int
		limit  uint32
		want   int
	}{
		{1, 2048, 1}, {2, 2048, 16}, {3, 2048, 32}, {4, 2048, 32}, {5, 2048, 64},
		{300, 2048, 2048}, {4, 16, 16},
	} {
		if got := 1 << logTable(uverbs.DeviceCaps{MaxIndTableSize: c.limit},
			c.queues); got != c.want {
			t.Errorf("%d queues on a device with %d entries: %d, want %d",
				c.queues, c.limit, got, c.want)
		}
	}
}
