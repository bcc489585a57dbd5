package rdma

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

func udpFrame(f tcpFrame) []byte {
	udp := make([]byte, 8+len(f.Payload))
	header.UDP(udp).Encode(&header.UDPFields{SrcPort: f.Ports[0], DstPort: f.Ports[1],
		Length: uint16(len(udp))})
	copy(udp[8:], f.Payload)
	return f.Encode(header.UDPProtocolNumber, udp, 6)
}

// TestVerify flips every bit of frames that the NIC did not verify: each must be dropped, except
// where no checksum covers the bit or the change makes the frame another protocol's or the stack's
// business.
func TestVerify(t *testing.T) {
	odd := segment(0)
	odd.Payload = odd.Payload[:51]
	for name, f := range map[string]tcpFrame{"even": segment(0), "odd": odd} {
		for _, v6 := range []bool{false, true} {
			f.V6 = v6
			for proto, frame := range map[string][]byte{"tcp": f.Bytes(), "udp": udpFrame(f)} {
				w := testWorker()
				if w.classifyAndMerge(w.load(0, bytes.Clone(frame))); len(w.merge.runs) != 1 ||
					w.count.verified.Load() != 1 {
					t.Fatalf("%s %s (IPv6 %v): dropped", proto, name, v6)
				}
				l4 := w.merge.runs[0].L4
				for bit := range (len(frame) - hdr.EthLen) * 8 {
					at := hdr.EthLen + bit/8
					broken := bytes.Clone(frame)
					broken[at] ^= 1 << (bit % 8)
					w.classifyAndMerge(w.load(0, broken))
					switch {
					case v6 && (at < hdr.EthLen+8):
						continue // version, class, label, length, next header, hop limit
					case at == hdr.EthLen || at == hdr.EthLen+2 || at == hdr.EthLen+3:
						continue // lengths: the stack finds out
					case proto == "udp" && (at == l4+4 || at == l4+5):
						continue
					}
					if len(w.merge.runs) != 0 {
						t.Errorf("%s %s (IPv6 %v): bit %d of byte %d broken, and delivered",
							proto, name, v6, bit%8, at)
					}
				}
				w.classifyAndMerge(w.load(dv.RxL3OK|dv.RxL4OK,
					append(bytes.Clone(frame[:len(frame)-1]), ^frame[len(frame)-1])))
				if len(w.merge.runs) != 1 {
					t.Errorf("%s %s (IPv6 %v): verified what the NIC had vouched for", proto, name,
						v6)
				}
			}
		}
	}
}

func TestPaddingIsCut(t *testing.T) {
	f := segment(0)
	f.Payload, f.Pad = nil, 6
	w := testWorker()
	w.classifyAndMerge(w.load(0, f.Bytes()))
	if n := w.buildPackets()[0].Size(); n != 54 {
		t.Errorf("%d bytes", n)
	}
}

func TestUDPWithoutChecksum(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := segment(0)
		f.V6 = v6
		frame := udpFrame(f)
		w := testWorker()
		at := 14 + 20 + 6
		if v6 {
			at += 20
		}
		frame[at], frame[at+1] = 0, 0
		w.classifyAndMerge(w.load(0, frame))
		if got := len(w.merge.runs) == 1; got == v6 {
			t.Errorf("IPv6 %v: delivered %v", v6, got)
		}
	}
}

