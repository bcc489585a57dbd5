package stack

import (
	"errors"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// watch follows the device: it acts on changes of the link, and ends the stack when the device
// fails.
func (s *Stack) watch() {
	defer close(s.watched)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.nic.LinkChanged():
			s.linkChanged(s.nic.LinkUp())
		case <-s.nic.Done():
			err := s.nic.Err()
			if errors.Is(err, dv.ErrClosed) || errors.Is(err, packet.ErrClosed) {
				err = nil // stopped by somebody else
			}
			s.end(err)
			return
		}
	}
}

// linkChanged makes the stack known on a link that is there again, which may be another one than
// before.
func (s *Stack) linkChanged(up bool) {
	if !up {
		s.log.Warn("the link is down", "interface", s.name)
		return
	}
	s.log.Warn("the link is up", "interface", s.name)
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

// add returns a channel of capacity one that receives a token each time the link comes up.
func (r *linkUpWaiters) add() <-chan struct{} {
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
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
