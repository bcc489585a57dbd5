package frame

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

// Segmenting in pieces, and each piece as an unsegmented frame in packets, gives
// what segmenting in packets gives.
func TestPiecesOfPackets(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for _, n := range []int{0, 1, 99, 100, 101, 650, 700} {
				t.Run(fmt.Sprintf("v6=%v,udp=%v,%d", v6, udp, n), func(t *testing.T) {
					hdr, _, _ := simtest.Header(v6, udp, 1, n)
					payload := bytes.Repeat([]byte{0xc3, 0x5a, 0x11}, n)[:n]
					want := segments(t, hdr, payload, 1)
					if got := segments(t, hdr, payload, 3); !bytes.Equal(got, want) {
						t.Errorf("in pieces of 3 packets\n%x\npacket by packet\n%x", got, want)
					}
				})
			}
		}
	}
}

// segments is the packets of a frame, one after the other, segmented in pieces of
// n packets.
func segments(t *testing.T, hdr, payload []byte, n int) (all []byte) {
	t.Helper()
	s, ok := NewSegmenter(bytes.Clone(hdr), 100, len(payload))
	if !ok {
		t.Fatal("no TCP or UDP header")
	}
	for g := s.Pieces(n); g.Next(); {
		f := Frame{Data: bytes.Repeat([]byte{0xa5}, len(hdr)+g.Len)}
		part := payload[g.At : g.At+g.Len]
		copy(f.Data[len(hdr):], part)
		if g.Len > 100 {
			g.Unsegmented(&f)
		} else {
			g.Header(f.Data, Sum(part))
		}
		var buf []byte
		Cut(f, &buf, func(p Frame) { all = append(all, p.Data...) })
	}
	return all
}

func TestSegmenterRefuses(t *testing.T) {
	hdr, _, l4 := simtest.Header(false, false, 0, 10)
	for name, c := range map[string]struct {
		template []byte
		mss      int
	}{"no Ethernet header": {hdr[:13], 100}, "no whole TCP header": {hdr[:l4+19], 100},
		"no segment size": {hdr, 0}} {
		if _, ok := NewSegmenter(bytes.Clone(c.template), c.mss, 10); ok {
			t.Errorf("%s: taken", name)
		}
	}
}
