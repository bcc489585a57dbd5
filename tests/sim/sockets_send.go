package sim

import (
	"slices"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// txSocket is a packet.Sender.
type txSocket struct {
	sync.Mutex
	of *sockets

	posted []postedFrame // the holder's
	// frames that the interface has no room for yet, guarded by dev.mu
	waiting []frame.Frame
}

// postedFrame is a frame between Post and Flush: headCopied bytes of it are copied, the rest is
// where the caller has it.
type postedFrame struct {
	packet.TxFrame
	parts [][]byte
}

const (
	headCopied = 128
	// maxPosted is how many frames are posted or wait at most.
	maxPosted = 128
	// maxDatagrams gives the most UDP payload of an IPv4 packet, in bytes.
	maxDatagrams = 65507
)

// MaxDatagrams implements packet.Sender.
func (q *txSocket) MaxDatagrams() int { return maxDatagrams }

// Post implements packet.Sender.
func (q *txSocket) Post(f *packet.TxFrame) error {
	p, size := postedFrame{TxFrame: *f}, 0
	for _, b := range f.Bufs {
		n := max(0, min(len(b), headCopied-size))
		p.parts = append(p.parts, slices.Clone(b[:n]), b[n:])
		size += len(b)
	}
	d := q.of.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case q.of.err != nil:
		return packet.ErrClosed
	case size < frame.EtherHeader || f.GSOSize == 0 && size > q.of.mtu()+frame.EtherHeader:
		return packet.ErrFrameSize
	case len(q.posted)+len(q.waiting) >= maxPosted:
		return packet.ErrFull
	}
	q.posted = append(q.posted, p)
	q.of.past.Posted++
	return nil
}

// frame is what the interface gets.
func (p *postedFrame) frame() frame.Frame {
	f := frame.Frame{Data: slices.Concat(p.parts...)}
	if p.Flags&packet.TxChecksum == 0 && p.GSOSize == 0 {
		return f
	}
	h := frame.Parse(f.Data)
	h.SetIPv4Checksum(f.Data)
	if f.NeedsCsum = h.SeedChecksum(f.Data); !f.NeedsCsum {
		return f
	}
	f.CsumStart, f.CsumOffset = uint16(h.L4At), uint16(h.ChecksumAt()-h.L4At)
	if p.GSOSize > 0 {
		f.MSS, f.GSO = uint16(p.GSOSize), frame.GSOTCPv4
		switch {
		case h.Proto == frame.ProtoUDP:
			f.GSO = frame.GSOUDP
		case h.EtherType == frame.EtherIPv6:
			f.GSO = frame.GSOTCPv6
		}
	}
	return f
}

// Flush implements packet.Sender.
func (q *txSocket) Flush() {
	d := q.of.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range q.posted {
		q.waiting = append(q.waiting, q.posted[i].frame())
	}
	q.posted = q.posted[:0]
	q.retry()
}

// Waiting implements packet.Sender.
func (q *txSocket) Waiting() int {
	q.of.dev.mu.Lock()
	defer q.of.dev.mu.Unlock()
	return len(q.waiting)
}

// Retry implements packet.Sender.
func (q *txSocket) Retry() (gone int) {
	q.of.dev.mu.Lock()
	defer q.of.dev.mu.Unlock()
	return q.retry()
}

// retry is Retry with dev.mu held.
func (q *txSocket) retry() (gone int) {
	d := q.of.dev
	for ; gone < len(q.waiting); gone++ {
		switch {
		case q.of.err != nil || d.gone || d.down:
			q.of.past.Refused++
			continue
		case !d.room():
			q.waiting = q.waiting[gone:]
			return gone
		}
		q.of.past.Sent++
		var scratch []byte
		frame.Cut(q.waiting[gone], &scratch, func(f frame.Frame) {
			d.transmit(slices.Clone(f.Data))
		})
	}
	q.waiting = nil
	return gone
}
