package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/tcpfix"
)

// receive delivers the first n frames of the batch, which go back to the ring before the stack sees
// their copies.
func (w *worker) receive(n int) {
	frames := w.frames[:n]
	if w.deaf {
		w.count.drops[dropBackup].Add(uint64(n))
		w.q.Release(frames)
		return
	}
	linear := w.linearize(frames)
	w.timed = false
	if taps := w.e.taps.Load(); taps != nil {
		w.capture(*taps, frames)
	}
	w.classifyAndMerge(frames)
	if w.captured.Active() {
		w.captured.Commit()
	}
	if n := w.merge.superseded; n > 0 {
		w.count.supersededACKs.Add(n)
	}
	packets := w.buildPackets()
	if linear {
		w.releaseLinear(frames)
	}
	w.q.Release(frames)
	w.deliverAll(packets)
}

// classifyAndMerge drops frames for others and with wrong checksums, has tcpfix change the segments
// that netstack would misread, and makes runs of the rest.
func (w *worker) classifyAndMerge(frames []dv.Packet) {
	w.merge.begin(frames)
	w.merge.sinks = w.joiningSinks()
	mac, fast, pressure := w.e.mac.Load(), w.e.flows.LeavesData(), w.pressure()
	filtered := w.filter.Begin(w.e.opts.Filter)
	each := filtered || w.e.steering.Load() != nil // has to see each datagram
	plain := !each && w.merge.sinks == nil && w.vlan == 0
	for i := range frames {
		if w.merge.joined && !each && w.merge.nextDatagram(i) ||
			fast && w.merge.used && w.merge.next(i) || plain && w.acceptDatagram(i, mac) {
			continue
		}
		var l hdr.Packet
		if !w.acceptEthernet(&frames[i], mac, &l) ||
			filtered && !w.passesFilter(frames[i].Data, &l) ||
			!w.verifyChecksums(&frames[i], &l) ||
			!w.steered(frames[i].Data, &l) || w.refuses(frames[i].Data, &l) ||
			w.sheds(frames[i].Data, &l, pressure) {
			w.refused(i)
			continue
		}
		changes := w.e.flows.Received(frames[i].Data, &l)
		w.countChanges(changes)
		if changes&(tcpfix.Forged|tcpfix.Held) != 0 {
			w.refused(i)
			continue
		}
		if l.IsTCP() && frames[i].Data[l.L4+13]&(hdr.FlagSYN|hdr.FlagFIN) != 0 {
			w.meetTimeWait(frames[i].Data, &l)
			w.noteEnd(frames[i].Data, &l)
		}
		if changes&tcpfix.EchoAged != 0 {
			w.merge.addApart(i, &l)
		} else {
			w.merge.add(i, &l)
		}
		if changes&(tcpfix.HandshakeData|tcpfix.HandshakeStamp) != 0 {
			w.putACKFirst(i, frames[i].Data, &l, changes)
		}
	}
	if filtered {
		w.filter.End()
		if w.filtered > 0 {
			w.count.drops[dropFiltered].Add(w.filtered)
			w.filtered = 0
		}
	}
}

// acceptDatagram adds frame i as a run of its own if it is a datagram to this endpoint, in no VLAN,
// for which the NIC vouches: nothing else of classifyAndMerge concerns those, unless they are
// filtered, steered or joined. False: nothing is known of the frame.
func (w *worker) acceptDatagram(i int, mac uint64) bool {
	p := &w.merge.batch[i]
	if p.Flags&(vouchedFor|dv.RxVLAN) != vouchedFor || len(p.Data) < hdr.EthLen ||
		binary.BigEndian.Uint64(p.Data)>>16 != mac ||
		binary.BigEndian.Uint64(p.Data[4:])&macMask == mac { // our own, come back
		return false
	}
	m := w.merge
	at := len(m.runs)
	m.runs = m.runs[:at+1] // newMerger made as many as frames
	r := &m.runs[at]
	*r = run{first: int16(i), last: int16(i)}
	if !r.ParseDatagram(p.Data) {
		m.runs = m.runs[:at]
		return false
	}
	m.chain[i] = none
	return true
}

