package rdma

import (
	"sync"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// holder makes a NIC delay all its completions, as a busy one does.
type holder struct {
	nic *simnic.NIC
	mu  sync.Mutex
	cqs map[*simnic.CQ]bool // that hold some; nil: no more
}

func hold(nic *simnic.NIC) *holder {
	h := &holder{nic: nic, cqs: map[*simnic.CQ]bool{}}
	nic.SetHooks(&simnic.Hooks{Complete: h.complete})
	return h
}

func (h *holder) complete(cq *simnic.CQ) (lose, hold bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cqs != nil {
		h.cqs[cq] = true
	}
	return false, h.cqs != nil
}

// release writes the held completions, and holds no more.
func (h *holder) release() {
	h.nic.SetHooks(nil)
	h.mu.Lock()
	cqs := h.cqs
	h.cqs = nil
	h.mu.Unlock()
	for cq := range cqs {
		cq.ReleaseHeld()
	}
}
