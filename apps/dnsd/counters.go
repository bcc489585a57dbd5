package dnsd

import (
	"sync/atomic"

	"github.com/miekg/dns"
)

// Counters holds a snapshot of what the server has done since New.
type Counters struct {
	UDP       uint64 `json:"udp"`       // queries read
	TCP       uint64 `json:"tcp"`       // queries read
	Cached    uint64 `json:"cached"`    // answered from packed answers
	Dropped   uint64 `json:"dropped"`   // not queries
	Truncated uint64 `json:"truncated"` // answers that were cut to fit
	// queries above the rate of their prefix
	Limited       uint64            `json:"limited"`
	Slipped       uint64            `json:"slipped"`        // of these, told to use TCP
	Forwarded     uint64            `json:"forwarded"`      // questions forwarded
	Merged        uint64            `json:"merged"`         // queries merged into one in progress
	ForwardFailed uint64            `json:"forward_failed"` // forwarded questions without an answer
	ForwardFull   uint64            `json:"forward_full"`   // queries that found no room
	TCPEvicted    uint64            `json:"tcp_evicted"`    // idle connections closed for new ones
	WriteErrors   uint64            `json:"write_errors"`   // answers that the conn refused
	Answers       map[string]uint64 `json:"answers"`        // by response code: "NOERROR" ...
}

type counters struct {
	udp, tcp, cached, dropped, truncated, forwarded, forwardFailed, writeErrors atomic.Uint64
	limited, slipped, merged, forwardRefused, tcpEvicted                        atomic.Uint64

	rcode [16]atomic.Uint64 // by the low 4 bits, as in the header
}

// Counters may be called at any time.
func (s *Server) Counters() Counters {
	c := &s.counters
	out := Counters{
		UDP: c.udp.Load(), TCP: c.tcp.Load(), Cached: c.cached.Load(), Dropped: c.dropped.Load(),
		Truncated: c.truncated.Load(),
		Forwarded: c.forwarded.Load(), ForwardFailed: c.forwardFailed.Load(),
		WriteErrors: c.writeErrors.Load(),
		Limited:     c.limited.Load(), Slipped: c.slipped.Load(), Merged: c.merged.Load(),
		ForwardFull: c.forwardRefused.Load(), TCPEvicted: c.tcpEvicted.Load(),
		Answers: map[string]uint64{},
	}
	for i := range c.rcode {
		if n := c.rcode[i].Load(); n > 0 {
			out.Answers[dns.RcodeToString[i]] = n
		}
	}
	return out
}

// tally counts what a worker does between two batches, without the counters that all share.
type tally struct{ cached, noError uint64 }

// countSent counts an answer in wire form, of the usual kind in the tally.
func (t *tally) countSent(c *counters, answer []byte) {
	if answer[3]&15 == dns.RcodeSuccess && answer[2]&2 == 0 {
		t.noError++
		return
	}
	c.countSent(answer)
}

// addTally adds a tally, and makes it empty.
func (c *counters) addTally(t *tally) {
	if t.cached > 0 {
		c.cached.Add(t.cached)
	}
	if t.noError > 0 {
		c.rcode[dns.RcodeSuccess].Add(t.noError)
	}
	*t = tally{}
}

// countSent counts an answer in wire form.
func (c *counters) countSent(answer []byte) {
	c.rcode[answer[3]&15].Add(1)
	if answer[2]&2 != 0 {
		c.truncated.Add(1)
	}
}
