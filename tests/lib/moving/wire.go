package moving

import (
	"encoding/binary"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// metered is a wire whose progress a meter counts.
type metered struct {
	wire.Wire
	meter *Meter

	mu    sync.Mutex
	flows map[flow]reached // guarded by mu
}

// flow is one direction of a TCP connection: addresses and ports as in its segments.
type flow [36]byte

// reached is the progress of a flow.
type reached struct {
	syn      uint32 // sequence number of its SYN
	seq, ack uint32 // the highest that were seen
	acked    bool   // ack is valid
}

// Wire wraps w, on the side of the NIC, so that m counts progress. For TCP that is a sequence or
// acknowledgement number beyond all previous ones, and a RST: retransmissions and keepalive or
// window probes are not progress. For UDP, which has no such numbers, every datagram counts.
func Wire(w wire.Wire, m *Meter) wire.Wire {
	return &metered{Wire: w, meter: m, flows: map[flow]reached{}}
}

// Start implements wire.Wire.
func (w *metered) Start(recv func([]frame.Frame)) error {
	return w.Wire.Start(func(frames []frame.Frame) {
		w.look(frames)
		recv(frames)
	})
}

// Send implements wire.Wire.
func (w *metered) Send(frames []frame.Frame) (int, error) {
	w.look(frames)
	return w.Wire.Send(frames)
}

// look counts the frames that make progress.
func (w *metered) look(frames []frame.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range frames {
		if len(f.Data) < frame.EtherHeader {
			continue
		}
		p := frame.Parse(f.Data)
		if p.Proto == frame.ProtoUDP || p.Proto == frame.ProtoTCP &&
			p.L4At != 0 && w.advances(f.Data, &p) {
			w.meter.Move()
		}
	}
}

// Flags of TCP, RFC 9293 section 3.1.
const flagFIN, flagSYN, flagRST, flagACK = 0x01, 0x02, 0x04, 0x10

// advances reports whether a TCP segment is progress. With mu held.
func (w *metered) advances(b []byte, p *frame.Headers) bool {
	tcp := b[p.L4At:]
	flags, key := tcp[13], flowOf(b, p)
	seq, end := binary.BigEndian.Uint32(tcp[4:]), uint32(p.End-p.L4At-p.L4Len)
	end += seq + uint32(flags&flagSYN/flagSYN+flags&flagFIN)
	before, known := w.flows[key]
	now := before
	if !known || flags&flagSYN != 0 && seq != before.syn { // a new connection
		now = reached{syn: seq, seq: end}
	}
	now.seq = later(now.seq, end)
	if ack := binary.BigEndian.Uint32(tcp[8:]); flags&flagACK != 0 && !now.acked {
		now.ack, now.acked = ack, true
	} else if flags&flagACK != 0 {
		now.ack = later(now.ack, ack)
	}
	w.flows[key] = now
	return now != before || flags&flagRST != 0
}

// flowOf is the flow of a TCP segment.
func flowOf(b []byte, p *frame.Headers) (key flow) {
	at, n := p.L3At+8, 32 // of both addresses, RFC 8200 section 3
	if p.EtherType == frame.EtherIPv4 {
		at, n = p.L3At+12, 8 // RFC 791 section 3.1
	}
	copy(key[:], b[at:at+n])
	copy(key[32:], b[p.L4At:p.L4At+4])
	return key
}

// later is the later one of two sequence numbers.
func later(a, b uint32) uint32 {
	if int32(b-a) > 0 {
		return b
	}
	return a
}