// TestAdmit: which frames reach the stack.
func TestAdmit(t *testing.T) {
	arp := func(dst, src tcpip.LinkAddress, etherType uint16, rest ...byte) []byte {
		b := append([]byte(dst+src), byte(etherType>>8), byte(etherType))
		return append(b, append(rest, make([]byte, 46)...)...)
	}
	const broadcast, multicast = tcpip.LinkAddress("\xff\xff\xff\xff\xff\xff"),
		tcpip.LinkAddress("\x33\x33\x00\x00\x00\x01")
	const dropped = tcpip.PacketOutgoing
	for _, tc := range []struct {
		name  string
		frame []byte
		flags dv.RxFlags
		vlan  uint16
		want  tcpip.PacketType
		ether uint16
	}{
		{"to us", arp(ourMAC, peerMAC, 0x0806), 0, 0, tcpip.PacketHost, 0x0806},
		{"broadcast", arp(broadcast, peerMAC, 0x0806), 0, 0, tcpip.PacketBroadcast, 0x0806},
		{"multicast", arp(multicast, peerMAC, 0x86dd), 0, 0, tcpip.PacketMulticast, 0x86dd},
		{"to somebody else", arp("\x02\x00\x00\x00\x00\x03", peerMAC, 0x0806), 0, 0, dropped, 0},
		{"our own broadcast", arp(broadcast, ourMAC, 0x0806), 0, 0, dropped, 0},
		{"from us to us", arp(ourMAC, ourMAC, 0x0806), 0, 0, dropped, 0},
		{"stripped tag", arp(ourMAC, peerMAC, 0x0806), dv.RxVLAN, 0x2005, dropped, 0},
		{"stripped priority tag", arp(ourMAC, peerMAC, 0x0806), dv.RxVLAN, 0x2000,
			tcpip.PacketHost, 0x0806},
		{"tag", arp(ourMAC, peerMAC, 0x8100, 0, 5, 8, 6), 0, 0, dropped, 0},
		{"priority tag", arp(ourMAC, peerMAC, 0x8100, 0xe0, 0, 8, 6), 0, 0,
			tcpip.PacketHost, 0x0806},
		{"two tags", arp(ourMAC, peerMAC, 0x88a8, 0, 5, 0x81, 0), 0, 0, dropped, 0},
		{"cut tag", []byte(ourMAC + peerMAC + "\x81\x00\x00"), 0, 0, dropped, 0},
		{"header only", []byte(ourMAC + peerMAC + "\x08\x00"), 0, 0, tcpip.PacketHost, 0x0800},
	} {
		w := testWorker()
		d := &recorder{}
		w.attachment.dispatcher = d
		w.frames[0] = dv.Packet{Data: bytes.Clone(tc.frame), Flags: tc.flags, VLAN: tc.vlan}
		w.classifyAndMerge(w.frames[:1])
		w.deliverAll(w.buildPackets())
		if got := len(d.types) > 0; got != (tc.want != dropped) {
			t.Errorf("%s: delivered %v", tc.name, got)
			continue
		}
		if tc.want != dropped && (d.types[0] != tc.want || uint16(d.protocols[0]) != tc.ether) {
			t.Errorf("%s: type %d protocol %#x", tc.name, d.types[0], d.protocols[0])
		}
	}
}

// recorder is a stack that records what it receives.
type recorder struct {
	types     []tcpip.PacketType
	protocols []tcpip.NetworkProtocolNumber
	bytes     int
}

func (r *recorder) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber,
	pkt *gstack.PacketBuffer) {
	r.types = append(r.types, pkt.PktType)
	r.protocols = append(r.protocols, proto)
	r.bytes += pkt.Data().Size()
}

func (*recorder) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *gstack.PacketBuffer) {}

// FuzzReceive cuts its input into frames: a length of two bytes, then that many bytes after our
// address. Nothing may panic, every admitted frame must be in exactly one run, and no merged packet
// may have lost or gained a byte.
func FuzzReceive(f *testing.F) {
	pack := func(frames ...[]byte) []byte {
		var out []byte
		for _, b := range frames {
			out = append(binary.BigEndian.AppendUint16(out, uint16(len(b)-12)), b[12:]...)
		}
		return out
	}
	six := segment(0)
	six.V6 = true
	f.Add(pack(segment(0).Bytes(), segment(1).Bytes()), uint16(0))
	f.Add(pack(six.Bytes(), udpFrame(six)), uint16(dv.RxL3OK|dv.RxL4OK))
	six.IPOpts = []byte{0, 1, 4, 0, 0, 0, 0}
	f.Add(pack(six.Bytes()), uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, flags uint16) {
		w := testWorker()
		d := &recorder{}
		w.attachment.dispatcher = d
		var frames [][]byte
		for len(data) >= 2 && len(frames) < batchFrames {
			n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
			frames = append(frames, append([]byte(ourMAC+peerMAC),
				append(data[2:2+n:2+n], make([]byte, max(0, 2-n))...)...))
			data = data[2+n:]
		}
		w.classifyAndMerge(w.load(dv.RxFlags(flags), frames...))
		seen := map[int16]bool{}
		for _, r := range w.merge.runs {
			payload := 0
			for i := r.first; i != none; i = w.merge.chain[i] {
				if seen[i] {
					t.Fatalf("frame %d is in two runs", i)
				}
				seen[i] = true
				if r.merged() {
					payload += r.L3 + packetLen(w.frames[i].Data[r.L3:]) - r.headers
				}
			}
			if r.merged() && payload != r.payload {
				t.Fatalf("payload %d, frames have %d", r.payload, payload)
			}
		}
		dropped := int(w.count.drops[dropBadChecksum].Load() + w.count.drops[dropOtherVLAN].Load() +
			w.count.drops[dropOtherMAC].Load() + w.count.drops[dropOwn].Load())
		if len(seen)+dropped != len(frames) {
			t.Fatalf("%d frames, %d in runs, %d dropped", len(frames), len(seen), dropped)
		}
		w.deliverAll(w.buildPackets())
		if len(d.types) != len(w.merge.runs) {
			t.Fatalf("%d packets of %d runs", len(d.types), len(w.merge.runs))
		}
	})
}