// putACKFirst puts an ACK in front of the run of frame i, which ends a handshake.
func (w *worker) putACKFirst(i int, frame []byte, l *hdr.Packet, c tcpfix.Changes) {
	seq, stamp := w.e.flows.HandshakeEnd(frame, l)
	r := w.merge.latest()
	if r.first != int16(i) {
		return
	}
	r.ackFirst, r.ackSeq, r.stamp = ackOnly, seq, stamp
	if c&tcpfix.HandshakeStamp != 0 {
		r.ackFirst = ackStamped
	}
}

// passesFilter asks Options.Filter about a frame. One that goes on with a segment of the batch is
// not asked about: it has the addresses and ports of that.
func (w *worker) passesFilter(frame []byte, l *hdr.Packet) bool {
	if l.EtherType != hdr.TypeIPv4 && l.EtherType != hdr.TypeIPv6 {
		return true
	}
	look := w.filter.Look(frame[l.L3:])
	if look.Passes() {
		return true
	}
	why := w.filter.Decide(frame[l.L3:], look)
	if why == "" {
		return true
	}
	w.filtered++
	w.refusal = why
	return false
}

// refused tells captures that frame i is dropped, and why.
func (w *worker) refused(i int) {
	if w.captured.Active() {
		w.captured.Drop(i, w.refusal)
	}
}

// drop counts a frame that is dropped for a reason. It returns false.
func (w *worker) drop(why dropReason) bool {
	w.count.drops[why].Add(1)
	w.refusal = dropReasons[why].sentence
	return false
}

// countChanges counts what tcpfix has changed.
func (w *worker) countChanges(c tcpfix.Changes) {
	if c == 0 {
		return
	}
	for _, x := range [...]struct {
		of tcpfix.Changes
		n  *atomic.Uint64
	}{
		{tcpfix.ZeroWindow, &w.count.zeroWindow}, {tcpfix.SYNRTT, &w.count.synRTTFixed},
		{tcpfix.SACKRemoved, &w.count.sackRemoved}, {tcpfix.EchoAged, &w.count.echoAged},
		{tcpfix.NarrowWindow, &w.count.narrowWindow}, {tcpfix.PathMTU, &w.count.pathMTU},
		{tcpfix.HandshakeData | tcpfix.HandshakeStamp, &w.count.handshakeData},
		{tcpfix.Forged, &w.count.drops[dropForged]},
	} {
		if c&x.of != 0 {
			x.n.Add(1)
		}
	}
	if c&tcpfix.Forged != 0 {
		w.refusal = dropReasons[dropForged].sentence
	} else if c&tcpfix.Held != 0 { // which tcpfix counts
		w.refusal = "it tells of a gap that may close by itself"
	}
}

// buildPackets makes a packet of each run, but for those that a sink takes.
func (w *worker) buildPackets() []*gstack.PacketBuffer {
	addrs := w.e.localAddrs.Load()
	sinks := w.e.sinks.Load()
	w.found = foundSink{}
	for i := 0; i < len(w.merge.runs); i++ {
		r := &w.merge.runs[i]
		if r.Fragment {
			sinks = nil // nothing may overtake it, if it is a datagram's
		}
		r.fastPath = addrs.accepts(w.frames[r.first].Data, &r.Packet)
		if sink := w.sinkFor(r, sinks); sink != nil {
			if w.deliverToSink(r, sink) {
				continue
			}
			sinks = nil
		}
		if r.datagrams > 1 {
			w.merge.splitDatagrams(i)
			r = &w.merge.runs[i]
		}
		w.noteData(r)
		w.packets[i] = w.packet(r)
	}
	return w.packets[:len(w.merge.runs)]
}

