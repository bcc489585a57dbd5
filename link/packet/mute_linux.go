package packet

// Mute has the kernel drop every frame for the port, and drops what it has not delivered or sent:
// for a port that is kept for later. The NIC goes on to pass our addresses. A closed port does
// nothing.
func (p *Port) Mute() error {
	if err := p.setMuted(true); err != nil {
		return err
	}
	for i := range p.rx {
		p.rx[i].dropReceived()
		p.tx[i].dropWaiting()
	}
	return nil
}

// Unmute ends Mute: frames arrive from then on.
func (p *Port) Unmute() error { return p.setMuted(false) }

func (p *Port) setMuted(muted bool) error {
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	g.muted = muted
	if p.closed {
		return nil
	}
	return p.attachFilters(g.joined, g.all)
}

// dropReceived drops what has been received and not delivered.
func (q *RxQueue) dropReceived() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count.discarded.Add(uint64(len(q.whole)))
	q.whole = nil
	for n := q.n - q.next; !q.closed; n = q.n {
		q.count.discarded.Add(uint64(n))
		q.next, q.cutting = q.n, false
		if !q.askKernel() {
			return
		}
	}
}

// dropWaiting drops what waits for room.
func (q *TxQueue) dropWaiting() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count.dropped.Add(uint64(len(q.waiting)))
	q.spare = append(q.spare, q.waiting...)
	q.waiting = q.waiting[:0]
}
