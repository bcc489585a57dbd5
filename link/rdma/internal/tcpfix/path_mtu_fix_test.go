package tcpfix

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdrtest"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// tooBig is a message that a packet was too big, with bytes 4 to 7 as given, behind which is some
// of that packet. The checksum is as of IPv4, without a pseudo header, in both versions: only its
// change counts.
func tooBig(v6 bool, kind, code byte, word uint32) []byte {
	message := append([]byte{kind, code, 0, 0}, binary.BigEndian.AppendUint32(nil, word)...)
	message = append(message, tcpframe.Data(28, 7)...)
	f := tcpframe.Frame{V6: v6, Src: tcpframe.PeerMAC, Dst: tcpframe.OurMAC, From: 9, To: 1,
		TTL: 64}
	proto := uint8(hdr.ProtoICMP)
	if v6 {
		proto = hdr.ProtoICMPv6
	}
	frame := f.Encode(tcpip.TransportProtocolNumber(proto), message, 2)
	at := len(frame) - len(message)
	frame[at+2], frame[at+3] = 0, 0
	binary.BigEndian.PutUint16(frame[at+2:], ^checksum.Checksum(frame[at:], 0))
	return frame
}

// TestRaisePathMTU compares the message that is left, its checksum included.
func TestRaisePathMTU(t *testing.T) {
	for _, tc := range []struct {
		name       string
		v6         bool
		kind, code byte
		word, want uint32
	}{
		{"0", false, 3, 4, 0, 552},
		{"68", false, 3, 4, 68, 552},
		{"551", false, 3, 4, 551, 552},
		{"552", false, 3, 4, 552, 552},
		{"1500", false, 3, 4, 1500, 1500},
		{"unused bits stay", false, 3, 4, 0xabcd0001, 0xabcd0228},
		{"host unreachable", false, 3, 1, 0, 0},
		{"an echo", false, 8, 4, 0, 0},
		{"IPv6: 0", true, 2, 0, 0, 1280},
		{"IPv6: 1279", true, 2, 0, 1279, 1280},
		{"IPv6: 1280", true, 2, 0, 1280, 1280},
		{"IPv6: 1 << 31", true, 2, 0, 1 << 31, 1 << 31},
		{"IPv6: unreachable", true, 1, 0, 0, 0},
	} {
		frame := tooBig(tc.v6, tc.kind, tc.code, tc.word)
		want := tooBig(tc.v6, tc.kind, tc.code, tc.want)
		wrong := bytes.Clone(frame)
		p := hdrtest.Parse(frame)
		wrong[p.L4+2] ^= 0x10
		if got := raisePathMTU(frame, p); got != (tc.word != tc.want) {
			t.Errorf("%s: changed: %v", tc.name, got)
		}
		if !bytes.Equal(frame, want) {
			t.Errorf("%s\n got %x\nwant %x", tc.name, frame, want)
		}
		raisePathMTU(wrong, p)
		if sum := checksum.Checksum(wrong[p.L4:], 0); sum == 0xffff {
			t.Errorf("%s: a wrong checksum is right now", tc.name)
		}
	}
}

// TestRaisePathMTUShort leaves what is too short as it is.
func TestRaisePathMTUShort(t *testing.T) {
	whole := tooBig(false, 3, 4, 0)
	p := hdrtest.Parse(whole)
	for n := range 8 {
		frame := bytes.Clone(whole[:p.L4+n])
		short := *p
		short.End = len(frame)
		if raisePathMTU(frame, &short) || !bytes.Equal(frame, whole[:len(frame)]) {
			t.Errorf("%d bytes of a message are changed", n)
		}
	}
}
