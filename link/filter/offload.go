package filter

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Offload says what something ahead of the filter, such as a NIC, may drop in its place with the
// same outcome: TCP or UDP from a prefix to ports. Values may be compared.
//
// Ports from 32768 on are in none, as answers to what this host has begun come there, also from
// sources that are denied.
type Offload struct {
	From  netip.Prefix
	Proto uint8 // 6 (TCP) or 17 (UDP)
	// Port holds the bits of the destination port that Mask sets.
	Port, Mask uint16
}

// offload finds the busiest of what may be dropped ahead of the filter.
type offload struct {
	mu    sync.Mutex // guards what follows, and the scores of tallies
	aged  time.Time
	by    map[Offload]counted
	bound map[flow]struct{} // TCP that was dialled from low ports to denied sources

	wake  atomic.Pointer[func()]
	awake atomic.Bool // wake need not be called

	rules, waiting   atomic.Int64
	dropped, refused atomic.Uint64
}

// counted says where packets are counted that were dropped ahead of the filter.
type counted struct {
	tally *tally
	rule  *atomic.Uint64 // nil: the tally is all
}

// tally counts the packets of a prefix that were dropped, here or ahead of the filter.
type tally struct {
	n     atomic.Uint64
	last  uint64 // n when it was aged last
	score uint64 // packets of late
	on    bool   // to be dropped ahead of the filter
	// quiet counts seconds without packets of late, up to held while on, and since then.
	quiet, held uint16
}

const (
	// worth says how many packets of late make it worth a rule.
	worth = 64
	// firstHold and lastHold say for how many seconds a rule stays to which nothing seems to come
	// any more, if its packets came again soon after it had gone: what drops them may not count
	// them. Each time it is twice as long.
	firstHold = 1 << 6
	lastHold  = 1 << 12
	// aging says how often scores lose an eighth.
	aging = time.Second
	// sampledDrops says which part of the packets that a list's prefixes drop is counted by prefix
	// if few are: one counts for so many. The next one counts for sampleGrowth times as many, up to
	// maxSampled, half as many after each batch: in a flood about one in 4 batches is looked at.
	sampledDrops = 16
	sampleGrowth = 8
	maxSampled   = 1 << 12
	// maxBlocks bounds the blocks of ports and the prefixes that one range makes.
	maxBlocks = 4
	maxBound  = 1024
)

// ageTally adds what was counted since it was last called, about a second ago. mu is held.
func (t *tally) ageTally() {
	n := t.n.Load()
	t.score = t.score*7/8 + n - t.last
	t.last = n
	switch {
	case t.on && t.score > 0:
		t.quiet = 0
	case t.on && t.quiet < t.held:
		t.quiet++
	case t.on:
		t.on, t.quiet, t.held = false, 0, max(t.held, firstHold/2)
	case t.score >= worth:
		t.on, t.quiet = true, 0
		t.held = min(2*t.held, lastHold)
	case t.held > 0:
		if t.quiet++; t.quiet > 2*t.held {
			t.held = 0
		}
	}
}

// isWatched reports whether ageTally is to go on.
func (t *tally) isWatched() bool { return t.score > 0 || t.on || t.held > 0 }

// OnDrops makes f call wake when packets are dropped that may be dropped ahead of it, and after
// each change of what Busiest returns by a change of the list or of prefixes. It must not
// wait. One caller at a time has it.
func (f *Filter) OnDrops(wake func()) {
	f.offload.wake.Store(&wake)
	f.offload.awake.Store(false)
}

// wakeUp calls what OnDrops was given, unless it is at work already.
func (o *offload) wakeUp() {
	if !o.awake.Load() && o.awake.CompareAndSwap(false, true) {
		o.callWake()
	}
}

