package dv

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
)

// Post copies p into the ring or its staging memory, or holds it (see [TxPacket.Holder]); the NIC
// sees it at Flush.
// Frames below 60 bytes are padded with zeros. ErrRingFull: no room now;
// ErrFrameSize, ErrNotSupported: this packet will never do. A packet whose
// payload fits one segment is sent plainly, with both checksums computed.
// One of datagrams takes two descriptors if the last of them is shorter than the others.
func (q *TxQueue) Post(p *TxPacket) error {
	p.Held = false
	if len(p.Bufs) == 1 && len(p.Bufs[0]) <= q.limits.small &&
		p.MSS|int(p.Flags&(TxVLAN|TxStamp)) == 0 && q.postSmall(p.Bufs[0], p.Flags) {
		return nil
	}
	n := 0
	for _, b := range p.Bufs {
		n += len(b)
	}
	if q.signals.isStopped() {
		return q.ended()
	}
	flags, tag := p.Flags, 0
	if flags&(TxVLAN|TxStamp) != 0 {
		if flags&TxStamp != 0 {
			return q.postStamped(p)
		}
		tag = vlanTag
	}
	if p.MSS > 0 {
		if n-p.HdrLen > p.MSS {
			if p.UDP {
				return q.postDatagrams(p, n, tag)
			}
			return q.postLSO(p, n, tag)
		}
		flags |= TxL3Csum | TxL4Csum
	}
	return q.postPlain(p, n, tag, flags)
}

// postStamped posts a packet in descriptors of its own, of which the last asks for a completion:
// its time stamp is the packet's, as of linux drivers/net/ethernet/mellanox/mlx5/core/en_tx.c
// mlx5e_consume_skb.
func (q *TxQueue) postStamped(p *TxPacket) error {
	q.closeMPW()
	p.Flags &^= TxStamp
	err := q.Post(p)
	p.Flags |= TxStamp
	if err != nil {
		return err
	}
	q.closeMPW()
	q.askForCompletion()
	if q.stamped.ring == nil {
		q.stamped.ring = make([]inFlight[Stamper], q.size) // a WQE has one
	}
	q.stamped.push(q.pc, p.Stamper)
	return nil
}

// postPlain posts a frame of n bytes (and a tag of tag bytes) to be sent as it is.
func (q *TxQueue) postPlain(p *TxPacket, n, tag int, flags TxFlags) error {
	if n < ethHeader || n+tag > q.longestFrame() {
		return q.countRefused(
			fmt.Errorf("send frame of %d bytes, the port takes %d to %d: %w", n+tag,
				ethHeader, q.longestFrame(), ErrFrameSize))
	}
	if size := max(n+tag, ethMin); size <= q.limits.inline {
		if q.putMPWInline(p, n+tag, size, flags) {
			return nil
		}
		return q.postInline(p, n+tag, size, flags)
	}
	return q.postStaged(p, n+tag, flags)
}

// postInline writes the frame, size bytes of which n are p's and its tag's, into the descriptor.
func (q *TxQueue) postInline(p *TxPacket, n, size int, flags TxFlags) error {
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(size)
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.fullError()
	}
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csumBits(flags), InlineLen: uint16(size)})
	putFrame(w[inlineAt:inlineAt+n], p)
	clear(w[inlineAt+n : ds*mlx5.DSSize])
	q.count.inline.n++
	q.count.bytes.n += uint64(size)
	q.commitWQE(blocks)
	return nil
}

// postStaged copies the frame of n bytes, tag included, to staging memory.
func (q *TxQueue) postStaged(p *TxPacket, n int, flags TxFlags) error {
	inline := q.limits.minInline
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline) + 1
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.fullError()
	}
	at, ok := q.allocStage(uint32(n))
	if !ok {
		return q.fullError()
	}
	frame := q.stage.buf[at : at+uint32(n)]
	putFrame(frame, p)
	if q.putMPWPointer(n, flags, q.stage.lkey, q.stage.addr+uint64(at)) {
		return nil
	}
	q.putSend(frame, ds, blocks, flags, q.stage.lkey, q.stage.addr+uint64(at))
	return nil
}