// noteData tells tcpfix of the data in a run that the stack is about to get.
func (w *worker) noteData(r *run) {
	if !r.IsTCP() {
		return
	}
	first, last := w.frames[r.first].Data, w.frames[r.last].Data
	payload := r.payload
	if payload == 0 {
		payload = r.End - r.L4 - int(first[r.L4+12]>>4)*4
	}
	if flags := first[r.L4+13] | last[r.L4+13]; payload > 0 || flags&hdr.FlagFIN != 0 {
		w.e.flows.Arrives(first, &r.Packet, max(payload, 0), flags)
	}
}

// deliverAll flushes the sinks and hands the packet of each run that has one to the stack, until
// the attachment ends.
func (w *worker) deliverAll(packets []*gstack.PacketBuffer) {
	w.answered = w.flushSinks()
	delivered := 0
	for i, pkt := range packets {
		if pkt == nil { // in a sink
			delivered++
			continue
		}
		w.answered = false
		if !w.attachment.stopped() {
			if w.merge.runs[i].ackFirst != ackNone {
				w.deliverACK(w.merge.runs[i], pkt)
			}
			w.deliver(&w.merge.runs[i], pkt)
			delivered++
		}
		pkt.DecRef()
	}
	clear(packets)
	w.count.packets.Add(uint64(delivered))
	w.count.byBackend[w.kind].Add(uint64(delivered))
	w.countFastPath()
}

// acceptEthernet decides by the Ethernet header whether the frame is for this endpoint, and sets
// EtherType and L3.
func (w *worker) acceptEthernet(p *dv.Packet, mac uint64, l *hdr.Packet) bool {
	frame := p.Data
	if frame[0]&1 == 0 && binary.BigEndian.Uint64(frame)>>16 != mac {
		return w.drop(dropOtherMAC)
	}
	if binary.BigEndian.Uint64(frame[4:])&macMask == mac { // our own broadcast come back
		return w.drop(dropOwn)
	}
	if !w.stripVLAN(p, l) {
		return w.drop(dropOtherVLAN)
	}
	return true
}

const (
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	vlanLen  = 4
	vlanID   = 0x0fff // of the tag control information
)

// stripVLAN reads the frame's Ethernet type behind its tag, which it takes out. It reports whether
// the frame is of our VLAN; if we are in none, a tag of VLAN 0, a mere priority, is as good as no
// tag (IEEE 802.1Q-2018 6.9).
func (w *worker) stripVLAN(p *dv.Packet, l *hdr.Packet) bool {
	frame := p.Data
	l.EtherType, l.L3 = binary.BigEndian.Uint16(frame[12:]), hdr.EthLen
	stripped := p.Flags&dv.RxVLAN != 0
	switch {
	case l.EtherType == typeQinQ:
		return false
	case l.EtherType != typeVLAN:
		return w.vlan == 0 && !stripped || stripped && p.VLAN&vlanID == w.vlan
	case stripped || len(frame) < hdr.EthLen+vlanLen ||
		binary.BigEndian.Uint16(frame[14:])&vlanID != w.vlan:
		return false
	}
	copy(frame[vlanLen:], frame[:12])
	p.Data = frame[vlanLen:]
	l.EtherType = binary.BigEndian.Uint16(p.Data[12:])
	return true
}

// verifyChecksums parses an IP frame and verifies the checksums that the NIC did not vouch for.
// Frames that cannot be parsed are let through: the stack refuses and counts them.
func (w *worker) verifyChecksums(p *dv.Packet, l *hdr.Packet) bool {
	l.Parse(p.Data)
	if p.Flags&dv.RxL3OK == 0 && !l.HeaderOK(p.Data) {
		return w.drop(dropBadChecksum)
	}
	if l.LacksChecksum(p.Data) { // whatever the NIC says: some vouch for it
		return w.drop(dropNoChecksum)
	}
	if p.Flags&dv.RxL4OK != 0 || l.L4 == 0 || l.Proto != hdr.ProtoTCP && l.Proto != hdr.ProtoUDP {
		return true
	}
	w.count.verified.Add(1)
	if !l.TransportOK(p.Data) {
		return w.drop(dropBadChecksum)
	}
	return true
}

