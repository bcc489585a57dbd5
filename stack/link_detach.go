package stack

import (
	"fmt"
	"log/slog"
	"time"

	gsync "gvisor.dev/gvisor/pkg/sync"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// detachTime says how long a link may take for each step of its end.
const detachTime = time.Second

// detachable describes a link that ends without netstack's locks. RemoveNIC holds them while it
// sends (the stack leaves its groups) and while it calls Attach(nil), so that netstack alone can
// wait for itself in two ways:
//
//   - A link that waits for its receiving goroutine in Attach(nil), as fdbased does, waits for ever
//     if that goroutine handles a packet that needs the lock. Here that happens in Close, which
//     netstack calls without a lock.
//   - A link that delivers in the sender's goroutine, as pipe does, comes back with the answer to
//     what RemoveNIC sends, or to what another goroutine sent with a lock held for reading. Here
//     deliveries have ended before RemoveNIC begins.
type detachable struct {
	gstack.LinkEndpoint
	log     *slog.Logger
	clock   clock.Clock
	in, out *gsync.Gate // of packets that the link delivers and is given
}

// detachableGSO is one that segments, which netstack asks a link for by this interface.
type detachableGSO struct {
	*detachable
	gstack.GSOEndpoint
}

// refusal is why netstack cannot have link as an interface, nil if it can.
func refusal(link gstack.LinkEndpoint) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("the link %T cannot be an interface, as it panics when asked for its "+
				"hardware type: %v; give the link below it", link, why)
		}
	}()
	link.ARPHardwareType() // gVisor's muxed panics
	return nil
}

// endpoint returns the link for netstack.
func (d *detachable) endpoint() gstack.LinkEndpoint {
	if gso, ok := d.LinkEndpoint.(gstack.GSOEndpoint); ok {
		return &detachableGSO{d, gso}
	}
	return d
}

// Attach implements gstack.NetworkLinkEndpoint. The link stays attached until Close; an interface
// that is removed drops what it delivers.
func (d *detachable) Attach(to gstack.NetworkDispatcher) {
	if to != nil {
		d.LinkEndpoint.Attach(&gated{to, d.in})
	}
}

// WritePackets implements gstack.LinkWriter. After Close packets are dropped.
func (d *detachable) WritePackets(pkts gstack.PacketBufferList) (int, tcpip.Error) {
	if !d.out.Enter() {
		return 0, &tcpip.ErrClosedForSend{}
	}
	defer d.out.Leave()
	return d.LinkEndpoint.WritePackets(pkts)
}

// stopDelivery drops what the link delivers from now on and waits for what netstack has in hand. It
// is to be called before RemoveNIC, once.
func (d *detachable) stopDelivery() { d.bounded("does not stop delivering", d.in.Close) }

// Close implements gstack.NetworkLinkEndpoint. A link that does not end is left to itself, for
// Close of the stack has to return: AF_XDP's waits for a lock that it holds, and its two goroutines
// stay.
func (d *detachable) Close() {
	d.bounded("does not stop sending", d.out.Close)
	detached := d.bounded("does not detach", func() { d.LinkEndpoint.Attach(nil) })
	d.LinkEndpoint.Close()
	if detached {
		d.bounded("does not end", d.LinkEndpoint.Wait)
	}
}

// bounded waits for one step of the link's end, and says whether it ended in time.
func (d *detachable) bounded(fault string, step func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		step()
	}()
	timeout := d.clock.NewTimer(detachTime)
	defer timeout.Stop()
	select {
	case <-done:
		return true
	case <-timeout.C:
		d.log.Warn("the link "+fault+"; its goroutines are left behind", "link",
			fmt.Sprintf("%T", d.LinkEndpoint))
		return false
	}
}

// gated delivers packets until its gate is closed, with the type that their frames show: not every
// link sets it.
type gated struct {
	gstack.NetworkDispatcher
	gate *gsync.Gate
}

// DeliverNetworkPacket implements gstack.NetworkDispatcher.
func (g *gated) DeliverNetworkPacket(p tcpip.NetworkProtocolNumber, pkt *gstack.PacketBuffer) {
	if g.gate.Enter() {
		defer g.gate.Leave()
		if eth := pkt.LinkHeader().Slice(); len(eth) >= header.EthernetMinimumSize &&
			eth[0]&1 != 0 && pkt.PktType == tcpip.PacketHost {
			pkt.PktType = tcpip.PacketMulticast
		}
		g.NetworkDispatcher.DeliverNetworkPacket(p, pkt)
	}
}

// DeliverLinkPacket implements gstack.NetworkDispatcher.
func (g *gated) DeliverLinkPacket(p tcpip.NetworkProtocolNumber, pkt *gstack.PacketBuffer) {
	if g.gate.Enter() {
		defer g.gate.Leave()
		g.NetworkDispatcher.DeliverLinkPacket(p, pkt)
	}
}
