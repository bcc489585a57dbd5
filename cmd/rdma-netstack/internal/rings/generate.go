package rings

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// burst bounds the frames sent per doorbell, and the completions per poll.
const burst = 32

// Generator sends frames on one queue.
type Generator struct {
	Frames [][]byte // sent in turn; a single Template is marked with run and sequence numbers
	Marked bool
	Run    uint32
	Flows  int    // of marked frames; at least 1
	Rate   uint64 // frames per second, 0: unlimited
	Count  uint64 // frames to send, 0: until the context ends

	sent, bytes, waits atomic.Uint64
}

// Sent returns the frames and bytes handed to the NIC so far, and how often the ring was full.
func (g *Generator) Sent() (frames, bytes, waits uint64) {
	return g.sent.Load(), g.bytes.Load(), g.waits.Load()
}

// Send runs until Count frames have been posted to the NIC, ctx ends or the device fails. The
// caller must lock the queue.
func (g *Generator) Send(ctx context.Context, q *dv.TxQueue) error {
	p := dv.TxPacket{Bufs: make([][]byte, 1)}
	start := time.Now()
	for seq := uint64(0); ctx.Err() == nil && (g.Count == 0 || seq < g.Count); {
		n := g.due(seq, start)
		if n == 0 {
			runtime.Gosched()
			continue
		}
		done, err := g.post(q, &p, seq, n)
		q.Flush()
		seq += uint64(done)
		g.sent.Store(seq)
		if q.Reclaim() == 0 && done < n {
			g.waits.Add(1)
			runtime.Gosched()
		}
		if err != nil {
			return err
		}
	}
	return g.drain(ctx, q)
}

// due returns how many of the next burst may be sent now.
func (g *Generator) due(seq uint64, start time.Time) int {
	n := uint64(burst)
	if g.Count != 0 {
		n = min(n, g.Count-seq)
	}
	if g.Rate != 0 {
		allowed := uint64(time.Since(start).Seconds() * float64(g.Rate))
		n = min(n, max(allowed, seq)-seq)
	}
	return int(n)
}

// post puts up to n frames into the ring and returns how many; a full ring is no error.
func (g *Generator) post(q *dv.TxQueue, p *dv.TxPacket, seq uint64, n int) (int, error) {
	for i := range n {
		f := g.Frames[(seq+uint64(i))%uint64(len(g.Frames))]
		if g.Marked {
			mark(f, g.Run, seq+uint64(i), max(g.Flows, 1))
		}
		p.Bufs[0] = f
		if err := q.Post(p); errors.Is(err, dv.ErrRingFull) {
			return i, nil
		} else if err != nil {
			return i, err
		}
		g.bytes.Add(uint64(len(f)))
	}
	return n, nil
}

// drain waits until the NIC has sent everything.
func (g *Generator) drain(ctx context.Context, q *dv.TxQueue) error {
	for free := -1; ctx.Err() == nil && q.Free() != free; runtime.Gosched() {
		free = q.Free()
		q.Reclaim()
	}
	return nil
}
