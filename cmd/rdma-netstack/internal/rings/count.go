package rings

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Counter receives on one queue, counts, and checks the sequence numbers of generated frames.
// Frames of one run that arrive on several queues are counted per queue.
type Counter struct {
	frames, bytes, marked, late atomic.Uint64
	next                        map[uint32]uint64 // highest sequence number seen, plus one, by run
}

// Tally holds the counts of a counter.
type Tally struct {
	Frames, Bytes uint64
	Marked        uint64 // generated frames
	Late          uint64 // generated frames after a later one, or duplicated
}

// Tally may be called from any goroutine.
func (c *Counter) Tally() Tally {
	return Tally{c.frames.Load(), c.bytes.Load(), c.marked.Load(), c.late.Load()}
}

// Highest is, by run, the least number of frames that were sent. Call it only after Receive has
// returned.
func (c *Counter) Highest() map[uint32]uint64 { return c.next }

// Receive runs until ctx ends or the device fails.
func (c *Counter) Receive(ctx context.Context, q *dv.RxQueue) error {
	c.next = map[uint32]uint64{}
	return poll(ctx, q, func(pkts []dv.Packet) {
		bytes := 0
		for i := range pkts {
			bytes += pkts[i].Size()
			c.look(pkts[i].Data)
		}
		q.Release(pkts)
		c.frames.Add(uint64(len(pkts)))
		c.bytes.Add(uint64(bytes))
	})
}

// look records a generated frame's number.
func (c *Counter) look(f []byte) {
	run, seq, ok := readMark(f)
	if !ok {
		return
	}
	c.marked.Add(1)
	if seq+1 > c.next[run] {
		c.next[run] = seq + 1
	} else {
		c.late.Add(1)
	}
}

// idlePolls says how often an empty ring is polled before the goroutine parks.
const idlePolls = 2000

// poll takes batches off the ring until ctx ends. It waits for an idle ring without using the
// processor.
func poll(ctx context.Context, q *dv.RxQueue, take func([]dv.Packet)) error {
	stop := context.AfterFunc(ctx, q.Wake)
	defer stop()
	pkts := make([]dv.Packet, burst)
	for idle := 0; ctx.Err() == nil; {
		n := q.Poll(pkts)
		if n > 0 {
			idle = 0
			take(pkts[:n])
			continue
		}
		if idle++; idle < idlePolls {
			runtime.Gosched()
			continue
		}
		idle = 0
		q.Arm()
		if n := q.Poll(pkts); n > 0 {
			take(pkts[:n])
			continue
		}
		if err := q.Wait(); err != nil {
			if errors.Is(err, dv.ErrClosed) {
				return nil
			}
			return err
		}
	}
	return nil
}
