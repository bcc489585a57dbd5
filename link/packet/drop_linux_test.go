package packet

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// sourceVM runs what sourceFilter makes, and passes what it does not drop.
func sourceVM(t *testing.T, program []unix.SockFilter) *bpf.VM {
	t.Helper()
	var all []bpf.RawInstruction
	for _, i := range append(slices.Clone(program), pass) {
		all = append(all, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	decoded, ok := bpf.Disassemble(all)
	if !ok {
		t.Fatal("it has unknown instructions")
	}
	vm, err := bpf.NewVM(decoded)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// randomSource returns a prefix among few, so that they meet.
func randomSource(r *rand.Rand) netip.Prefix {
	if r.IntN(2) == 0 {
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(4))})
		return netip.PrefixFrom(a, 8+r.IntN(25)).Masked()
	}
	a := [16]byte{0: 0x20, 1: 1, 5: byte(r.IntN(2)), 9: byte(r.IntN(2)), 15: byte(r.IntN(4))}
	return netip.PrefixFrom(netip.AddrFrom16(a), r.IntN(129)).Masked()
}

// portedFrame is a frame with TCP or UDP, or another protocol, that may be a later fragment.
func portedFrame(src netip.Addr, proto byte, port uint16, later bool, options int) []byte {
	f := make([]byte, ethLen, 128)
	if src.Is4() {
		binary.BigEndian.PutUint16(f[12:], typeIPv4)
		ip := make([]byte, ipv4Len+4*options)
		ip[0], ip[9] = 0x45+byte(options), proto
		if later {
			ip[7] = 3
		}
		copy(ip[12:], src.AsSlice())
		f = append(f, ip...)
	} else {
		binary.BigEndian.PutUint16(f[12:], typeIPv6)
		ip := make([]byte, ipv6Len)
		ip[0], ip[6] = 0x60, proto
		copy(ip[8:], src.AsSlice())
		f = append(f, ip...)
	}
	return append(f, 0, 0, byte(port>>8), byte(port), 0, 0, 0, 0)
}

// TestSourceFilter compares the kernel's program with what it is to drop, frame by frame.
func TestSourceFilter(t *testing.T) {
	n := rand.Uint64()
	t.Logf("seed %d", n)
	r := rand.New(rand.NewPCG(n, 1))
	dropped := 0
	for range 200 {
		var all []SourceDrop
		for range 1 + r.IntN(90) {
			d := SourceDrop{From: randomSource(r), Proto: [2]uint8{protoTCP, protoUDP}[r.IntN(2)],
				Mask: 1 << 15}
			if r.IntN(4) == 0 {
				d.Port, d.Mask = 80, 0xffff
			}
			all = append(all, d)
		}
		program, room := sourceFilter(all, dropSampled(0))
		if len(program) > 2048 || room > maxDrops || room < min(len(all), maxDrops) {
			t.Fatalf("%d of %d in %d instructions", room, len(all), len(program))
		}
		vm := sourceVM(t, program)
		for range 200 {
			src, port := randomSource(r).Addr(), [3]uint16{80, 443, 40000}[r.IntN(3)]
			proto, later := [3]byte{protoTCP, protoUDP, 47}[r.IntN(3)], r.IntN(8) == 0
			want := slices.ContainsFunc(all[:room], func(d SourceDrop) bool {
				return d.From.Contains(src) && d.Proto == proto && port&d.Mask == d.Port &&
					!(later && src.Is4())
			})
			f := portedFrame(src, proto, port, later, r.IntN(3))
			out, err := vm.Run(f)
			if err != nil || (out == 0) != want {
				t.Fatalf("from %v, protocol %d, port %d, later %v: passes %d, %v, dropped %v by %v",
					src, proto, port, later, out, err, want, all[:room])
			}
			if want {
				dropped++
			}
		}
	}
	if dropped < 1000 {
		t.Errorf("only %d frames were to be dropped", dropped)
	}
	if program, n := sourceFilter(nil, dropSampled(0)); len(program) != 0 || n != 0 {
		t.Errorf("of nothing: %d instructions", len(program))
	}
}

