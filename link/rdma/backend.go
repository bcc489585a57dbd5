package rdma

import (
	"fmt"
	"net"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// BackendKind is what sort of queues an endpoint works on.
type BackendKind uint8

// The kinds.
const (
	BackendRings  BackendKind = iota // rings of a device
	BackendPacket                    // packet sockets of an interface
	BackendNone                      // nothing: frames to send are counted and dropped
	backendKinds
)

var backendNames = [backendKinds]string{"rings", "packet", "none"}

// String implements fmt.Stringer.
func (k BackendKind) String() string {
	if k < backendKinds {
		return backendNames[k]
	}
	return fmt.Sprintf("BackendKind(%d)", uint8(k))
}

// Backend is queues for [Endpoint.Switch]. The zero value is that of None.
type Backend struct{ queues backend }

// Rings is all queues of dev.
func Rings(dev *dv.Device) Backend { return Backend{rings{dev}} }

// None is no queues at all: nothing is received, and what is sent is dropped and counted.
func None() Backend { return Backend{noQueues{}} }

// Kind is the sort of b's queues.
func (b Backend) Kind() BackendKind {
	if b.queues == nil {
		return BackendNone
	}
	return b.queues.kind()
}

// backend is the queues that an endpoint works on: rings of a device, or packet sockets
// of an interface (sockets.go). Frames have the types of package dv in both. Values of
// one backend are equal.
type backend interface {
	kind() BackendKind
	Name() string
	MAC() net.HardwareAddr
	VLAN() uint16
	MTU() int // bytes
	NumRx() int
	NumTx() int
	rxQueue(i int) rxQueue
	txQueue(i int) txQueue
	SetGroups(groups []net.HardwareAddr) error
	// OutOfBuffer is how many frames were dropped for want of room before a queue.
	OutOfBuffer() uint64
	// offloads says whether checksums are computed, and the most bytes that are segmented.
	offloads() (csum bool, maxTSO int)
	// spins is how many looks in vain at a receive queue take as long as a short sleep.
	spins() int
	// Done is closed when the queues are of no use any more.
	Done() <-chan struct{}
}

// rxQueue is what the endpoint needs of a receive queue, as dv.RxQueue has it.
type rxQueue interface {
	Index() int
	Poll(dst []dv.Packet) int
	Segments(to [][]byte, p *dv.Packet) [][]byte
	Release(pkts []dv.Packet)
	Arm()
	Wait() error
	Wake()
}

// txQueue is what the endpoint needs of a send queue, as dv.TxQueue has it. Post may leave bytes of
// the frame where they are until Flush, which must come before Unlock.
type txQueue interface {
	Lock()
	TryLock() bool
	Unlock()
	Free() int
	Post(p *dv.TxPacket) error
	Flush()
	Reap() int
	Reclaim() int
	Check() bool
}

// onDevices is a backend that is on devices, alone or among others.
type onDevices interface{ devices() []*dv.Device }

// devicesOf is the devices that queues are on.
func devicesOf(queues backend) []*dv.Device {
	if on, ok := queues.(onDevices); ok {
		return on.devices()
	}
	return nil
}

// otherSender is a backend whose send queues may be of another kind than its own.
type otherSender interface{ sendKind() BackendKind }

// sendKindOf is the kind of the send queues.
func sendKindOf(queues backend) BackendKind {
	if o, ok := queues.(otherSender); ok {
		return o.sendKind()
	}
	return queues.kind()
}

// deafPart is a backend, among others, whose frames may have to be dropped.
type deafPart interface{ deaf() bool }

// parted is a backend whose receive queues are those of others.
type parted interface{ part(i int) backend }

// partOf is the backend whose own receive queue i is.
func partOf(queues backend, i int) backend {
	if p, ok := queues.(parted); ok {
		return p.part(i)
	}
	return queues
}

// rings is a device as a backend.
type rings struct{ *dv.Device }

func (r rings) kind() BackendKind     { return BackendRings }
func (r rings) devices() []*dv.Device { return []*dv.Device{r.Device} }
func (r rings) rxQueue(i int) rxQueue { return r.Rx(i) }
func (r rings) txQueue(i int) txQueue { return r.Tx(i) }
func (r rings) offloads() (bool, int) { return r.Caps().TxCsum, r.Caps().MaxTSO }
func (r rings) spins() int            { return maxSpins }
