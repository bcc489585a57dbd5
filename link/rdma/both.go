package rdma

import (
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// RingsAndSockets is all queues of dev, which is in host mode, and beside them the receive queues
// of port, which is on the host's MAC (packet.Config.Host) and brings what no rule of dev takes:
// frames to our ports while a rule is not there, ARP replies, neighbour advertisements, ICMP
// errors. All frames are sent by dev. port is on dev's netdev, or on that of its VLAN.
func RingsAndSockets(dev *dv.Device, port packet.Interface) Backend {
	return Backend{newBoth(dev, port)}
}

// NewOverRingsAndSockets makes an endpoint over RingsAndSockets. Both stay the caller's and must
// outlive the endpoint. Nobody else may use their receive queues until Close has returned.
func NewOverRingsAndSockets(dev *dv.Device, port packet.Interface, opts Options) (*Endpoint,
	error) {
	return newEndpoint(newBoth(dev, port), opts)
}

// both is a device as a backend, with further receive queues behind its own.
type both struct {
	rings
	sockets sockets
}

func newBoth(dev *dv.Device, port packet.Interface) both {
	return both{rings{dev}, sockets{port, dev.VLAN()}}
}

// NumRx implements backend.
func (b both) NumRx() int { return b.rings.NumRx() + b.sockets.NumRx() }

// part implements parted.
func (b both) part(i int) backend {
	if i < b.rings.NumRx() {
		return b.rings
	}
	return b.sockets
}

func (b both) rxQueue(i int) rxQueue {
	n := b.rings.NumRx()
	if i < n {
		return b.rings.rxQueue(i)
	}
	return behind{b.sockets.rxQueue(i - n), i}
}

// OutOfBuffer implements backend.
func (b both) OutOfBuffer() uint64 { return b.rings.OutOfBuffer() + b.sockets.OutOfBuffer() }

// behind is a queue with another number.
type behind struct {
	rxQueue
	number int
}

// Index implements rxQueue.
func (q behind) Index() int { return q.number }
