package rings

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Forwarder sends the frames that one queue receives out of another. It reads nothing but the MAC
// addresses.
type Forwarder struct {
	// To and From become the frames' addresses. Both nil: the frame's own are swapped, so that it
	// returns to its sender.
	To, From net.HardwareAddr

	frames, bytes, dropped atomic.Uint64
}

// Forwarded returns the frames and bytes forwarded, and frames dropped because the other ring was
// full.
func (f *Forwarder) Forwarded() (frames, bytes, dropped uint64) {
	return f.frames.Load(), f.bytes.Load(), f.dropped.Load()
}

// Bounce forwards within one device, without copying: the NIC sends the buffer it received into.
// The caller must lock the send queue.
func (f *Forwarder) Bounce(ctx context.Context, rx *dv.RxQueue, tx *dv.TxQueue,
	pool *dv.Pool) error {
	return poll(ctx, rx, func(pkts []dv.Packet) { f.bounce(pkts, rx, tx, pool) })
}

// bounce forwards one batch.
func (f *Forwarder) bounce(pkts []dv.Packet, rx *dv.RxQueue, tx *dv.TxQueue, pool *dv.Pool) {
	tx.Reclaim()
	for i := range pkts {
		p := &pkts[i]
		f.address(p.Data)
		off := pool.FrameSize() - cap(p.Data)
		if err := tx.PostFrame(p.Frame, off, p.Size(), 0); err != nil {
			f.dropped.Add(1)
			continue
		}
		p.Frame = dv.NoFrame
		f.count(p)
	}
	tx.Flush()
	rx.Release(pkts)
}

// Cross forwards from one device to another: the frame is copied into the other's memory.
func (f *Forwarder) Cross(ctx context.Context, rx *dv.RxQueue, tx *dv.TxQueue) error {
	out := dv.TxPacket{Bufs: make([][]byte, 1)}
	return poll(ctx, rx, func(pkts []dv.Packet) { f.cross(pkts, rx, tx, &out) })
}

// cross forwards one batch. out is scratch memory.
func (f *Forwarder) cross(pkts []dv.Packet, rx *dv.RxQueue, tx *dv.TxQueue, out *dv.TxPacket) {
	tx.Reclaim()
	for i := range pkts {
		f.address(pkts[i].Data)
		out.Bufs = rx.Segments(out.Bufs[:0], &pkts[i])
		if err := tx.Post(out); err != nil {
			f.dropped.Add(1)
			if errors.Is(err, dv.ErrRingFull) {
				tx.Flush()
				tx.Reclaim()
			}
			continue
		}
		f.count(&pkts[i])
	}
	tx.Flush()
	rx.Release(pkts)
}

// address rewrites the frame's addresses in place: the forwarder owns it until it is sent.
func (f *Forwarder) address(b []byte) {
	if f.To == nil && f.From == nil {
		dst, src := binary.BigEndian.Uint64(b)>>16, binary.BigEndian.Uint64(b[4:])&(1<<48-1)
		put48(b, src)
		put48(b[6:], dst)
		return
	}
	copy(b, f.To)
	copy(b[6:], f.From)
}

func put48(b []byte, v uint64) {
	binary.BigEndian.PutUint16(b, uint16(v>>32))
	binary.BigEndian.PutUint32(b[2:], uint32(v))
}

func (f *Forwarder) count(p *dv.Packet) {
	f.frames.Add(1)
	f.bytes.Add(uint64(p.Size()))
}
