package xdp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestAddWords compares with a sum of two bytes at a time.
func TestAddWords(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		b := make([]byte, random.IntN(100))
		for i := range b {
			b[i] = byte(random.Uint32())
			if random.IntN(3) == 0 {
				b[i] = 0xff
			}
		}
		start := uint64(random.Uint32())
		want := start
		for i, c := range b {
			want += uint64(c) << (8 * (1 - i%2))
		}
		for want > 0xffff {
			want = want>>16 + want&0xffff
		}
		if got := addWords(start, b); uint64(got) != want && (got^0xffff) != uint16(want)^0xffff {
			t.Fatalf("%d + % x: %#x, want %#x", start, b, got, want)
		}
	}
}

// TestCutter cuts segments whose buffers end anywhere, and puts them together again.
func TestCutter(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		header := ethLen + ipv4Len + tcpLen + 4*random.IntN(11)
		frame := make([]byte, header+random.IntN(5000))
		for i := range frame {
			frame[i] = byte(random.Uint32())
		}
		binary.BigEndian.PutUint16(frame[atType:], typeIPv4)
		frame[atVersion4], frame[atProtocol4] = 0x45, protoTCP
		frame[atFragment4], frame[atFragment4+1] = 0x40, 0
		frame[ethLen+ipv4Len+atTCPLn] = byte((header-ethLen-ipv4Len)/4) << 4
		var bufs [][]byte
		for rest := frame; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			bufs, rest = append(bufs, rest[:n:n]), rest[n:]
		}
		payload := 1 + random.IntN(1500)
		var c cutter
		if !c.beginSegment(bufs, payload) {
			t.Fatalf("not TCP: % x", frame[:header])
		}
		var got []byte
		for n := 0; c.hasMore(); n++ {
			var room [4096]byte
			size := c.nextSegment(room[:])
			if size > header+payload || size < len(frame) && size != header+payload && c.hasMore() {
				t.Fatalf("a segment of %d bytes", size-header)
			}
			if id := binary.BigEndian.Uint16(room[atID4:]); id != binary.BigEndian.Uint16(
				frame[atID4:])+uint16(n) {
				t.Fatalf("segment %d has identification %d", n, id)
			}
			got = append(got, room[header:size]...)
		}
		if !bytes.Equal(got, frame[header:]) {
			t.Fatalf("%d bytes of payload, %d came out", len(frame)-header, len(got))
		}
	}
	var c cutter
	if c.beginSegment([][]byte{make([]byte, 100)}, 10) {
		t.Error("zeros were cut up")
	}
}
