package xdp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// decision names what a program does with a frame.
type decision uint32

const (
	dropped decision = 1
	linuxs  decision = 2
	ours    decision = 4 // led to a socket
)

// loaded holds a program with maps of its own, in which every queue has a socket.
type loaded struct {
	program     int
	macs, ports int
	sources     int
}

func loadFor(t testing.TB, mac []byte, vlan uint16, host bool) *loaded {
	t.Helper()
	need.Root(t)
	l := &loaded{}
	sockets, err := newMap(unix.BPF_MAP_TYPE_XSKMAP, 4, 4, 1, 0, "sockets")
	must(t, err)
	s, err := newSocket(SendSockets)
	must(t, err)
	must(t, bpf.PutElement(sockets, nativeBytes(0), nativeBytes(uint32(s.fd))))
	l.sources, err = newSourceMap()
	must(t, err)
	program := ownMACProgram([6]byte(mac), vlan, l.sources, sockets)
	if host {
		l.macs, err = newMap(unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0, "mac")
		must(t, err)
		l.ports, err = newMap(unix.BPF_MAP_TYPE_HASH, portKeyLen, 4, 1000,
			unix.BPF_F_NO_PREALLOC, "ports")
		must(t, err)
		must(t, bpf.PutElement(l.macs, nativeBytes(0), append(slices.Clone(mac), 0, 0)))
		program = hostProgram(hostMaps{l.macs, l.ports, l.sources, sockets})
	}
	l.program, err = loadProgram(program)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.closeSocket())
		for _, fd := range []int{sockets, l.program, l.macs, l.ports, l.sources} {
			if fd != 0 {
				must(t, unix.Close(fd))
			}
		}
	})
	return l
}

// run makes the kernel run the program on a frame (BPF_PROG_TEST_RUN) and returns what became of
// it.
func (l *loaded) run(t testing.TB, frame []byte) decision {
	t.Helper()
	const cmdTestRun, atResult = 10, 4
	r := new(bpf.Request).AddFields(uint32(l.program), 0, uint32(len(frame)), 0).AddAddress(frame).
		AddAddress(nil).AddFields(1, 0, 0, 0).AddAddress(nil).AddAddress(nil).AddFields(0, 0, 0)
	_, err := r.Call(cmdTestRun)
	must(t, err)
	return decision(binary.NativeEndian.Uint32(r.Bytes[atResult:]))
}

// counted returns how many frames the program has counted as dropped.
func (l *loaded) counted(t testing.TB) (sum uint64) {
	t.Helper()
	by, _ := groupSources(modelDrops)
	for k := range by {
		var v sourceValue
		must(t, bpf.GetElement(l.sources, k[:], v[:]))
		for i := range maxBlocks {
			sum += binary.NativeEndian.Uint64(v[sourceCounts+8*i:])
		}
	}
	return sum
}

// minFrame gives the shortest frame that the kernel runs a program on.
const minFrame = ethLen

// modelOwnMAC tells what ownMACProgram is to decide.
func modelOwnMAC(f, mac []byte, vlan uint16) bool {
	if len(f) < 14 || !bytes.Equal(f[:6], mac) {
		return false
	}
	kind := int(f[12])<<8 | int(f[13])
	if vlan == 0 {
		return kind != 0x8100 && kind != 0x88a8
	}
	return kind == 0x8100 && len(f) >= 18 && (uint16(f[14])<<8|uint16(f[15]))%4096 == vlan
}

// modelHost tells what hostProgram is to decide.
func modelHost(f, mac []byte, ports []packet.Ports) bool {
	if len(f) < 34 || !bytes.Equal(f[:6], mac) {
		return false
	}
	var to netip.Addr
	var proto byte
	var rest []byte
	switch int(f[12])<<8 | int(f[13]) {
	case 0x0800:
		header := int(f[14]&15) * 4
		if f[20]&0x3f != 0 || f[21] != 0 || header < 20 || len(f) < 14+header {
			return false
		}
		to, proto, rest = netip.AddrFrom4([4]byte(f[30:34])), f[23], f[14+header:]
	case 0x86dd:
		if len(f) < 54 {
			return false
		}
		to, proto, rest = netip.AddrFrom16([16]byte(f[38:54])), f[20], f[54:]
	default:
		return false
	}
	if !(proto == 6 && len(rest) >= 20 || proto == 17 && len(rest) >= 8) {
		return false
	}
	port := uint16(rest[2])<<8 | uint16(rest[3])
	return slices.ContainsFunc(ports, func(p packet.Ports) bool {
		return p.UDP == (proto == 17) && p.Addr == to && p.First <= port && port <= p.Last
	})
}