func (o *offload) callWake() {
	if wake := o.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Busiest returns what may be dropped ahead of the filter now and was busy lately, the busiest
// first. It is asked once a second while more is true.
func (f *Filter) Busiest() (all []Offload, more bool) {
	o := &f.offload
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by = map[Offload]counted{}
	c := f.current.Load()
	if c == nil {
		o.awake.Store(false)
		return nil, false
	}
	o.awake.Store(true)
	now := f.clock.Now()
	ages := o.aged.IsZero() || now.Sub(o.aged) >= aging*9/10
	if ages {
		o.aged = now
	}
	f.forgetBound()
	var found []busy
	for _, e := range c.entries {
		if e.Verdict != Denied {
			continue
		}
		if ages {
			e.tally.ageTally()
		}
		more = more || e.tally.isWatched()
		if e.tally.on && o.mayDrop(c, e.Prefix) {
			found = append(found, busy{e.tally.score, []netip.Prefix{e.Prefix}, lowPorts,
				counted{e.tally, nil}})
		}
	}
	for r, spans := range c.spans {
		if spans == nil {
			continue
		}
		of := &c.list.chains[Input].rules[r]
		for i := range spans.all {
			t := &spans.all[i]
			if ages {
				t.ageTally()
			}
			if more = more || t.isWatched(); !t.on {
				continue
			}
			prefixes := of.src.spans[i].splitPrefixes(of.family)
			if len(prefixes) > maxBlocks || slices.ContainsFunc(prefixes,
				func(p netip.Prefix) bool { return !o.mayDrop(c, p) }) {
				continue
			}
			found = append(found, busy{t.score, prefixes, blocksOf(of),
				counted{t, &c.hits[Input][r+1]}})
		}
	}
	slices.SortStableFunc(found, func(a, b busy) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return 0
	})
	for _, b := range found {
		for _, p := range b.from {
			for _, k := range b.to {
				k.From = p
				if _, known := o.by[k]; !known {
					o.by[k] = b.counted
					all = append(all, k)
				}
			}
		}
	}
	o.awake.Store(more)
	return all, more
}

// busy describes what of the filter's would be dropped ahead of it.
type busy struct {
	score uint64
	from  []netip.Prefix
	to    []Offload // without From
	counted
}

// lowPorts are the ports at which no answers come.
var lowPorts = []Offload{{Proto: protoTCP, Mask: 1 << 15}, {Proto: protoUDP, Mask: 1 << 15}}

// blocksOf returns the ports below those of dials that a rule is about, in blocks; nil: there are
// too many.
func blocksOf(r *rule) (all []Offload) {
	for _, k := range lowPorts {
		if r.protos != nil && !r.protos.has(k.Proto) {
			continue
		}
		if r.dport == nil {
			all = append(all, k)
			continue
		}
		blocks := 0
		for at := 0; at < firstDialPort; {
			if !r.dport.has(uint16(at)) {
				at++
				continue
			}
			size := 1
			for at%(2*size) == 0 && 2*size <= firstDialPort && r.dport.hasAll(at, 2*size) {
				size *= 2
			}
			if blocks++; blocks > maxBlocks {
				return nil
			}
			all = append(all, Offload{Proto: k.Proto, Port: uint16(at), Mask: ^uint16(size - 1)})
			at += size
		}
	}
	return all
}

// hasAll reports whether n ports from first on are in the set.
func (s *portSet) hasAll(first, n int) bool {
	for i := first; i < first+n; i++ {
		if !s.has(uint16(i)) {
			return false
		}
	}
	return true
}

// splitPrefixes returns the prefixes that a range consists of, up to one more than maxBlocks.
func (s span) splitPrefixes(family uint8) (all []netip.Prefix) {
	width := 128
	if family == 4 {
		width = 32
	}
	for at := s.first; len(all) <= maxBlocks; {
		n := width
		for n > 0 && at == at.prefixOf(family, n-1) &&
			at.lastOf(family, n-1).compare(s.last) <= 0 {
			n--
		}
		all = append(all, at.prefixFrom(family, n))
		end := at.lastOf(family, n)
		if end.compare(s.last) >= 0 {
			break
		}
		at = end.next(family)
	}
	return all
}

