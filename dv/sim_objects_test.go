package dv_test

import (
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// quota counts objects as the rdma cgroup does, and refuses those above a limit: each uobject with
// an ID (alloc_begin_idr_uobject of linux drivers/infiniband/core/rdma_core.c), which file
// descriptors lack.
type quota struct {
	uverbs.Kernel
	limit int // 0: none

	mu        sync.Mutex
	now, most int // guarded by mu
}

// writeCommands are the changes that the commands make which the driver sends (enum
// ib_uverbs_write_cmds of include/uapi/rdma/ib_user_verbs.h; the high bit marks extended ones):
// PD, MR, CQ, QP, flow, WQ, indirection table.
var writeCommands = map[uint64]int{3: 1, 9: 1, 18: 1, 24: 1, 0x80000012: 1, 0x80000018: 1,
	0x80000032: 1, 0x80000034: 1, 0x80000037: 1, 4: -1, 13: -1, 20: -1, 27: -1, 0x80000033: -1,
	0x80000036: -1, 0x80000038: -1}

func (q *quota) Ioctl(buf []byte) error {
	const header, attribute, writeCommand = 24, 16, 2 // struct ib_uverbs_ioctl_hdr, ib_uverbs_attr
	ne, change := binary.NativeEndian, 0
	if object, method := ne.Uint16(buf[2:]), ne.Uint16(buf[4:]); object == 0 && method == 0 {
		for i := range int(ne.Uint16(buf[6:])) {
			if a := buf[header+attribute*i:]; ne.Uint16(a) == writeCommand {
				change += writeCommands[ne.Uint64(a[8:])]
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if change > 0 && q.limit > 0 && q.now >= q.limit {
		return unix.EAGAIN // rdmacg_try_charge
	}
	err := q.Kernel.Ioctl(buf)
	if err == nil {
		q.now += change
		q.most = max(q.most, q.now)
	}
	return err
}

// TestObjects counts the objects of a device. The doctor knows these numbers.
func TestObjects(t *testing.T) {
	for _, n := range [][2]int{{1, 1}, {1, 4}, {4, 8}, {16, 16}} {
		s := newSim(t, simnic.Config{}, kernel.Config{})
		q := &quota{}
		d := s.open(t, dv.Config{NIC: dv.NIC{RxQueues: n[0], TxQueues: n[1]},
			Interpose: func(k uverbs.Kernel) uverbs.Kernel {
				q.Kernel = k
				return q
			}})
		want := 21 + 2*(n[0]+n[1])
		if q.now != want {
			t.Errorf("%v queues: %d objects, want %d", n, q.now, want)
		}
		shares := make([]int, n[0])
		for i := range shares {
			shares[i] = 1
		}
		if err := d.Rebalance(shares); err != nil || q.most != want+13 {
			t.Errorf("%v queues: at most %d objects, want %d (%v)", n, q.most, want+13, err)
		}
	}
}

// TestObjectsRefused: at every object that the cgroup may refuse, the error speaks of the cgroup.
func TestObjectsRefused(t *testing.T) {
	for limit := 1; limit < 25; limit++ {
		s := newSim(t, simnic.Config{}, kernel.Config{})
		_, err := dv.Open(t.Context(), s.config(dv.Config{NIC: dv.NIC{RxQueues: 1, TxQueues: 1},
			Interpose: func(k uverbs.Kernel) uverbs.Kernel {
				return &quota{Kernel: k, limit: limit}
			}}))
		if err == nil || !strings.Contains(err.Error(), "rdma cgroup") ||
			!strings.Contains(err.Error(), "rdma.max") {
			t.Errorf("%d objects allowed: %v, want the cgroup named", limit, err)
		}
	}
}
