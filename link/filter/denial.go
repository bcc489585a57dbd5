package filter

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// denials denies sources that keep up a flood: first for the time that the rule says, each further
// time for twice as long, up to maxDenial. Packets only ask for it; a timer does it, so that it
// costs the same whether one source asks or thousands.
type denials struct {
	mu     sync.Mutex // guards asked
	asked  []denial   // of fixed capacity
	timer  clock.Timer
	spare  func() []netip.Addr // nil: nobody
	peers  func() []netip.Addr // nil: nobody
	before map[netip.Prefix]offence
	// joinNext tells when prefixes may be looked for that many sources are in.
	joinNext time.Time

	total, spared, full, joined atomic.Uint64
}

// denial asks that a source be denied.
type denial struct {
	of     address
	family uint8
	bits   int
	first  time.Duration
}

// offence remembers a source that was denied.
type offence struct {
	times  int
	forget time.Time
}

const (
	// maxAsked bounds the sources that are denied at a time; those that find no room ask again.
	maxAsked = 1024
	// gather says how long sources are gathered that are denied together.
	gather = 100 * time.Millisecond
	// maxAutomatic bounds the sources that are denied without having been named.
	maxAutomatic = 1 << 14
	// maxDenial bounds the time of a denial that was doubled.
	maxDenial = time.Hour
	// remembered says for how long behind a denial the next one is doubled.
	remembered = time.Hour
	// maxOffences bounds the sources that are remembered.
	maxOffences = 1 << 16
	// named says how many sources a line of the log names.
	named = 8
)

// Spare exempts sources with one of the addresses that all returns, the resolvers and routers that
// the host lives on, from being denied without being named. all is called without a lock.
func (f *Filter) Spare(all func() []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denials.spare = all
}

// askDenial puts a source among those to be denied soon; false: there is no room, ask again.
func (d *denials) askDenial(of denial) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == cap(d.asked) {
		return false
	}
	if d.asked = append(d.asked, of); len(d.asked) == 1 {
		d.timer.Reset(gather)
	}
	return true
}

// denyAsked denies the sources that packets have asked to be.
func (f *Filter) denyAsked() {
	d := &f.denials
	d.mu.Lock()
	asked := append([]denial(nil), d.asked...)
	d.asked = d.asked[:0]
	d.mu.Unlock()
	f.mu.Lock()
	spare := d.spare
	f.mu.Unlock()
	var spared []netip.Addr
	if spare != nil {
		spared = spare()
	}
	f.denySources(asked, spared)
	f.joinSources(spared)
}

// denySources denies sources, as many as there is room for.
func (f *Filter) denySources(asked []denial, spared []netip.Addr) {
	d := &f.denials
	f.mu.Lock()
	defer f.mu.Unlock()
	known, automatic := map[netip.Prefix]bool{}, 0
	for _, e := range f.entries {
		known[e.Prefix] = true
		if e.Automatic {
			automatic++
		}
	}
	now, entries := f.clock.Now(), f.entries[:len(f.entries):len(f.entries)]
	var denied []*Entry
	refused := 0
	for _, of := range asked {
		p := of.of.prefixFrom(of.family, of.bits)
		switch {
		case known[p], isJoined(p, known):
			continue
		case containsAny(p, spared):
			d.spared.Add(1)
			continue
		case automatic == maxAutomatic || len(entries) == maxEntries:
			d.full.Add(1)
			refused++
			continue
		}
		e := &Entry{Prefix: p, Verdict: Denied, Automatic: true, tally: new(tally)}
		e.Times, e.Until = f.countOffence(p, of.first, now)
		known[p] = true
		automatic++
		entries, denied = append(entries, e), append(denied, e)
	}
	if refused > 0 {
		f.log.Warn("the filter has no room to deny more sources that keep up a flood: their rules "+
			"go on to judge them", "denied", automatic, "refused", refused)
	}
	if len(denied) == 0 {
		return
	}
	d.total.Add(uint64(len(denied)))
	f.entries = entries
	f.republish()
	var names []string
	for _, e := range denied[:min(len(denied), named)] {
		names = append(names, e.Prefix.String())
	}
	f.log.Warn("the filter denies sources that keep up a flood", "sources", len(denied), "first",
		names, "time", denied[0].Until.Sub(now))
}

// countOffence counts a denial of a source, and returns the count and when the denial ends. mu is
// held.
func (f *Filter) countOffence(p netip.Prefix, first time.Duration, now time.Time) (int, time.Time) {
	all := f.denials.before
	o := all[p]
	if now.After(o.forget) {
		o.times = 0
	}
	d := first
	for i := 0; i < o.times && d < maxDenial; i++ {
		d = min(2*d, max(maxDenial, first))
	}
	o.times++
	o.forget = now.Add(d + remembered)
	if _, known := all[p]; !known && len(all) == maxOffences {
		for q, old := range all {
			if now.After(old.forget) {
				delete(all, q)
			}
		}
	}
	if _, known := all[p]; known || len(all) < maxOffences {
		all[p] = o
	}
	return o.times, now.Add(d)
}

// containsAny reports whether one of the addresses is in a prefix.
func containsAny(p netip.Prefix, all []netip.Addr) bool {
	for _, a := range all {
		if p.Contains(a.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// maxHandedOver bounds the prefixes that a process tells the one that takes its place.
const maxHandedOver = 256

// HandedOver returns the prefixes that a process which takes this one's place is to deny and allow,
// those that were named first, and how many found no room. f may be nil.
func (f *Filter) HandedOver() (all []Entry, left int) {
	for _, e := range f.Status().Entries {
		if !e.Automatic {
			all = append(all, e)
		}
	}
	for _, e := range f.Status().Entries {
		if e.Automatic {
			all = append(all, e)
		}
	}
	n := min(len(all), maxHandedOver)
	return all[:n], len(all) - n
}

// Adopt denies and allows what HandedOver of another process has returned, ahead of what was said
// before. Their packets are counted anew.
func (f *Filter) Adopt(all []Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range all {
		if !e.Prefix.IsValid() || e.Prefix != e.Prefix.Masked() || e.Prefix.Addr().Is4In6() ||
			e.Verdict != Denied && e.Verdict != Allowed {
			return fmt.Errorf("adopt the prefix %s, %q: it is of another version", e.Prefix,
				e.Verdict)
		}
	}
	for _, e := range all {
		if !e.Until.IsZero() && !f.clock.Now().Before(e.Until) {
			continue
		}
		f.removeEntry(e.Prefix)
		e.Packets, e.tally = 0, new(tally)
		f.entries = append(f.entries, &e)
		if e.Automatic {
			f.denials.before[e.Prefix] = offence{e.Times, e.Until.Add(remembered)}
		}
	}
	f.republish()
	f.log.Info("the filter has the prefixes of the process before", "prefixes", len(all))
	return nil
}
