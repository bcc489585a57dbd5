package tcpfix

import "time"

// Behaviour: netstack sends a FIN again behind each segment that fast recovery sends again, as RACK
// takes it for lost each time, and counts how often (transport/tcp/rack.go, DoRecovery). The next
// timeout gives the connection up if that is more than TCP_RETR2, 15 by default, without a word to
// the peer, be it milliseconds after the peer has acknowledged all data (snd.go,
// retransmitTimerExpired; Linux counts timeouts only). The FIN is left because netstack as a
// receiver throws away one that came behind a gap: of a segment without data it looks at the byte
// before (rcv.go, handleRcvdSegment).
//
// Fix: where something has been sent again, a FIN that is left when all data is acknowledged is
// sent again finWait later.
//
// Not reported upstream. No longer needed when the row "a FIN that was sent too often to be sent
// again by a timeout" of tests/tcp passes without it.

// finWait is how long the acknowledgement of a FIN may come after that of the data before it.
const finWait = time.Millisecond

// finLeft reports whether a FIN is all that the peer has not acknowledged.
func (f *resendFlow) finLeft() bool {
	return len(f.parts) == 1 && f.parts[0].seq == f.una && f.parts[0].pkt.Data().Size() == 0
}

// soon has the timer expire after finWait. It is set: there are flows.
func (r *resender) soon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.armed && !r.closed {
		r.timer.Reset(finWait)
	}
}
