package sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// tcpFrame is a segment of a flow over IPv4, with a payload of n bytes.
func tcpFrame(port uint16, seq, ack uint32, flags header.TCPFlags, n int) []byte {
	f := make([]byte, tcpAt4+header.TCPMinimumSize+n)
	header.Ethernet(f).Encode(&header.EthernetFields{Type: header.IPv4ProtocolNumber,
		SrcAddr: "\x02\x00\x00\x00\x00\x02", DstAddr: "\x02\x00\x00\x00\x00\x01"})
	from, to := tcpip.AddrFrom4([4]byte{10, 0, 0, 2}), tcpip.AddrFrom4([4]byte{10, 0, 0, 1})
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip)), ID: uint16(seq), TTL: 64,
		Protocol: uint8(header.TCPProtocolNumber), SrcAddr: from, DstAddr: to})
	ip.SetChecksum(^ip.CalculateChecksum())
	t := header.TCP(f[tcpAt4:])
	t.Encode(&header.TCPFields{SrcPort: port, DstPort: 80, SeqNum: seq, AckNum: ack,
		DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 1000})
	for i := range t.Payload() {
		t.Payload()[i] = byte(seq + uint32(i))
	}
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, from, to, uint16(len(t)))
	t.SetChecksum(^checksum.Checksum(t, sum))
	return f
}

// TestMerge: segments are merged as the kernel does, and no others.
func TestMerge(t *testing.T) {
	const ack, psh = header.TCPFlagAck, header.TCPFlagPsh
	seg := func(seq uint32, n int) []byte { return tcpFrame(1, seq, 7, ack, n) }
	damaged := seg(100, 100)
	damaged[len(damaged)-1] ^= 1
	for _, c := range []struct {
		name   string
		frames [][]byte
		sizes  []int // payloads
	}{
		{"in order", [][]byte{seg(0, 100), seg(100, 100), seg(200, 40)}, []int{240}},
		{"behind a short one", [][]byte{seg(0, 100), seg(100, 40), seg(140, 100)}, []int{140, 100}},
		{"a longer one", [][]byte{seg(0, 40), seg(40, 100)}, []int{40, 100}},
		{"a gap", [][]byte{seg(0, 100), seg(200, 100)}, []int{100, 100}},
		{"another order", [][]byte{seg(100, 100), seg(0, 100)}, []int{100, 100}},
		{"two flows", [][]byte{seg(0, 100), tcpFrame(2, 0, 7, ack, 100), seg(100, 100)},
			[]int{200, 100}},
		{"PSH ends", [][]byte{seg(0, 100), tcpFrame(1, 100, 7, ack|psh, 100), seg(200, 100)},
			[]int{200, 100}},
		{"another ACK", [][]byte{seg(0, 100), tcpFrame(1, 100, 8, ack, 100)}, []int{100, 100}},
		{"no data", [][]byte{seg(0, 0), seg(0, 0)}, []int{0, 0}},
		{"damaged", [][]byte{seg(0, 100), damaged}, []int{100, 100}},
		{"most", [][]byte{seg(0, 10), seg(10, 10), seg(20, 10), seg(30, 10)}, []int{30, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := grouper{most: 3}
			out := g.merge(c.frames)
			if len(out) != len(c.sizes) {
				t.Fatalf("%d frames, want %d", len(out), len(c.sizes))
			}
			for i, f := range out {
				s := segment{frame: f.data}
				p := s.tcp().Payload()
				first := byte(s.tcp().SequenceNumber())
				want := make([]byte, len(p))
				for j := range want {
					want[j] = first + byte(j)
				}
				ip := header.IPv4(f.data[header.EthernetMinimumSize:])
				if len(p) != c.sizes[i] || !bytes.Equal(p, want) && c.name != "damaged" ||
					int(ip.TotalLength()) != len(ip) || !ip.IsChecksumValid() {
					t.Errorf("frame %d has %d bytes, want %d: %x", i, len(p), c.sizes[i], f.data)
				}
				if f.gso == 0 {
					continue
				}
				sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(),
					ip.DestinationAddress(), uint16(len(s.tcp())))
				if binary.BigEndian.Uint16(s.tcp()[header.TCPChecksumOffset:]) != sum {
					t.Errorf("frame %d has another sum than its pseudo-header", i)
				}
			}
		})
	}
}

// TestMergedWorlds: interfaces of some worlds do merge segments.
func TestMergedWorlds(t *testing.T) {
	alone(t)
	for seed, left := uint64(0), 12; left > 0; seed++ {
		p := NewPlan(seed)
		if !p.Has("merged") {
			continue
		}
		left--
		w := newWorld(p)
		if err := w.run(); err != nil {
			t.Fatalf("world %d: %v", seed, err)
		}
		for i, h := range p.Hosts {
			if h.Netdev.Merge > 0 && w.ours(i).netdev.merged > 0 {
				return
			}
		}
	}
	t.Error("no segment was merged in 12 worlds")
}