// putSend writes the descriptor of a frame that is in registered memory, at
// addr for the NIC, and longer than what must be inlined.
func (q *TxQueue) putSend(frame []byte, ds int, blocks uint32, flags TxFlags,
	lkey uint32, addr uint64) {
	inline := q.limits.minInline
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:],
		mlx5.Eth{CsumFlags: csumBits(flags), InlineLen: uint16(inline)})
	if inline > 0 {
		mlx5.PutInlineHeader(w[mlx5.CtrlSegSize:], frame[:inline])
	}
	mlx5.PutData(w[(ds-1)*mlx5.DSSize:], uint32(len(frame)-inline), lkey, addr+uint64(inline))
	q.count.bytes.n += uint64(len(frame))
	q.commitWQE(blocks)
}

// inlineAt says where inlined bytes start in a descriptor.
const inlineAt = mlx5.CtrlSegSize + mlx5.InlineOffset

// csumBits returns the checksum bits of an Ethernet segment for f.
func csumBits(f TxFlags) uint8 { return uint8(f&(TxL3Csum|TxL4Csum)) * mlx5.CsumL3 }

// vlanTag gives the size of an 802.1Q tag, which stands behind the two MAC addresses.
const (
	vlanTag   = 4
	vlanAt    = 12
	vlanEther = 0x8100
	vlanID    = 0x0fff // of the tag control information
	maxVLAN   = vlanID - 1
)

// putFrame gathers p's bytes into dst, which has just the room for them and
// for the tag, if one is asked for.
func putFrame(dst []byte, p *TxPacket) {
	if len(p.Bufs) == 1 && p.Flags&TxVLAN == 0 {
		copy(dst, p.Bufs[0])
		return
	}
	gatherFrame(dst, p)
}

// gatherFrame is putFrame for a frame in pieces or with a tag.
func gatherFrame(dst []byte, p *TxPacket) {
	if p.Flags&TxVLAN == 0 {
		gatherBytes(dst, p.Bufs, 0)
		return
	}
	gatherBytes(dst[:vlanAt], p.Bufs, 0)
	binary.BigEndian.PutUint16(dst[vlanAt:], vlanEther)
	binary.BigEndian.PutUint16(dst[vlanAt+2:], p.VLAN)
	gatherBytes(dst[vlanAt+vlanTag:], p.Bufs, vlanAt)
}

// gatherBytes fills dst with the bytes of bufs, from the skip'th on.
func gatherBytes(dst []byte, bufs [][]byte, skip int) {
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		n := copy(dst, b[skip:])
		if dst, skip = dst[n:], 0; len(dst) == 0 {
			return
		}
	}
}

// countRefused counts a packet that cannot be sent.
func (q *TxQueue) countRefused(err error) error {
	q.count.refused.n++
	q.count.showFaults()
	return err
}

// PostFrame sends n bytes at offset off of frame f without copying. On success the frame is the
// queue's, and goes back to the pool when sent; on failure it stays the caller's. Received frames
// of the device may be sent on this way: set the Packet's Frame to NoFrame then. n may be
// Packet.Size of a frame in several buffers. It refuses TxVLAN and TxStamp.
func (q *TxQueue) PostFrame(f Frame, off, n int, flags TxFlags) error {
	if q.signals.isStopped() {
		return q.ended()
	}
	if err := q.checkFrame(f, off, n, flags); err != nil {
		return q.countRefused(err)
	}
	if n > q.pool.size-off {
		return q.postChain(f, off, n, flags)
	}
	bytes := q.pool.Bytes(f)
	if n < ethMin {
		clear(bytes[off+n : off+ethMin])
		n = ethMin
	}
	inline := q.limits.minInline
	if n <= inline {
		return q.postShortFrame(f, bytes[off:off+n], flags)
	}
	addr := q.pool.frameAddr(f) + uint64(off)
	if q.putMPWPointer(n, flags, q.pool.lkey, addr) {
		q.trackInFlight(f)
		return nil
	}
	ds := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline) + 1
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.fullError()
	}
	q.putSend(bytes[off:off+n], ds, blocks, flags, q.pool.lkey, addr)
	q.trackInFlight(f)
	return nil
}

