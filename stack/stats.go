package stack

import (
	"iter"
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Stats is a snapshot of the counters most looked at. All but LinkUp and TCPCurrentEstablished count since
// the stack was made; [Stack.Counters] has every counter.
type Stats struct {
	// LinkUp is the state of the device's port, and LinkChanges how often it changed. Of a stack made by
	// [New] nobody can tell, and it is true.
	LinkUp      bool
	LinkChanges uint64

	// Link: packets and bytes that netstack exchanged with the link, and frames of a type it does
	// not speak.
	RxPackets, RxBytes, TxPackets, TxBytes, RxUnknown uint64

	// IP: packets delivered and sent, packets with a bad header, packets for others.
	IPDelivered, IPSent, IPMalformed, IPInvalidDestination uint64

	// Addresses. AddressConflicts are packets by which another host says that it has an address of ours, AddressDefences how
	// often we have announced one for that reason, and HardwareAddrConflicts packets of ARP and neighbour discovery that came
	// from our own hardware address. ResolversRefused are those that routers advertised beyond what is remembered.
	AddressConflicts, AddressDefences, HardwareAddrConflicts, ResolversRefused uint64
	// DHCPSent are messages to servers, DHCPRefused answers that are no lease, and routers and routes in leases that cannot be.
	DHCPSent, DHCPRefused uint64

	TCPCurrentEstablished uint64 // connections now
	TCPAccepted           uint64 // handshakes completed by listeners
	TCPDialed             uint64 // handshakes begun by dials
	TCPFailedDials        uint64 // dials that ended in an error, for whatever reason
	TCPRetransmits        uint64 // segments
	TCPTimeouts           uint64 // retransmission timeouts: each costs at least MinRTO
	TCPChecksumErrors     uint64
	TCPResetsSent         uint64
	TCPResetsReceived     uint64
	TCPListenDrops        uint64 // SYNs dropped because the backlog was full

	UDPReceived         uint64
	UDPSent             uint64
	UDPUnknownPort      uint64
	UDPReceiveBufferErr uint64 // datagrams dropped because nobody read them in time
	UDPChecksumErrors   uint64
}

// Stats returns the present values.
func (s *Stack) Stats() Stats {
	c := s.net.Stats()
	up, changes := s.link()
	return Stats{
		LinkUp: up, LinkChanges: changes,
		RxPackets: c.NICs.Rx.Packets.Value(), RxBytes: c.NICs.Rx.Bytes.Value(),
		TxPackets: c.NICs.Tx.Packets.Value(), TxBytes: c.NICs.Tx.Bytes.Value(),
		RxUnknown: total(c.NICs.UnknownL3ProtocolRcvdPacketCounts),

		IPDelivered: c.IP.PacketsDelivered.Value(), IPSent: c.IP.PacketsSent.Value(),
		IPMalformed:          c.IP.MalformedPacketsReceived.Value(),
		IPInvalidDestination: c.IP.InvalidDestinationAddressesReceived.Value(),

		AddressConflicts: s.claims.conflicts.Load(), AddressDefences: s.claims.defences.Load(),
		HardwareAddrConflicts: s.claims.twins.Load(), ResolversRefused: s.news.refused(),
		DHCPSent: s.dhcp.sent.Load(), DHCPRefused: s.dhcp.refused.Load(),

		TCPCurrentEstablished: c.TCP.CurrentEstablished.Value(),
		TCPAccepted:           c.TCP.PassiveConnectionOpenings.Value(),
		TCPDialed:             c.TCP.ActiveConnectionOpenings.Value(),
		TCPFailedDials:        s.failedDials.Load(),
		TCPRetransmits:        c.TCP.Retransmits.Value(),
		TCPTimeouts:           c.TCP.Timeouts.Value(),
		TCPChecksumErrors:     c.TCP.ChecksumErrors.Value(),
		TCPResetsSent:         c.TCP.ResetsSent.Value(),
		TCPResetsReceived:     c.TCP.ResetsReceived.Value(),
		TCPListenDrops:        c.TCP.ListenOverflowSynDrop.Value() + c.TCP.ListenOverflowAckDrop.Value(),

		UDPReceived:         c.UDP.PacketsReceived.Value(),
		UDPSent:             c.UDP.PacketsSent.Value(),
		UDPUnknownPort:      c.UDP.UnknownPortErrors.Value(),
		UDPReceiveBufferErr: c.UDP.ReceiveBufferErrors.Value(),
		UDPChecksumErrors:   c.UDP.ChecksumErrors.Value(),
	}
}

func (s *Stack) link() (up bool, changes uint64) {
	if s.device == nil {
		return true, 0
	}
	st := s.device.Stats()
	return st.LinkUp, st.LinkChanges
}

func total(m *tcpip.IntegralStatCounterMap) (sum uint64) {
	for _, key := range m.Keys() {
		if c, ok := m.Get(key); ok {
			sum += c.Value()
		}
	}
	return sum
}

// Counters yields every counter of netstack as a dotted name, such as "TCP.Retransmits" or
// "IP.PacketsDelivered", and its value.
func (s *Stack) Counters() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		walk("", reflect.ValueOf(s.net.Stats()), yield)
	}
}

// walk visits the counters below v, whose path is prefix; it returns false when yield did.
func walk(prefix string, v reflect.Value, yield func(string, uint64) bool) bool {
	if c, ok := v.Interface().(*tcpip.StatCounter); ok {
		return yield(prefix, c.Value())
	}
	if v.Kind() != reflect.Struct {
		return true
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		name := f.Name
		switch {
		case f.Anonymous:
			name = prefix
		case prefix != "":
			name = prefix + "." + name
		}
		if !walk(name, v.Field(i), yield) {
			return false
		}
	}
	return true
}
