package rdma

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// BackendKind says what sort of queues an endpoint works on.
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

// Rings returns all queues of dev.
func Rings(dev *dv.Device) Backend { return Backend{rings{dev}} }

// None is no queues at all: nothing is received, and what is sent is dropped and counted.
func None() Backend { return Backend{noQueues{}} }

// Kind returns the sort of b's queues.
func (b Backend) Kind() BackendKind {
	if b.queues == nil {
		return BackendNone
	}
	return b.queues.kind()
}

// backend is the queues that an endpoint works on: rings of a device, or packet sockets
// of an interface (backends.go). Frames have the types of package dv in both. Values of
// one backend are equal.
type backend interface {
	kind() BackendKind
	Name() string
	MAC() net.HardwareAddr
	VLAN() uint16
	MTU() int // bytes, as it is now
	NumRx() int
	NumTx() int
	rxQueue(i int) rxQueue
	txQueue(i int) txQueue
	SetGroups(groups []net.HardwareAddr) error
	// OutOfBuffer says how many frames were dropped for want of room before a queue.
	OutOfBuffer() uint64
	// offloads says whether checksums are computed, and the most bytes that are segmented.
	offloads() (csum bool, maxTSO int)
	// spins says how many looks in vain at a receive queue take as long as a short sleep.
	spins() int
	// Done is closed when the queues are of no use any more.
	Done() <-chan struct{}
}

// rxQueue lists what the endpoint needs of a receive queue, as dv.RxQueue has it.
type rxQueue interface {
	Index() int
	Poll(dst []dv.Packet) int
	Segments(to [][]byte, p *dv.Packet) [][]byte
	Release(pkts []dv.Packet)
	Arm()
	Wait() error
	Wake()
}

// txQueue lists what the endpoint needs of a send queue, as dv.TxQueue has it. Post may leave bytes
// of the frame where they are until Flush, which must come before Unlock.
type txQueue interface {
	Lock()
	TryLock() bool
	Unlock()
	Free() int
	MaxDatagrams() int
	Post(p *dv.TxPacket) error
	Flush()
	Reap() int
	Reclaim() int
	Check() bool
}

// onDevices is a backend that is on devices, alone or among others.
type onDevices interface{ devices() []*dv.Device }

// devicesOf returns the devices that queues are on.
func devicesOf(queues backend) []*dv.Device {
	if on, ok := queues.(onDevices); ok {
		return on.devices()
	}
	return nil
}

// otherSender is a backend whose send queues may be of another kind than its own.
type otherSender interface{ sendKind() BackendKind }

// sendKindOf returns the kind of the send queues.
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

// partOf returns the backend whose own receive queue i is.
func partOf(queues backend, i int) backend {
	if p, ok := queues.(parted); ok {
		return p.part(i)
	}
	return queues
}

// rings presents a device as a backend.
type rings struct{ *dv.Device }

func (r rings) kind() BackendKind     { return BackendRings }
func (r rings) devices() []*dv.Device { return []*dv.Device{r.Device} }
func (r rings) rxQueue(i int) rxQueue { return r.Rx(i) }
func (r rings) txQueue(i int) txQueue { return r.Tx(i) }
func (r rings) offloads() (bool, int) { return r.Caps().TxCsum, r.Caps().MaxTSO }
func (r rings) spins() int            { return maxSpins }

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

// MaxDatagrams implements txQueue.
func (*dropQueue) MaxDatagrams() int { return gsoMaxSize }

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

// RingsAndSockets returns all queues of dev, which is in host mode, and beside them the receive
// queues of port, which is on the host's MAC (packet.Config.Host) and brings what no rule of dev
// takes: frames to our ports while a rule is not there, ARP replies, neighbour advertisements,
// ICMP errors. All frames are sent by dev. port is on dev's netdev, or on that of its VLAN.
func RingsAndSockets(dev *dv.Device, port packet.Interface) Backend {
	return Backend{newRingsAndSockets(dev, port)}
}

