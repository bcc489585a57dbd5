package simnic

import (
	"sync"
	"sync/atomic"
)

// netdevLists are the addresses that the netdev of package kernel receives besides its own, as
// dev_uc_add, dev_mc_add and dev_set_allmulti of linux keep it. The driver of the netdev writes all
// of it into the NIC vport context at each change (mlx5e_set_rx_mode_work in
// drivers/net/ethernet/mellanox/mlx5/core/en_fs.c).
type netdevLists struct {
	mu        sync.Mutex
	refs      map[[6]byte]int // guarded by mu, as is allGroups
	allGroups int
}

// AddAddress makes the netdev receive frames to mac, until as many calls of RemoveAddress.
func (n *NIC) AddAddress(mac [6]byte) {
	n.updateNetdev(func(l *netdevLists) { l.refs[mac]++ })
}

// RemoveAddress undoes one AddAddress.
func (n *NIC) RemoveAddress(mac [6]byte) {
	n.updateNetdev(func(l *netdevLists) {
		if l.refs[mac]--; l.refs[mac] <= 0 {
			delete(l.refs, mac)
		}
	})
}

// AddAllMulticast makes the netdev receive frames to every group, until as many calls of
// RemoveAllMulticast.
func (n *NIC) AddAllMulticast() { n.updateNetdev(func(l *netdevLists) { l.allGroups++ }) }

// RemoveAllMulticast undoes one AddAllMulticast.
func (n *NIC) RemoveAllMulticast() { n.updateNetdev(func(l *netdevLists) { l.allGroups-- }) }

// updateNetdev makes a change and writes the vport context.
func (n *NIC) updateNetdev(change func(*netdevLists)) {
	l := &n.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == nil {
		l.refs = map[[6]byte]int{}
	}
	change(l)
	unicasts, groups := [][6]byte{[6]byte(n.MAC())}, [][6]byte{}
	for mac := range l.refs {
		if mac[0]&1 == 0 {
			unicasts = append(unicasts, mac)
		} else {
			groups = append(groups, mac)
		}
	}
	n.SetUnicastList(unicasts)
	n.SetMulticastList(groups)
	n.SetReceiveMode(false, l.allGroups > 0)
}

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
