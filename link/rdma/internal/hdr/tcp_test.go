package hdr_test

import (
	"bytes"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/tcpframe"
)

// TestOptions: which options of a segment are found.
func TestOptions(t *testing.T) {
	stamp, sack := tcpframe.Stamped(1, 2)[2:], tcpframe.Sacked(3, 4)[14:]
	join := func(options ...[]byte) []byte { return bytes.Join(options, nil) }
	for _, tc := range []struct {
		name        string
		options     []byte
		stamp, sack []byte
		malformed   bool
	}{
		{name: "none"},
		{name: "timestamp", options: stamp, stamp: stamp},
		{name: "as most lay it out", options: tcpframe.Stamped(1, 2), stamp: stamp},
		{name: "as long as that", options: join([]byte{1, 1, 5, 10}, make([]byte, 8)),
			sack: append([]byte{5, 10}, make([]byte, 8)...)},
		{name: "both", options: join(stamp, sack), stamp: stamp, sack: sack},
		{name: "the other way round", options: join(sack, stamp), stamp: stamp, sack: sack},
		{name: "behind others", options: join([]byte{2, 4, 5, 180, 1, 3, 3, 7}, stamp),
			stamp: stamp},
		{name: "behind the end", options: join([]byte{0}, stamp)},
		{name: "the first of two", options: join(stamp, tcpframe.Stamped(8, 9)), stamp: stamp},
		{name: "timestamp of odd length", options: join([]byte{8, 9, 0, 0, 0, 0, 0, 0, 0}, stamp)},
		{name: "SACK without blocks", options: []byte{5, 2}, sack: []byte{5, 2}},
		{name: "cut off", options: join(stamp, []byte{5, 10, 0}), stamp: stamp, malformed: true},
		{name: "kind without length", options: []byte{1, 1, 1, 5}, malformed: true},
		{name: "length 1", options: join([]byte{2, 1}, stamp), malformed: true},
	} {
		o := hdr.OptionsOf(segment(tc.options))
		if !bytes.Equal(o.Timestamp, tc.stamp) || !bytes.Equal(o.SACK, tc.sack) ||
			o.Malformed != tc.malformed {
			t.Errorf("%s: %+v", tc.name, o)
		}
	}
}

// segment is a TCP header with these options, and no-operations to fill the last word.
func segment(options []byte) []byte {
	tcp := append(make([]byte, hdr.TCPLen), options...)
	for len(tcp)%4 != 0 {
		tcp = append(tcp, hdr.OptNop)
	}
	tcp[12] = byte(len(tcp) / 4 << 4)
	return tcp
}

// FuzzOptions: no options may make the link read beyond them.
func FuzzOptions(f *testing.F) {
	f.Add(tcpframe.Stamped(1, 2))
	f.Add(tcpframe.Sacked(1, 2, 3, 4))
	f.Add([]byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7})
	f.Add([]byte{5, 1})
	f.Fuzz(func(t *testing.T, options []byte) {
		if len(options) > 40 {
			return
		}
		tcp := segment(options)
		o := hdr.OptionsOf(tcp)
		for kind, option := range map[byte][]byte{hdr.OptTimestamp: o.Timestamp,
			hdr.OptSACK: o.SACK} {
			if option == nil {
				continue
			}
			if option[0] != kind || int(option[1]) != len(option) ||
				!bytes.Contains(tcp, option) {
				t.Fatalf("%x in %x", option, options)
			}
		}
		if o.Malformed || len(tcp) > hdr.TCPLen+36 {
			return
		}
		longer := hdr.OptionsOf(segment(append(tcp[hdr.TCPLen:], 1, 1, 1, 1)))
		if !bytes.Equal(longer.Timestamp, o.Timestamp) || !bytes.Equal(longer.SACK, o.SACK) {
			t.Fatalf("%x: %+v, with four NOPs behind %+v", options, o, longer)
		}
	})
}