// packet copies a run's frames into a new packet: one view for a frame, header and payload views
// for several, and for one with so much payload that it takes a chunk.
func (w *worker) packet(r *run) *gstack.PacketBuffer {
	frame := w.frames[r.first].Data
	if !r.merged() {
		if pkt := w.large(r, frame); pkt != nil {
			return pkt
		}
		v := w.view(r.first, r.End)
		if unbounded(frame, &r.Packet) {
			return gstack.NewPacketBuffer(
				gstack.PacketBufferOptions{Payload: w.count.waiting.add(v)})
		}
		return gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
	}
	var scratch [hdr.MaxLen]byte
	headers := scratch[:copy(scratch[:], frame[:r.headers])]
	r.rewrite(headers, w.frames[r.last].Data)
	data := buffer.MakeWithView(w.payload(r))
	data.Prepend(buffer.NewViewWithData(headers))
	return gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: data})
}

// large makes a packet of one frame whose payload is put into a chunk. Nil: it is too small for
// that, has been copied already, or there is no chunk.
func (w *worker) large(r *run, frame []byte) *gstack.PacketBuffer {
	if r.payload <= chunkMin || w.linear[r.first] != nil {
		return nil
	}
	v := w.chunks.get()
	if v == nil {
		return nil
	}
	v.Write(frame[r.headers : r.headers+r.payload])
	data := buffer.MakeWithView(v.Clone())
	data.Prepend(buffer.NewViewWithData(frame[:r.headers]))
	return gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: data})
}

// payload joins what a run's frames carry: mss bytes each, but for the last, which may have less.
func (w *worker) payload(r *run) *buffer.View {
	if r.payload > chunkMin {
		if v := w.chunks.get(); v != nil {
			w.fill(v, r)
			return v.Clone()
		}
	}
	v := buffer.NewView(r.payload)
	w.fill(v, r)
	return v
}

// fill copies them into v, which has the room.
func (w *worker) fill(v *buffer.View, r *run) {
	frames := uint64(0)
	for i := r.first; i != none; i = w.merge.chain[i] {
		v.Write(w.frames[i].Data[r.headers:][:min(r.mss, r.payload-v.Size())])
		frames++
	}
	w.count.merged.Add(frames)
}

// rewrite makes the first frame's headers those of the whole run. The TCP checksum is left wrong:
// it has been verified in every part.
func (r *run) rewrite(headers, last []byte) {
	headers[r.L4+13] |= last[r.L4+13] & hdr.FlagsLast
	r.setPayload(headers, r.payload)
}

// setPayload writes the length of an IP packet that has these headers and so much TCP payload.
func (r *run) setPayload(headers []byte, payload int) {
	ip := headers[r.L3:]
	if r.EtherType == hdr.TypeIPv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-hdr.IPv6Len+payload))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+payload))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Checksum(ip[:hdr.IPv4Len], 0))
}

// deliver hands a packet to the stack, which may keep references but not the one it was given.
func (w *worker) deliver(r *run, pkt *gstack.PacketBuffer) {
	eth, ok := pkt.LinkHeader().Consume(hdr.EthLen)
	if !ok {
		return
	}
	pkt.PktType = packetType(eth)
	pkt.NetworkProtocolNumber = tcpip.NetworkProtocolNumber(r.EtherType)
	if r.Fragment {
		if network := w.attachment.network(pkt.NetworkProtocolNumber); network != nil {
			w.count.fragments.Add(1)
			network.HandlePacket(pkt)
			return
		}
	}
	if r.fastPath && w.deliverFastPath(r, pkt) {
		return
	}
	w.attachment.dispatcher.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
}

