package filter

import (
	"net/netip"
	"slices"
	"time"
)

// A flood of many weak sources would fill the table of prefixes, and each of them would send too
// little for a rule in the NIC. Where many sources of one prefix are denied the prefix is denied
// in their place.

const (
	// joinFrom says how many sources of a prefix are denied before it is.
	joinFrom = 32
	// joinEvery bounds how often prefixes are looked for.
	joinEvery = time.Second
	// Lengths of the prefixes that are denied in place of longer ones: what is announced to the
	// Internet at least, and what a site of IPv6 and one of its networks have.
	joinBits4, joinBits6, joinSite6 = 24, 64, 56
)

// SparePeers exempts prefixes with one of the addresses that all returns, this host's own and those
// of its connections, from being denied in place of many of their sources. Those of sources that
// are denied themselves do not count. all is called without a lock, once a second at most.
func (f *Filter) SparePeers(all func() []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denials.peers = all
}

// joinedPrefix returns the prefix that may be denied in place of p, the zero one if none may.
func joinedPrefix(p netip.Prefix) netip.Prefix {
	bits := joinSite6
	switch {
	case p.Addr().Is4():
		bits = joinBits4
	case p.Bits() > joinBits6:
		bits = joinBits6
	}
	if p.Bits() <= bits {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}

// isJoined reports whether a prefix that may be denied in place of p is known.
func isJoined(p netip.Prefix, known map[netip.Prefix]bool) bool {
	for q := joinedPrefix(p); q.IsValid(); q = joinedPrefix(q) {
		if known[q] {
			return true
		}
	}
	return false
}

// crowdedPrefixes returns the prefixes of which many sources are denied, each with its sources. mu
// is held.
func (f *Filter) crowdedPrefixes() map[netip.Prefix][]*Entry {
	by := map[netip.Prefix][]*Entry{}
	for _, e := range f.entries {
		if p := joinedPrefix(e.Prefix); e.Automatic && p.IsValid() {
			by[p] = append(by[p], e)
		}
	}
	for p, all := range by {
		if len(all) < joinFrom {
			delete(by, p)
		}
	}
	return by
}

// joinSources denies prefixes in place of many of their sources, and none with a spared address, a
// peer, an allowed prefix or a source in it that a rule of the list accepts by its address.
func (f *Filter) joinSources(spared []netip.Addr) {
	f.mu.Lock()
	crowded, peersOf := len(f.crowdedPrefixes()) > 0, f.denials.peers
	now := f.clock.Now()
	early := f.denials.joinNext.Sub(now)
	if crowded && early <= 0 {
		f.denials.joinNext = now.Add(joinEvery)
	}
	f.mu.Unlock()
	if crowded && early > 0 {
		f.denials.lookAgain(early)
	}
	if !crowded || early > 0 {
		return
	}
	var peers []netip.Addr
	if peersOf != nil {
		peers = peersOf()
	}
	if f.joinCrowded(spared, peers) { // networks of IPv6 may be joined once more
		f.denials.lookAgain(joinEvery)
	}
}

// joinCrowded denies the prefixes of joinSources, and reports whether there was one.
func (f *Filter) joinCrowded(spared, peers []netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone, sources := map[*Entry]bool{}, 0
	var joined []*Entry
	var names []string
	for p, members := range f.crowdedPrefixes() {
		if containsAny(p, spared) || f.namesInside(p) || f.listAccepts(p) ||
			hasStranger(p, members, peers) {
			continue
		}
		for _, e := range members {
			gone[e] = true
		}
		e := f.joinEntries(p, members)
		joined, sources = append(joined, e), sources+e.Sources
		if len(names) < named {
			names = append(names, p.String())
		}
	}
	if len(joined) == 0 {
		return false
	}
	f.entries = slices.DeleteFunc(slices.Clone(f.entries), func(e *Entry) bool { return gone[e] })
	f.entries = append(f.entries, joined...)
	f.republish()
	f.denials.joined.Add(uint64(len(joined)))
	slices.Sort(names)
	f.log.Warn("the filter denies prefixes in place of many of their sources", "prefixes",
		len(joined), "sources", sources, "first", names)
	return true
}

// lookAgain runs denyAsked once more, unless it is about to run.
func (d *denials) lookAgain(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == 0 {
		d.timer.Reset(after)
	}
}

// namesInside reports whether somebody has named a prefix that would be judged otherwise if p were
// denied, or p itself. mu is held.
func (f *Filter) namesInside(p netip.Prefix) bool {
	return slices.ContainsFunc(f.entries, func(e *Entry) bool {
		return e.Prefix == p || e.Verdict == Allowed && e.Prefix.Overlaps(p)
	})
}

// listAccepts reports whether a rule of the list accepts a source in p by its address. Such a
// source has not asked for a denial, and a denial of p would be ahead of the rule. mu is held.
func (f *Filter) listAccepts(p netip.Prefix) bool {
	c := f.current.Load()
	if c == nil || c.list == nil {
		return false
	}
	s, family := spanOf(p)
	return slices.ContainsFunc(c.list.chains[Input].rules, func(r rule) bool {
		return r.verdict == Accept && r.src != nil && r.src.family == family && r.src.overlaps(s)
	})
}

// hasStranger reports whether one of the addresses is in p and in none of its members.
func hasStranger(p netip.Prefix, members []*Entry, all []netip.Addr) bool {
	return slices.ContainsFunc(all, func(a netip.Addr) bool {
		a = a.Unmap().WithZone("")
		return p.Contains(a) && !slices.ContainsFunc(members, func(e *Entry) bool {
			return e.Prefix.Contains(a)
		})
	})
}

// joinEntries returns an entry for p that counts on for its members, and ends with the last of
// them. mu is held.
func (f *Filter) joinEntries(p netip.Prefix, members []*Entry) *Entry {
	joined := &Entry{Prefix: p, Verdict: Denied, Automatic: true, tally: new(tally)}
	f.offload.mu.Lock() // of scores
	defer f.offload.mu.Unlock()
	t := joined.tally
	for _, e := range members {
		joined.Sources += max(e.Sources, 1)
		joined.Times = max(joined.Times, e.Times)
		if e.Until.After(joined.Until) {
			joined.Until = e.Until
		}
		n := e.tally.n.Load()
		t.n.Add(n)
		t.last += min(e.tally.last, n)
		t.score += e.tally.score
	}
	t.on = t.score >= worth
	return joined
}
