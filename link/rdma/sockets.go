package rdma

import (
	"errors"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// NewOverPort makes an endpoint over all queues of port, packet sockets of an interface of any make
// or what a program has in their place, which stays the caller's and must outlive the endpoint.
// Nobody else may use its receive queues until Close has returned. What the endpoint promises is
// the same as over a device.
func NewOverPort(port packet.Interface, opts Options) (*Endpoint, error) {
	return newEndpoint(sockets{Interface: port}, opts)
}

// Sockets is all queues of port.
func Sockets(port packet.Interface) Backend { return Backend{sockets{Interface: port}} }

// SocketsInVLAN is all queues of port, which is on the netdev of a VLAN: the kernel takes the tag
// out and puts it in. The endpoint's frames have it.
func SocketsInVLAN(port packet.Interface, vlan uint16) Backend {
	return Backend{sockets{port, vlan}}
}

// sockets is a port as a backend.
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

// rxSocket is a socket as a receive queue.
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

// txSocket is a socket as a send queue.
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
