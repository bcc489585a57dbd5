package rdma

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// flows is what the endpoint keeps of TCP connections to make up for what netstack does not see or gets wrong. All of it is
// bounded, and lost without harm.
type flows struct {
	zeroWindow zeroWindow
	synRTT     synRTTFix
	gsoSACK    gsoSACKFilter
	resend     resender
}

// newFlows makes flows that send by post.
func newFlows(clock tcpip.Clock, post poster) *flows {
	f := &flows{synRTT: newSYNRTTFix(), gsoSACK: newGSOSACKFilter()}
	f.resend.open(clock, post)
	return f
}

// sent takes note of an outgoing packet.
func (f *flows) sent(pkt *gstack.PacketBuffer) {
	var l layout
	h := headers(pkt)
	if !l.outgoingTCP(h) {
		return
	}
	f.zeroWindow.sent(h, &l)
	f.synRTT.sent(h, &l)
	f.resend.sent(pkt, h, &l)
	if gso := &pkt.GSOOptions; gso.Type != gstack.GSONone && pkt.Data().Size() >= int(gso.MSS) {
		f.gsoSACK.sent(h, &l, pkt.Data().Size())
	}
}

// received changes an incoming segment where that is needed. Its TCP checksum has been verified before.
func (f *flows) received(frame []byte, l *layout, count *rxCounters) {
	if l.proto != protoTCP || l.l4 == 0 || l.end-l.l4 < tcpLen {
		return
	}
	if f.zeroWindow.received(frame, l) {
		count.zeroWindow.Add(1)
	}
	if f.synRTT.received(frame, l) {
		count.synRTTFixed.Add(1)
	}
	f.resend.received(frame, l)
	if f.gsoSACK.received(frame, l) {
		count.sackRemoved.Add(1)
	}
}

// passesData reports whether received changes nothing, at present, in a segment with data and no option but a timestamp.
func (f *flows) passesData() bool { return f.synRTT.repeated.Load() == 0 }

// TCP option kinds.
const (
	optionEnd       = 0
	optionNop       = 1
	optionSACK      = 5 // RFC 2018
	optionTimestamp = 8 // RFC 7323
)

// timestampLen is the length of a timestamp option, in bytes: kind, length, value at offset 2, echo at 6.
const timestampLen = 10

// findOption returns the first option of a kind, from its kind on; nil if there is none. sound is false if the options
// before it make no sense.
func findOption(options []byte, kind byte) (option []byte, sound bool) {
	for len(options) > 0 {
		switch options[0] {
		case optionEnd:
			return nil, true
		case optionNop:
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return nil, false
		}
		n := options[1]
		if options[0] == kind {
			return options[:n], true
		}
		options = options[n:]
	}
	return nil, true
}

// optionsOf is the options of a TCP segment; none if its header makes no sense.
func optionsOf(tcp []byte) []byte {
	if n := int(tcp[12]>>4) * 4; n > tcpLen && n <= len(tcp) {
		return tcp[tcpLen:n]
	}
	return nil
}

// timestampOf is the timestamp option of a TCP segment, or nil.
func timestampOf(tcp []byte) []byte {
	option, _ := findOption(optionsOf(tcp), optionTimestamp)
	if len(option) != timestampLen {
		return nil
	}
	return option
}

// before is true if sequence number a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }

// numbers are the sequence and the ACK number of a TCP segment.
func numbers(tcp []byte) (seq, ack uint32) {
	return binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
}
