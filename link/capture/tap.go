package capture

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Direction says where a frame goes.
type Direction uint8

// The directions. Both is for Options only.
const (
	Both Direction = iota
	In
	Out
)

// The limits of Options, in bytes.
const (
	// MaxSnaplen is tcpdump's: more than any frame has.
	MaxSnaplen = 262144
	// DefaultBuffer says what waits for the reader at most, and MinBuffer the least.
	DefaultBuffer = 8 << 20
	MinBuffer     = 1 << 20
	// filterLen says how much of a frame a filter sees at least.
	filterLen = 256
)

// Options say what a tap records. The zero value is all frames, whole.
type Options struct {
	// Filter is an expression as tcpdump has it, or a program as tcpdump -ddd prints it; see
	// ParseFilter.
	Filter string
	// Snaplen says how many bytes of each frame are kept; 0: MaxSnaplen.
	Snaplen   int
	Direction Direction
	// Queues are those to record, by number; empty: all.
	Queues []int
	// Wire cuts sent segments larger than the MTU as the NIC does.
	Wire bool
	// NICTime gives received frames the time at which the NIC received them, if it says.
	NICTime bool
	// Buffer says how many bytes may wait for the reader; 0: DefaultBuffer.
	Buffer int
	// Clock is the time; the zero value is the system's.
	Clock clock.Clock
}

// Validate says in one sentence what is wrong with o, or nil.
func (o *Options) Validate() error {
	_, err := ParseFilter(o.Filter)
	switch {
	case err != nil:
		return err
	case o.Snaplen < 0 || o.Snaplen > MaxSnaplen:
		return fmt.Errorf("a snapshot length of %d bytes: want 1 to %d, or 0 for whole frames",
			o.Snaplen, MaxSnaplen)
	case o.Buffer != 0 && o.Buffer < MinBuffer:
		return fmt.Errorf("a capture buffer of %d bytes is too small: want %d, or 0 for %d",
			o.Buffer, MinBuffer, DefaultBuffer)
	case o.Direction > Out:
		return fmt.Errorf("direction %d: want Both, In or Out", o.Direction)
	}
	return nil
}

// shards is by how many locks a tap's buffer is divided, so that queues do not wait for each other.
const shards = 8

// Tap describes one capture. Its methods may be called from any goroutine, but WriteTo from one.
type Tap struct {
	opts    Options
	filter  *Filter
	started time.Time
	wake    chan struct{} // has room for one: there is much to write
	closed  atomic.Bool
	shards  [shards]shard

	seen, accepted, lost atomic.Uint64 // frames

	carried []byte // WriteTo's: records that were too new
}

// shard holds the records of some queues, in the order of commit.
type shard struct {
	mu      sync.Mutex
	records []byte // see putRecord
	spare   []byte // the reader's, empty
	lost    uint64 // frames, since the last record
	segment []byte // scratch
	subject subject
}

// New makes a tap. The link does not know of it yet.
func New(opts Options) (*Tap, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	f, _ := ParseFilter(opts.Filter)
	if opts.Snaplen == 0 {
		opts.Snaplen = MaxSnaplen
	}
	if opts.Buffer == 0 {
		opts.Buffer = DefaultBuffer
	}
	return &Tap{opts: opts, filter: f, started: opts.Clock.Now(), wake: make(chan struct{}, 1)}, nil
}

// Counts are frames.
type Counts struct {
	Seen     uint64 `json:"seen"`     // of the direction and the queues
	Accepted uint64 `json:"accepted"` // by the filter
	Lost     uint64 `json:"lost"`     // of those, for lack of room
}

// Counts are as of now.
func (t *Tap) Counts() Counts {
	return Counts{t.seen.Load(), t.accepted.Load(), t.lost.Load()}
}

// Close ends the capture: WriteTo writes what waits, and returns. It may be called again.
func (t *Tap) Close() {
	if t.closed.CompareAndSwap(false, true) {
		t.wakeReader()
	}
}

// wakeReader makes the reader look.
func (t *Tap) wakeReader() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// bytesNeeded returns how many bytes of a frame the tap must see.
func (t *Tap) bytesNeeded() int {
	if t.filter == nil {
		return t.opts.Snaplen
	}
	return max(t.opts.Snaplen, filterLen)
}

// wantsFrames reports whether frames of a direction and queue are recorded.
func (t *Tap) wantsFrames(d Direction, queue int) bool {
	if t.opts.Direction != Both && t.opts.Direction != d {
		return false
	}
	if len(t.opts.Queues) == 0 {
		return true
	}
	for _, q := range t.opts.Queues {
		if q == queue {
			return true
		}
	}
	return false
}
