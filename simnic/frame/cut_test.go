package frame

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/simtest"
)

func gsoKind(v6, udp bool) GSO {
	switch {
	case udp:
		return GSOUDP
	case v6:
		return GSOTCPv6
	}
	return GSOTCPv4
}

func TestCutFrame(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			for tags := range 3 {
				for _, n := range []int{0, 1, 99, 100, 101, 1000, 60000} {
					t.Run(fmt.Sprintf("v6=%v,udp=%v,tags=%d,%d", v6, udp, tags, n),
						func(t *testing.T) {
							testCut(t, v6, udp, tags, n)
						})
				}
			}
		}
	}
}

func testCut(t *testing.T, v6, udp bool, tags, n int) {
	hdr, l3, l4 := simtest.Header(v6, udp, tags, n)
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i*7 + i>>8)
	}
	f := Frame{
		Data: append(bytes.Clone(hdr), payload...), NeedsCsum: true,
		CsumStart: uint16(l4), CsumOffset: 16, GSO: gsoKind(v6, udp),
		HdrLen: uint16(len(hdr)), MSS: 100,
	}
	if udp {
		f.CsumOffset = 6
	}
	before := bytes.Clone(f.Data)
	buf := bytes.Repeat([]byte{0xa5}, 3000)
	var joined []byte
	segments := 0
	Cut(f, &buf, func(s Frame) {
		if s.GSO != GSONone || s.NeedsCsum {
			t.Error("segment is not finished")
		}
		if !bytes.Equal(s.Data[:l3], hdr[:l3]) {
			t.Errorf("Ethernet header %x", s.Data[:l3])
		}
		last := (segments+1)*100 >= n
		if !v6 && binary.BigEndian.Uint16(s.Data[l3+4:]) != uint16(0xffff+segments) {
			t.Errorf("segment %d has identification %x", segments, s.Data[l3+4:l3+6])
		}
		if !udp {
			if seq := binary.BigEndian.Uint32(s.Data[l4+4:]); seq != 0xfffffff0+uint32(
				segments*100) {
				t.Errorf("segment %d has sequence number %#x", segments, seq)
			}
			want := byte(0x10)
			if last {
				want |= 0x09
			}
			if segments == 0 {
				want |= 0x80
			}
			if s.Data[l4+13] != want {
				t.Errorf("segment %d has flags %#x, want %#x", segments, s.Data[l4+13], want)
			}
		}
		joined = append(joined, simtest.CheckFrame(t, s.Data, l3, l4, udp)...)
		segments++
	})
	if want := max(1, (n+99)/100); segments != want {
		t.Errorf("%d segments, want %d", segments, want)
	}
	if !bytes.Equal(joined, payload) {
		t.Error("payload changed")
	}
	if !bytes.Equal(f.Data, before) {
		t.Error("the frame given was written to")
	}
}

func TestPlainFramePassesUncopied(t *testing.T) {
	f, buf := Frame{Data: make([]byte, 100)}, []byte(nil)
	Cut(f, &buf, func(s Frame) {
		if &s.Data[0] != &f.Data[0] {
			t.Error("copied")
		}
	})
}

// Whatever the metadata says, cutting neither panics nor loops.
func FuzzCutFrame(f *testing.F) {
	hdr, _, l4 := simtest.Header(false, false, 0, 7)
	f.Add(append(hdr, "payload"...), byte(GSOTCPv4), uint16(l4), uint16(16),
		uint16(len(hdr)), uint16(3))
	hdr, _, l4 = simtest.Header(true, true, 1, 7)
	f.Add(append(hdr, "payload"...), byte(GSOUDP), uint16(l4), uint16(6),
		uint16(len(hdr)), uint16(3))
	f.Fuzz(func(t *testing.T, data []byte, kind byte, start, offset, hdrLen, mss uint16) {
		var buf []byte
		fr := Frame{Data: data, NeedsCsum: true, CsumStart: start, CsumOffset: offset,
			GSO: GSO(kind % 4), HdrLen: hdrLen, MSS: mss}
		total := 0
		Cut(fr, &buf, func(s Frame) { total += len(s.Data) })
		if total < len(data) {
			t.Errorf("%d bytes became %d", len(data), total)
		}
	})
}