// trackInFlight leaves frame f with the NIC until the descriptor that ends at pc, or
// grows on from there, is completed.
func (q *TxQueue) trackInFlight(f Frame) {
	q.inFlightFrames.push(q.pc, f)
	q.count.zeroCopy.n++
}

// postShortFrame sends a frame that the device wants inlined as a whole.
func (q *TxQueue) postShortFrame(f Frame, frame []byte, flags TxFlags) error {
	one := [1][]byte{frame}
	err := q.postInline(&TxPacket{Bufs: one[:]}, len(frame), len(frame), flags)
	if err == nil {
		q.pool.Put(f)
	}
	return err
}

func (q *TxQueue) checkFrame(f Frame, off, n int, flags TxFlags) error {
	switch {
	case !q.pool.ownsFrame(f):
		return fmt.Errorf("send frame %d, the pool has %d: %w", f, q.pool.count, ErrFrameSize)
	case n < ethHeader || n > q.longestFrame() || off < 0 || off > q.pool.size-ethMin ||
		!q.pool.chainReaches(f, off, n):
		return fmt.Errorf(
			"send %d bytes at offset %d of a frame of %d, the port takes %d to %d: %w",
			n, off, q.pool.size, ethHeader, q.longestFrame(), ErrFrameSize)
	case flags&(TxVLAN|TxStamp) != 0:
		return fmt.Errorf("insert a VLAN tag, or stamp, without copying: %w", ErrNotSupported)
	}
	return nil
}

// postChain is PostFrame for a frame that lies in several buffers: a descriptor
// of its own, with a pointer to each piece.
func (q *TxQueue) postChain(f Frame, off, n int, flags TxFlags) error {
	inline, first := q.limits.minInline, q.pool.size-off
	if first <= inline {
		return q.countRefused(
			fmt.Errorf("send a frame with %d bytes in its first buffer, the device wants %d in "+
				"the descriptor: %w",
				first, inline, ErrFrameSize))
	}
	head := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(inline)
	ds := head + 1 + (n-first+q.pool.size-1)/q.pool.size
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.fullError()
	}
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpSend, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:],
		mlx5.Eth{CsumFlags: csumBits(flags), InlineLen: uint16(inline)})
	if inline > 0 {
		mlx5.PutInlineHeader(w[mlx5.CtrlSegSize:], q.pool.Bytes(f)[off:off+inline])
	}
	q.putPieces(w[head*mlx5.DSSize:ds*mlx5.DSSize], f, off+inline, n-inline)
	q.count.bytes.n += uint64(n)
	q.commitWQE(blocks)
	q.trackInFlight(f)
	return nil
}

// putPieces fills w with pointers to n bytes that begin off bytes into f.
func (q *TxQueue) putPieces(w []byte, f Frame, off, n int) {
	for at := 0; at < len(w); at += mlx5.DataSegSize {
		size := min(n, q.pool.size-off)
		mlx5.PutData(w[at:], uint32(size), q.pool.lkey, q.pool.frameAddr(f)+uint64(off))
		f, n, off = q.pool.next[f], n-size, 0
	}
}

// minLSOHeader is an Ethernet, an IPv4 and a TCP header, in bytes.
const minLSOHeader = 14 + 20 + 20

