package roads

import (
	"container/heap"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Relay carries frames between the far ends of two wires, each of which a host is at the near end
// of. Travel says how they fare.
type Relay struct {
	ends  [2]wire.Wire
	lines [2]*line
}

// Waker makes what runs f once, d from now or as soon as it can; another call replaces the time.
type Waker func(f func()) (wakeIn func(d time.Duration))

// NewRelay starts a relay between two wires, on the time of now. The caller closes the wires.
func NewRelay(a, b wire.Wire, now func() time.Duration, waker Waker) (*Relay, error) {
	r := &Relay{ends: [2]wire.Wire{a, b}}
	for i := range r.lines {
		l := &line{way: NewWay(Road{}, 0, 0), to: r.ends[1-i], now: now}
		l.wakeIn = waker(l.deliver)
		r.lines[i] = l
	}
	for i, end := range r.ends {
		if err := end.Start(r.lines[i].take); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Travel makes the frames from now on go by other ways: from a to b, and from b to a.
func (r *Relay) Travel(ways [2]*Way) {
	for i, l := range r.lines {
		l.mu.Lock()
		l.way, l.lag = ways[i], 0
		l.mu.Unlock()
	}
}

// Fared says what became of the frames of both directions since Travel, and by how much the latest
// of them was later than the road has it: what a busy machine adds to a path.
func (r *Relay) Fared() (of [2]Counts, lag time.Duration) {
	for i, l := range r.lines {
		l.mu.Lock()
		of[i], lag = l.way.Counts, max(lag, l.lag)
		l.mu.Unlock()
	}
	return of, lag
}

// line carries the frames of one direction of a relay.
type line struct {
	to     wire.Wire
	now    func() time.Duration
	wakeIn func(time.Duration)

	mu      sync.Mutex
	way     *Way
	lag     time.Duration // of the latest frame behind its time
	waiting arrivals
	number  uint64
	scratch []byte
}

// arrival holds a frame on its way.
type arrival struct {
	at     time.Duration
	number uint64 // orders those of one time
	data   []byte
}

// arrivals orders the frames of one line, as a heap by time.
type arrivals []arrival

func (h arrivals) Len() int { return len(h) }
func (h arrivals) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h arrivals) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *arrivals) Push(x any)   { *h = append(*h, x.(arrival)) }
func (h *arrivals) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last], *h = arrival{}, (*h)[:last]
	return a
}

// take puts frames of a wire onto the road, as the packets that they stand for.
func (l *line) take(frames []frame.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, f := range frames {
		frame.Cut(f, &l.scratch, func(f frame.Frame) {
			at, n := l.way.Take(now, f.Data)
			for range n {
				l.number++
				heap.Push(&l.waiting, arrival{at, l.number, append([]byte(nil), f.Data...)})
			}
		})
	}
	l.wake(now)
}

// wake sets the timer to the next arrival. mu is held.
func (l *line) wake(now time.Duration) {
	if len(l.waiting) > 0 {
		l.wakeIn(max(0, l.waiting[0].at-now))
	}
}

// deliver sends on what has arrived.
func (l *line) deliver() {
	l.mu.Lock()
	var due []frame.Frame
	now := l.now()
	for len(l.waiting) > 0 && l.waiting[0].at <= now {
		a := heap.Pop(&l.waiting).(arrival)
		due, l.lag = append(due, frame.Frame{Data: a.data}), max(l.lag, now-a.at)
	}
	l.wake(now)
	l.mu.Unlock()
	if len(due) > 0 {
		_, _ = l.to.Send(due) // what an interface does not take is lost
	}
}
