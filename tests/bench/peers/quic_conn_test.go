package main

import (
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSegmentsOfACall(t *testing.T) {
	control := func(level, kind int32, data ...byte) []byte {
		b := make([]byte, unix.CmsgSpace(len(data)))
		b[0], b[8], b[12] = byte(unix.CmsgLen(len(data))), byte(level), byte(kind)
		copy(b[unix.CmsgLen(0):], data)
		return b
	}
	oob := control(unix.IPPROTO_IP, unix.IP_TOS, 2)
	if got := segmentSize(oob); got != 0 {
		t.Errorf("without UDP_SEGMENT: %d", got)
	}
	oob = append(oob, control(unix.IPPROTO_UDP, unix.UDP_SEGMENT, 4, 0)...)
	if got := segmentSize(oob); got != 4 {
		t.Errorf("behind another message: %d", got)
	}
	to := &net.UDPAddr{Port: 1}
	var sizes []int
	for _, m := range segments(nil, make([]byte, 10), 4, to) {
		sizes = append(sizes, len(m.Buffers[0]))
		if m.Addr != to {
			t.Errorf("to %v", m.Addr)
		}
	}
	if !slices.Equal(sizes, []int{4, 4, 2}) {
		t.Errorf("sizes %v", sizes)
	}
}