// postLSO posts a packet of n bytes (and a tag of tag bytes) for the NIC to
// segment: all headers go into the descriptor, the payload into staging memory, or nowhere if it is
// in send memory and the packet may be held.
func (q *TxQueue) postLSO(p *TxPacket, n, tag int) error {
	header, payload := p.HdrLen+tag, n-p.HdrLen
	if err := q.checkLSO(p, header, payload); err != nil {
		return q.countRefused(err)
	}
	pieces := 0
	if p.Holder != nil {
		pieces = q.lent.countPieces(p.Bufs, p.HdrLen)
	}
	head := mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(header)
	ds := head + max(pieces, 1)
	blocks := uint32(mlx5.BBs(ds))
	if q.room() < blocks {
		return q.fullError()
	}
	var at uint32
	if pieces == 0 {
		var ok bool
		if at, ok = q.allocStage(uint32(payload)); !ok {
			return q.fullError()
		}
		gatherBytes(q.stage.buf[at:at+uint32(payload)], p.Bufs, p.HdrLen)
	}
	w := q.descriptor(blocks)
	mlx5.PutCtrl(w, mlx5.OpLSO, 0, uint16(q.pc), q.sqn, uint8(ds), mlx5.CEOnError)
	mlx5.PutEth(w[mlx5.CtrlSegSize:], mlx5.Eth{
		CsumFlags: csumBits(TxL3Csum | TxL4Csum), MSS: uint16(p.MSS), InlineLen: uint16(header),
	})
	putFrame(w[inlineAt:inlineAt+header], p)
	clear(w[inlineAt+header : head*mlx5.DSSize])
	if pieces == 0 {
		mlx5.PutData(w[head*mlx5.DSSize:], uint32(payload), q.stage.lkey, q.stage.addr+uint64(at))
	} else {
		q.lent.putPieces(w[head*mlx5.DSSize:], p.Bufs, p.HdrLen)
	}
	q.count.lso.n++
	q.count.bytes.n += uint64(header + payload)
	q.commitWQE(blocks)
	if pieces > 0 {
		q.holdUntilSent(p)
	}
	return nil
}

// holdUntilSent keeps the memory of p, whose descriptor ends at pc, until that is completed.
func (q *TxQueue) holdUntilSent(p *TxPacket) {
	if q.held.ring == nil {
		q.held.ring = make([]inFlight[Holder], q.size) // a WQE has one
	}
	q.held.push(q.pc, p.Holder)
	p.Held = true
	q.count.held.n++
}

// releaseAllHeld ends the references to all packets. The NIC must not know them any more.
func (q *TxQueue) releaseAllHeld() {
	q.releaseHeld(q.pc)
	q.count.showDone()
}

// checkLSO refuses what would put the queue in error, or what the NIC would
// cut into frames that the port drops.
func (q *TxQueue) checkLSO(p *TxPacket, header, payload int) error {
	least, most := minLSOHeader, q.limits.lsoHeader
	if p.UDP {
		least, most = minDatagramHeader, min(most, maxDatagramHeader+header-p.HdrLen)
	}
	switch {
	case q.limits.tso == 0:
		return fmt.Errorf("segment %d bytes: %w", payload, ErrNotSupported)
	case p.HdrLen < least || header > most:
		return fmt.Errorf("segment behind %d header bytes, %d to %d will do: %w", header,
			least, most, ErrFrameSize)
	case payload > q.limits.tso:
		return fmt.Errorf("segment %d bytes, at most %d will do: %w", payload,
			q.limits.tso, ErrFrameSize)
	case header+p.MSS > q.longestFrame():
		return fmt.Errorf("segments of %d bytes, the port takes %d: %w", header+p.MSS,
			q.longestFrame(), ErrFrameSize)
	}
	return nil
}

// The NIC gives each datagram that it cuts off its IP length, identification and checksums, but
// the UDP length of the descriptor's header: linux drivers/net/ethernet/mellanox/mlx5/core/
// en_accel/en_accel.h, mlx5e_udp_gso_handle_tx_skb, wrote there what one datagram has, and later
// versions leave that to net/ipv4/udp_offload.c, which has the driver send equal ones only
// (NETIF_F_GSO_PARTIAL). That driver does so on every device that segments: there is no capability
// of its own. So a short datagram behind the others has a descriptor of its own.

// Sizes of headers of datagrams to be segmented, in bytes: Ethernet, IPv4 with at most 40 bytes of
// options or IPv6, UDP.
const (
	udpHeader         = 8
	ipv4Header        = 20
	minDatagramHeader = ethHeader + ipv4Header + udpHeader
	maxDatagramHeader = ethHeader + 60 + udpHeader
)

// datagramParts tells where a packet of datagrams is taken apart.
type datagramParts struct {
	header [maxDatagramHeader]byte
	part   TxPacket // what goes into one descriptor
}

// MaxDatagrams returns how many bytes of payload Post takes with TxPacket.UDP, behind the longest
// headers; 0: none.
func (q *TxQueue) MaxDatagrams() int {
	return max(0, q.limits.tso-maxDatagramHeader-vlanTag)
}

