package rdma

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
)

// gsoSACKFilter has netstack notice losses within its super-segments.
//
// netstack hands over up to 64 KiB at once, and keeps one record of it: when it was sent, whether it is lost. Its loss
// detection (RACK, RFC 8985) compares records, so a frame lost from the last super-segment is not missed when the frames
// behind it are reported: nothing that was sent later has arrived. And the report, a selective acknowledgement (SACK, RFC
// 2018), makes it turn off the tail loss probe, which would have sent that very frame again after two round trip times.
// What remains is the retransmission timeout of 200 ms or more, for each such loss; the smaller the window has become, the
// surer. (RFC 2018 lets a receiver of data send no SACK, and so nothing is wrong with one that arrives without.)
//
// So a SACK that tells of nothing but parts of super-segments whose beginning is missing or acknowledged is taken out,
// unless netstack is sending data again already. Measured with 1 % of the frames lost: 4 MiB there and back in 0.21 s instead of 1.8 s.
type gsoSACKFilter struct {
	seed   maphash.Seed
	shards [gsoShards]gsoShard
}

const (
	gsoShards = 16
	gsoSlots  = 64 // per shard, powers of two
	gsoStarts = 4
)

type gsoShard struct {
	mu    sync.Mutex
	slots [gsoSlots]gsoFlow // by hash; of two flows in one place the later stays
	_     [64]byte
}

// gsoFlow is one flow's super-segments.
type gsoFlow struct {
	key     uint64            // hash of addresses and ports; 0: free
	starts  [gsoStarts]uint32 // of the last super-segments, the latest first
	known   int               // of starts
	end     uint32            // of the last one
	resent  uint32            // end at the time of the last retransmission; before what is acknowledged if it is over
	resends bool              // resent means something
}

func newGSOSACKFilter() gsoSACKFilter { return gsoSACKFilter{seed: maphash.MakeSeed()} }

// flow finds the slot of an outgoing flow, and its lock.
func (s *gsoSACKFilter) flow(t *tuple) (*gsoShard, *gsoFlow, uint64) {
	key := maphash.Bytes(s.seed, t[:]) | 1
	shard := &s.shards[key>>32&(gsoShards-1)]
	return shard, &shard.slots[key>>40&(gsoSlots-1)], key
}

// sent takes note of size bytes of data, at least a full segment's, with the headers in frame.
func (s *gsoSACKFilter) sent(frame []byte, l *layout, size int) {
	tcp := frame[l.l4:]
	if tcp[13]&flagsSpecial != 0 {
		return
	}
	seq, _ := numbers(tcp)
	t := tupleOf(l.etherType, frame[l.l3:], tcp)
	shard, f, key := s.flow(&t)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f.key != key {
		*f = gsoFlow{key: key, end: seq}
	}
	if before(seq, f.end) {
		f.resent, f.resends = f.end, true
		return
	}
	copy(f.starts[1:], f.starts[:])
	f.starts[0], f.end = seq, seq+uint32(size)
	f.known = min(f.known+1, gsoStarts)
}

// received takes the SACK out of a segment if it does more harm than good, and reports whether it did.
func (s *gsoSACKFilter) received(frame []byte, l *layout) bool {
	tcp := frame[l.l4:l.end]
	if tcp[12]>>4 < 8 || tcp[13]&(flagsSpecial|flagACK) != flagACK { // 32 bytes: SACK has 10 at least
		return false
	}
	sack, _ := findOption(optionsOf(tcp), optionSACK)
	if sack == nil {
		return false
	}
	t := tupleOf(l.etherType, frame[l.l3:], tcp).reversed()
	shard, f, key := s.flow(&t)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if _, ack := numbers(tcp); f.key != key || !f.uninformative(ack, sack[2:]) {
		return false
	}
	for i := range sack {
		sack[i] = optionNop
	}
	return true
}

// uninformative reports whether netstack's loss detection would learn nothing from these blocks of an ACK.
func (f *gsoFlow) uninformative(ack uint32, blocks []byte) bool {
	if f.known == 0 || before(ack, f.starts[f.known-1]) || !before(ack, f.end) || f.resends && before(ack, f.resent) {
		return false
	}
	for ; len(blocks) >= 8; blocks = blocks[8:] {
		from, to := binary.BigEndian.Uint32(blocks), binary.BigEndian.Uint32(blocks[4:])
		if !before(ack, from) || before(f.end, to) { // a duplicate's (RFC 2883), or of data we do not know
			return false
		}
		for _, start := range f.starts[:f.known] {
			if before(ack, start) && !before(start, from) && before(start, to) {
				return false
			}
		}
	}
	return true
}
