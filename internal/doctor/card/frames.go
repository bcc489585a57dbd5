package card

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Our frames have an Ethernet type for local experiments (IEEE 802), this mark, and a sequence
// number: others' frames on a busy port are told from them, and passed over.
var mark = []byte("rdma-netstack doctor")

const (
	etherHeader = 14
	minFrame    = 60 // without FCS
)

// nearest gives the address of "the nearest bridge" (IEEE 802.1Q table 8-1): no bridge passes
// frames for it on, so that nobody but the other end of the cable is bothered.
var nearest = net.HardwareAddr{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e}

// markedFrame returns a frame with a sequence number, n bytes long or the least that it takes.
func markedFrame(dst, src net.HardwareAddr, seq uint32, n int) []byte {
	payload := binary.BigEndian.AppendUint32(bytes.Clone(mark), seq)
	for i := len(payload); i < n-etherHeader; i++ {
		payload = append(payload, byte(i))
	}
	return probe.EtherFrame(dst, src, probe.Experimental, payload)
}

// sequenceOf returns the number of a marked frame; false for others'.
func sequenceOf(f []byte) (uint32, bool) {
	at := etherHeader + len(mark)
	if len(f) < at+4 || binary.BigEndian.Uint16(f[12:]) != probe.Experimental ||
		!bytes.Equal(f[etherHeader:at], mark) {
		return 0, false
	}
	return binary.BigEndian.Uint32(f[at:]), true
}

// toCard sends n marked frames to dst from the other side, at once, and returns the number of the
// first.
func (s *session) toCard(dst net.HardwareAddr, n, size int) (first uint32, err error) {
	first = s.sent
	frames := make([]frame.Frame, n)
	for i := range frames {
		frames[i].Data = markedFrame(dst, s.sourceMAC, s.sent, size)
		s.sent++
	}
	m := 0
	onOneProcessor(func() { m, err = s.source.Send(frames) })
	if m < n {
		return first, fmt.Errorf("only %d of %d frames could be sent to the card: %w", m, n, err)
	}
	return first, nil
}

// fromCard polls for marked frames until there are n or none came for as long as the patience
// lasts, and returns their numbers. each, if not nil, sees every packet, others' too.
func (s *session) fromCard(n int, each func(*dv.Packet)) (seqs []uint32) {
	q, pkts := s.dev.Rx(0), make([]dv.Packet, ringSize)
	for len(seqs) < n {
		got := 0
		if !s.awaitDone(func() bool { got = q.Poll(pkts); return got > 0 }) {
			return seqs
		}
		for i := range pkts[:got] {
			s.got++
			if each != nil {
				each(&pkts[i])
			}
			if seq, ok := sequenceOf(pkts[i].Data); ok {
				seqs = append(seqs, seq)
			}
		}
		q.Release(pkts[:got])
	}
	return seqs
}
