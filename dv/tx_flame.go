package dv

import "github.com/rdma-netstack/rdma-netstack/dv/mlx5"

// BlueFlame: the doorbell of a descriptor that was posted alone carries the
// descriptor itself, so that the NIC does not have to fetch it. A doorbell
// register has two halves for that, which take turns. rdma-core
// providers/mlx5/qp.c does the same, with inlined descriptors only.

// flame is the doorbell register's room for descriptors.
type flame struct {
	size uint32 // bytes of a half; 0: none
	half int    // offset of the half that is next
}

// flare rings for the last descriptor by writing all of it into the register,
// and reports whether that could be done.
func (q *TxQueue) flare() bool {
	slot, size := q.last&q.mask, (q.pc-q.last)*mlx5.BB
	if size > q.flame.size || slot*mlx5.BB+size > q.size*mlx5.BB {
		return false
	}
	q.page.Copy(q.register+q.flame.half, q.ring[slot*mlx5.BB:slot*mlx5.BB+size])
	q.flame.half ^= int(q.flame.size)
	q.count.flames.n++
	return true
}
