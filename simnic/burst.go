package simnic

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// rxBurst holds the scratch of one batch of frames on its way to its destinations,
// used by one goroutine.
type rxBurst struct {
	nic    *NIC
	passed time.Duration // when the batch came, after NIC.start; 0 until a receive queue needs it
	p      frame.Headers // of the frame, or packet of it, being delivered
	key    MatchKey
	packet rxPacket
	found  []Destination
	open   []*RQ // hold back completions until the end of the batch
	out    egress
	netdev egress

	waited   *atomic.Bool // of the frame being delivered
	locked   *RQ          // whose lock the goroutine holds: that of the packet before, see lock
	mem      keyHold
	entered  tally // packets that came in
	received tally // packets in receive queues
	routed   int   // copies made

	template, header [frame.MaxHeader]byte
	fcs              [4]byte
}

// rxPacket describes one packet on its way into a receive queue, as pieces to be
// written one after the other.
type rxPacket struct {
	parts    [5][]byte
	n        int // pieces
	length   int // bytes of all
	kind     cast
	padded   bool // came from a wire: at least 60 bytes
	hash     uint32
	hashType uint8
	tag      uint32
	status   uint16   // mlx5.Hdr bits
	sum      uint16   // ones' complement sum of the datagram
	lro      *LROAttr // nil: no LRO
}

func (n *NIC) getBurst() *rxBurst {
	b := n.bursts.get()
	if b.nic == nil {
		b.nic = n
		b.out.initInPlace(b, &n.wire, ownerWire, ctrWireUnplugged)
		b.netdev.initInPlace(b, &n.netdev, ownerNetdev, ctrNetdevLost)
	}
	b.passed = 0
	return b
}

// initInPlace initialises an egress in place. A composite literal would first take 5 KiB of stack,
// for which the stack of a goroutine started for one packet would have to grow.
func (c *egress) initInPlace(b *rxBurst, s *port, o owner, lost counter) {
	c.nic, c.burst, c.port, c.owner, c.lost = b.nic, b, s, o, lost
}

func (n *NIC) putBurst(b *rxBurst) {
	b.packet, b.waited = rxPacket{}, nil
	n.bursts.put(b)
}

// lockQueue takes the lock of a receive queue. The burst holds it until it locks another
// queue, or until leave.
func (b *rxBurst) lockQueue(rq *RQ) {
	if b.locked != rq {
		b.unlockQueue()
		rq.mu.Lock()
		b.locked = rq
	}
}

// unlockQueue releases the lock the burst holds. It is called before every call that may
// call the NIC again, as Send of a wire may.
func (b *rxBurst) unlockQueue() {
	b.mem.releaseKey()
	if b.locked != nil {
		b.locked.mu.Unlock()
		b.locked = nil
	}
}

// finishBurst writes the completions that receive queues hold back, updates counters, and sends the
// frames for the netdev.
func (b *rxBurst) finishBurst() {
	for i, rq := range b.open {
		b.lockQueue(rq)
		rq.finishBatch()
		b.open[i] = nil
	}
	b.open = b.open[:0]
	b.unlockQueue()
	b.addCounts()
	b.netdev.flushEgress()
}

// addCounts adds the results of the packets so far to the NIC's counters.
func (b *rxBurst) addCounts() {
	b.entered.flushTally()
	b.received.flushTally()
	if b.routed > 0 {
		b.nic.counters.addTo(ctrRouted, b.routed)
		b.routed = 0
	}
}

// keepOpen postpones finishing the queue to the end of the batch.
func (b *rxBurst) keepOpen(rq *RQ) {
	for _, o := range b.open {
		if o == rq {
			return
		}
	}
	b.open = append(b.open, rq)
}

func (pk *rxPacket) addPart(part []byte) {
	if len(part) > 0 {
		pk.parts[pk.n] = part
		pk.n++
		pk.length += len(part)
	}
}

var zeros [frame.MinFrame]byte