// lastOf returns the last address of the prefix of so many bits that begins at a.
func (a address) lastOf(family uint8, bits int) address {
	top := highest(family)
	low := top.prefixOf(family, bits)
	return address{a.hi | top.hi&^low.hi, a.lo | top.lo&^low.lo}
}

// mayDrop reports whether nothing from a prefix passes that a rule ahead of the filter would drop.
// mu is held.
func (o *offload) mayDrop(c *compiled, p netip.Prefix) bool {
	for _, e := range c.allowed {
		if e.Prefix.Overlaps(p) {
			return false
		}
	}
	if len(o.bound) == maxBound {
		return false
	}
	for k := range o.bound {
		if p.Contains(k.remote.prefixFrom(k.family, p.Addr().BitLen()).Addr()) {
			return false
		}
	}
	return true
}

// noteBound remembers TCP that was dialled from a low port to a source that is denied: its answers
// must pass.
func (f *Filter) noteBound(k flow) {
	o := &f.offload
	o.mu.Lock()
	if o.bound == nil {
		o.bound = map[flow]struct{}{}
	}
	if len(o.bound) < maxBound {
		o.bound[k] = struct{}{}
	}
	o.mu.Unlock()
	o.callWake()
}

// forgetBound forgets what noteBound has remembered and is over. mu is held.
func (f *Filter) forgetBound() {
	for k := range f.offload.bound {
		if !f.flows.remembers(&k, f.now()) {
			delete(f.offload.bound, k)
		}
	}
}

// CountOffloaded counts packets that were dropped ahead of the filter.
func (f *Filter) CountOffloaded(k Offload, packets uint64) {
	o := &f.offload
	o.mu.Lock()
	defer o.mu.Unlock()
	if to, known := o.by[k]; known {
		to.tally.n.Add(packets)
		if to.rule != nil {
			to.rule.Add(packets)
		}
	}
	o.dropped.Add(packets) // last, so that Status has no more of them than its entries
}

// SetOffloaded says how many rules are ahead of the filter, and how many found no room there.
func (f *Filter) SetOffloaded(rules, waiting int) {
	f.offload.rules.Store(int64(rules))
	f.offload.waiting.Store(int64(waiting))
}

// CountRefused counts a rule that was refused ahead of the filter, and with a place, such as a
// device, says so in the log: once for each place.
func (f *Filter) CountRefused(place string, err error) {
	f.offload.refused.Add(1)
	if place == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log.Warn("the filter itself drops what could be dropped ahead of it: a rule was refused",
		"by", place, "error", err)
}

// mayOffload reports of each rule of input whether it may be dropped ahead of the filter: it drops
// by source and ports alone, and so do all rules in front of it.
func mayOffload(rules []rule) []bool {
	may := make([]bool, len(rules))
	for i := range rules {
		r := &rules[i]
		if r.verdict != Drop || r.limit != nil {
			break
		}
		may[i] = r.src != nil && r.dst == nil && r.sport == nil && r.types == nil &&
			r.flags == nil && len(blocksOf(r)) > 0
	}
	return may
}

// spanTallies counts the packets of each range of a rule's sources.
type spanTallies struct {
	by  *addressIndex // values are places in all, of sources that are in one
	all []tally
}

// newSpans makes the counts by range of source.
func newSpans(rules []rule) []*spanTallies {
	spans := make([]*spanTallies, len(rules))
	for i, may := range mayOffload(rules) {
		if !may {
			continue
		}
		all := rules[i].src.spans
		firsts := make([]boundary, 0, 1+len(all))
		if len(all) == 0 || all[0].first != (address{}) {
			firsts = append(firsts, boundary{})
		}
		for n, s := range all {
			firsts = append(firsts, boundary{s.first, uint32(n)})
		}
		spans[i] = &spanTallies{newAddressIndex(firsts, 0), make([]tally, len(all))}
	}
	return spans
}
