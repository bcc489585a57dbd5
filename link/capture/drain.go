package capture

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"time"
)

// About describes the link in the file. Empty fields are left out.
type About struct {
	Program, Name, Description, Hardware string
}

// flushTime says how old a record gets before it is written, at most.
const flushTime = 50 * time.Millisecond

// WriteTo writes the capture to w until ctx ends, Close is called or w fails, and then what still
// waits and the counts. Each Write is whole blocks. After limit frames it ends by itself; 0: there
// is no limit. The error is that of w.
func (t *Tap) WriteTo(ctx context.Context, w io.Writer, about About, limit int) error {
	_, err := w.Write(t.appendHeader(nil, about))
	var out []byte
	for left := limit; err == nil; {
		ended := !t.waitForRecords(ctx)
		out = t.drainShards(out[:0], ended)
		if limit > 0 {
			var n int
			out, n = firstPackets(out, left)
			left -= n
			ended = ended || left == 0
		}
		if ended {
			t.closed.Store(true)
			out = t.appendStats(out)
		}
		if len(out) > 0 {
			_, err = w.Write(out)
		}
		if ended {
			return err
		}
	}
	t.closed.Store(true)
	return err
}

// waitForRecords waits for much to write, or for some time. False: it is the last time.
func (t *Tap) waitForRecords(ctx context.Context) bool {
	timer := t.opts.Clock.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-t.wake:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return !t.closed.Load()
}

// record says where the block of one record is.
type record struct {
	order uint64
	block []byte
}

// drainShards appends the blocks of all shards in the order of their commits. What was committed
// after it began may not be in all shards yet and is kept for the next time, but for the last.
func (t *Tap) drainShards(out []byte, last bool) []byte {
	until := uint64(t.opts.Clock.Now().UnixNano())
	if last {
		until = ^uint64(0)
	}
	carried := t.carried
	t.carried = nil
	records := appendRecords(nil, carried)
	var used [shards][]byte
	for i := range t.shards {
		used[i] = t.shards[i].takeRecords()
		records = appendRecords(records, used[i])
	}
	byOrder := func(a, b record) int { return int(int64(a.order - b.order)) }
	if !slices.IsSortedFunc(records, byOrder) { // else one queue had all
		slices.SortStableFunc(records, byOrder)
	}
	for _, r := range records {
		if r.order >= until {
			t.carried = binary.LittleEndian.AppendUint64(t.carried, r.order)
			t.carried = binary.LittleEndian.AppendUint32(t.carried, uint32(len(r.block)))
			t.carried = append(t.carried, r.block...)
			continue
		}
		out = append(out, r.block...)
	}
	for i := range t.shards {
		t.shards[i].giveBack(used[i])
	}
	return out
}

// takeRecords takes the records out. They are the caller's until giveBack.
func (s *shard) takeRecords() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.records
	s.records, s.spare = s.spare, nil
	return used
}

func (s *shard) giveBack(used []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = used[:0]
}

func appendRecords(to []record, from []byte) []record {
	for len(from) > 0 {
		n := recordHeader + int(binary.LittleEndian.Uint32(from[8:]))
		to = append(to, record{binary.LittleEndian.Uint64(from), from[recordHeader:n]})
		from = from[n:]
	}
	return to
}

// firstPackets cuts blocks off behind the first n, and says how many there are.
func firstPackets(blocks []byte, n int) ([]byte, int) {
	at, count := 0, 0
	for at < len(blocks) && count < n {
		at += int(binary.LittleEndian.Uint32(blocks[at+4:]))
		count++
	}
	return blocks[:at], count
}
