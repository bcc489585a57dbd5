package simnic

import "github.com/rdma-netstack/rdma-netstack/dv/simnic/frame"

// mpw sends one packet per data segment of an enhanced multi-packet WQE.
// What the Ethernet segment asks for applies to all of them.
func (sq *SQ) mpw(w *wqe, e *eth) fault {
	if !sq.nic.caps.EnhancedMPW || !sq.attr.MPW || len(e.header) != 0 || e.insert != 0 ||
		e.mss != 0 || sq.nic.caps.MinInline != InlineNone {
		return faultFormat
	}
	if _, f := w.measure(e.dataAt); f.syndrome != 0 {
		return f
	}
	for at := e.dataAt; at < len(w.raw); {
		s, next, f := w.segment(at)
		if f.syndrome == 0 {
			f = sq.packet(w, s, e)
		}
		if f.syndrome != 0 {
			return f
		}
		at = next
	}
	return fault{}
}

// packet sends one record.
func (sq *SQ) packet(w *wqe, s dataSeg, e *eth) fault {
	if f := sq.checkLength(w, s.n); f.syndrome != 0 {
		return f
	}
	b := sq.room(s.n + frame.VLANTag)
	if s.inline != nil {
		copy(b[frame.VLANTag:], s.inline)
	} else if f := sq.burst.mem.read(sq, s.lkey, s.addr,
		b[frame.VLANTag:frame.VLANTag+s.n]); f.syndrome != 0 {
		return f
	}
	sq.emit(b, s.n, e)
	return fault{}
}
