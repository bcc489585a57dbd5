package simnic

import (
	"sync"
	"sync/atomic"
)

// loopback says whether frames of the port's own queues are delivered to the port's own receivers.
type loopback struct {
	unicast, multicast atomic.Bool

	mu               sync.Mutex
	contexts, queues int // guarded by mu: counts of UseLoopback
}

// SetLoopback says whether frames of the port's own queues are delivered to the
// port's own receivers, if they are for them: else they leave by the wire only
// (disable_uc_local_lb and disable_mc_local_lb of the NIC vport context). New
// switches both off, as linux does. It does not affect frames within one transport domain.
func (n *NIC) SetLoopback(unicast, multicast bool) {
	n.loopback.unicast.Store(unicast)
	n.loopback.multicast.Store(multicast)
}

// UseLoopback counts the user contexts of package kernel, and its queue pairs whose TIR may receive
// what its own context sends: the arguments are changes. Loopback is on while there are two
// contexts or one such queue pair (mlx5_ib_enable_lb and mlx5_ib_disable_lb in linux 6.12
// drivers/infiniband/hw/mlx5/main.c).
func (n *NIC) UseLoopback(contexts, queues int) {
	l := &n.loopback
	l.mu.Lock()
	defer l.mu.Unlock()
	l.contexts += contexts
	l.queues += queues
	on := l.contexts >= 2 || l.queues >= 1
	n.SetLoopback(on, on)
}
