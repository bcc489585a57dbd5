package main

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// inlineLink passes packets, 64 KiB segments included, to the other stack in the sender's
// goroutine, without a copy and without a checksum: it measures netstack alone.
type inlineLink struct {
	peer       *inlineLink
	dispatcher atomic.Pointer[gstack.NetworkDispatcher]
}

var _ gstack.GSOEndpoint = (*inlineLink)(nil)

func newInline() (a, b *inlineLink) {
	a, b = &inlineLink{}, &inlineLink{}
	a.peer, b.peer = b, a
	return a, b
}

// WritePackets implements gstack.LinkWriter.
func (l *inlineLink) WritePackets(list gstack.PacketBufferList) (int, tcpip.Error) {
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
func (l *inlineLink) Attach(d gstack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// The rest of gstack.LinkEndpoint and gstack.GSOEndpoint.

func (l *inlineLink) IsAttached() bool                  { return l.dispatcher.Load() != nil }
func (l *inlineLink) GSOMaxSize() uint32                { return 65536 }
func (l *inlineLink) SupportedGSO() gstack.SupportedGSO { return gstack.HostGSOSupported }
func (l *inlineLink) MTU() uint32                       { return 1500 }
func (l *inlineLink) SetMTU(uint32)                     {}
func (l *inlineLink) MaxHeaderLength() uint16           { return 0 }
func (l *inlineLink) LinkAddress() tcpip.LinkAddress    { return "" }
func (l *inlineLink) SetLinkAddress(tcpip.LinkAddress)  {}
func (l *inlineLink) Capabilities() gstack.LinkEndpointCapabilities {
	return gstack.CapabilityTXChecksumOffload | gstack.CapabilityRXChecksumOffload
}
func (l *inlineLink) Wait()                                   {}
func (l *inlineLink) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *inlineLink) AddHeader(*gstack.PacketBuffer)          {}
func (l *inlineLink) ParseHeader(*gstack.PacketBuffer) bool   { return true }
func (l *inlineLink) Close()                                  {}
func (l *inlineLink) SetOnCloseAction(func())                 {}
