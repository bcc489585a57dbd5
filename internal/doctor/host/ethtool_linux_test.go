package host

import (
	"encoding/binary"
	"testing"
)

// TestPFC reads an answer laid out as in linux include/uapi/linux/dcbnl.h: priority 3 pauses, has
// sent 5 frames and received 7, priority 0 received 2.
func TestPFC(t *testing.T) {
	pfc := make([]byte, 136)
	pfc[0], pfc[1] = 8, 1<<3
	binary.NativeEndian.PutUint64(pfc[8+3*8:], 5)
	binary.NativeEndian.PutUint64(pfc[72+3*8:], 7)
	binary.NativeEndian.PutUint64(pfc[72:], 2)
	attribute := func(kind uint16, value []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		return append(binary.NativeEndian.AppendUint16(b, kind), value...)
	}
	answer := append(attribute(1, []byte("eth0\x00\x00\x00\x00")),
		attribute(13|1<<15, attribute(2, pfc))...)
	if p, err := parsePFC(answer); err != nil || p != (Pause{Received: 9, Sent: 5, PFC: 8}) {
		t.Errorf("%+v, %v", p, err)
	}
	for cut := range answer {
		if p, err := parsePFC(answer[:cut]); err == nil {
			t.Errorf("cut off behind %d bytes: %+v", cut, p)
		}
	}
}

// TestEthtool asks this machine's loopback, which has neither rings nor pause: an error, no fault.
func TestEthtool(t *testing.T) {
	if size, _, err := rxRingOf("lo"); err == nil {
		t.Errorf("rings of %d slots", size)
	}
	if p, err := pauseOf("lo"); err == nil {
		t.Errorf("%+v", p)
	}
	if _, err := askEthtool("no-such-netdev", 15, 0); err == nil {
		t.Error("rings of a netdev that is not there")
	}
}
