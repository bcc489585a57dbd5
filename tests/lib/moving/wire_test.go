package moving

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// segment is a TCP segment in a frame; from and to are the last bytes of addresses.
func segment(from, to byte, flags byte, seq, ack uint32, payload int) []byte {
	b := make([]byte, 14+20+20+payload, 14+20+20+payload+20)
	b[12], b[14], b[23], b[46] = 8, 0x45, frame.ProtoTCP, 0x50
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
	b[29], b[33], b[47] = from, to, flags
	binary.BigEndian.PutUint32(b[38:], seq)
	binary.BigEndian.PutUint32(b[42:], ack)
	return b
}

// segment6 is the same over IPv6.
func segment6(from, to byte, flags byte, seq, ack uint32, payload int) []byte {
	v4 := segment(from, to, flags, seq, ack, payload)
	b := append(make([]byte, 54), v4[34:]...)
	b[12], b[13], b[14], b[20], b[37], b[53] = 0x86, 0xdd, 0x60, frame.ProtoTCP, from, to
	binary.BigEndian.PutUint16(b[18:], uint16(len(b)-54))
	return b
}

func udp() []byte {
	b := segment(1, 2, 0, 0, 0, 0)
	b[23] = frame.ProtoUDP
	return b
}

// padded is a frame with padding after its datagram.
func padded(b []byte) []byte { return append(b, 0, 0, 0, 0, 0, 0) }

// TestWire: for each frame, in either direction, whether it is progress.
func TestWire(t *testing.T) {
	const high = 1 << 31 // sequence numbers wrap
	near, far := wire.Pair()
	var m Meter
	w := Wire(near, &m)
	defer w.Close()
	defer far.Close()
	if err := w.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	if err := far.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		from  wire.Wire
		frame []byte
		moves bool
	}{
		{"SYN", far, segment(1, 2, flagSYN, high+9, 0, 0), true},
		{"SYN again", far, segment(1, 2, flagSYN, high+9, 0, 0), false},
		{"SYN-ACK", w, segment(2, 1, flagSYN|flagACK, 5, high+10, 0), true},
		{"ACK", far, segment(1, 2, flagACK, high+10, 6, 0), true},
		{"keepalive", far, segment(1, 2, flagACK, high+9, 6, 0), false},
		{"data", far, segment(1, 2, flagACK, high+10, 6, 100), true},
		{"data again", far, segment(1, 2, flagACK, high+10, 6, 100), false},
		{"half of it", far, segment(1, 2, flagACK, high+10, 6, 50), false},
		{"another flow", far, segment(3, 2, flagACK, high+10, 6, 50), true},
		{"it is acknowledged", w, segment(2, 1, flagACK, 6, high+110, 0), true},
		{"duplicate ACK", w, segment(2, 1, flagACK, 6, high+110, 0), false},
		{"duplicate ACK with padding", w, padded(segment(2, 1, flagACK, 6, high+110, 0)), false},
		{"FIN", far, segment(1, 2, flagACK|flagFIN, high+110, 6, 0), true},
		{"FIN again", far, segment(1, 2, flagACK|flagFIN, high+110, 6, 0), false},
		{"RST", w, segment(2, 1, flagRST, 6, 0, 0), true},
		{"the ports again", far, segment(1, 2, flagSYN, 77, 0, 0), true},
		{"data of that", far, segment(1, 2, flagACK, 78, 9, 1), true},
		{"IPv6", far, segment6(1, 2, flagACK, 78, 9, 1), true},
		{"IPv6 again", far, segment6(1, 2, flagACK, 78, 9, 1), false},
		{"IPv6, another flow", far, segment6(1, 3, flagACK, 78, 9, 1), true},
		{"UDP", far, udp(), true},
		{"UDP again", far, udp(), true},
		{"neither", w, make([]byte, frame.MinFrame), false},
		{"no frame", w, nil, false},
	} {
		before := m.moved.Load()
		if n, err := c.from.Send([]frame.Frame{{Data: c.frame}}); n != 1 || err != nil {
			t.Fatalf("%s: %d, %v", c.name, n, err)
		}
		if moved := m.moved.Load() != before; moved != c.moves {
			t.Errorf("%s: moved %v, want %v", c.name, moved, c.moves)
		}
	}
}