// postDatagrams posts a packet of n bytes (and a tag of tag bytes) to be sent as datagrams: those
// of equal size, and what is left.
func (q *TxQueue) postDatagrams(p *TxPacket, n, tag int) error {
	payload := n - p.HdrLen
	if err := q.checkLSO(p, p.HdrLen+tag, payload); err != nil {
		return q.countRefused(err)
	}
	d := &q.datagrams
	gatherBytes(d.header[:p.HdrLen], p.Bufs, 0)
	if version := d.header[ethHeader] >> 4; version != 4 && version != 6 {
		return q.countRefused(fmt.Errorf("cut up UDP behind IP of version %d: %w", version,
			ErrNotSupported))
	}
	short := payload % p.MSS
	if !q.roomForDatagrams(p, payload-short, short, tag) {
		return q.fullError()
	}
	if err := q.postPart(p, 0, payload-short, tag); err != nil || short == 0 {
		return err
	}
	q.count.packets.n-- // both are one packet
	return q.postPart(p, payload-short, short, tag)
}

// roomForDatagrams reports whether there is room for whole bytes of payload in datagrams of equal
// size, and for one of short bytes: either all is posted or nothing.
func (q *TxQueue) roomForDatagrams(p *TxPacket, whole, short, tag int) bool {
	header := p.HdrLen + tag
	stage := q.stage
	if q.cc == q.pc {
		stage.restartIfEmpty()
	}
	blocks, ok := uint32(0), true
	if whole > p.MSS {
		blocks = uint32(mlx5.BBs(mlx5.CtrlSegSize/mlx5.DSSize + mlx5.EthDS(header) + 1))
		_, ok = stage.allocPiece(uint32(whole))
	} else {
		blocks, ok = q.plainRoom(&stage, header+whole)
	}
	if short > 0 && ok {
		var more uint32
		more, ok = q.plainRoom(&stage, header+short)
		blocks += more
	}
	return ok && q.room() >= blocks
}

// plainRoom returns how many blocks a frame of n bytes takes at most, and takes what it needs of
// stage; false if there is no room.
func (q *TxQueue) plainRoom(stage *staging, n int) (blocks uint32, ok bool) {
	ds := mlx5.CtrlSegSize / mlx5.DSSize
	if size := max(n, ethMin); size <= q.limits.inline {
		return uint32(mlx5.BBs(ds + mlx5.EthDS(size))), true
	}
	_, ok = stage.allocPiece(uint32(n))
	return uint32(mlx5.BBs(ds + mlx5.EthDS(q.limits.minInline) + 1)), ok
}

// postPart posts n bytes of p's payload, from byte at on, for which there is room.
func (q *TxQueue) postPart(p *TxPacket, at, n, tag int) error {
	d := &q.datagrams
	bufs := append(d.part.Bufs[:0], d.header[:p.HdrLen])
	for left, skip, i := n, p.HdrLen+at, 0; left > 0; i++ {
		if b := p.Bufs[i]; skip < len(b) {
			b = b[skip:min(len(b), skip+left)]
			bufs, left, skip = append(bufs, b), left-len(b), 0
		} else {
			skip -= len(b)
		}
	}
	d.part = TxPacket{Bufs: bufs, HdrLen: p.HdrLen, MSS: p.MSS, UDP: true, VLAN: p.VLAN,
		Flags: p.Flags | TxL3Csum | TxL4Csum}
	d.setLengths(min(n, p.MSS))
	defer clear(bufs) // the payload is the caller's
	if n > p.MSS {
		return q.postLSO(&d.part, p.HdrLen+n, tag)
	}
	return q.postPlain(&d.part, p.HdrLen+n, tag, d.part.Flags)
}

// setLengths makes the headers those of a datagram with n bytes of payload.
func (d *datagramParts) setLengths(n int) {
	header := d.header[:d.part.HdrLen]
	ip, udp := header[ethHeader:], header[len(header)-udpHeader:]
	binary.BigEndian.PutUint16(udp[4:], uint16(udpHeader+n))
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+n))
	} else {
		const ipv6Header = 40
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Header+n))
	}
}

