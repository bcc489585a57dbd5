package filter

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Filter judges the packets of links by a list that may change at any time, and by prefixes that
// are denied or allowed ahead of it. Any goroutine may use it.
type Filter struct {
	clock   clock.Clock
	made    time.Time
	current atomic.Pointer[compiled] // nil: everything passes
	flows   flows
	denials denials
	offload offload
	loads   atomic.Uint64

	mu      sync.Mutex // guards what follows, and changes of current
	log     *slog.Logger
	entries []*Entry
	expiry  clock.Timer
}

// Entry describes a prefix that is denied or allowed ahead of the list, as a source of what is
// received. Of several that an address is in the longest decides.
type Entry struct {
	Prefix  netip.Prefix `json:"prefix"`
	Verdict string       `json:"verdict"` // deny or allow
	// Until tells when it ends; the zero time: it stays.
	Until   time.Time `json:"until,omitzero"`
	Packets uint64    `json:"packets"`
	// Automatic says that the source kept up a flood, Times how often that had it denied lately.
	Automatic bool `json:"automatic,omitempty"`
	Times     int  `json:"times,omitempty"`
	// Sources counts the sources that a prefix was denied in place of; 0: it was not.
	Sources int `json:"sources,omitempty"`

	tally *tally
}

// The verdicts of an Entry.
const (
	Denied  = "deny"
	Allowed = "allow"
)

// compiled holds what packets are judged by at one time. It does not change once made, but for its
// counts.
type compiled struct {
	list    *List                       // nil: there is none
	chains  [directions]*program        // nil: the list has none
	hits    [directions][]atomic.Uint64 // by number of the rule; 0: the policy
	buckets [directions][]bucket        // likewise
	meters  []*meter                    // by program.meters of input
	// spans counts what rules of input have dropped by ranges of sources, by rule from 0; nil: not
	// of that rule
	spans   []*spanTallies
	allowed []*Entry
	entries []*Entry
	special [2]*addressIndex // by family, 4 first; value n: entries[n-1]; nil: there are none
	why     []string         // by entry
	// packets of a direction need to be looked at
	judges [directions]bool
}

// New returns a filter with a list; nil: everything passes. It goes by the time of c.
func New(list *List, c clock.Clock) (*Filter, error) {
	f := &Filter{clock: c, made: c.Now(), log: slog.New(slog.DiscardHandler)}
	f.flows.seedHash()
	f.expiry = c.NewStopped(f.expire)
	f.denials.timer = c.NewStopped(f.denyAsked)
	f.denials.asked = make([]denial, 0, maxAsked)
	f.denials.before = map[netip.Prefix]offence{}
	if list == nil {
		return f, nil
	}
	return f, f.Load(list)
}

// LogTo writes a line to log at each change from now on.
func (f *Filter) LogTo(log *slog.Logger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = log
}