// deliverFastPath delivers a packet directly to the transport layer and notes what it could, or has
// the network layer deliver it after all.
func (w *worker) deliverFastPath(r *run, pkt *gstack.PacketBuffer) bool {
	n := w.attachment.networks.Load()
	if n == nil || n.fastPath == nil {
		return false
	}
	size := uint64(pkt.Data().Size())
	if !n.fastPath.deliver(r, pkt) {
		pkt = rebuildForReinject(pkt)
		w.attachment.dispatcher.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
		pkt.DecRef()
		return true
	}
	c := &w.fast4
	if r.EtherType == hdr.TypeIPv6 {
		c = &w.fast6
	}
	c.packets++
	c.bytes += size
	return true
}

// countFastPath publishes what took the fast path in this batch.
func (w *worker) countFastPath() {
	if w.fast4.packets+w.fast6.packets == 0 {
		return
	}
	x := w.attachment.networks.Load().fastPath
	if c := w.fast4; c.packets > 0 {
		x.countReceived(x.ipv4, c.packets, c.bytes)
	}
	if c := w.fast6; c.packets > 0 {
		x.countReceived(x.ipv6, c.packets, c.bytes)
	}
	w.count.fastPath.Add(w.fast4.packets + w.fast6.packets)
	w.fast4, w.fast6 = traffic{}, traffic{}
}

func packetType(eth []byte) tcpip.PacketType {
	switch {
	case eth[0]&1 == 0:
		return tcpip.PacketHost
	case binary.BigEndian.Uint64(eth)>>16 == macMask:
		return tcpip.PacketBroadcast
	default:
		return tcpip.PacketMulticast
	}
}

// Frames that came in several buffers of the ring, as jumbo frames do, are made one before anybody
// parses them. A frame that is delivered alone then needs no further copy.

// linearize makes each frame of the batch that lies in several buffers one of a single piece, and
// reports whether there was any.
func (w *worker) linearize(frames []dv.Packet) (any bool) {
	for i := range frames {
		p := &frames[i]
		if p.More == 0 {
			continue
		}
		v := buffer.NewView(p.Size())
		w.segments = w.q.Segments(w.segments[:0], p)
		for _, b := range w.segments {
			v.Write(b)
		}
		w.linear[i], p.Data, p.More = v, v.AsSlice(), 0
		any = true
	}
	return any
}

// view is frame i, or its first end bytes, as a view of its own.
func (w *worker) view(i int16, end int) *buffer.View {
	frame, v := w.frames[i].Data, w.linear[i]
	if end == 0 {
		end = len(frame)
	}
	if v == nil {
		return buffer.NewViewWithData(frame[:end])
	}
	w.linear[i] = nil
	v.TrimFront(v.Size() - len(frame)) // what was taken off in front
	v.CapLength(end)
	return v
}

// releaseLinear releases linearized frames that were not delivered alone. Nothing refers to them
// any more.
func (w *worker) releaseLinear(frames []dv.Packet) {
	for i := range frames {
		if v := w.linear[i]; v != nil {
			v.Release()
			w.linear[i] = nil
		}
	}
}

const (
	// chunkMin gives the most payload that goes into a chunk of netstack's own: there are smaller
	// ones for it.
	chunkMin = buffer.MaxChunkSize / 2
	// maxChunks says how many a worker keeps, of 64 KiB each; a power of two.
	maxChunks = 32
)

// chunks is the memory that large payloads are copied into. netstack clears every chunk that it
// takes from its pool, 64 KiB for any payload of more than 32; so the worker keeps a view of each
// chunk it gave away, and writes into that again when nobody else has one.
//
// That nobody has is for package buffer to say, which writes into a chunk only if it has one
// reference, and else into a copy of it (View.Write), or not at all (Buffer.Append). Bytes that
// somebody still refers to are thus never written to, whatever the stack does with a packet: a view
// taken for free by mistake would cost a copy. One worker owns it.
type chunks struct {
	// the only ones of their chunks; the last is taken first: caches may still have it
	free  []*buffer.View
	given [maxChunks]*buffer.View // a ring: the stack has others, or had
	// of given, free-running: what was given longest ago is at tail
	head, tail uint32
	off        bool // there are none: see checkBuffers
}