// Multi-packet descriptors (enhanced MPW) hold a control and an Ethernet
// segment and then a record per frame: a pointer, or the frame itself. One is
// kept open while frames with the same flags come, and grows block by block;
// its blocks count as written (pc) from the moment they are taken. It is
// closed by Flush, by a descriptor of any other kind, by other flags, and when
// it is full. It never runs over the end of the ring: there it ends.

// mpw describes the descriptor that is open, starting at block count TxQueue.last.
type mpw struct {
	ds    uint32 // its length so far in 16-byte units; 0: none is open
	limit uint32 // how long it can get: 0 if none is open
	flags TxFlags
	// before says how many packets had been posted when it was opened.
	before uint64
}

// mpwHead gives the length of what precedes the records.
const mpwHead = (mlx5.CtrlSegSize + mlx5.EthSegSize) / mlx5.DSSize

// dsPerBB says how many 16-byte units make a block.
const dsPerBB = mlx5.BB / mlx5.DSSize

// mpwRecord returns room for a record of ds units, for a frame with these flags, in a multi-packet
// descriptor. nil: the frame needs a descriptor of its own, because the queue has no such
// descriptors, the end of the ring is near, or there is no room.
func (q *TxQueue) mpwRecord(ds uint32, flags TxFlags) []byte {
	m := &q.mpw
	if (m.ds+ds > m.limit || m.flags != flags) && !q.openMPW(ds, flags) {
		return nil
	}
	at := (q.last&q.mask)*mlx5.BB + m.ds*mlx5.DSSize
	m.ds += ds
	q.pc = q.last + (m.ds+dsPerBB-1)/dsPerBB
	q.count.packets.n++
	return q.ring[at : at+ds*mlx5.DSSize]
}

// openMPW starts a descriptor that has room for a record of ds units.
func (q *TxQueue) openMPW(ds uint32, flags TxFlags) bool {
	q.closeMPW()
	slot := q.pc & q.mask
	limit := min(q.limits.mpw, (q.size-slot)*dsPerBB, q.room()*dsPerBB)
	if mpwHead+ds > limit {
		return false
	}
	mlx5.PutEth(q.ring[slot*mlx5.BB+mlx5.CtrlSegSize:], mlx5.Eth{CsumFlags: csumBits(flags)})
	q.last = q.pc
	q.mpw = mpw{ds: mpwHead, limit: limit, flags: flags, before: q.count.packets.n}
	return true
}

// closeMPW ends the open descriptor, if there is one.
func (q *TxQueue) closeMPW() {
	ds := q.mpw.ds
	if ds == 0 {
		return
	}
	q.mpw.ds, q.mpw.limit = 0, 0
	q.count.mpw.n += q.count.packets.n - q.mpw.before
	w := q.ring[(q.last&q.mask)*mlx5.BB:]
	mlx5.PutCtrl(w, mlx5.OpEnhancedMPW, 0, uint16(q.last), q.sqn, uint8(ds), mlx5.CEOnError)
	if q.pc-q.asked >= q.quarter {
		q.askForCompletion()
	}
}

// postSmall is Post for what there is most of: a frame of up to txLimits.small
// bytes in one piece, which needs nothing but to be copied into a shared
// descriptor. It reports false, and
// has done nothing, where there is more to it.
func (q *TxQueue) postSmall(b []byte, flags TxFlags) bool {
	if len(b) < ethMin || q.signals.isStopped() {
		return false
	}
	w := q.mpwRecord(uint32(mlx5.InlineDS(len(b))), flags)
	if w == nil {
		return false
	}
	*(*[mlx5.DSSize]byte)(w[len(w)-mlx5.DSSize:]) = [mlx5.DSSize]byte{}
	mlx5.PutInlineDataHeader(w, len(b))
	copy(w[mlx5.InlineHeaderSize:], b)
	q.count.inline.n++
	q.count.bytes.n += uint64(len(b))
	return true
}

