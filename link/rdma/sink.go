package rdma

import "encoding/binary"

// Mailbox is a socket that takes datagrams as they leave the ring. That spares each of them a packet with its buffers, the
// search for its endpoint, a place in the endpoint's queue and a wake-up of its reader: 1.3 us of the 2.3 that a small DNS query takes.
type Mailbox interface {
	// Put offers a datagram that may take the express lane: its IP header, which has no options or extensions, and the UDP header with all
	// that follows it in the packet. Both are the caller's. False: it is not for this mailbox, or not now, and the stack decides about it and
	// all that follows in the batch. So it does after a datagram to the port that may not take the lane, one to a group for example.
	Put(ip, udp []byte) bool
	// Knock follows when the batch is over in which something was put. It may be called when nothing was.
	Knock()
}

// SetMailboxes offers datagrams on the express lane to the mailbox that find returns for their destination port, if any; a nil find
// ends that. Receive workers call find and the mailbox, several at once if there are several queues.
func (e *Endpoint) SetMailboxes(find func(v6 bool, port uint16) Mailbox) {
	if find == nil {
		e.sinks.Store(nil)
		return
	}
	e.sinks.Store(&sinkFinder{find})
}

// sinkFinder is what SetMailboxes was given.
type sinkFinder struct {
	find func(v6 bool, port uint16) Mailbox
}

// sinkFor is the one of a datagram's port, or nil.
func (w *worker) sinkFor(r *run, boxes *sinkFinder) Mailbox {
	if boxes == nil || r.proto != protoUDP || r.l4 == 0 || r.end-r.l4 < udpLen || w.attachment.stopped() {
		return nil
	}
	if n := w.attachment.networks.Load(); n == nil || n.fastPath == nil {
		return nil
	}
	return boxes.find(r.etherType == typeIPv6, binary.BigEndian.Uint16(w.frames[r.first].Data[r.l4+2:]))
}

// deliverToSink offers a run to a mailbox, if it may take the express lane, and reports whether it was taken.
func (w *worker) deliverToSink(r *run, box Mailbox) bool {
	frame := w.frames[r.first].Data
	if !r.fastPath || !box.Put(frame[r.l3:r.l4], frame[r.l4:r.end]) {
		return false
	}
	if last := len(w.sinks) - 1; last < 0 || w.sinks[last] != box {
		w.sinks = append(w.sinks, box)
	}
	c := &w.fast4
	if r.etherType == typeIPv6 {
		c = &w.fast6
	}
	c.packets++
	c.bytes += uint64(r.end - r.l3)
	return true
}

// flushSinks ends a batch for the mailboxes.
func (w *worker) flushSinks() {
	for _, box := range w.sinks {
		box.Knock()
	}
	clear(w.sinks)
	w.sinks = w.sinks[:0]
}
