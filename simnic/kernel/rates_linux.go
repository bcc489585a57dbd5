package kernel

import (
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// rate says what a send queue is limited to (struct mlx5_rate_limit); the zero value is no limit.
type rate struct {
	kbps  uint32
	burst uint32 // bytes
	size  uint16 // of a typical packet, bytes
}

// rateTable holds the rates of the device's table of limits and how many queues use each: equal
// ones share an entry (drivers/net/ethernet/mellanox/mlx5/core/rl.c).
type rateTable struct {
	mu    sync.Mutex
	users map[rate]int
}

// addUser makes room for a queue of rate r, as mlx5_rl_add_rate does.
func (t *rateTable) addUser(r rate, limit simnic.PacingCap) unix.Errno {
	switch {
	case r == (rate{}):
		return 0
	case limit.MaxKbps == 0:
		return unix.EOPNOTSUPP
	case r.kbps < limit.MinKbps || r.kbps > limit.MaxKbps:
		return unix.EINVAL
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users[r] == 0 && len(t.users) >= limit.Rates {
		return unix.ENOSPC
	}
	if t.users == nil {
		t.users = map[rate]int{}
	}
	t.users[r]++
	return 0
}

// dropUser ends a queue's use of rate r.
func (t *rateTable) dropUser(r rate) {
	if r == (rate{}) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users[r]--; t.users[r] <= 0 {
		delete(t.users, r)
	}
}

// rateOf returns the rate that a request names (__mlx5_ib_modify_qp). Burst and packet size are for
// a rate on a device that takes them.
func rateOf(kbps uint32, b uverbs.Mlx5BurstInfo, limit simnic.PacingCap) (rate, unix.Errno) {
	if (b.MaxBurstSz != 0 || b.TypicalPktSz != 0) && (kbps == 0 || !limit.Burst) {
		return rate{}, unix.EINVAL
	}
	return rate{kbps: kbps, burst: b.MaxBurstSz, size: b.TypicalPktSz}, 0
}

// stepLimited does what stepQueues does to RTS, with a rate for the send queue. On failure it keeps
// the one before (modify_raw_packet_qp_sq).
func (q *qp) stepLimited(from, to uint8, r rate) unix.Errno {
	l := q.ring.node.linux
	if errno := l.rates.addUser(r, l.nic.Caps().Pacing); errno != 0 {
		return errno
	}
	if errno := q.stepQueues(from, to); errno != 0 || q.sq == nil {
		l.rates.dropUser(r)
		return errno
	}
	if err := q.sq.LimitRate(uint64(r.kbps)*1000, int(r.burst)); err != nil {
		l.rates.dropUser(r)
		return errnoOf(err)
	}
	l.rates.dropUser(q.rate)
	q.rate = r
	return 0
}

// dropRate ends the use of the rate of a send queue that leaves RTS.
func (q *qp) dropRate() {
	q.ring.node.linux.rates.dropUser(q.rate)
	q.rate = rate{}
}
