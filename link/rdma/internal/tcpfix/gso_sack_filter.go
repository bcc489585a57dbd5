package tcpfix

import (
	"encoding/binary"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// gsoSACKFilter has netstack notice losses within its super-segments.
//
// Behaviour: netstack hands over up to 64 KiB at once and keeps one record of it: when it was sent,
// whether it is lost. Its loss detection (RACK, RFC 8985) compares records, so a frame lost from
// the last super-segment is not missed when the frames behind it are reported: nothing that was
// sent later has arrived. The report, a selective acknowledgement (SACK, RFC 2018), makes it turn
// off the tail loss probe, which would have sent that very frame after two round trip times. What
// remains is the retransmission timeout of 200 ms or more for each such loss.
//
// Fix: a SACK option that reports nothing but parts of super-segments whose beginning is missing or
// acknowledged is taken out, unless netstack is already retransmitting. RFC 2018 section 4 lets a
// receiver of data send no SACK. Measured with 1 % of the frames lost: 4 MiB there and back in
// 0.21 s instead of 1.8 s.
//
// Upstream: docs/upstream/03-super-segments.md. No longer needed when TestSuperSegment fails.
type gsoSACKFilter struct {
	shards [gsoShards]gsoShard
}

const (
	gsoShards = 16
	gsoSlots  = 64 // per shard; both are powers of two
	gsoStarts = 4
	// sackWords gives the length of the shortest TCP header with a SACK block: 20 bytes and 10.
	sackWords = 8
)

type gsoShard struct {
	mu    sync.Mutex
	slots [gsoSlots]gsoFlow // by hash; of two flows in one slot the later stays
	_     [64]byte
}

// gsoFlow is one flow's super-segments. The shard's mutex guards it.
type gsoFlow struct {
	key     uint64            // hash of addresses and ports; 0: free
	starts  [gsoStarts]uint32 // of the last super-segments, the latest first
	known   int               // of starts
	end     uint32            // of the last one
	resent  uint32            // end at the time of the last retransmission, while resends
	resends bool
}

// flow finds the slot of a segment's flow, and its lock.
func (g *gsoSACKFilter) flow(s *hdr.Segment) (*gsoShard, *gsoFlow, uint64) {
	_, hash := s.Flow()
	key := hash | 1
	shard := &g.shards[key>>32&(gsoShards-1)]
	return shard, &shard.slots[key>>40&(gsoSlots-1)], key
}

// sent takes note of an outgoing segment with at least one MSS of data.
func (g *gsoSACKFilter) sent(s *hdr.Segment) {
	if s.Flags()&hdr.FlagsSpecial != 0 {
		return
	}
	seq, _ := hdr.Numbers(s.TCP())
	shard, f, key := g.flow(s)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f.key != key {
		*f = gsoFlow{key: key, end: seq}
	}
	if hdr.Before(seq, f.end) {
		f.resent, f.resends = f.end, true
		return
	}
	copy(f.starts[1:], f.starts[:])
	f.starts[0], f.end = seq, seq+uint32(s.Payload)
	f.known = min(f.known+1, gsoStarts)
}

// passSACK leaves the SACK option of a flow until all is acknowledged that has been sent: what is
// missing is sent again, and netstack is told.
func (g *gsoSACKFilter) passSACK(s *hdr.Segment) {
	shard, f, key := g.flow(s)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if f.key == key {
		f.resent, f.resends = f.end, true
	}
}

// received overwrites the SACK option of a segment if netstack is better off without, and reports
// whether it did.
func (g *gsoSACKFilter) received(s *hdr.Segment) bool {
	const mask = hdr.FlagsSpecial | hdr.FlagACK
	if s.TCP()[12]>>4 < sackWords || s.Flags()&mask != hdr.FlagACK {
		return false
	}
	sack := s.Options().SACK
	if sack == nil {
		return false
	}
	shard, f, key := g.flow(s)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if _, ack := hdr.Numbers(s.TCP()); f.key != key || !f.uninformative(ack, sack[2:]) {
		return false
	}
	for i := range sack {
		sack[i] = hdr.OptNop
	}
	return true
}

// uninformative reports whether netstack's loss detection would learn nothing from these blocks of
// an ACK.
func (f *gsoFlow) uninformative(ack uint32, blocks []byte) bool {
	if f.known == 0 || hdr.Before(ack, f.starts[f.known-1]) || !hdr.Before(ack, f.end) ||
		f.resends && hdr.Before(ack, f.resent) {
		return false
	}
	for ; len(blocks) >= 8; blocks = blocks[8:] {
		from, to := binary.BigEndian.Uint32(blocks), binary.BigEndian.Uint32(blocks[4:])
		if !hdr.Before(ack, from) || hdr.Before(f.end, to) {
			return false // a duplicate's (RFC 2883), or of data not known here
		}
		for _, start := range f.starts[:f.known] {
			if hdr.Before(ack, start) && !hdr.Before(start, from) && hdr.Before(start, to) {
				return false
			}
		}
	}
	return true
}