// get returns an empty view of a chunk of 64 KiB that has no other. It stays ours; the stack is
// given a clone. Nil: all are in use.
func (c *chunks) get() *buffer.View {
	if c.off {
		return nil
	}
	c.collect()
	var v *buffer.View
	switch n := len(c.free); {
	case n > 0:
		v, c.free = c.free[n-1], c.free[:n-1]
		v.Reset()
	case c.head-c.tail < maxChunks:
		v = buffer.NewView(buffer.MaxChunkSize)
	default:
		return nil
	}
	c.lend(v)
	return v
}

// lend notes that the stack is about to have v's chunk.
func (c *chunks) lend(v *buffer.View) {
	c.given[c.head%maxChunks] = v
	c.head++
}

// collect frees what has come back of what was given, until it finds one that has not; that one's
// turn comes again after all others.
func (c *chunks) collect() {
	for c.head != c.tail {
		v := c.given[c.tail%maxChunks]
		c.tail++
		if !unshared(v) {
			c.lend(v)
			return
		}
		c.free = append(c.free, v)
	}
}

// unshared reports whether v is the only view of its chunk; what v holds is lost. Appending to a
// buffer fills up its last chunk, if that is the buffer's alone.
func unshared(v *buffer.View) bool {
	v.Reset()
	v.Grow(1)
	b := buffer.MakeWithView(v)
	b.Append(buffer.NewViewSize(1))
	if v.Size() > 1 {
		return true
	}
	b.Truncate(1)
	return false
}

// bufferCheck says what cannot be used of the ways in which netstack's buffers share memory. The
// functions unshared and marked rely on what package buffer does, not on what it promises: in
// another version of gVisor they may not work. A server then goes without.
type bufferCheck struct {
	chunks error // nil: a worker knows when a chunk has come back, and may use it again
	marks  error // nil: a worker knows when the stack has done with a segment that it marked
}

// checkBuffers tries unshared and marked in all states that they are used in.
func checkBuffers(unshared func(*buffer.View) bool,
	marked func(v, mark *buffer.View) buffer.Buffer) (c bufferCheck) {
	if !works(func() bool { return seesShares(unshared, buffer.MaxChunkSize) }) {
		c.chunks = errors.New("netstack's buffers do not say who shares a chunk: large payloads " +
			"take a new one each, which costs time; use the version of gVisor in our go.mod")
	}
	if !works(func() bool { return seesShares(unshared, 1) && seesMarks(unshared, marked) }) {
		c.marks = errors.New("netstack's buffers do not say when a segment is done with: what " +
			"waits of TCP segments without payload, as in a flood, has no bound " +
			"(Options.RxLimit); use the version of gVisor in our go.mod")
	}
	return c
}

// works reports whether try returns true. A panic is false.
func works(try func() bool) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return try()
}

// seesShares reports whether unshared tells a view that is alone from one that is not, and leaves
// alone what the other holds.
func seesShares(unshared func(*buffer.View) bool, size int) bool {
	v := buffer.NewViewSize(size)
	defer v.Release()
	for range 2 {
		if !unshared(v) {
			return false
		}
		v.Reset()
		v.Write([]byte{1})
		other := v.Clone()
		shared := !unshared(v)
		shared = !unshared(v) && shared // asking has changed nothing
		kept := other.Size() == 1 && other.AsSlice()[0] == 1
		other.Release()
		if !shared || !kept {
			return false
		}
	}
	return unshared(v)
}

