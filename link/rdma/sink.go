package rdma

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// DatagramSink is a socket that takes datagrams directly from the receive ring. Each of them is
// then spared a packet with its buffers, the search for its endpoint, a place in the endpoint's
// queue and a wake-up of its reader: 1.3 us of the 2.3 that a small DNS query takes.
type DatagramSink interface {
	// Deliver offers a datagram that may take the fast path: its IP header, which has no options or
	// extensions, and the UDP header with all that follows it in the packet. The caller keeps both.
	// False: it is not for this sink, or not now, and netstack decides about it and all that
	// follows it in the batch. The same holds after a datagram to the port that may not take the
	// fast path, one to a group for example.
	Deliver(ip, udp []byte) bool
	// Flush ends a batch in which a datagram was delivered. It may be called when none was.
	Flush()
}

// SetDatagramSinks offers datagrams on the fast path to the sink that find returns for their
// destination port, if any; a nil find ends that. Receive workers call find and the sink, several
// at once if there are several queues.
func (e *Endpoint) SetDatagramSinks(find func(v6 bool, port uint16) DatagramSink) {
	if find == nil {
		e.sinks.Store(nil)
		return
	}
	e.sinks.Store(&sinkFinder{find})
}

// sinkFinder is what SetDatagramSinks was given.
type sinkFinder struct {
	find func(v6 bool, port uint16) DatagramSink
}

// sinkFor is the sink of a datagram's port, or nil.
func (w *worker) sinkFor(r *run, sinks *sinkFinder) DatagramSink {
	if sinks == nil || r.Proto != hdr.ProtoUDP || r.L4 == 0 || r.End-r.L4 < hdr.UDPLen ||
		w.attachment.stopped() {
		return nil
	}
	if n := w.attachment.networks.Load(); n == nil || n.fastPath == nil {
		return nil
	}
	port := binary.BigEndian.Uint16(w.frames[r.first].Data[r.L4+2:])
	return sinks.find(r.EtherType == hdr.TypeIPv6, port)
}

// deliverToSink offers a run to a sink, if it may take the fast path, and reports whether the sink
// took it.
func (w *worker) deliverToSink(r *run, sink DatagramSink) bool {
	frame := w.frames[r.first].Data
	if !r.fastPath || !sink.Deliver(frame[r.L3:r.L4], frame[r.L4:r.End]) {
		return false
	}
	if last := len(w.sinks) - 1; last < 0 || w.sinks[last] != sink {
		w.sinks = append(w.sinks, sink)
	}
	c := &w.fast4
	if r.EtherType == hdr.TypeIPv6 {
		c = &w.fast6
	}
	c.packets++
	c.bytes += uint64(r.End - r.L3)
	return true
}

// flushSinks ends a batch for the sinks that have taken datagrams of it.
func (w *worker) flushSinks() {
	for _, sink := range w.sinks {
		sink.Flush()
	}
	clear(w.sinks)
	w.sinks = w.sinks[:0]
}