// putMPWInline adds a frame, size bytes of which n are p's and its tag's.
func (q *TxQueue) putMPWInline(p *TxPacket, n, size int, flags TxFlags) bool {
	w := q.mpwRecord(uint32(mlx5.InlineDS(size)), flags)
	if w == nil {
		return false
	}
	if n == size {
		*(*[mlx5.DSSize]byte)(w[len(w)-mlx5.DSSize:]) = [mlx5.DSSize]byte{}
	} else {
		clear(w)
	}
	mlx5.PutInlineDataHeader(w, size)
	putFrame(w[mlx5.InlineHeaderSize:mlx5.InlineHeaderSize+n], p)
	q.count.inline.n++
	q.count.bytes.n += uint64(size)
	return true
}

// putMPWPointer adds a frame of n bytes that is in registered memory.
func (q *TxQueue) putMPWPointer(n int, flags TxFlags, lkey uint32, addr uint64) bool {
	w := q.mpwRecord(1, flags)
	if w == nil {
		return false
	}
	mlx5.PutData(w, uint32(n), lkey, addr)
	q.count.bytes.n += uint64(n)
	return true
}

// txTimeout says how long descriptors may wait without a completion, with the link up, before the
// queue is replaced: what linux allows the queues of a netdev on the same port (watchdog_timeo in
// drivers/net/ethernet/mellanox/mlx5/core/en_main.c). A ring is sent in less than 100 ms on the
// slowest link that a card has, but not while the other end pauses the port (IEEE 802.3 annex 31B,
// 802.1Qbb), which may be for minutes.
const txTimeout = 15 * time.Second

// Check looks after a queue that nobody may be at: it reclaims, asks for a replacement of a queue
// that stands still for longer than 15 s with the link up, makes all counters visible and logs
// resets that had no line yet. Call it about 100 ms after a Flush, and again and again for as long
// as it returns true: there is something left to look after.
func (q *TxQueue) Check() (again bool) {
	q.Reap()
	q.watchForStall()
	q.logResets()
	q.count.showPosts()
	q.publishCounts()
	q.count.showFaults()
	return !q.signals.isStopped() && (q.pc != q.cc || q.recovery.unlogged > 0)
}

// showEvery says after how many completions Reap shows the counters: that costs three times as much
// as to consume one.
const showEvery = 16

// publishCounts makes what completions and flushes changed visible.
func (q *TxQueue) publishCounts() {
	q.shown = q.count.completions.n
	q.count.showDone()
}

// txStall says how long descriptors have waited without a completion, with the link up.
type txStall struct {
	since    time.Time // zero: none wait
	cc       uint32
	timedOut bool // too long: the queue is to be replaced
}

// watchForStall signals a reset when the queue has stood still for too long.
func (q *TxQueue) watchForStall() {
	if q.rung == q.cc {
		q.stall = txStall{}
		return
	}
	now := q.recovery.now()
	if q.stall.since.IsZero() || q.stall.cc != q.cc || !q.linkUp() {
		q.stall = txStall{since: now, cc: q.cc}
	} else if now.Sub(q.stall.since) > txTimeout+q.slowest {
		q.stall.timedOut = true
		q.signals.raiseBits(signalReset)
	}
}

// timeAtRate returns how long the most that the ring can hold takes at a rate; 0: no rate.
func (q *TxQueue) timeAtRate(r TxRate) time.Duration {
	if r.BitsPerSecond == 0 {
		return 0
	}
	most := uint64(q.stage.size) + uint64(q.size)*uint64(q.longestFrame())
	if q.lent.mem != nil {
		most += uint64(q.lent.mem.Len())
	}
	return time.Duration(float64(most*8) / float64(r.BitsPerSecond) * float64(time.Second))
}

// fullError returns the answer to a packet there is no room for.
func (q *TxQueue) fullError() error {
	q.count.stalls.n++
	q.count.showFaults()
	q.watchForStall()
	return ErrRingFull
}

// logResets logs the resets there were since the last line, once per second at most.
func (q *TxQueue) logResets() {
	if n := q.recovery.resetsToLog(); n > 0 {
		q.log.Warn("send queue was in error and is replaced", "queue", q.index, "resets", n,
			"lost_packets", q.count.lost.n, "cause", q.recovery.cause)
	}
}
