package roads

import (
	"math/rand/v2"
	"time"
)

// Road describes both directions of a path. Zero fields do nothing.
type Road struct {
	Name string

	Delay time.Duration // of each frame, in each direction: half of the round trip

	Late   float64       // probability that a frame is late, by less than LateBy
	LateBy time.Duration // of a late frame, uniformly distributed

	Loss     float64 // probability that a frame is lost
	Burst    float64 // probability that a burst of losses begins at a frame
	BurstLen int     // frames in a row

	Dup float64 // probability that a frame arrives twice

	Rate  float64 // bytes per second, with 24 for each frame's preamble, FCS and gap
	Queue float64 // bytes that wait for the rate; what comes beyond is lost

	// Frames that would arrive in the first Pause of every Every arrive at its end. When the first
	// begins follows from the seed.
	Pause, Every time.Duration
}

// framing counts the bytes that Ethernet adds to a frame on the wire: preamble, FCS and least gap.
const framing = 24

// Counts says what became of the frames of one direction.
type Counts struct {
	Frames, Lost, Full, Late, Twice int
}

// Way decides what happens to the frames of one direction of a road. One goroutine at a time uses
// it.
type Way struct {
	Road
	Counts
	// Lose, unless nil, says of each frame whether it is lost, besides what the road loses.
	Lose func(frame []byte) bool

	rand *rand.Rand
	free time.Duration // when the bottleneck has sent what it took
	left int           // of a burst of losses

	phase time.Duration // from the beginning of a pause to that of time
}

// NewWay returns one direction of a road, 0 or 1. What happens to its frames follows from seed.
func NewWay(r Road, seed, direction uint64) *Way {
	w := &Way{Road: r, rand: rand.New(rand.NewPCG(seed, direction))}
	if r.Pause > 0 {
		w.phase = time.Duration(w.rand.Int64N(int64(r.Every)))
	}
	return w
}

// Take returns when a frame that is sent now arrives, n times: not at all, once or twice.
func (w *Way) Take(now time.Duration, frame []byte) (at time.Duration, n int) {
	w.Frames++
	if w.lost(frame) {
		w.Lost++
		return 0, 0
	}
	at = now
	if w.Rate > 0 {
		at = max(at, w.free)
		if (at-now).Seconds()*w.Rate > w.Queue {
			w.Full++
			return 0, 0
		}
		at += time.Duration(float64(len(frame)+framing) / w.Rate * 1e9)
		w.free = at
	}
	at += w.Delay
	if w.draw(w.Road.Late) {
		at += time.Duration(w.rand.Int64N(int64(w.LateBy)))
		w.Counts.Late++
	}
	if w.Pause > 0 {
		if into := (at + w.phase) % w.Every; into < w.Pause {
			at += w.Pause - into
		}
	}
	if w.draw(w.Dup) {
		w.Twice++
		return at, 2
	}
	return at, 1
}

func (w *Way) draw(probability float64) bool {
	return probability > 0 && w.rand.Float64() < probability
}

// lost draws whether the road loses a frame, apart from its queue.
func (w *Way) lost(frame []byte) bool {
	if w.Lose != nil && w.Lose(frame) {
		return true
	}
	if w.left > 0 {
		w.left--
		return true
	}
	if w.draw(w.Road.Burst) {
		w.left = w.BurstLen - 1
		return true
	}
	return w.draw(w.Loss)
}

// Roads returns those of the table, with a round trip of rtt.
func Roads(rtt time.Duration) []Road {
	const ms = time.Millisecond
	fast := func(name string, change func(*Road)) Road {
		r := Road{Name: name, Delay: rtt / 2, Rate: 25e6, Queue: 4e6}
		change(&r)
		return r
	}
	slow := func(name string, queue float64) Road {
		return Road{Name: name, Delay: rtt / 2, Rate: 12.5e6, Queue: queue}
	}
	return []Road{
		fast("clean", func(*Road) {}),
		fast("0.1 % loss", func(r *Road) { r.Loss = 0.001 }),
		fast("1 % loss", func(r *Road) { r.Loss = 0.01 }),
		fast("1 % late", func(r *Road) { r.Late, r.LateBy = 0.01, 5*ms }),
		fast("5 % late", func(r *Road) { r.Late, r.LateBy = 0.05, 5*ms }),
		fast("bursts", func(r *Road) { r.Burst, r.BurstLen = 0.0002, 10 }),
		fast("pauses", func(r *Road) { r.Pause, r.Every = 15*ms, 97*ms }),
		fast("twice", func(r *Road) { r.Dup = 0.01 }),
		slow("100M/100ms", 1.25e6),
		slow("100M/10ms", 125e3),
		{Name: "1G", Delay: rtt / 2, Rate: 125e6, Queue: 12.5e6},
	}
}
