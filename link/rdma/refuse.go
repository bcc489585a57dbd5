package rdma

import (
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Refuse drops what begins a TCP connection with a listener, from now on: the client tries again.
// Handshakes that have begun go on, and a port without a listener answers with a reset. A batch at
// hand may still be delivered.
func (e *Endpoint) Refuse() { e.refusing.Store(true) }

// refuses reports whether a frame is dropped as nothing may begin any more.
func (w *worker) refuses(frame []byte, l *hdr.Packet) bool {
	if !w.e.refusing.Load() || !l.IsTCP() {
		return false
	}
	s := hdr.Received(frame, l, w.e.flows.Key())
	if s.Flags()&(hdr.FlagSYN|hdr.FlagACK) != hdr.FlagSYN {
		return false
	}
	state, found := w.attachment.networks.Load().socket(l.EtherType, flowOf(frame, l))
	if !found || tcp.EndpointState(state) != tcp.StateListen {
		return false
	}
	w.count.refused.Add(1)
	w.refusal = "no connection begins any more: the server ends"
	return true
}
