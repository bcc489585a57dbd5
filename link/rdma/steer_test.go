package rdma

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// TestDecide has every kind of frame in every share. Each that both processes have is answered by
// one of them at most: ShareNote and ShareWatch are on at the same time, and ShareKeep and
// ShareTake.
func TestDecide(t *testing.T) {
	tcp := func(syn bool, socket socketKind, listed bool) arrival {
		return arrival{kind: kindTCP, syn: syn, socket: socket, listed: listed}
	}
	udp := func(socket socketKind, listed, newcomers bool) arrival {
		return arrival{kind: kindUDP, socket: socket, listed: listed, newcomers: newcomers}
	}
	for _, c := range []struct {
		name                    string
		a                       arrival
		note, watch, keep, take verdict
	}{
		{"of a neighbour", arrival{kind: kindBoth}, taken, taken, taken, taken},
		{"ARP request", arrival{kind: kindSingle}, taken, sent, left, taken},
		{"SYN to a listener", tcp(true, listening, false), taken, sent, left, taken},
		{"SYN to a closed port", tcp(true, noSocket, false), taken, sent, left, taken},
		{"SYN again of a handshake before", tcp(true, connection, true), taken, taken, taken, left},
		{"SYN not answered before", tcp(true, listening, true), taken, sent, sent, left},
		{"SYN of a client that begins anew", tcp(true, timeWait, true), taken, taken, sent, left},
		{"SYN after TIME-WAIT, not listed", tcp(true, timeWait, false), taken, taken, left, taken},
		{"of a connection", tcp(false, connection, false), taken, taken, taken, taken},
		{"of a connection before", tcp(false, connection, true), taken, taken, taken, left},
		{"of one that is over", tcp(false, noSocket, true), left, left, taken, left},
		{"of a SYN cookie before", tcp(false, listening, true), taken, left, taken, left},
		{"of a SYN cookie", tcp(false, listening, false), taken, left, left, taken},
		{"of nobody", tcp(false, noSocket, false), left, left, left, left},
		{"in TIME-WAIT before", tcp(false, timeWait, true), taken, taken, taken, left},
		{"in TIME-WAIT", tcp(false, timeWait, false), taken, taken, left, taken},
		{"datagram to a port of both", udp(listening, false, true), taken, sent, left, taken},
		{"datagram to a port of one", udp(listening, false, false), taken, sent, taken, taken},
		{"datagram of a socket", udp(connection, false, false), taken, taken, taken, taken},
		{"datagram of a socket before", udp(connection, true, false), taken, taken, taken, left},
		{"datagram to no socket", udp(noSocket, false, false), left, sent, left, left},
	} {
		for s, want := range map[Share]verdict{ShareNote: c.note, ShareWatch: c.watch,
			ShareKeep: c.keep, ShareTake: c.take} {
			if got := s.decide(c.a); got != want {
				t.Errorf("%s, share %d: %d, want %d", c.name, s, got, want)
			}
		}
	}
}

// TestOneOwner has every segment be received by both processes, whatever sockets they have: one of
// them takes it at most, unless both have a connection that began after the change, with one pair
// of addresses and ports.
func TestOneOwner(t *testing.T) {
	sockets := []socketKind{noSocket, listening, connection, timeWait}
	for _, syn := range []bool{false, true} {
		for _, listed := range []bool{false, true} {
			for _, before := range sockets {
				for _, now := range sockets {
					a := arrival{kind: kindTCP, syn: syn, listed: listed, socket: before}
					keep := ShareKeep.decide(a)
					a.socket = now
					take := ShareTake.decide(a)
					if keep != left && take != left && (listed || before != connection) {
						t.Errorf("SYN %v, listed %v, sockets %d and %d: %d and %d", syn, listed,
							before, now, keep, take)
					}
				}
			}
		}
	}
}

// TestArrivals has frames be of the kinds that decide expects.
func TestArrivals(t *testing.T) {
	l := func(etherType uint16, proto uint8) *hdr.Packet {
		return &hdr.Packet{EtherType: etherType, Proto: proto, L3: 14, L4: 34, End: 64}
	}
	for _, c := range []struct {
		name    string
		l       *hdr.Packet
		at, val byte // of the frame
		want    arrivalKind
	}{
		{"ARP request", &hdr.Packet{EtherType: typeARP, L3: 14}, 21, 1, kindSingle},
		{"ARP reply", &hdr.Packet{EtherType: typeARP, L3: 14}, 21, 2, kindBoth},
		{"TCP", l(hdr.TypeIPv4, hdr.ProtoTCP), 0, 2, kindTCP},
		{"UDP", l(hdr.TypeIPv4, hdr.ProtoUDP), 37, 53, kindUDP},
		{"UDP to a group", l(hdr.TypeIPv4, hdr.ProtoUDP), 0, 1, kindSingle},
		{"DHCP", l(hdr.TypeIPv4, hdr.ProtoUDP), 37, 68, kindBoth},
		{"fragment", &hdr.Packet{EtherType: hdr.TypeIPv4, Proto: hdr.ProtoUDP, L3: 14, End: 64},
			0, 2, kindSingle},
		{"echo request", l(hdr.TypeIPv4, hdr.ProtoICMP), 34, 8, kindSingle},
		{"unreachable", l(hdr.TypeIPv4, hdr.ProtoICMP), 34, 3, kindBoth},
		{"packet too big", l(hdr.TypeIPv6, hdr.ProtoICMPv6), 34, 2, kindBoth},
		{"router advertisement", l(hdr.TypeIPv6, hdr.ProtoICMPv6), 34, 134, kindBoth},
		{"neighbour solicitation", l(hdr.TypeIPv6, hdr.ProtoICMPv6), 34, 135, kindSingle},
	} {
		frame := make([]byte, 64)
		frame[c.at] = c.val
		if got := arrivalKindOf(frame, c.l); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestFlows notes flows up to a limit, and adds others beyond it.
func TestFlows(t *testing.T) {
	var s Flows
	flow := func(n int) Flow {
		return Flow{Proto: hdr.ProtoTCP, Remote: tcpip.AddrFrom4([4]byte{10, 0, byte(n >> 16), 1}),
			RemotePort: uint16(n)}
	}
	for n := range maxNoted + 1 {
		s.note(flow(n))
	}
	if s.Has(flow(maxNoted)) || len(s.All()) != maxNoted {
		t.Errorf("%d flows noted, want %d", len(s.All()), maxNoted)
	}
	s.Add(flow(maxNoted))
	s.Remove(flow(0))
	if !s.Has(flow(maxNoted)) || s.Has(flow(0)) {
		t.Error("want a flow added and another removed")
	}
	if (*Flows)(nil).Has(flow(1)) {
		t.Error("no set has a flow")
	}
}
