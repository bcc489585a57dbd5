package xdp

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

var _ packet.SourceDropper = (*Port)(nil)

// DropSources implements [packet.SourceDropper], by the program and by the packet sockets. The
// program has room for 4,096, one of a prefix and protocol; the longest prefix that a source is in
// decides which of its ports are dropped.
func (p *Port) DropSources(all []packet.SourceDrop) (n int, err error) {
	_, err = p.Port.DropSources(all) // fewer, of frames that queues without a socket receive
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, err
	}
	wanted := map[sourceKey]sourceValue{}
	for _, d := range all {
		k, v := encodeSource(d)
		if _, twice := wanted[k]; !twice && len(wanted) < maxSources {
			wanted[k] = v
		}
	}
	errs := []error{err}
	for k, v := range p.drops {
		if now, stays := wanted[k]; stays && now == v {
			continue
		}
		if err := bpf.DropElement(p.trie, k[:]); err != nil {
			errs = append(errs, fmt.Errorf("take a source from the XDP program of %s: %w", p.Name(),
				err))
			continue
		}
		delete(p.drops, k)
	}
	for k, v := range wanted {
		if _, has := p.drops[k]; has {
			continue
		}
		if err := bpf.PutElement(p.trie, k[:], v[:]); err != nil {
			err = fmt.Errorf("tell the XDP program of %s a source: %w", p.Name(), err)
			errs = append(errs, err)
			break
		}
		p.drops[k] = v
	}
	return len(p.drops), errors.Join(errs...)
}
