package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

var (
	_ packet.SourceDropper = (*Port)(nil)
	_ packet.SourceCounter = (*Port)(nil)
)

// sources holds what the program drops by source. The Port's mu guards it.
type sources struct {
	trie   int   // its descriptor; -1: the kernel has refused it
	refuse error // why, until somebody has been told; nil
	wanted map[sourceKey]*source
	held   map[sourceKey]*source // in the trie
	full   bool                  // more was wanted, and somebody has been told
	// uncounted holds frames that were dropped by what the trie has no more.
	uncounted map[packet.SourceDrop]uint64
}

func newSourceMap() (int, error) {
	return newMap(unix.BPF_MAP_TYPE_LPM_TRIE, sourceKeyLen, sourceValueLen, maxSources,
		unix.BPF_F_NO_PREALLOC, "sources")
}

// loadWithSources loads the program that is built with the trie, and without one where the kernel
// refuses the trie or the program with it.
func (p *Port) loadWithSources(build func(sources int) []byte) (err error) {
	newTrie := p.cfg.newSources
	if newTrie == nil {
		newTrie = newSourceMap
	}
	s := &p.sources
	if s.trie, s.refuse = newTrie(); s.refuse == nil {
		if p.program, s.refuse = loadProgram(build(s.trie)); s.refuse == nil {
			return nil
		}
		err = unix.Close(s.trie)
	}
	s.trie = -1
	if err == nil {
		p.program, err = loadProgram(build(-1))
	}
	return err
}

// DropSources implements [packet.SourceDropper], by the program and by the packet sockets. The
// program has room for 1,024 prefixes with TCP and UDP, and of each four blocks of ports; the
// longest prefix that a source is in decides which of its ports are dropped. Of a program that the
// kernel has refused, and of more prefixes than there is room for, one call tells.
func (p *Port) DropSources(all []packet.SourceDrop) (n int, err error) {
	n, err = p.Port.DropSources(all) // of frames that come by queues without a socket
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.sources
	switch {
	case p.closed:
		return 0, err
	case s.trie < 0 && len(all) > 0 && s.refuse != nil:
		err = errors.Join(err, fmt.Errorf("the XDP program of %s drops nothing by source: %w",
			p.Name(), s.refuse))
		s.refuse = nil
		return n, err
	case s.trie < 0:
		return n, err
	}
	s.wanted, n = groupSources(all)
	if full := len(s.wanted) == maxSources && n < len(all); full != s.full {
		if s.full = full; full {
			err = errors.Join(err, fmt.Errorf("the XDP program of %s has room for %d prefixes",
				p.Name(), maxSources/2))
		}
	}
	return n, errors.Join(err, p.putSources())
}

// putSources makes the trie drop what is wanted, and nothing while the port is muted: another
// process may have the frames then. mu is held.
func (p *Port) putSources() error {
	s := &p.sources
	if s.trie < 0 || p.closed {
		return nil
	}
	wanted := s.wanted
	if p.muted.Load() {
		wanted = nil
	}
	var errs []error
	for k, have := range s.held {
		if wanted[k] == nil {
			p.countSource(k, have, p.keepCount)
			if err := bpf.DropElement(s.trie, k[:]); err != nil {
				errs = append(errs, fmt.Errorf("take a prefix from the XDP program of %s: %w",
					p.Name(), err))
				continue
			}
			delete(s.held, k)
		}
	}
	for k, want := range wanted {
		v := want.toValue()
		if have := s.held[k]; have != nil {
			if have.toValue() == v {
				continue
			}
			p.countSource(k, have, p.keepCount)
		}
		if err := bpf.PutElement(s.trie, k[:], v[:]); err != nil {
			return errors.Join(append(errs, fmt.Errorf("give the XDP program of %s a prefix: %w",
				p.Name(), err))...)
		}
		s.held[k] = &source{drops: want.drops}
	}
	return errors.Join(errs...)
}

// CountDropped implements [packet.SourceCounter].
func (p *Port) CountDropped(add func(d packet.SourceDrop, frames uint64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.sources
	for d, frames := range s.uncounted {
		add(d, frames)
	}
	clear(s.uncounted)
	if p.closed {
		return
	}
	for k, have := range s.held {
		p.countSource(k, have, add)
	}
}

// countSource tells of frames dropped since it did so last. mu is held.
func (p *Port) countSource(k sourceKey, have *source, add func(packet.SourceDrop, uint64)) {
	var v sourceValue
	if bpf.GetElement(p.sources.trie, k[:], v[:]) != nil {
		return // they are not known
	}
	for i, d := range have.drops {
		n := binary.NativeEndian.Uint64(v[sourceCounts+8*i:])
		if n > have.told[i] {
			add(d, n-have.told[i])
			have.told[i] = n
		}
	}
}

// keepCount keeps a count for CountDropped. mu is held.
func (p *Port) keepCount(d packet.SourceDrop, frames uint64) { p.sources.uncounted[d] += frames }
