package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// leaseHost is a DHCP server without a stack (RFC 2131). It gives each of our hosts the address
// that the rest of the run knows it by, and can be told to take all of them back, or to give
// another.
type leaseHost struct {
	scriptHost
	lasts   uint32      // seconds that a lease lasts
	refuses atomic.Bool // leases are refused, and nothing is offered
	silent  atomic.Bool // nothing is answered
	moved   atomic.Bool // another address is given
	strict  atomic.Bool // who asks for the first address is refused then
}

// The parts of DHCP that a lease takes: RFC 951 section 3, RFC 2132 section 9.
const (
	dhcpXID, dhcpFlags, dhcpYourAddress, dhcpHardware = 4, 10, 16, 28
	dhcpCookie, dhcpOptions                           = 236, 240
	dhcpDiscover, dhcpOffer, dhcpRequest              = 1, 2, 3
	dhcpACK, dhcpNAK                                  = 5, 6
	optionMask, optionLease, optionType, optionServer = 1, 51, 53, 54
	dhcpOwnAddress, optionAddress                     = 12, 50
	dhcpServer, dhcpClient                            = 67, 68
)

func (h *leaseHost) up(ctx context.Context) error {
	if err := h.scriptHost.up(ctx); err != nil {
		return err
	}
	h.port.connect(func(frames [][]byte) {
		for _, f := range frames {
			if m := message(f); m != nil {
				h.answerLease(m)
			}
		}
		h.receive(frames)
	})
	return nil
}

// message is the DHCP message to a server in a frame; nil: there is none.
func message(f []byte) []byte {
	if len(f) < header.EthernetMinimumSize ||
		header.Ethernet(f).Type() != header.IPv4ProtocolNumber {
		return nil
	}
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	if !ip.IsValid(len(ip)) || ip.TransportProtocol() != header.UDPProtocolNumber {
		return nil
	}
	u := header.UDP(ip.Payload())
	if len(u) < header.UDPMinimumSize+dhcpOptions || u.DestinationPort() != dhcpServer {
		return nil
	}
	return u.Payload()
}

// answerLease answers a message by broadcast.
func (h *leaseHost) answerLease(m []byte) {
	kind, wants := byte(0), m[dhcpOwnAddress:dhcpOwnAddress+4]
	for o := m[dhcpOptions:]; len(o) > 2 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		switch value := o[2:]; {
		case o[0] == optionType:
			kind = value[0]
		case o[0] == optionAddress && len(value) >= 4:
			wants = value[:4]
		}
		o = o[min(len(o), 2+int(o[1])):]
	}
	refuses := h.refuses.Load() || h.strict.Load() && kind == dhcpRequest &&
		!slices.Equal(wants, h.gives(m).AsSlice())
	switch {
	case h.silent.Load():
	case kind == dhcpDiscover && !refuses:
		h.give(m, dhcpOffer)
	case kind == dhcpRequest && refuses:
		h.give(m, dhcpNAK)
	case kind == dhcpRequest:
		h.give(m, dhcpACK)
	}
}

// give sends an answer of a kind to a message.
func (h *leaseHost) give(m []byte, kind byte) {
	a := make([]byte, dhcpOptions, 300)
	a[0], a[1], a[2] = 2, 1, 6 // a reply, Ethernet
	copy(a[dhcpXID:], m[dhcpXID:dhcpXID+4])
	copy(a[dhcpFlags:], m[dhcpFlags:dhcpFlags+2])
	mac := m[dhcpHardware : dhcpHardware+16]
	copy(a[dhcpHardware:], mac)
	copy(a[dhcpCookie:], []byte{99, 130, 83, 99})
	a = append(a, optionType, 1, kind, optionServer, 4)
	a = append(a, address(h.index).AsSlice()...)
	if kind != dhcpNAK {
		copy(a[dhcpYourAddress:], h.gives(m).AsSlice())
		a = append(a, optionMask, 4, 255, 255, 255, 0, optionLease, 4)
		a = binary.BigEndian.AppendUint32(a, h.lasts)
	}
	h.broadcast(append(a, 255))
}

// gives is the address that a client gets.
func (h *leaseHost) gives(m []byte) netip.Addr {
	i := int(m[dhcpHardware+5]) - 1 // see hardware
	if h.moved.Load() {
		return otherAddress(i)
	}
	return address(i)
}

// broadcast sends a datagram to all clients.
func (h *leaseHost) broadcast(data []byte) {
	const headers = header.IPv4MinimumSize + header.UDPMinimumSize
	f := make([]byte, header.EthernetMinimumSize+headers, header.EthernetMinimumSize+headers+
		len(data))
	f = append(f, data...)
	h.ethernet(f, net.HardwareAddr(header.EthernetBroadcastAddress), header.IPv4ProtocolNumber)
	ip := header.IPv4(f[header.EthernetMinimumSize:])
	from := toAddress(address(h.index))
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(headers + len(data)), TTL: 64,
		Protocol: uint8(header.UDPProtocolNumber), SrcAddr: from,
		DstAddr: header.IPv4Broadcast})
	ip.SetChecksum(^ip.CalculateChecksum())
	u := header.UDP(ip.Payload())
	size := uint16(header.UDPMinimumSize + len(data))
	u.Encode(&header.UDPFields{SrcPort: dhcpServer, DstPort: dhcpClient, Length: size})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, from, header.IPv4Broadcast, size)
	u.SetChecksum(^u.CalculateChecksum(checksum.Checksum(data, sum)))
	h.port.put(f)
}

// leases is the server of the run.
func (w *world) leases() *leaseHost {
	for _, h := range w.hosts {
		if l, ok := h.(*leaseHost); ok {
			return l
		}
	}
	return nil
}

// takeBack has host h lose its lease: its link goes down and comes up, whereupon it asks for its
// lease again, and is refused until the end.
func (w *world) takeBack(h *ourHost) (end func()) {
	l := w.leases()
	l.refuses.Store(true)
	w.blink(h)
	return func() { l.refuses.Store(false) }
}

// blink has the link of h be down for a moment.
func (w *world) blink(h *ourHost) {
	nic := h.slot.card()
	nic.SetLink(false)
	w.clock.AfterFunc(linkPause, func() { nic.SetLink(true) })
}

// errNoLease is a host without its address.
var errNoLease = errors.New("the host has no address again")

// leased says what is wrong with a host that must have got this address, and none beside it.
func (h *ourHost) leased(a netip.Addr) error {
	if got := h.stack.Addrs(); !slices.Contains(got, netip.PrefixFrom(a, 24)) {
		return errNoLease
	}
	return nil
}
