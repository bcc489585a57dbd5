package clocktest

import (
	"container/heap"
	"time"
)

// unset gives the place of a timer that is not in the queue.
const unset = -1

// timer implements clock.Timer. Its clock's lock guards it.
type timer struct {
	clock *Clock
	f     func()
	at    time.Time
	seq   uint64 // the clock's set when it was set
	place int    // in the queue, or unset
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.removeTimer()
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	was := t.removeTimer()
	c.set++
	t.at, t.seq = c.now.Add(max(d, 0)), c.set
	heap.Push(&c.timers, t)
	return was
}

func (t *timer) removeTimer() bool {
	if t.place == unset {
		return false
	}
	heap.Remove(&t.clock.timers, t.place)
	return true
}

// queue is a heap of timers, the next one first.
type queue []*timer

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].seq < q[j].seq
	}
	return q[i].at.Before(q[j].at)
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(x any) {
	t := x.(*timer)
	t.place = len(*q)
	*q = append(*q, t)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q, t.place = (*q)[:last], unset
	return t
}