var modelPorts = []packet.Ports{
	{Addr: ourIP.Addr(), First: 80, Last: 80},
	{Addr: ourIP.Addr(), First: 8256, Last: 8700, UDP: true},
	{Addr: ourIPv6.Addr(), First: 443, Last: 443, UDP: true},
	{Addr: ourIPv6.Addr(), First: 512, Last: 767},
}

// modelDrops lists what the programs drop of frames that are ours, none inside another.
var modelDrops = []packet.SourceDrop{
	{From: netip.MustParsePrefix("192.0.2.1/32"), Proto: protoTCP, Mask: 1 << 15},
	{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoTCP, Mask: 1 << 15},
	{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP, Port: 8448, Mask: 0xffc0},
	{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP, Port: 600, Mask: 0xffff},
	{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP, Port: 80, Mask: 0xffff},
	{From: netip.MustParsePrefix("203.0.113.0/24"), Proto: protoUDP, Port: 443, Mask: 0xffff},
	{From: netip.MustParsePrefix("198.51.0.0/17"), Proto: protoUDP},
	{From: netip.MustParsePrefix("2001:db8:7::/57"), Proto: protoTCP, Port: 512, Mask: 0xff00},
	{From: netip.MustParsePrefix("2001:db8:8::9/128"), Proto: protoUDP, Mask: 1 << 15},
}

// modelDropped tells whether a frame that is ours is dropped, with its IP header at a place.
func modelDropped(f []byte, at int) bool {
	var from netip.Addr
	var proto byte
	var rest []byte
	if len(f) < at+20 {
		return false
	}
	ip := f[at:]
	switch int(f[at-2])<<8 | int(f[at-1]) {
	case 0x0800:
		header := int(ip[0]&15) * 4
		if ip[6]&0x1f != 0 || ip[7] != 0 || header < 20 || len(ip) < header {
			return false
		}
		from, proto, rest = netip.AddrFrom4([4]byte(ip[12:16])), ip[9], ip[header:]
	case 0x86dd:
		if len(ip) < 40 {
			return false
		}
		from, proto, rest = netip.AddrFrom16([16]byte(ip[8:24])), ip[6], ip[40:]
	}
	if len(rest) < 4 {
		return false
	}
	port := uint16(rest[2])<<8 | uint16(rest[3])
	return slices.ContainsFunc(modelDrops, func(d packet.SourceDrop) bool {
		return d.Proto == proto && d.From.Contains(from) && port&d.Mask == d.Port
	})
}

// sourceFrames returns frames from sources that are dropped and from some near them, of VLAN 5 or
// without a tag.
func sourceFrames(tagged bool) (frames [][]byte) {
	for _, from := range []string{"192.0.2.1", "192.0.2.2", "203.0.113.0", "203.0.113.255",
		"203.0.114.0", "198.51.127.255", "198.51.128.0", "2001:db8:7:7f::1", "2001:db8:7:80::",
		"2001:db8:8::9", "2001:db8:8::8"} {
		a, to := netip.MustParseAddr(from), ourIP.Addr()
		if a.Is6() {
			to = ourIPv6.Addr()
		}
		for _, port := range []uint16{80, 443, 600, 8448, 8500, 8511, 8512, 32767, 32768} {
			for _, f := range [][]byte{ipFrame(ourMAC, a, to, protoTCP, eth.TCP(1, port, 2, nil)),
				ipFrame(ourMAC, a, to, protoUDP, eth.UDP(1, port, eth.Payload(9)))} {
				if tagged {
					f = slices.Insert(f, 12, 0x81, 0, 0, 5)
				}
				frames = append(frames, f)
			}
		}
	}
	return frames
}

