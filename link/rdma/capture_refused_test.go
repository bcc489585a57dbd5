package rdma

import (
	"bytes"
	"encoding/binary"
	"maps"
	"testing"

	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// commentOf is the comment of an enhanced packet block (draft-ietf-opsawg-pcapng section 3.5).
func commentOf(b []byte) string {
	b = b[:binary.LittleEndian.Uint32(b[4:])]
	kept := (int(binary.LittleEndian.Uint32(b[20:])) + 3) &^ 3
	for o := b[28+kept : len(b)-4]; len(o) >= 4; {
		code, size := binary.LittleEndian.Uint16(o), int(binary.LittleEndian.Uint16(o[2:]))
		if code == 1 {
			return string(o[4 : 4+size])
		}
		o = o[4+(size+3)&^3:]
	}
	return ""
}

// TestCaptureRefused: what is not sent is in the capture with the reason, and only that.
func TestCaptureRefused(t *testing.T) {
	const (
		noRoom = "the send ring had no room in time"
		size   = "it is too short or too long for the port"
		behind = "a packet in front of it was not sent"
		gone   = "it waited for room when the link went away"
		noLink = "there is neither device nor packet port"
	)
	long := func() *gstack.PacketBuffer {
		return tcpFrame{Src: ourMAC, Dst: peerMAC, Payload: make([]byte, 3000)}.Packet()
	}
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, s *sending)
		want map[string]int // frames by reason
	}{
		{"too long", func(t *testing.T, s *sending) {
			pkts := []*gstack.PacketBuffer{segmentOf(1, 0), long(), segmentOf(1, 1)}
			if n, err := s.write(pkts, 0); n != 1 || err == nil {
				t.Errorf("%d taken, %v", n, err)
			}
		}, map[string]int{"": 1, size: 1, behind: 1}},
		{"no room", func(t *testing.T, s *sending) {
			s.alone()
			held := hold(s.nic)
			defer held.release()
			pkt := udpPacket()
			defer pkt.DecRef()
			for s.writeOne(pkt) == nil {
			}
		}, map[string]int{noRoom: 1}},
		{"datagram", func(t *testing.T, s *sending) {
			s.s.lock()
			defer s.s.unlock()
			d := Datagram{Headers: make([]byte, udpSize), Payload: make([]byte, 3000)}
			s.s.refuseDatagram(&d, s.s.postDatagram(d.Headers, d.Payload, 0))
		}, map[string]int{size: 1}},
		{"waiting, then closed", func(t *testing.T, s *sending) {
			held := hold(s.nic)
			defer held.release()
			s.send(t, 1, 0, 1000)
			kept := int(s.Stats().TxBacklog)
			s.s.close()
			if kept == 0 || kept != int(s.Stats().TxBacklogDropped) {
				t.Errorf("%d kept, %+v", kept, s.Stats())
			}
		}, map[string]int{gone: -1}},
		{"no link", func(t *testing.T, s *sending) {
			s.s.swap(new(dropQueue), BackendNone)
			s.send(t, 1, 0, 3)
		}, map[string]int{noLink: 3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSending(t)
			blocks := capturedBlocks(t, s.Endpoint, capture.Options{Direction: capture.Out})
			tc.do(t, s)
			got := map[string]int{}
			for _, b := range blocks() {
				got[commentOf(b)]++
			}
			for reason := range tc.want {
				if tc.want[reason] < 0 && got[reason] > 0 {
					tc.want[reason] = got[reason]
				}
			}
			if tc.want[""] == 0 {
				delete(got, "")
			}
			if !maps.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// TestRefusedFrame: a refused frame is recorded as it would have been sent, cut with Wire.
func TestRefusedFrame(t *testing.T) {
	s := newSending(t)
	frames := captured(t, s.Endpoint, capture.Options{Wire: true})
	pkt := tcpFrame{Src: ourMAC, Dst: peerMAC, Payload: make([]byte, 2500)}.Packet()
	defer pkt.DecRef()
	pkt.GSOOptions = gstack.GSO{Type: gstack.GSOTCPv4, NeedsCsum: true, MSS: 1000}
	s.s.lock()
	s.s.captureRefused(pkt, "no reason")
	s.s.unlock()
	got := frames()
	if len(got) != 3 || len(got[0]) != udpSize+1000 || len(got[2]) != udpSize+500 ||
		!bytes.Equal(got[0][:6], []byte(peerMAC)) {
		t.Errorf("%d frames", len(got))
	}
}
