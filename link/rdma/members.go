package rdma

import (
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Member holds the device of one port of a bond.
type Member struct {
	*dv.Device
	// Sends: frames leave by it. Of several that do, a flow has one.
	Sends bool
	// Receives: its frames are ours. Else they are dropped and counted (Stats.RxBackup), as Linux
	// does with what a switch floods to the port in reserve as well.
	Receives bool
}

// Members holds the devices of a bond's ports, each in host mode, and packet sockets of the bond
// beside them, as in RingsAndSockets. All devices have each rule of the endpoint.
type Members struct {
	// List has one member at least, all with the same MAC address and VLAN.
	List []Member
	// Spread: several may send at a time, now or later.
	Spread bool
	// Sockets bring what no rule takes, and send if no member does.
	Sockets packet.Interface
}

// Backend returns the queues of m. Each call makes another backend.
func (m Members) Backend() Backend { return Backend{newMembers(m)} }

// NewOverMembers makes an endpoint over a backend that Members.Backend has made. The devices and
// the sockets stay the caller's, and must outlive their time in the endpoint.
func NewOverMembers(b Backend, opts Options) (*Endpoint, error) {
	return newEndpoint(b.queues, opts)
}

// members is Members as a backend.
type members struct {
	list    []member
	senders []rings // empty: sockets send
	spread  bool
	sockets sockets
}

// member is a device among those of a backend.
type member struct {
	rings
	receives bool
}

// deaf implements deafPart.
func (m member) deaf() bool { return !m.receives }

func newMembers(m Members) *members {
	b := &members{spread: m.Spread, sockets: sockets{m.Sockets, m.List[0].VLAN()}}
	for _, o := range m.List {
		b.list = append(b.list, member{rings{o.Device}, o.Receives})
		if o.Sends {
			b.senders = append(b.senders, rings{o.Device})
		}
	}
	return b
}

func (b *members) kind() BackendKind { return BackendRings }

// sendKind implements otherSender.
func (b *members) sendKind() BackendKind {
	if len(b.senders) == 0 {
		return BackendPacket
	}
	return BackendRings
}

// devices implements onDevices.
func (b *members) devices() (all []*dv.Device) {
	for _, m := range b.list {
		all = append(all, m.Device)
	}
	return all
}

// Name implements backend.
func (b *members) Name() string {
	var names []string
	for _, m := range b.list {
		names = append(names, m.Name())
	}
	return strings.Join(names, " and ")
}

// MAC implements backend.
func (b *members) MAC() net.HardwareAddr { return b.list[0].MAC() }

// VLAN implements backend.
func (b *members) VLAN() uint16 { return b.list[0].VLAN() }

// MTU implements backend.
func (b *members) MTU() int {
	least := slices.MinFunc(b.list, func(a, o member) int { return a.MTU() - o.MTU() }).MTU()
	return min(least, b.sockets.MTU())
}

// NumRx implements backend.
func (b *members) NumRx() int {
	n := b.sockets.NumRx()
	for _, m := range b.list {
		n += m.NumRx()
	}
	return n
}

// NumTx implements backend. With Spread there are queues for all members, so that those of an
// endpoint which is made while few send are enough later.
func (b *members) NumTx() (n int) {
	for _, m := range b.list {
		n = max(n, m.NumTx())
	}
	if b.spread {
		n *= len(b.list)
	}
	return n
}

// owner returns the backend that has receive queue i, and the queue's number there.
func (b *members) owner(i int) (backend, int) {
	for _, m := range b.list {
		if i < m.NumRx() {
			return m, i
		}
		i -= m.NumRx()
	}
	return b.sockets, i
}

// part implements parted.
func (b *members) part(i int) backend {
	own, _ := b.owner(i)
	return own
}

func (b *members) rxQueue(i int) rxQueue {
	own, n := b.owner(i)
	return behind{own.rxQueue(n), i}
}

// txQueue gives neighbouring queues to different senders.
func (b *members) txQueue(i int) txQueue {
	n := len(b.senders)
	if n == 0 {
		return b.sockets.txQueue(i % b.sockets.NumTx())
	}
	s := b.senders[i%n]
	return s.txQueue(i / n % s.NumTx())
}

// SetGroups implements backend.
func (b *members) SetGroups(groups []net.HardwareAddr) error {
	var errs []error
	for _, m := range b.list {
		errs = append(errs, m.SetGroups(groups))
	}
	return errors.Join(errs...)
}

// OutOfBuffer implements backend.
func (b *members) OutOfBuffer() uint64 {
	n := b.sockets.OutOfBuffer()
	for _, m := range b.list {
		n += m.OutOfBuffer()
	}
	return n
}

func (b *members) offloads() (csum bool, maxTSO int) {
	csum, maxTSO = b.sockets.offloads()
	for _, m := range b.list {
		c, tso := m.offloads()
		csum, maxTSO = csum && c, min(maxTSO, tso)
	}
	return csum, maxTSO
}

func (b *members) spins() int { return maxSpins }

// Done implements backend: a member that is lost leaves by a change of the backend.
func (b *members) Done() <-chan struct{} { return nil }
