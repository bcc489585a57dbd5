// Package netpair connects two stacks by a cable in memory, so that tests of package stack need no
// device and no privilege. It is a link like gVisor's own, without link/rdma's additions for
// netstack: a connection can stop forever where frames are lost. Tests on a bad wire therefore use
// two software NICs.
package netpair

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// queueFrames is the number of frames that a port holds for its stack; more are dropped, as by a
// NIC.
const queueFrames = 16384

// Faults change the frames on a cable. The zero value is a perfect cable.
type Faults struct {
	// Tap, if set, sees every frame, and drops it by returning true. end is 0 for frames of the
	// first port. It is called from the sender's goroutines.
	Tap func(end int, frame []byte) (drop bool)
}

// Port is one end of a cable: a gVisor link endpoint with Ethernet frames. Frames are copied when
// they are written and delivered by the receiving port's own goroutine, as with a NIC.
type Port struct {
	mac  tcpip.LinkAddress
	mtu  atomic.Uint32
	peer *Port
	tap  func(frame []byte) (drop bool) // nil: none

	frames chan []byte
	stop   chan struct{}
	once   sync.Once
	worker sync.WaitGroup

	mu         sync.RWMutex
	dispatcher gstack.NetworkDispatcher // guarded by mu
	onClose    func()                   // guarded by mu
}

var _ gstack.LinkEndpoint = (*Port)(nil)

// NewPorts makes a cable with a port at each end.
func NewPorts(faults Faults) (*Port, *Port) {
	a, b := newPort("\x02\x00\x00\x00\x00\x0a"), newPort("\x02\x00\x00\x00\x00\x0b")
	a.peer, b.peer = b, a
	if faults.Tap != nil {
		a.tap = func(f []byte) bool { return faults.Tap(0, f) }
		b.tap = func(f []byte) bool { return faults.Tap(1, f) }
	}
	return a, b
}

func newPort(mac tcpip.LinkAddress) *Port {
	p := &Port{mac: mac, frames: make(chan []byte, queueFrames), stop: make(chan struct{})}
	p.mtu.Store(1500)
	p.worker.Go(p.receive)
	return p
}

// WritePackets implements gstack.LinkWriter.
func (p *Port) WritePackets(pkts gstack.PacketBufferList) (int, tcpip.Error) {
	for _, pkt := range pkts.AsSlice() {
		view := pkt.ToView()
		frame := append([]byte(nil), view.AsSlice()...)
		view.Release()
		if p.tap == nil || !p.tap(frame) {
			p.peer.queue(frame)
		}
	}
	return pkts.Len(), nil
}

func (p *Port) queue(frame []byte) {
	select {
	case p.frames <- frame:
	default:
	}
}

// receive delivers frames until Close.
func (p *Port) receive() {
	for {
		select {
		case <-p.stop:
			return
		case f := <-p.frames:
			p.deliver(f)
		}
	}
}

// deliver passes one frame to the stack if it is addressed to it.
func (p *Port) deliver(f []byte) {
	p.mu.RLock()
	d := p.dispatcher
	p.mu.RUnlock()
	eth := header.Ethernet(f)
	if d == nil || len(f) < header.EthernetMinimumSize || !p.forUs(eth.DestinationAddress()) {
		return
	}
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: buffer.MakeWithData(f)})
	defer pkt.DecRef()
	if p.ParseHeader(pkt) {
		d.DeliverNetworkPacket(eth.Type(), pkt)
	}
}

func (p *Port) forUs(to tcpip.LinkAddress) bool {
	return to == p.mac || header.IsMulticastEthernetAddress(to) ||
		to == header.EthernetBroadcastAddress
}

// Attach implements gstack.NetworkLinkEndpoint.
func (p *Port) Attach(d gstack.NetworkDispatcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dispatcher = d
}

// IsAttached implements gstack.NetworkLinkEndpoint.
func (p *Port) IsAttached() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.dispatcher != nil
}

// Close implements gstack.NetworkLinkEndpoint: it ends the port's goroutine.
func (p *Port) Close() {
	p.once.Do(func() {
		close(p.stop)
		p.worker.Wait()
	})
	p.mu.RLock()
	onClose := p.onClose
	p.mu.RUnlock()
	if onClose != nil {
		onClose()
	}
}

// SetOnCloseAction implements gstack.NetworkLinkEndpoint.
func (p *Port) SetOnCloseAction(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onClose = f
}

// AddHeader implements gstack.NetworkLinkEndpoint.
func (p *Port) AddHeader(pkt *gstack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements gstack.NetworkLinkEndpoint.
func (p *Port) ParseHeader(pkt *gstack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

// The rest of gstack.NetworkLinkEndpoint.

func (p *Port) MTU() uint32                      { return p.mtu.Load() }
func (p *Port) SetMTU(mtu uint32)                { p.mtu.Store(mtu) }
func (p *Port) MaxHeaderLength() uint16          { return header.EthernetMinimumSize }
func (p *Port) LinkAddress() tcpip.LinkAddress   { return p.mac }
func (p *Port) SetLinkAddress(tcpip.LinkAddress) {}
func (p *Port) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityResolutionRequired
}
func (p *Port) Wait()                                   {}
func (p *Port) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