// seedFrames returns frames of every kind that the programs tell apart, and some near them.
func seedFrames() (frames [][]byte) {
	for _, a := range [][2]netip.Addr{{peerIP.Addr(), ourIP.Addr()}, {peerIPv6.Addr(),
		ourIPv6.Addr()}, {peerIP.Addr(), peerIP.Addr()}} {
		for _, port := range []uint16{79, 80, 443, 511, 512, 600, 767, 768, 8255, 8256, 8500, 8700,
			8701} {
			frames = append(frames,
				ipFrame(ourMAC, a[0], a[1], protoTCP, eth.TCP(1, port, 2, eth.Payload(3))),
				ipFrame(ourMAC, a[0], a[1], protoUDP, eth.UDP(1, port, nil)),
				ipFrame(netdev, a[0], a[1], protoTCP, eth.TCP(1, port, 2, nil)))
		}
		whole := ipFrame(ourMAC, a[0], a[1], protoTCP, eth.TCP(1, 80, 2, nil))
		for n := minFrame; n < len(whole); n++ {
			frames = append(frames, whole[:n])
		}
		datagram := ipFrame(ourMAC, a[0], a[1], protoUDP, eth.UDP(1, 8256, nil))
		for n := len(datagram) - udpLen; n < len(datagram); n++ {
			frames = append(frames, datagram[:n])
		}
		frames = append(frames, ipFrame(ourMAC, a[0], a[1], 1, eth.Payload(40)))
	}
	for _, change := range []func(f []byte){
		func(f []byte) { f[20] = 0x20 },         // more fragments
		func(f []byte) { f[21] = 1 },            // an offset
		func(f []byte) { f[20] = 0x40 },         // do not fragment
		func(f []byte) { f[14] = 0x44 },         // a header that is too short
		func(f []byte) { f[14] = 0x46 },         // options
		func(f []byte) { f[14] = 0x4f },         // more options than there are bytes
		func(f []byte) { f[12] = 0x88 },         // another type
		func(f []byte) { f[5] ^= 1 },            // another MAC
		func(f []byte) { f[0] ^= 1 },            // a group
		func(f []byte) { f[33]++ },              // another address
		func(f []byte) { f[23] = 132 },          // SCTP
		func(f []byte) { f[36], f[37] = 80, 0 }, // the port's bytes in the other order
	} {
		f := ipFrame(ourMAC, peerIP.Addr(), ourIP.Addr(), protoTCP, eth.TCP(1, 80, 2,
			eth.Payload(40)))
		change(f)
		frames = append(frames, f)
	}
	for _, tci := range []uint16{0, 5, 3<<13 | 5, 6, 0x0505} {
		for _, kind := range []uint16{typeVLAN, typeServiceVLAN} {
			frames = append(frames, eth.Ethernet(ourMAC, peerMAC, kind,
				append(binary.BigEndian.AppendUint16(nil, tci), eth.Payload(50)...)))
		}
	}
	return append(frames, eth.Ethernet(ourMAC, peerMAC, experimental, nil),
		eth.Ethernet(ourMAC, peerMAC, typeVLAN, []byte{0, 5}))
}

// programs returns one of each kind, with the model of its decision.
func programs(t testing.TB) map[*loaded]func(f []byte) decision {
	host := loadFor(t, ourMAC, 0, true)
	for _, p := range modelPorts {
		for _, k := range keysOf(p) {
			must(t, bpf.PutElement(host.ports, k[:], nativeBytes(1)))
		}
	}
	decide := func(isOurs, drops bool) decision {
		switch {
		case !isOurs:
			return linuxs
		case drops:
			return dropped
		}
		return ours
	}
	own := func(vlan uint16, at int) func(f []byte) decision {
		return func(f []byte) decision {
			return decide(modelOwnMAC(f, ourMAC, vlan), modelDropped(f, at))
		}
	}
	all := map[*loaded]func(f []byte) decision{
		loadFor(t, ourMAC, 0, false): own(0, 14),
		loadFor(t, ourMAC, 5, false): own(5, 18),
		host: func(f []byte) decision {
			return decide(modelHost(f, ourMAC, modelPorts), modelDropped(f, 14))
		},
	}
	for l := range all {
		by, n := groupSources(modelDrops)
		if n != len(modelDrops) {
			t.Fatalf("there is room for %d of %d", n, len(modelDrops))
		}
		for k, s := range by {
			v := s.toValue()
			must(t, bpf.PutElement(l.sources, k[:], v[:]))
		}
	}
	return all
}

