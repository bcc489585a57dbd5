//go:build linux

package attack

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// forge builds frames with the source address of the client's interface or any other. Every header
// is written by hand from the RFCs: the frames that the stack parses are not made by its own code.
type forge struct {
	rng      *rand.Rand
	src, dst net.HardwareAddr
}

// newForge takes its random numbers from TEST_SEED, or a new seed; either way it is logged.
func newForge(t *testing.T, p *lab.Port) *forge {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 0, 64)
		must(t, err)
	}
	t.Logf("TEST_SEED=%d", seed)
	dst, err := net.ParseMAC(serverMAC)
	must(t, err)
	return &forge{rng: rand.New(rand.NewPCG(seed, 1)), src: p.MAC, dst: dst}
}

// eth puts an Ethernet header before a packet (IEEE 802.3).
func (f *forge) eth(dst net.HardwareAddr, etherType uint16, packet []byte) []byte {
	b := append(append([]byte(nil), dst...), f.src...)
	b = append(binary.BigEndian.AppendUint16(b, etherType), packet...)
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

// ip4 is a packet to the server (RFC 791). fragment is the field of flags and offset.
func (f *forge) ip4(src netip.Addr, protocol byte, fragment uint16, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[8], b[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[4:], uint16(f.rng.Uint32()))
	binary.BigEndian.PutUint16(b[6:], fragment)
	copy(b[12:], src.AsSlice())
	copy(b[16:], addr(server4).AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^sum(0, b))
	return f.eth(f.dst, 0x0800, append(b, payload...))
}

// tcp is a segment without data (RFC 9293) from a random port.
func (f *forge) tcp(src netip.Addr, dstPort uint16, flags byte) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b[0:], uint16(1024+f.rng.IntN(64000)))
	binary.BigEndian.PutUint16(b[2:], dstPort)
	binary.BigEndian.PutUint32(b[4:], f.rng.Uint32())
	binary.BigEndian.PutUint32(b[8:], f.rng.Uint32())
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 512)
	binary.BigEndian.PutUint16(b[16:], ^sum(pseudo(src, addr(server4), 6, len(b)), b))
	return f.ip4(src, 6, 0, b)
}

// udp is a datagram (RFC 768) from a random port.
func (f *forge) udp(src netip.Addr, dstPort uint16, payload []byte) []byte {
	return f.udpFrom(src, uint16(1024+f.rng.IntN(64000)), dstPort, payload)
}

func (f *forge) udpFrom(src netip.Addr, srcPort, dstPort uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b[0:], srcPort)
	binary.BigEndian.PutUint16(b[2:], dstPort)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[6:], ^sum(pseudo(src, addr(server4), 17, len(b)), b))
	return f.ip4(src, 17, 0, b)
}

// echo is an echo request (RFC 792).
func (f *forge) echo(src netip.Addr, id, seq uint16) []byte {
	b := []byte{8, 0, 0, 0, byte(id >> 8), byte(id), byte(seq >> 8),
		byte(seq), 1, 2, 3, 4, 5, 6, 7, 8}
	binary.BigEndian.PutUint16(b[2:], ^sum(0, b))
	return f.ip4(src, 1, 0, b)
}

// icmp6 is an ICMPv6 message to a multicast address (RFC 4443), with hop limit 255 as NDP requires.
func (f *forge) icmp6(src, dst netip.Addr, message []byte) []byte {
	b := make([]byte, 40, 40+len(message))
	b[0], b[6], b[7] = 0x60, 58, 255
	binary.BigEndian.PutUint16(b[4:], uint16(len(message)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	binary.BigEndian.PutUint16(message[2:], 0)
	binary.BigEndian.PutUint16(message[2:], ^sum(pseudo(src, dst, 58, len(message)), message))
	mac := net.HardwareAddr{0x33, 0x33}
	return f.eth(append(mac, dst.AsSlice()[12:]...), 0x86dd, append(b, message...))
}

// arp is a broadcast ARP packet (RFC 826): op 1 is a request, 2 a reply.
func (f *forge) arp(op byte, mac net.HardwareAddr, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = append(append(b, mac...), sender.AsSlice()...)
	b = append(append(b, make([]byte, 6)...), target.AsSlice()...)
	return f.eth(net.HardwareAddr{255, 255, 255, 255, 255, 255}, 0x0806, b)
}

// stranger is a random address that no host has: benchmarking (RFC 2544), 198.18.0.0/15.
func (f *forge) stranger() netip.Addr {
	n := f.rng.Uint32()
	return netip.AddrFrom4([4]byte{198, 18 | byte(n>>24)&1, byte(n >> 8), byte(n)})
}

// sum is the Internet checksum of RFC 1071, not yet inverted.
func sum(start uint16, b []byte) uint16 {
	s := uint32(start)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// pseudo is the sum of the pseudo header of TCP, UDP and ICMPv6.
func pseudo(src, dst netip.Addr, protocol byte, length int) uint16 {
	b := append(src.AsSlice(), dst.AsSlice()...)
	return sum(0, binary.BigEndian.AppendUint32(append(b, 0, 0, 0, protocol), uint32(length)))
}
