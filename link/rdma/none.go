package rdma

import (
	"net"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// noQueues is the backend without queues.
type noQueues struct{}

func (noQueues) kind() BackendKind                  { return BackendNone }
func (noQueues) Name() string                       { return "none" }
func (noQueues) MAC() net.HardwareAddr              { return nil }
func (noQueues) VLAN() uint16                       { return 0 }
func (noQueues) MTU() int                           { return gsoMaxSize }
func (noQueues) NumRx() int                         { return 0 }
func (noQueues) NumTx() int                         { return 1 }
func (noQueues) rxQueue(int) rxQueue                { return nil }
func (noQueues) txQueue(int) txQueue                { return new(dropQueue) }
func (noQueues) SetGroups([]net.HardwareAddr) error { return nil }
func (noQueues) OutOfBuffer() uint64                { return 0 }
func (noQueues) offloads() (bool, int)              { return true, gsoMaxSize }
func (noQueues) spins() int                         { return 0 }
func (noQueues) Done() <-chan struct{}              { return nil }

// dropQueue is a send queue that takes every frame and sends none.
type dropQueue struct{ sync.Mutex }

// Free implements txQueue.
func (*dropQueue) Free() int { return 64 * dv.MaxBlocks }

// Post implements txQueue. The sender counts the frame.
func (*dropQueue) Post(*dv.TxPacket) error { return nil }

// Flush implements txQueue.
func (*dropQueue) Flush() {}

// Reap implements txQueue.
func (*dropQueue) Reap() int { return 0 }

// Reclaim implements txQueue.
func (*dropQueue) Reclaim() int { return 0 }

// Check implements txQueue.
func (*dropQueue) Check() bool { return false }
