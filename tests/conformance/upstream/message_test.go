package upstream

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

// TestPathMTUFloor: a router's message with an MTU below 68 bytes makes segments of one byte.
func TestPathMTUFloor(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1000))
	h.write(c, 50)
	h.sent()
	h.unreachable(header.ICMPv4FragmentationNeeded, 60, h.quote(1))
	sent := h.sent()
	shows(t, "14-path-mtu-floor", len(sent) > 5 && sent[0].size == 1,
		"50 bytes leave again in %d segments", len(sent))
}

// TestMessageSequence: a router's message counts whatever sequence number it quotes: a stranger who
// knows addresses and ports lowers a path MTU, and refuses a dial.
func TestMessageSequence(t *testing.T) {
	h := newHost(t, false)
	c := h.open(mss(1400))
	h.write(c, 1400)
	h.sent()
	h.unreachable(header.ICMPv4FragmentationNeeded, 600, h.quote(1<<30))
	smaller := h.sent()

	h = newHost(t, false)
	done := h.dial()
	h.sent()
	h.unreachable(header.ICMPv4PortUnreachable, 0, h.quote(1<<30))
	refused := len(done) > 0
	if refused {
		t.Log("the dial ended: ", <-done)
	}
	shows(t, "15-message-sequence", len(smaller) > 1 && refused, "about bytes that were never "+
		"sent; %d smaller segments leave, a dial is refused: %v", len(smaller), refused)
}

// socket opens a UDP socket that is connected to port 4000 of the peer.
func (h *host) socket() *gonet.UDPConn {
	h.t.Helper()
	c, err := gonet.DialUDP(h.stack, &tcpip.FullAddress{NIC: 1, Addr: host4(1), Port: 80},
		&tcpip.FullAddress{NIC: 1, Addr: host4(2), Port: 4000}, ipv4.ProtocolNumber)
	h.ok(err)
	return c
}

// packets takes what netstack has sent.
func (h *host) packets() (all []header.IPv4) {
	settle()
	for p, ok := take(h.link); ok; p, ok = take(h.link) {
		all = append(all, p.b)
	}
	return all
}

// TestMessageKinds: a connected UDP socket is not told that a firewall refuses its packets, and a
// dial not either: it waits for its timeout.
func TestMessageKinds(t *testing.T) {
	const prohibited = header.ICMPv4Code(13)
	h := newHost(t, false)
	c := h.socket()
	_, err := c.Write(make([]byte, 10))
	h.ok(err)
	quoted := h.packets()[0]
	h.unreachable(prohibited, 0, quoted)
	told := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 10))
		told <- err
	}()
	settle()
	udp := len(told) > 0

	done := h.dial()
	h.sent()
	h.unreachable(prohibited, 0, h.quote(0))
	settle()
	tcp := len(done) > 0
	shows(t, "26-message-kinds", !udp || !tcp, "the read of a UDP socket ends: %v; the dial ends: "+
		"%v", udp, tcp)
	h.ok(c.Close())
}

// TestDatagramPathMTU: a path's smaller MTU does not become known to UDP: what is larger goes on
// being sent whole.
func TestDatagramPathMTU(t *testing.T) {
	h := newHost(t, false)
	c := h.socket()
	size := func() int {
		_, err := c.Write(make([]byte, 1400))
		if err != nil {
			t.Log("write: ", err)
			return 0
		}
		return len(h.packets()[0])
	}
	_, err := c.Write(make([]byte, 1400))
	h.ok(err)
	h.unreachable(header.ICMPv4FragmentationNeeded, 1280, h.packets()[0][:100])
	after := size()
	shows(t, "29-datagram-path-mtu", after > 1280, "a packet of %d bytes leaves although the path "+
		"has room for 1280", after)
	h.ok(c.Close())
}

// TestFragmentID: the fragments of two datagrams have the same identification.
func TestFragmentID(t *testing.T) {
	h := newHost(t, false)
	c := h.socket()
	for range 2 {
		_, err := c.Write(make([]byte, 3000))
		h.ok(err)
	}
	ids := map[uint16]int{}
	for _, p := range h.packets() {
		ids[p.ID()]++
		t.Logf("fragment of %d bytes at %d, identification %d", len(p), p.FragmentOffset(), p.ID())
	}
	shows(t, "28-fragment-identification", len(ids) == 1, "two datagrams have %d identifications",
		len(ids))
	h.ok(c.Close())
}

// TestBroadcastAnswers: frames to every host on the link that have TCP in them are answered.
func TestBroadcastAnswers(t *testing.T) {
	h := newHost(t, false)
	h.listen(10)
	syns := 0
	for _, to := range []struct {
		dst  tcpip.Address
		kind tcpip.PacketType
	}{{host4(1), tcpip.PacketBroadcast}, {host4(255), tcpip.PacketBroadcast}} {
		ip := header.IPv4(segmentFor(4000, 1, syn))
		ip.SetDestinationAddress(to.dst)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		h.packet(ip, to.kind)
		answers := h.sent()
		t.Logf("a SYN to %v in a broadcast frame: %d answers", to.dst, len(answers))
		syns += len(answers)
	}
	shows(t, "27-broadcast-answers", syns > 0, "%d answers", syns)
}