// seesMarks reports whether a mark is shared until a packet and its clone are released, and is not
// seen in the packet.
func seesMarks(unshared func(*buffer.View) bool,
	marked func(v, mark *buffer.View) buffer.Buffer) bool {
	const size = 3
	mark := buffer.NewViewSize(1)
	sample := mark.Clone()
	defer sample.Release()
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{
		Payload: marked(buffer.NewViewWithData([]byte{1, 2, 3}), mark)})
	kept := pkt.Data().Size() == size &&
		bytes.Equal(pkt.Data().AsRange().ToSlice(), []byte{1, 2, 3})
	clone := pkt.Clone()
	_, consumed := clone.TransportHeader().Consume(size)
	shared := !unshared(sample)
	pkt.DecRef()
	shared = shared && !unshared(sample)
	clone.DecRef()
	return kept && consumed && shared && unshared(sample)
}

// release lets go of all chunks.
func (c *chunks) release() {
	for ; c.tail != c.head; c.tail++ {
		c.given[c.tail%maxChunks].Release()
	}
	for _, v := range c.free {
		v.Release()
	}
	*c = chunks{}
}

// deliverACK delivers the headers of a segment that ends a handshake, as an ACK without payload
// whose number is ackSeq, in front of it, with a timestamp if it is [ackStamped]: see
// tcpfix/handshake_data.go. r is a copy of
// the segment's run. The TCP checksum is left wrong, as in rewrite.
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
	binary.BigEndian.PutUint32(b[r.L4+4:], r.ackSeq)
	if r.ackFirst == ackStamped {
		const words = 3 // two NOPs, kind, length, value and echo
		if b[r.L4+12]>>4 > 15-words {
			return
		}
		b[r.L4+12] += words << 4
		b = append(b, hdr.OptNop, hdr.OptNop, hdr.OptTimestamp, 10)
		b = append(binary.BigEndian.AppendUint32(b, r.stamp), 0, 0, 0, 0)
	}
	r.setPayload(b, 0)
	ack := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
	defer ack.DecRef()
	r.fastPath = false // which counts frames
	w.deliver(&r, ack)
}

// meetTimeWait decides about a SYN with a timestamp for a connection in TIME-WAIT, where netstack
// does otherwise than Linux: see timeWaitFix of package tcpfix.
func (w *worker) meetTimeWait(frame []byte, l *hdr.Packet) {
	if frame[l.L4+13]&(hdr.FlagSYN|hdr.FlagACK|hdr.FlagRST) != hdr.FlagSYN {
		return
	}
	s := hdr.Received(frame, l, w.e.flows.Key())
	stamp := s.Options().Timestamp
	if stamp == nil {
		return
	}
	n, f := w.attachment.networks.Load(), flowOf(frame, l)
	ep, ok := n.endpoint(l.EtherType, f).(*tcp.Endpoint)
	if !ok || ep.EndpointState() != tcp.StateTimeWait {
		return
	}
	ep.LockUser()
	agreed, recent := ep.SendTSOk, ep.RecentTS
	ep.UnlockUser()
	later := int32(binary.BigEndian.Uint32(stamp[2:]) - recent)
	unread, _ := ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption) // which Abort would throw away
	switch f.Remote, f.RemotePort = (tcpip.Address{}), 0; {
	case !agreed || later == 0: // netstack goes by the sequence number, as Linux does
	case later > 0 && unread == 0 && n.listens(l.EtherType, f):
		w.e.flows.EndTimeWait(&s, ep.Abort)
	default:
		tcpfix.AsStray(s.TCP())
	}
}

// noteEnd notes a FIN, or a SYN, for who counts resets.
func (w *worker) noteEnd(frame []byte, l *hdr.Packet) {
	if w.e.resets.on.Load() {
		state, found := w.attachment.networks.Load().socket(l.EtherType, flowOf(frame, l))
		s := hdr.Received(frame, l, w.e.flows.Key())
		w.e.resets.received(&s, tcpSocketKind(state, found) == connection)
	}
}
