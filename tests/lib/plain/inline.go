package plain

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Link passes packets, 64 KiB segments included, to the other stack in the sender's goroutine,
// without a copy and without a checksum: it measures netstack alone.
type Link struct {
	peer       *Link
	dispatcher atomic.Pointer[gstack.NetworkDispatcher]
}

var _ gstack.GSOEndpoint = (*Link)(nil)

// Pair makes both ends.
func Pair() (a, b *Link) {
	a, b = &Link{}, &Link{}
	a.peer, b.peer = b, a
	return a, b
}

// WritePackets implements gstack.LinkWriter.
func (l *Link) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
	d := l.peer.dispatcher.Load()
	if d == nil {
		return list.Len(), nil
	}
	for _, pkt := range list.AsSlice() {
		in := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: pkt.ToBuffer()})
		(*d).DeliverNetworkPacket(pkt.NetworkProtocolNumber, in)
		in.DecRef()
	}
	return list.Len(), nil
}

// Attach implements gstack.NetworkLinkEndpoint.
func (l *Link) Attach(d gstack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// The rest of gstack.LinkEndpoint and gstack.GSOEndpoint.

func (l *Link) IsAttached() bool                  { return l.dispatcher.Load() != nil }
func (l *Link) GSOMaxSize() uint32                { return 65536 }
func (l *Link) SupportedGSO() gstack.SupportedGSO { return gstack.HostGSOSupported }
func (l *Link) MTU() uint32                       { return 1500 }
func (l *Link) SetMTU(uint32)                     {}
func (l *Link) MaxHeaderLength() uint16           { return 0 }
func (l *Link) LinkAddress() tcpip.LinkAddress    { return "" }
func (l *Link) SetLinkAddress(tcpip.LinkAddress)  {}
func (l *Link) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityTXChecksumOffload | gstack.CapabilityRXChecksumOffload
}
func (l *Link) Wait()                                   {}
func (l *Link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *Link) AddHeader(*gstack.PacketBuffer)          {}
func (l *Link) ParseHeader(*gstack.PacketBuffer) bool   { return true }
func (l *Link) Close()                                  {}
func (l *Link) SetOnCloseAction(func())                 {}
