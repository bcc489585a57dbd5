//go:build linux

package vm

import (
	"sync"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
)

// ruleWatch keeps the flow rules of a function, of the netdev and of programs. Its methods may be
// called concurrently.
type ruleWatch struct {
	mu   sync.Mutex
	live map[pcie.RuleAt]simnic.Match // guarded by mu
	told map[simnic.Match]bool        // guarded by mu: since begin; nil before
}

// change takes note of a rule: the function calls it.
func (r *ruleWatch) change(at pcie.RuleAt, m *simnic.Match) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m == nil {
		delete(r.live, at)
		return
	}
	if r.live == nil {
		r.live = map[pcie.RuleAt]simnic.Match{}
	}
	r.live[at] = *m
	if r.told != nil {
		r.told[*m] = true
	}
}

// begin keeps the rules that the function is told of from now on.
func (r *ruleWatch) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = map[simnic.Match]bool{}
}

// ofAddress returns how many different rules for frames to an address the function was told of
// since begin, and how many for it there are now.
func (r *ruleWatch) ofAddress(mac [6]byte) (told, live int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.told {
		if isForAddress(m, mac) {
			told++
		}
	}
	for _, m := range r.live {
		if isForAddress(m, mac) {
			live++
		}
	}
	return told, live
}

// isForAddress reports whether a rule is for frames to one address.
func isForAddress(m simnic.Match, mac [6]byte) bool {
	var all simnic.Match
	all.SetDstMAC(mac, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	for i, mask := range all.Mask {
		if m.Mask[i]&mask != mask || m.Value[i]&mask != all.Value[i] {
			return false
		}
	}
	return true
}
