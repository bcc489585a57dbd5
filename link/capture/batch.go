package capture

import "time"

// Frame is a frame to record. The slices stay the caller's.
type Frame struct {
	// Bufs are the frame's bytes from the Ethernet header on, without FCS.
	Bufs [][]byte
	// Tag is the tag control information of the VLAN tag that the NIC has taken out, or is to put
	// in, if Tagged.
	Tag    uint16
	Tagged bool
	// Unsummed: the NIC is to compute the checksums of IP, TCP and UDP.
	Unsummed bool
	// MSS gives the payload of each segment that the NIC is to cut the frame into, in bytes, and
	// Headers the length of the headers in front of it; 0: it is sent as it is.
	MSS, Headers int
	// NICTime says when the NIC received it; zero: it does not say.
	NICTime time.Time
}

// Batch is frames of one queue on their way to the taps. The queue's owner owns it. The zero value
// is empty.
type Batch struct {
	taps      []*Tap
	direction Direction
	queue     int
	at        time.Time
	limit     int // bytes of a frame that are kept
	wire      bool
	nicTime   bool
	data      []byte
	frames    []held
}

// held describes one frame of a batch.
type held struct {
	from, kept, length int // in data, in bytes
	headers, mss       int
	unsummed           bool
	nic                time.Time
	dropped            string // why; empty: it was not
}

// Begin empties the batch, for frames of one direction and queue. It reports whether any of the
// taps, which it keeps until Commit, wants such frames.
func (b *Batch) Begin(taps []*Tap, d Direction, queue int) bool {
	b.taps, b.direction, b.queue = b.taps[:0], d, queue
	b.limit, b.wire, b.nicTime = 0, false, false
	b.data, b.frames = b.data[:0], b.frames[:0]
	for _, t := range taps {
		if t.wantsFrames(d, queue) && !t.closed.Load() {
			b.taps = append(b.taps, t)
			b.limit, b.wire = max(b.limit, t.bytesNeeded()), b.wire || t.opts.Wire
			b.nicTime = b.nicTime || t.opts.NICTime
		}
	}
	if len(b.taps) == 0 {
		return false
	}
	b.at = b.taps[0].opts.Clock.Now()
	return true
}

// Active reports whether the batch is between Begin, which was true, and Commit.
func (b *Batch) Active() bool { return len(b.taps) > 0 }

// WantsNICTime reports whether any tap has use for Frame.NICTime.
func (b *Batch) WantsNICTime() bool { return b.nicTime }

const (
	macsLen = 12 // both addresses of an Ethernet header
	tagLen  = 4
)

// Add copies a frame.
func (b *Batch) Add(f *Frame) {
	h := held{from: len(b.data), headers: f.Headers, mss: f.MSS,
		unsummed: f.Unsummed, nic: f.NICTime}
	limit := b.limit
	if f.MSS > 0 && b.wire {
		limit = MaxSnaplen
	}
	for _, buf := range f.Bufs {
		h.length += len(buf)
		if room := limit - (len(b.data) - h.from); room > 0 {
			b.data = append(b.data, buf[:min(room, len(buf))]...)
		}
	}
	if f.Tagged && len(b.data)-h.from >= macsLen {
		b.data = append(b.data, 0, 0, 0, 0)
		frame := b.data[h.from:]
		copy(frame[macsLen+tagLen:], frame[macsLen:])
		frame[12], frame[13], frame[14], frame[15] = 0x81, 0x00, byte(f.Tag>>8), byte(f.Tag)
		h.length += tagLen
		if h.headers > 0 {
			h.headers += tagLen
		}
	}
	h.kept = len(b.data) - h.from
	b.frames = append(b.frames, h)
}

// Drop says why the link dropped frame i of the batch.
func (b *Batch) Drop(i int, reason string) { b.frames[i].dropped = reason }

// Commit hands the frames to the taps and ends the batch.
func (b *Batch) Commit() {
	for _, t := range b.taps {
		t.commitBatch(b)
	}
	clear(b.taps)
	b.taps = b.taps[:0]
}

// commitBatch records what the tap wants of a batch.
func (t *Tap) commitBatch(b *Batch) {
	t.seen.Add(uint64(len(b.frames)))
	s := &t.shards[(b.queue*2+int(b.direction))%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	order := t.opts.Clock.Now()
	for i := range b.frames {
		h := &b.frames[i]
		frame := b.data[h.from : h.from+h.kept]
		if !t.filter.matches(&s.subject, frame, h.length) {
			continue
		}
		if h.mss > 0 && t.opts.Wire && h.length > h.headers {
			t.recordSegments(s, b, h, order)
			continue
		}
		if h.unsummed {
			completeSums(frame, h.length, h.mss > 0)
		}
		t.recordFrame(s, b, h, frame, h.length, order)
	}
	if len(s.records) > t.opts.Buffer/shards/2 {
		t.wakeReader()
	}
}

// recordFrame appends one frame to the shard, whose lock is held, or counts it as lost.
func (t *Tap) recordFrame(s *shard, b *Batch, h *held, frame []byte, length int, order time.Time) {
	t.accepted.Add(1)
	frame = frame[:min(len(frame), t.opts.Snaplen)]
	if len(s.records)+len(frame)+recordOverhead+len(h.dropped) > t.opts.Buffer/shards {
		s.lost++
		t.lost.Add(1)
		return
	}
	e := packetBlock{at: b.at, direction: b.direction, queue: b.queue, lost: s.lost,
		dropped: h.dropped, frame: frame, length: length}
	if t.opts.NICTime && !h.nic.IsZero() {
		e.at = h.nic
	}
	s.lost = 0
	s.records = putRecord(s.records, order, &e)
}