// TestDecisions runs the programs on frames of every kind, and on 20,000 that differ from these in
// a few bytes.
func TestDecisions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	seeds := append(append(seedFrames(), sourceFrames(false)...), sourceFrames(true)...)
	for program, model := range programs(t) {
		count := map[decision]uint64{}
		check := func(f []byte) {
			got := program.run(t, f)
			if want := model(f); got != want {
				t.Fatalf("decision %v, want %v: % x", got, want, f)
			}
			count[got]++
		}
		for _, f := range seeds {
			check(f)
		}
		for range 20000 {
			f := slices.Clone(seeds[random.IntN(len(seeds))])
			for range 1 + random.IntN(3) {
				f[random.IntN(min(len(f), 60))] = byte(random.Uint32())
			}
			check(f[:minFrame+random.IntN(len(f)-minFrame+1)])
		}
		if n := program.counted(t); n != count[dropped] {
			t.Errorf("%d frames are counted, %d were dropped", n, count[dropped])
		}
		if count[ours] < 20 || count[linuxs] < 20 || count[dropped] < 20 {
			t.Errorf("decisions %v: the seeds show nothing", count)
		}
	}
}

// FuzzDecisions compares the programs with the models.
func FuzzDecisions(f *testing.F) {
	all := programs(f)
	for _, frame := range append(append(seedFrames(), sourceFrames(false)...),
		sourceFrames(true)...) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < minFrame || len(frame) > 2000 {
			return
		}
		for program, model := range all {
			if got, want := program.run(t, frame), model(frame); got != want {
				t.Fatalf("decision %v, want %v: % x", got, want, frame)
			}
		}
	})
}

// TestQueueWithoutSocket: frames of a queue that has no socket are for Linux.
func TestQueueWithoutSocket(t *testing.T) {
	need.Root(t)
	sockets, err := newMap(unix.BPF_MAP_TYPE_XSKMAP, 4, 4, 1, 0, "sockets")
	must(t, err)
	defer unix.Close(sockets)
	l := &loaded{}
	l.program, err = loadProgram(ownMACProgram([6]byte(ourMAC), 0, -1, sockets))
	must(t, err)
	defer unix.Close(l.program)
	if l.run(t, eth.Ethernet(ourMAC, peerMAC, experimental, eth.Payload(50))) != linuxs {
		t.Error("a frame was led to a socket that there is not")
	}
}

// TestProgramBytes holds programs against bytes that the kernel's verifier has taken and whose
// decisions TestDecisions has looked at: an instruction a line.
func TestProgramBytes(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		need.That(t, "little-endian", errors.New("the bytes are those of such processors"))
	}
	for name, program := range map[string][]byte{
		"own":          ownMACProgram([6]byte(ourMAC), 0, -1, 3),
		"vlan":         ownMACProgram([6]byte(ourMAC), 5, -1, 3),
		"host":         hostProgram(hostMaps{3, 4, -1, 5}),
		"own_sources":  ownMACProgram([6]byte(ourMAC), 0, 6, 3),
		"vlan_sources": ownMACProgram([6]byte(ourMAC), 5, 6, 3),
		"host_sources": hostProgram(hostMaps{3, 4, 6, 5}),
	} {
		var got bytes.Buffer
		for b := range slices.Chunk(program, 8) {
			got.WriteString(hex.EncodeToString(b) + "\n")
		}
		want, err := os.ReadFile("testdata/" + name + ".hex")
		must(t, err)
		if got.String() != string(want) {
			t.Errorf("%s:\n%s", name, got.String())
		}
	}
}

func TestKeysOf(t *testing.T) {
	for _, tt := range []struct {
		first, last uint16
		singles     int
		blocks      int
	}{{80, 80, 1, 0}, {256, 511, 0, 1}, {255, 512, 2, 1}, {0, 65535, 0, 256}, {65280, 65535, 0, 1},
		{300, 400, 101, 0}} {
		singles, blocks := 0, 0
		for _, k := range keysOf(packet.Ports{Addr: ourIP.Addr(), First: tt.first, Last: tt.last}) {
			blocks += int(k[keyBlock])
			singles += 1 - int(k[keyBlock])
		}
		if singles != tt.singles || blocks != tt.blocks {
			t.Errorf("%d to %d: %d ports and %d blocks", tt.first, tt.last, singles, blocks)
		}
	}
}
