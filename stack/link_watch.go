package stack

import (
	"errors"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// healthInterval is how often resets of queues are looked for, if anybody is to be told.
const healthInterval = time.Second

var errLinkDown = errors.New("the port has no link")

// watch follows the device: it acts on changes of the link, and ends the stack when the device
// fails for good.
func (s *Stack) watch() {
	defer close(s.watched)
	samples := s.clock.NewTimer(healthInterval)
	if s.cfg.HealthChanged == nil {
		samples.Stop()
	}
	defer samples.Stop()
	for {
		select {
		case <-samples.C:
			s.health.sample(s.Devices())
			samples.Reset(healthInterval)
		case <-s.ctx.Done():
			return
		case <-s.netdevGone():
			s.over(s.packets.Err())
			return
		case <-s.nic.LinkChanged():
			s.linkChanged(s.nic.LinkUp())
		case <-s.nic.Done():
			s.over(s.nic.Err())
			return
		}
	}
}

// over ends the stack with its device, which may have been stopped by somebody else.
func (s *Stack) over(err error) {
	if errors.Is(err, dv.ErrClosed) || errors.Is(err, packet.ErrClosed) {
		err = nil
	}
	s.end(err)
}

// linkChanged makes the stack known on a link that is there again, which may be another one than
// before.
func (s *Stack) linkChanged(up bool) {
	if !up {
		s.health.report(reportLink, errLinkDown)
		s.log.Warn("the link is down", "interface", s.name)
		return
	}
	s.log.Warn("the link is up", "interface", s.name)
	s.linkIsUp()
}

// linkIsUp makes the stack known on a link that carries frames again, and has what was lost
// repeated.
func (s *Stack) linkIsUp() {
	s.health.report(reportLink, nil)
	s.restartSlowStart()
	if s.link != nil {
		s.link.Repeat()
	}
	if !s.cfg.NoAnnounce {
		s.announceTwice()
	}
	if s.cfg.SLAAC {
		s.solicitRouter()
	}
	s.linkUp.wakeAll()
}

// linkUpWaiters are the channels to notify when the link is up again.
type linkUpWaiters struct {
	mu      sync.Mutex
	waiters []chan struct{} // guarded by mu
}

// add returns a channel of capacity one that receives a token each time the link comes up. Who
// takes a token and leaves what it means to another puts it back.
func (r *linkUpWaiters) add() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{}, 1)
	r.waiters = append(r.waiters, c)
	return c
}

// wakeAll puts a token into each channel that has none.
func (r *linkUpWaiters) wakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.waiters {
		notify(c)
	}
}
