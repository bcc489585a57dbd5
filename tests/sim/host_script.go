package sim

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// scriptHost is a machine without a stack: it answers ARP, and hands everything else to the script
// of a piece of work (work_script.go). So it can send what no stack sends.
type scriptHost struct {
	index    int
	port     *port
	segments chan []byte // IPv4 packets for us
}

// errNoSockets is what a script host says to who wants a socket.
var errNoSockets = errors.New("a script host has no sockets")

func (h *scriptHost) up(context.Context) error {
	h.segments = make(chan []byte, 1024)
	h.port.connect(h.receive)
	return nil
}

// receive answers ARP requests, and keeps IPv4 packets; it drops what nobody takes.
func (h *scriptHost) receive(frames [][]byte) {
	for _, f := range frames {
		if len(f) < header.EthernetMinimumSize {
			continue
		}
		switch header.Ethernet(f).Type() {
		case header.ARPProtocolNumber:
			h.answer(header.ARP(f[header.EthernetMinimumSize:]))
		case header.IPv4ProtocolNumber:
			select {
			case h.segments <- f[header.EthernetMinimumSize:]:
			default:
			}
		}
	}
}

// answer answers an ARP request for our address.
func (h *scriptHost) answer(a header.ARP) {
	if !a.IsValid() || a.Op() != header.ARPRequest ||
		[4]byte(a.ProtocolAddressTarget()) != address(h.index).As4() {
		return
	}
	h.arp(header.ARPReply, a.HardwareAddressSender(), a.ProtocolAddressSender())
}

// arp sends an ARP packet.
func (h *scriptHost) arp(op header.ARPOp, mac, ip []byte) {
	f := make([]byte, header.EthernetMinimumSize+header.ARPSize)
	h.ethernet(f, mac, header.ARPProtocolNumber)
	a := header.ARP(f[header.EthernetMinimumSize:])
	a.SetIPv4OverEthernet()
	a.SetOp(op)
	copy(a.HardwareAddressSender(), hardware(h.index))
	copy(a.ProtocolAddressSender(), address(h.index).AsSlice())
	copy(a.HardwareAddressTarget(), mac)
	copy(a.ProtocolAddressTarget(), ip)
	h.port.put(f)
}

func (h *scriptHost) listen(netip.AddrPort) (net.Listener, error) { return nil, errNoSockets }

func (h *scriptHost) dial(context.Context, netip.AddrPort) (net.Conn, error) {
	return nil, errNoSockets
}

func (h *scriptHost) packets(netip.AddrPort) (net.PacketConn, error) { return nil, errNoSockets }
func (h *scriptHost) send()                                          {}
func (h *scriptHost) check() error                                   { return nil }
func (h *scriptHost) connections() []string                          { return nil }
func (h *scriptHost) left() error                                    { return nil }

func (h *scriptHost) down() error {
	h.port.connect(nil)
	return nil
}
