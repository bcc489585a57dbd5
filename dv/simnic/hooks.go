package simnic

// Hooks are called by the engines at each point where a fault can be injected. Each may be nil.
// They run with the queue's lock held and must not call the NIC.
type Hooks struct {
	// SendWQE is called before a send WQE is executed. A non-zero syndrome fails it with that error
	// completion.
	SendWQE func(sq *SQ, index uint16) (syndrome, vendor uint8)
	// Deliver is called before a frame goes into a receive queue: Starve treats the queue as empty;
	// a non-zero syndrome consumes a WQE with that error.
	Deliver func(rq *RQ) (starve bool, syndrome, vendor uint8)
	// Complete is called before a completion is written. Lose drops it; hold keeps it (and those
	// behind it) back until CQ.ReleaseHeld.
	Complete func(cq *CQ) (lose, hold bool)
	// Counter is called before a completion is written; true makes its wqe_counter wrong.
	Counter func(cq *CQ) (wrong bool)
	// Doorbell is called when a doorbell arrives; true loses it.
	Doorbell func(sq *SQ) (lose bool)
	// Hold is called before a send queue looks for WQEs to execute; true stops the queue until the
	// next call, at the next doorbell or link change. A queue without transport domain, which sends
	// no frames, is not asked.
	Hold func(sq *SQ) bool
}

// SetHooks installs h for all later events; nil removes it.
func (n *NIC) SetHooks(h *Hooks) { n.hooks.Store(h) }