// TestDropSources: the kernel drops what comes from a prefix before the socket has it, until it is
// told otherwise; also after the groups change, and behind a time of silence.
func TestDropSources(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	raw := w.rawSocket(t, 0)
	to := func(src string, port uint16) []byte {
		f := portedFrame(netip.MustParseAddr(src), protoUDP, port, false, 0)
		copy(f, ourMAC)
		copy(f[6:], peerMAC)
		return append(f, make([]byte, 40)...)
	}
	arrives := func(what string, want ...uint16) {
		t.Helper()
		for _, f := range [][]byte{to("203.0.113.7", 53), to("203.0.113.7", 40000),
			to("203.0.114.7", 54), to("2001:db8::7", 55),
			eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(60))} {
			must(t, unix.Send(raw, f, 0))
		}
		var got []uint16
		for last := false; !last; {
			for _, f := range receive(t, p.Rx(0), 1) {
				switch binary.BigEndian.Uint16(f.Data[12:]) {
				case typeIPv4:
					got = append(got, binary.BigEndian.Uint16(f.Data[ethLen+ipv4Len+2:]))
				case typeIPv6:
					if f.Data[ethLen+6] == protoUDP {
						got = append(got, binary.BigEndian.Uint16(f.Data[ethLen+ipv6Len+2:]))
					}
				case 0x88b5:
					last = true
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: datagrams to ports %v came, want %v", what, got, want)
		}
	}
	arrives("at first", 53, 40000, 54, 55)
	n, err := p.DropSources([]SourceDrop{
		{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP, Mask: 1 << 15},
		{From: netip.MustParsePrefix("2001:db8::/64"), Proto: protoUDP, Mask: 1 << 15}})
	if must(t, err); n != 2 {
		t.Errorf("%d of 2 prefixes are dropped", n)
	}
	arrives("denied", 40000, 54)
	must(t, p.SetGroups([]net.HardwareAddr{{1, 0, 0x5e, 0, 0, 1}}))
	arrives("with other groups", 40000, 54)
	must(t, p.Mute())
	must(t, p.Unmute())
	arrives("behind a silence", 40000, 54)
	if n, err := p.DropSources(nil); n != 0 || err != nil {
		t.Errorf("nothing to drop: %d, %v", n, err)
	}
	arrives("at the end", 53, 40000, 54, 55)
	must(t, p.Close())
	if n, err := p.DropSources([]SourceDrop{{From: netip.MustParsePrefix("::/0")}}); n != 0 ||
		err != nil {
		t.Errorf("a closed port: %d, %v", n, err)
	}
}

// TestSampleDrops: of frames that are dropped about one in so many passes.
func TestSampleDrops(t *testing.T) {
	w := newWorld(t)
	const oneIn, sent = 64, 64 * 100
	p := w.open(t, Config{SampleDrops: oneIn})
	raw := w.rawSocket(t, 0)
	from := netip.MustParsePrefix("203.0.113.0/24")
	n, err := p.DropSources([]SourceDrop{{From: from, Proto: protoUDP, Mask: 1 << 15}})
	if must(t, err); n != 1 {
		t.Fatalf("%d of 1 prefix is dropped", n)
	}
	passed := 0
	for range sent / 100 {
		for range 100 {
			f := portedFrame(from.Addr().Next(), protoUDP, 53, false, 0)
			copy(f, ourMAC)
			copy(f[6:], peerMAC)
			must(t, unix.Send(raw, append(f, make([]byte, 40)...), 0))
		}
		must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(60)), 0))
		for last := false; !last; {
			for _, f := range receive(t, p.Rx(0), 1) {
				last = last || binary.BigEndian.Uint16(f.Data[12:]) == 0x88b5
				if binary.BigEndian.Uint16(f.Data[12:]) == typeIPv4 {
					passed++
				}
			}
		}
	}
	if want := sent / oneIn; passed < want/3 || passed > 3*want { // 6 sigma and more
		t.Errorf("%d of %d frames pass, want about %d", passed, sent, want)
	}
	if _, err := Open(Config{Device: "lo", SampleDrops: 3}); err == nil {
		t.Error("one in 3 is taken")
	}
}