// NewOverRingsAndSockets makes an endpoint over RingsAndSockets. Both stay the caller's and must
// outlive the endpoint. Nobody else may use their receive queues until Close has returned.
func NewOverRingsAndSockets(dev *dv.Device, port packet.Interface, opts Options) (*Endpoint,
	error) {
	return newEndpoint(newRingsAndSockets(dev, port), opts)
}

// withSockets presents a backend with the receive queues of sockets behind its own. All frames are
// sent by the first.
type withSockets struct {
	backend
	sockets sockets
}

// devices implements onDevices.
func (b withSockets) devices() []*dv.Device { return devicesOf(b.backend) }

// receivesOnly implements onlyReceiver.
func (b withSockets) receivesOnly() bool { return receivesOnly(b.backend) }

// NumRx implements backend.
func (b withSockets) NumRx() int { return b.backend.NumRx() + b.sockets.NumRx() }

// MTU implements backend: the sockets' netdev may be that of a VLAN, with a smaller one.
func (b withSockets) MTU() int { return min(b.backend.MTU(), b.sockets.MTU()) }

// part implements parted.
func (b withSockets) part(i int) backend {
	if i < b.backend.NumRx() {
		return b.backend
	}
	return b.sockets
}

func (b withSockets) rxQueue(i int) rxQueue {
	n := b.backend.NumRx()
	if i < n {
		return b.backend.rxQueue(i)
	}
	return behind{b.sockets.rxQueue(i - n), i}
}

// ringsAndSockets presents a device with sockets that are an interface of their own.
type ringsAndSockets struct{ withSockets }

func newRingsAndSockets(dev *dv.Device, port packet.Interface) ringsAndSockets {
	return ringsAndSockets{withSockets{rings{dev}, sockets{port, dev.VLAN()}}}
}

// OutOfBuffer implements backend.
func (b ringsAndSockets) OutOfBuffer() uint64 {
	return b.backend.OutOfBuffer() + b.sockets.OutOfBuffer()
}

// behind describes a queue with another number.
type behind struct {
	rxQueue
	number int
}

// Index implements rxQueue.
func (q behind) Index() int { return q.number }

// NewOverPort makes an endpoint over all queues of port, packet sockets of an interface of any make
// or what a program has in their place, which stays the caller's and must outlive the endpoint.
// Nobody else may use its receive queues until Close has returned. What the endpoint promises is
// the same as over a device.
func NewOverPort(port packet.Interface, opts Options) (*Endpoint, error) {
	return newEndpoint(onPort(port), opts)
}

// Sockets returns all queues of port.
func Sockets(port packet.Interface) Backend { return Backend{onPort(port)} }

// onPort presents a port, and what is beside it, as a backend.
func onPort(port packet.Interface) backend {
	if j, ok := port.(packet.Joined); ok {
		return withSockets{inMemory{sockets{Interface: port}}, sockets{Interface: j.Beside()}}
	}
	return sockets{Interface: port}
}

// inMemory describes a port whose receive queues are memory of ours: a look is none of the
// kernel's, and nobody else has the frames.
type inMemory struct{ sockets }

func (inMemory) spins() int         { return maxSpins }
func (inMemory) receivesOnly() bool { return true }

// onlyReceiver describes a backend that may be the only one to receive unicast frames for us,
// whatever its kind.
type onlyReceiver interface{ receivesOnly() bool }

// receivesOnly reports whether no other process with our addresses gets the unicast frames of
// queues.
func receivesOnly(queues backend) bool {
	only, ok := queues.(onlyReceiver)
	return ok && only.receivesOnly() || queues.kind() == BackendRings
}

// SocketsInVLAN returns all queues of port, which is on the netdev of a VLAN: the kernel takes the
// tag out and puts it in. The endpoint's frames have it.
func SocketsInVLAN(port packet.Interface, vlan uint16) Backend {
	return Backend{sockets{port, vlan}}
}

// sockets presents a port as a backend.
type sockets struct {
	packet.Interface
	netdevVLAN uint16 // of the port's netdev; 0: none
}

func (p sockets) kind() BackendKind { return BackendPacket }

// VLAN implements backend.
func (p sockets) VLAN() uint16 {
	if p.netdevVLAN != 0 {
		return p.netdevVLAN
	}
	return p.Interface.VLAN()
}