// packetLen is the length of an IP packet according to its header.
func packetLen(h []byte) int {
	if h[0]>>4 == 6 {
		return hdr.IPv6Len + int(binary.BigEndian.Uint16(h[4:]))
	}
	return int(binary.BigEndian.Uint16(h[2:]))
}

// summedDatagram returns a datagram of ten bytes to the test worker, with a checksum that is right,
// or none.
func summedDatagram(v6, sum bool) []byte {
	eth := make([]byte, hdr.EthLen)
	fields := header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x09",
		DstAddr: ourMAC, Type: hdr.TypeIPv4}
	udp := make([]byte, hdr.UDPLen+10)
	header.UDP(udp).Encode(&header.UDPFields{SrcPort: 7, DstPort: 53, Length: uint16(len(udp))})
	from, to := tcpip.AddrFrom4([4]byte{192, 0, 2, 9}), tcpip.AddrFrom4([4]byte{192, 0, 2, 1})
	ip := make([]byte, hdr.IPv4Len)
	if v6 {
		fields.Type, ip = hdr.TypeIPv6, make([]byte, hdr.IPv6Len)
		from = tcpip.AddrFrom16([16]byte{0: 0xfd, 15: 9})
		to = tcpip.AddrFrom16([16]byte{0: 0xfd, 15: 1})
		header.IPv6(ip).Encode(&header.IPv6Fields{PayloadLength: uint16(len(udp)),
			TransportProtocol: hdr.ProtoUDP, HopLimit: 64, SrcAddr: from, DstAddr: to})
	} else {
		header.IPv4(ip).Encode(&header.IPv4Fields{TotalLength: uint16(hdr.IPv4Len + len(udp)),
			TTL: 64, Protocol: hdr.ProtoUDP, SrcAddr: from, DstAddr: to})
		header.IPv4(ip).SetChecksum(^header.IPv4(ip).CalculateChecksum())
	}
	if sum {
		pseudo := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, to, uint16(len(udp)))
		header.UDP(udp).SetChecksum(^checksum.Checksum(udp, pseudo))
	}
	header.Ethernet(eth).Encode(&fields)
	return append(append(eth, ip...), udp...)
}

// TestNoChecksum: a datagram without a checksum is good over IPv4 (RFC 768) and dropped over IPv6,
// as by Linux for a socket that has not set UDP_NO_CHECK6_RX, whatever the NIC says of it.
func TestNoChecksum(t *testing.T) {
	for _, flags := range []dv.RxFlags{0, dv.RxL3OK, dv.RxL3OK | dv.RxL4OK} {
		for _, tt := range []struct {
			v6, sum bool
			dropped uint64
		}{{false, true, 0}, {false, false, 0}, {true, true, 0}, {true, false, 1}} {
			w := testWorker()
			w.classifyAndMerge(w.load(flags, summedDatagram(tt.v6, tt.sum)))
			n := w.count.drops[dropBadChecksum].Load() + w.count.drops[dropNoChecksum].Load()
			if n != tt.dropped || len(w.merge.runs) != int(1-n) {
				t.Errorf("NIC's flags %x, IPv6 %v, a checksum %v: %d dropped, %d delivered", flags,
					tt.v6, tt.sum, n, len(w.merge.runs))
			}
		}
	}
}