// setFrame makes the packet of an ordinary frame.
func (b *rxBurst) setFrame(f *frame.Frame) {
	pk := &b.packet
	pk.n, pk.length = 0, 0
	data := f.Data
	at, head := int(f.CsumStart)+int(f.CsumOffset), b.p.L4At+b.p.L4Len
	switch {
	case !f.NeedsCsum:
		b.verifyChecksums(data)
	case b.p.L4At != 0 && b.p.L4At == int(f.CsumStart) && b.p.ChecksumAt() == at &&
		!b.p.Truncated && head <= len(b.header):
		copy(b.header[:head], data)
		binary.BigEndian.PutUint16(b.header[at:], f.L4Checksum())
		pk.addPart(b.header[:head])
		data = data[head:]
		b.setVerified(f.Data)
	default: // a checksum unknown to this parser, such as a tunnel's: rare enough for a copy
		whole := *f
		whole.Data = append([]byte(nil), data...)
		whole.CompleteChecksum()
		data = whole.Data
		b.verifyChecksums(data)
	}
	pk.addPart(data)
	if pk.padded && pk.length < frame.MinFrame {
		pk.addPart(zeros[:frame.MinFrame-pk.length])
	}
}

// setSegment makes the packet of headers and payload that the device assembled.
func (b *rxBurst) setSegment(header, payload []byte) {
	pk := &b.packet
	pk.n, pk.length = 0, 0
	pk.addPart(header)
	pk.addPart(payload)
	if pk.padded && pk.length < frame.MinFrame {
		pk.addPart(zeros[:frame.MinFrame-pk.length])
	}
	b.setVerified(header)
}

// typeBits returns the status bits of the headers found, without those of checksums.
func (b *rxBurst) typeBits(data []byte) (status uint16) {
	p := &b.p
	status = mlx5.HdrL2OK | uint16(p.L3)<<mlx5.HdrL3Shift | l4Type(p, data)<<mlx5.HdrL4Shift
	if p.Extensions {
		status |= mlx5.HdrIPExt
	}
	if p.Fragment {
		status |= mlx5.HdrFragment
	}
	return status
}

// setVerified sets the status of a packet whose checksums the device computed itself.
// The L4 part and its pseudo header sum up to 0xffff, and so does an IPv4 header.
func (b *rxBurst) setVerified(header []byte) {
	p := &b.p
	b.packet.status = b.typeBits(header) | mlx5.HdrL3OK | mlx5.HdrL4OK
	head := uint16(0xffff)
	if p.L3 == mlx5.L3IPv6 {
		head = frame.Sum(header[p.L3At:p.L4At])
	}
	b.packet.sum = frame.AddSums(head, ^p.PseudoSum(header, p.End-p.L4At))
}

// verifyChecksums sets the status of a packet that came with its checksums.
func (b *rxBurst) verifyChecksums(data []byte) {
	p, pk := &b.p, &b.packet
	pk.status, pk.sum = b.typeBits(data), 0
	if p.L3 == mlx5.L3Other {
		return
	}
	split := p.L3At + frame.IPv6Header
	if p.L3 == mlx5.L3IPv4 {
		split = p.L3At + int(data[p.L3At]&15)*4
	}
	if p.L4At != 0 {
		split = p.L4At
	}
	end := p.End
	if b.nic.caps.ChecksumFull {
		end = len(data)
	}
	head, rest := frame.Sum(data[p.L3At:split]), frame.Sum(data[split:end])
	pk.sum = frame.AddSums(head, rest)
	if !p.Truncated && (p.L3 == mlx5.L3IPv6 || head == 0xffff) {
		pk.status |= mlx5.HdrL3OK
	}
	if p.L4At != 0 && !p.Truncated &&
		(frame.AddSums(rest, p.PseudoSum(data, p.End-p.L4At)) == 0xffff || noChecksum(p, data)) {
		pk.status |= mlx5.HdrL4OK
	}
}

// noChecksum reports UDP over IPv4 without a checksum, which counts as right
// (model's choice: drivers must not care).
func noChecksum(p *frame.Headers, b []byte) bool {
	return p.Proto == frame.ProtoUDP && p.L3 == mlx5.L3IPv4 && be16(b[p.L4At+6:]) == 0
}

// addFCS appends the frame check sequence of the packet as it is.
func (b *rxBurst) addFCS() {
	var crc uint32
	for _, part := range b.packet.parts[:b.packet.n] {
		crc = crc32.Update(crc, crc32.IEEETable, part)
	}
	binary.LittleEndian.PutUint32(b.fcs[:], crc)
	b.packet.addPart(b.fcs[:])
}

// stripCTag takes the outermost C-tag out of the packet. Its first piece holds all L2 headers.
func (b *rxBurst) stripCTag() {
	pk := &b.packet
	first := pk.parts[0]
	copy(pk.parts[2:], pk.parts[1:pk.n])
	pk.parts[0], pk.parts[1] = first[:12], first[12+frame.VLANTag:]
	pk.n++
	pk.length -= frame.VLANTag
	pk.status |= mlx5.HdrVLANStripped
}