func (p sockets) NumRx() int { return p.NumQueues() }
func (p sockets) NumTx() int { return p.NumQueues() }

func (p sockets) rxQueue(i int) rxQueue {
	return &rxSocket{Receiver: p.Rx(i), netdevVLAN: p.netdevVLAN}
}

func (p sockets) txQueue(i int) txQueue {
	return &txSocket{Sender: p.Tx(i), netdevVLAN: p.netdevVLAN}
}

// OutOfBuffer implements backend: the kernel's drops.
func (p sockets) OutOfBuffer() uint64 { return p.Dropped() }

// offloads: the kernel does what the NIC does not.
func (p sockets) offloads() (bool, int) { return true, gsoMaxSize }

// spins: a look at a socket is a system call.
func (p sockets) spins() int { return maxSpins / 40 }

// rxSocket presents a socket as a receive queue.
type rxSocket struct {
	packet.Receiver
	netdevVLAN uint16
	frames     [64]packet.Frame
}

// Poll implements rxQueue. The frames are good until the next Poll.
func (q *rxSocket) Poll(dst []dv.Packet) int {
	n := q.Receive(q.frames[:min(len(q.frames), len(dst))])
	for i := range q.frames[:n] {
		f := &q.frames[i]
		dst[i] = dv.Packet{Data: f.Data, Frame: dv.NoFrame, VLAN: f.VLAN, Flags: rxFlags(f.Flags)}
		if q.netdevVLAN != 0 {
			dst[i].VLAN = q.netdevVLAN
			dst[i].Flags |= dv.RxVLAN
		}
	}
	return n
}

// rxFlags says what package packet does in the words of dv.
func rxFlags(f packet.RxFlags) (flags dv.RxFlags) {
	if f&packet.RxChecksumOK != 0 {
		flags |= dv.RxL4OK
	}
	if f&packet.RxHeaderOK != 0 {
		flags |= dv.RxL3OK
	}
	if f&packet.RxTagged != 0 {
		flags |= dv.RxVLAN
	}
	return flags
}

// Segments implements rxQueue; no frame has any.
func (q *rxSocket) Segments(to [][]byte, _ *dv.Packet) [][]byte { return to }

// Release implements rxQueue: the next Poll uses the memory again.
func (q *rxSocket) Release([]dv.Packet) {}

// txSocket presents a socket as a send queue.
type txSocket struct {
	packet.Sender
	netdevVLAN uint16
	frame      packet.TxFrame // scratch
}

// roomy is the free blocks of a queue in which nothing waits, and tight those of one in which
// something does: what is left is for urgent packets.
const (
	roomy = 1024
	tight = dv.MaxBlocks
)

// Free implements txQueue.
func (q *txSocket) Free() int {
	if q.Waiting() > 0 {
		return tight
	}
	return roomy
}

// Post implements txQueue.
func (q *txSocket) Post(p *dv.TxPacket) error {
	f := &q.frame
	f.Bufs, f.GSOSize, f.VLAN, f.Flags = p.Bufs, p.MSS, p.VLAN, 0
	if p.Flags&(dv.TxL3Csum|dv.TxL4Csum) != 0 {
		f.Flags = packet.TxChecksum
	}
	if p.Flags&dv.TxVLAN != 0 && q.netdevVLAN == 0 {
		f.Flags |= packet.TxTag
	}
	switch err := q.Sender.Post(f); {
	case err == nil:
		return nil
	case errors.Is(err, packet.ErrFull):
		return dv.ErrRingFull
	case errors.Is(err, packet.ErrFrameSize):
		return dv.ErrFrameSize
	default:
		return dv.ErrClosed
	}
}

// Reap implements txQueue: what waits for the kernel tries again.
func (q *txSocket) Reap() int { return q.Retry() }

// Reclaim implements txQueue.
func (q *txSocket) Reclaim() int { return q.Retry() }

// Check implements txQueue. Nothing is outstanding once the kernel has it.
func (q *txSocket) Check() bool {
	q.Retry()
	return q.Waiting() > 0
}
