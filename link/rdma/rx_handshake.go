package rdma

import (
	"gvisor.dev/gvisor/pkg/buffer"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// deliverACK delivers the headers of a segment that ends a handshake, as an ACK without payload, in
// front of it: see tcpfix/handshake_data.go. r is a copy of the segment's run. The TCP checksum is
// left wrong, as in rewrite.
func (w *worker) deliverACK(r run, pkt *gstack.PacketBuffer) {
	h, ok := pkt.Data().PullUp(r.L4 + hdr.TCPLen)
	if !ok || !r.Plain {
		return
	}
	h, ok = pkt.Data().PullUp(r.L4 + int(h[r.L4+12]>>4)*4)
	if !ok || len(h) > hdr.MaxLen {
		return
	}
	b := append([]byte(nil), h...)
	b[r.L4+13] &^= hdr.FlagsLast
	r.setPayload(b, 0)
	ack := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	defer ack.DecRef()
	r.fastPath = false // which counts frames
	w.deliver(&r, ack)
}