// Load puts a list in the place of the one before; nil: none. Each packet is judged by the old one
// or by the new one. Counts begin anew; prefixes that are denied or allowed stay so. On an error
// nothing changes.
func (f *Filter) Load(list *List) error {
	c := &compiled{list: list}
	if list != nil {
		for d := range directions {
			if !list.chains[d].given {
				continue
			}
			p, err := compile(d, &list.chains[d])
			if err != nil {
				return err
			}
			c.chains[d] = p
			c.hits[d] = make([]atomic.Uint64, len(p.rules)+1)
			c.buckets[d] = make([]bucket, len(p.rules)+1)
			for _, size := range p.meters {
				c.meters = append(c.meters, newMeter(size))
			}
			if d == Input {
				c.spans = newSpans(list.chains[d].rules)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads.Add(1)
	f.publish(c)
	f.log.Info("the filter's list was loaded", "list", list.String())
	return nil
}

// Deny drops what comes from a prefix, for some time, or for good if it is 0.
func (f *Filter) Deny(p netip.Prefix, time time.Duration) error { return f.add(p, Denied, time) }

// Allow lets in what comes from a prefix, whatever the list says.
func (f *Filter) Allow(p netip.Prefix, time time.Duration) error { return f.add(p, Allowed, time) }

// maxEntries bounds the prefixes ahead of a list.
const maxEntries = 1 << 16

func (f *Filter) add(p netip.Prefix, verdict string, d time.Duration) error {
	switch {
	case !p.IsValid() || p.Addr().Is4In6() || p.Addr().Zone() != "":
		return fmt.Errorf("%s: want an address or a prefix, such as 192.0.2.0/24", p)
	case d < 0:
		return fmt.Errorf("%s for %v: want a time such as 10m, or none", p, d)
	}
	e := &Entry{Prefix: p.Masked(), Verdict: verdict, tally: new(tally)}
	if d > 0 {
		e.Until = f.clock.Now().Add(d)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeEntry(e.Prefix)
	if len(f.entries) == maxEntries {
		return fmt.Errorf("%d prefixes are denied or allowed already: write more as a set of the "+
			"list", maxEntries)
	}
	f.entries = append(f.entries, e)
	f.republish()
	f.log.Info("the filter has a prefix ahead of its list", "verdict", verdict, "prefix",
		e.Prefix, "time", d)
	return nil
}

// Forget ends what Deny or Allow said of a prefix, and reports whether they had.
func (f *Filter) Forget(p netip.Prefix) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.removeEntry(p.Masked()) {
		return false
	}
	f.republish()
	delete(f.denials.before, p.Masked())
	f.log.Info("the filter has a prefix ahead of its list no more", "prefix", p.Masked())
	return true
}

func (f *Filter) removeEntry(p netip.Prefix) bool {
	n := len(f.entries)
	f.entries = slices.DeleteFunc(slices.Clone(f.entries), func(e *Entry) bool {
		return e.Prefix == p
	})
	return len(f.entries) < n
}

// republish publishes the list of now with other entries. mu is held.
func (f *Filter) republish() {
	c := &compiled{}
	if now := f.current.Load(); now != nil {
		*c = compiled{list: now.list, chains: now.chains, hits: now.hits, buckets: now.buckets,
			meters: now.meters, spans: now.spans}
	}
	f.publish(c)
}

// publish adds the entries to c and has packets judged by it. mu is held.
func (f *Filter) publish(c *compiled) {
	c.entries = f.entries
	c.special = [2]*addressIndex{indexOfEntries(4, c.entries), indexOfEntries(6, c.entries)}
	denies := false
	for _, e := range c.entries {
		c.why = append(c.why, fmt.Sprintf("%s is denied", e.Prefix))
		if denies = denies || e.Verdict == Denied; e.Verdict == Allowed {
			c.allowed = append(c.allowed, e)
		}
	}
	for d, p := range c.chains {
		c.judges[d] = p != nil && (p.drops || len(p.rules) > 0)
	}
	if denies || c.judges[Input] {
		c.judges[Input], c.judges[Output] = true, true // what answers to is noted
	}
	if !c.judges[Input] && !c.judges[Output] && c.list == nil {
		c = nil
	}
	f.current.Store(c)
	f.armExpiry()
	if f.offload.awake.Load() { // what was dropped ahead of the filter may pass now
		f.offload.callWake()
	}
}

// armExpiry sets the timer to when the next entry ends. mu is held.
func (f *Filter) armExpiry() {
	next := time.Time{}
	for _, e := range f.entries {
		if !e.Until.IsZero() && (next.IsZero() || e.Until.Before(next)) {
			next = e.Until
		}
	}
	if f.expiry.Stop(); !next.IsZero() {
		f.expiry.Reset(max(f.clock.Until(next), time.Millisecond))
	}
}

// expire removes entries that are over.
func (f *Filter) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	f.entries = slices.DeleteFunc(slices.Clone(f.entries), func(e *Entry) bool {
		return !e.Until.IsZero() && !now.Before(e.Until)
	})
	f.republish()
}

// indexOfEntries makes the index of a family's entries; nil: there are none.
func indexOfEntries(family uint8, entries []*Entry) *addressIndex {
	type ranged struct {
		span
		bits  int
		value uint32
	}
	var all []ranged
	for i, e := range entries {
		if s, f := spanOf(e.Prefix); f == family {
			all = append(all, ranged{s, e.Prefix.Bits(), uint32(i + 1)})
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b ranged) int {
		if c := a.first.compare(b.first); c != 0 {
			return c
		}
		return a.bits - b.bits
	})
	bounds := []boundary{{}}
	set := func(at address, value uint32) {
		if n := len(bounds) - 1; bounds[n].at == at {
			bounds[n].value = value
		} else {
			bounds = append(bounds, boundary{at, value})
		}
	}
	var open []ranged // each within the one before
	closeBefore := func(at address, all bool) {
		for n := len(open) - 1; n >= 0 && (all || open[n].last.compare(at) < 0); n-- {
			outer := uint32(0)
			if n > 0 {
				outer = open[n-1].value
			}
			if open[n].last != highest(family) {
				set(open[n].last.next(family), outer)
			}
			open = open[:n]
		}
	}
	for _, r := range all {
		closeBefore(r.first, false)
		set(r.first, r.value)
		open = append(open, r)
	}
	closeBefore(address{}, true)
	return newAddressIndex(bounds, sourceCells)
}

// entryOf returns the entry of a packet's source, from 1; 0: there is none.
func (c *compiled) entryOf(p *Packet) uint32 {
	x := c.special[0]
	if p.family == 6 {
		x = c.special[1]
	}
	if x == nil {
		return 0
	}
	return x.find(p.src)
}

// received returns what entries and list say of a received packet, without counting it; limits are
// taken not to be reached.
func (c *compiled) received(p *Packet) (Verdict, int32) {
	if n := c.entryOf(p); n > 0 {
		if c.entries[n-1].Verdict == Allowed {
			return Accept, 0
		}
		return Drop, 0
	}
	if c.chains[Input] == nil {
		return Accept, 0
	}
	return c.chains[Input].judge(p, func(r *check) bool { return !r.limit.over })
}

// now returns seconds since the filter was made.
func (f *Filter) now() uint32 { return uint32(f.clock.Since(f.made) / time.Second) }

// Send says why a packet that is about to be sent, from its IP header on, is dropped; "": it is
// not. Of TCP only what begins a connection may be. f may be nil.
func (f *Filter) Send(ip []byte) string {
	if f == nil {
		return ""
	}
	c := f.current.Load()
	if c == nil || !c.judges[Output] {
		return ""
	}
	var p Packet
	if !p.Read(ip) || p.proto == protoTCP && p.hasFlags && p.flags&(flagSYN|flagACK) != flagSYN {
		return ""
	}
	var now moment
	if out := c.chains[Output]; out != nil {
		v, n := out.judge(&p, func(r *check) bool {
			return c.reaches(Output, r, now.nanoseconds(f))
		})
		c.hits[Output][n].Add(1)
		if v == Drop && !(n == 0 && p.isHousekeeping()) &&
			!(p.later && f.hasFlow(fragmentsOf(&p), &now, 0)) {
			return out.why[n]
		}
		f.noteFragments(&p, &now)
	}
	if c.judges[Input] {
		f.noteSent(c, &p, &now)
	}
	return ""
}

// bucket holds the state of a rule's limit: when it will be full again.
type bucket struct{ full atomic.Int64 }

// reaches reports whether a rule's limit matches a packet now, and counts the packet in it.
func (c *compiled) reaches(d Direction, r *check, now int64) bool {
	each := int64(r.limit.per) * int64(time.Second) / int64(r.limit.amount)
	most := each * int64(r.limit.burst)
	b := &c.buckets[d][r.number].full
	for {
		full := b.Load()
		next := max(full, now) + each
		if next-now > most {
			return r.limit.over
		}
		if b.CompareAndSwap(full, next) {
			return !r.limit.over
		}
	}
}

// sourceReaches does what reaches does for a limit that each source has of its own.
func (f *Filter) sourceReaches(c *compiled, r *check, p *Packet, now int64) bool {
	over := c.meters[r.meter].takePacket(p.src.prefixOf(p.family, r.bySource.bits), p.family, r,
		now, &f.denials)
	return over == r.limit.over
}

// Status describes what a filter does, and has done since its list was loaded.
type Status struct {
	Loads uint64 `json:"loads"` // how often a list was loaded
	Flows int    `json:"flows"` // begun by this host, whose answers the list would drop
	// Sources counts those that limits remember, Evicted those forgotten for want of room while
	// they had used some of their limit.
	Sources int    `json:"sources"`
	Evicted uint64 `json:"evicted"`
	// Denials counts sources that were denied for a flood, Spared the times that one was not as it
	// is a resolver or router, and Full the times for want of room. Joined counts the prefixes that
	// were denied in place of many of their sources.
	Denials uint64 `json:"denials"`
	Spared  uint64 `json:"spared"`
	Full    uint64 `json:"full"`
	Joined  uint64 `json:"joined"`
	// Offloaded counts the rules at work ahead of the filter, in the NIC or in the filters of
	// packet sockets, Waiting those that found no room there, OffloadDropped what they have
	// dropped as far as it is counted there, and OffloadRefused the rules that were refused.
	Offloaded      int     `json:"offloaded"`
	Waiting        int     `json:"waiting"`
	OffloadDropped uint64  `json:"offload_dropped"`
	OffloadRefused uint64  `json:"offload_refused"`
	Entries        []Entry `json:"entries,omitempty"`
	Chains         []Chain `json:"chains,omitempty"`
	Text           string  `json:"text,omitempty"` // of the list
}

// Chain describes the rules of one direction.
type Chain struct {
	Name    string `json:"name"` // input or output
	Policy  string `json:"policy"`
	Packets uint64 `json:"packets"` // that the policy decided
	Rules   []Rule `json:"rules,omitempty"`
}

// Rule describes one rule of a chain.
type Rule struct {
	Number  int    `json:"number"`
	Line    int    `json:"line"`
	Text    string `json:"text"`
	Drops   bool   `json:"drops"`
	Packets uint64 `json:"packets"`
}

// Status returns the present values. f may be nil.
func (f *Filter) Status() (s Status) {
	if f == nil {
		return s
	}
	s.Loads, s.Flows = f.loads.Load(), f.flows.count()
	s.Denials, s.Spared = f.denials.total.Load(), f.denials.spared.Load()
	s.Full, s.Joined = f.denials.full.Load(), f.denials.joined.Load()
	s.Offloaded, s.Waiting = int(f.offload.rules.Load()), int(f.offload.waiting.Load())
	s.OffloadDropped, s.OffloadRefused = f.offload.dropped.Load(), f.offload.refused.Load()
	c := f.current.Load()
	if c == nil {
		return s
	}
	for _, m := range c.meters {
		s.Sources += m.countSources()
		s.Evicted += m.evicted.Load()
	}
	for _, e := range c.entries {
		one := *e
		one.Packets, one.tally = e.tally.n.Load(), nil
		s.Entries = append(s.Entries, one)
	}
	if c.list == nil {
		return s
	}
	s.Text = c.list.Text
	for d := range directions {
		of := &c.list.chains[d]
		if !of.given {
			continue
		}
		chain := Chain{Name: d.String(), Policy: of.policy.String(), Packets: c.hits[d][0].Load()}
		for i := range of.rules {
			r := &of.rules[i]
			chain.Rules = append(chain.Rules, Rule{i + 1, r.line, r.text, r.verdict == Drop,
				c.hits[d][i+1].Load()})
		}
		s.Chains = append(s.Chains, chain)
	}
	return s
}
