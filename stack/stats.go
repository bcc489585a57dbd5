package stack

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Stats holds a snapshot of the counters most looked at. All but LinkUp and TCPCurrentEstablished
// count since the stack was made; [Stack.Counters] has every counter.
type Stats struct {
	// LinkUp gives the state of the device's port, and LinkChanges how often it changed. Of a stack
	// made by
	// [New] nobody can tell, and it is true.
	LinkUp      bool
	LinkChanges uint64

	// MTUChanges of the uplink.
	MTUChanges uint64

	// Link: packets and bytes that netstack exchanged with the link, and frames of a type it does
	// not speak. ACKs that were held and not sent are not among them.
	RxPackets, RxBytes, TxPackets, TxBytes, RxUnknown uint64
	// packets dropped as too many waited, see Config.Uplink.RxLimit
	RxShed uint64

	// IP: packets delivered and sent, packets with a bad header, packets for others.
	IPDelivered, IPSent, IPMalformed, IPInvalidDestination uint64

	// Addresses. AddressConflicts are packets by which another host says that it has an address of
	// ours, AddressDefences how often we have announced one for that reason, and
	// HardwareAddrConflicts packets of ARP and neighbour discovery that came from our own hardware
	// address. ResolversRefused are those that routers advertised beyond what is remembered.
	AddressConflicts, AddressDefences, HardwareAddrConflicts, ResolversRefused uint64
	// HardwareAddrChanges says how often the link followed a change of the netdev's MAC.
	HardwareAddrChanges uint64
	// NeighbourMoves says how often a neighbour's hardware address became another one,
	// NeighbourDrops packets that waited for one neighbour's address and made room for newer ones,
	// and NeighbourOverflows packets that found too many waiting for all neighbours.
	NeighbourMoves, NeighbourDrops, NeighbourOverflows uint64
	// GroupFrameDrops says how many packets for this host alone came in frames to a group or to
	// all, or TCP segments to an address of several hosts, and were dropped unanswered.
	GroupFrameDrops uint64
	// DHCPSent are messages to servers, DHCPRefused answers that are no lease, and routers and
	// routes in leases that cannot be.
	DHCPSent, DHCPRefused uint64

	// TCPPaced gives the connections that have a rate now, TCPWindowPaced those that are kept to
	// the rate of their window since they have lost segments, TCPPacingWaits how often a write
	// waited for either, and TCPPacingStalls how often for windows that allow less.
	TCPPaced, TCPWindowPaced, TCPPacingWaits, TCPPacingStalls uint64

	TCPCurrentEstablished uint64 // connections now
	TCPAccepted           uint64 // handshakes completed by listeners
	TCPDialed             uint64 // handshakes begun by dials
	TCPFailedDials        uint64 // dials that ended in an error, for whatever reason
	TCPRetransmits        uint64 // segments sent again, by the link too
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
	UDPStampsLost       uint64 // transmit time stamps that nobody read in time

	// UDPPaced gives the sockets that have a rate now, and UDPPacingWaits the writes that have
	// waited for it.
	UDPPaced, UDPPacingWaits uint64
}

// Stats returns the present values.
func (s *Stack) Stats() Stats {
	c := s.net.Stats()
	sent := s.acks.told.without(s.ACKStats(), c)
	up, changes := s.uplink.LinkState()
	addrs := s.addrs.Stats()
	link := s.LinkStats() // first: of what it spares netstack has counted all
	replaced, beyond := s.neighbours.Dropped()
	return Stats{
		LinkUp: up, LinkChanges: changes, MTUChanges: s.mtu.changes.Load(),
		RxPackets: c.NICs.Rx.Packets.Value(), RxBytes: c.NICs.Rx.Bytes.Value(),
		TxPackets: sent["NICs.Tx.Packets"], TxBytes: sent["NICs.Tx.Bytes"],
		RxUnknown: sumCounters(c.NICs.UnknownL3ProtocolRcvdPacketCounts),
		RxShed:    link.RxShed,

		IPDelivered: c.IP.PacketsDelivered.Value(), IPSent: sent["IP.PacketsSent"],
		IPMalformed:          c.IP.MalformedPacketsReceived.Value(),
		IPInvalidDestination: c.IP.InvalidDestinationAddressesReceived.Value(),

		AddressConflicts:      addrs.Conflicts,
		AddressDefences:       addrs.Defences,
		HardwareAddrConflicts: addrs.Twins,
		ResolversRefused:      addrs.ResolversRefused,
		HardwareAddrChanges:   addrs.Moves,
		NeighbourMoves:        s.neighbours.Moves(), NeighbourDrops: replaced,
		NeighbourOverflows: beyond,
		GroupFrameDrops:    s.icmp.dropped.Value(),
		DHCPSent:           addrs.LeasesAsked, DHCPRefused: addrs.LeasesRefused,

		TCPCurrentEstablished: c.TCP.CurrentEstablished.Value(),
		TCPAccepted:           c.TCP.PassiveConnectionOpenings.Value(),
		TCPDialed:             c.TCP.ActiveConnectionOpenings.Value(),
		TCPFailedDials:        s.conns.failedDials.Load(),
		TCPPaced:              uint64(max(0, s.conns.paced.byProgram.Load())),
		TCPWindowPaced:        uint64(max(0, s.conns.paced.byWindow.Load())),
		TCPPacingWaits:        s.conns.paced.waits.Load(),
		TCPPacingStalls:       s.conns.paced.stalls.Load(),
		TCPRetransmits:        link.TxResent - link.TxSpared + c.TCP.Retransmits.Value(),
		TCPTimeouts:           c.TCP.Timeouts.Value(),
		TCPChecksumErrors:     c.TCP.ChecksumErrors.Value(),
		TCPResetsSent:         c.TCP.ResetsSent.Value(),
		TCPResetsReceived:     c.TCP.ResetsReceived.Value(),
		TCPListenDrops: c.TCP.ListenOverflowSynDrop.Value() +
			c.TCP.ListenOverflowAckDrop.Value(),

		UDPReceived:         c.UDP.PacketsReceived.Value(),
		UDPSent:             c.UDP.PacketsSent.Value(),
		UDPUnknownPort:      c.UDP.UnknownPortErrors.Value(),
		UDPReceiveBufferErr: c.UDP.ReceiveBufferErrors.Value(),
		UDPChecksumErrors:   c.UDP.ChecksumErrors.Value(),
		UDPStampsLost:       s.udp.stampsLost.Load(),
		UDPPaced:            uint64(max(0, s.udp.pacing.now.Load())),
		UDPPacingWaits:      s.udp.pacing.waits.Load(),
	}
}

func sumCounters(m *tcpip.IntegralStatCounterMap) (sum uint64) {
	for _, key := range m.Keys() {
		if c, ok := m.Get(key); ok {
			sum += c.Value()
		}
	}
	return sum
}

// LinkStats returns what the link endpoint counts; all 0 if the link is not one of package
// link/rdma.
func (s *Stack) LinkStats() rdma.Stats {
	if s.link == nil {
		return rdma.Stats{}
	}
	return s.link.Stats()
}

// ACKStats returns what was done with pure ACKs; all 0 if they are not held, see
// [TCPOptions.ACKDelay].
func (s *Stack) ACKStats() rdma.ACKStats {
	if s.acks.by == nil {
		return rdma.ACKStats{}
	}
	return s.acks.by.Stats()
}

// MemoryStats returns the present values. It looks at every connection.
func (s *Stack) MemoryStats() MemoryStats { return s.memory.stats() }

// HostStats counts what a stack on the host's own addresses leaves to the kernel, see
// [Config.Host].
type HostStats struct {
	// Netdev whose addresses the stack serves on.
	Netdev string
	// FirstPort and LastPort are what connections are made from.
	FirstPort, LastPort uint16
	// Accepted connections that did not come by Netdev, and Dialled ones that did not leave by it.
	Accepted, Dialled uint64
	// Received and Sent datagrams, likewise.
	Received, Sent uint64
	// Rules says whether a device leads our frames to rings. Unsteered frames of ours have come by
	// Netdev's packet sockets all the same: what tells of neighbours, ICMP errors, fragments, and
	// all frames while there is no rule for them. Without Rules these are all.
	Rules     bool
	Unsteered uint64
	// FragmentsDropped counts fragments to these addresses that were kept in vain: the others of
	// their datagram did not come within 30 s, or more than 4 MiB of such waited.
	FragmentsDropped uint64
}

// HostStats returns these counters; ok is false unless [Config.Host] is set.
func (s *Stack) HostStats() (stats HostStats, ok bool) {
	if s.host == nil {
		return stats, false
	}
	return HostStats(s.host.Stats()), true
}

// FailoverStats counts what became of the device.
type FailoverStats struct {
	// Failed and Removed are losses of the device: it told itself that it had failed or was gone,
	// or the kernel told first that it removes it. PortLosses are ends of the packet sockets.
	Failed, Removed, PortLosses uint64
	// Returned says how often a device was there again and taken into use, Refused how often one
	// could not be, Recovers how often [Stack.Recover] was called.
	Returned, Refused, Recovers uint64
	// Outages says how often Config.Uplink.MaxOutage was reached, Held how often a device failed
	// within Config.Uplink.GracePeriod and was left alone.
	Outages, Held uint64
	// Moved says how often the netdev of the device left for another network namespace.
	Moved uint64
	// AwayMilliseconds says how long the device has been away, all in all, DarkMilliseconds how
	// much of this without packet sockets in its place.
	AwayMilliseconds, DarkMilliseconds uint64
	// LastFallbackMicroseconds says how long after the last loss was known the packet sockets sent
	// and received, LastOpenMilliseconds how long it took to open the device that came back last.
	LastFallbackMicroseconds, LastOpenMilliseconds uint64
}

// BackendSwitch describes a kind of change of what is under a stack, and how often it was made.
// From and To are rings, packet or none; Cause is device_failed, device_removed, device_returned,
// port_lost or port_returned.
type BackendSwitch struct {
	From, To, Cause string
	Count           uint64
}

// BackendSwitches returns all changes made since the stack was opened, in the order of their names.
func (s *Stack) BackendSwitches() []BackendSwitch {
	var all []BackendSwitch
	for kind, n := range s.LinkStatus().Switches {
		all = append(all, BackendSwitch{kind.From.String(), kind.To.String(), kind.Cause.String(),
			n})
	}
	slices.SortFunc(all, func(a, b BackendSwitch) int {
		return cmp.Or(strings.Compare(a.From, b.From), strings.Compare(a.To, b.To),
			strings.Compare(a.Cause, b.Cause))
	})
	return all
}

// FailoverStats returns the present values; all 0 if the stack ends with its device, or was made
// by [New].
func (s *Stack) FailoverStats() FailoverStats {
	st := s.LinkStatus()
	return FailoverStats{Failed: st.Failed, Removed: st.Removed,
		PortLosses: st.PortLosses, Returned: st.Returns, Refused: st.Refused,
		Recovers: st.Recovers, Outages: st.Expirations, Held: st.Holds, Moved: st.Moves,
		AwayMilliseconds:         uint64(st.Away.Milliseconds()),
		DarkMilliseconds:         uint64(st.Dark.Milliseconds()),
		LastFallbackMicroseconds: uint64(st.FallbackTook.Microseconds()),
		LastOpenMilliseconds:     uint64(st.OpenTook.Milliseconds())}
}

// gauges gives the names of those values that can fall.
var gauges = []string{
	"TCP.CurrentEstablished", "TCP.CurrentConnected",
	"Link.RxWaiting", "Link.TxBacklog", "Link.TxBacklogMax",
	"ACK.Waiting", "ACK.WaitingBytes",
	"Memory.Used", "Memory.Limit", "Memory.TimeWait", "Memory.TimeWaitMax",
	"Failover.LastFallbackMicroseconds", "Failover.LastOpenMilliseconds",
}

// Counters yields every counter of netstack as a dotted name, such as "TCP.Retransmits" or
// "IP.PacketsDelivered", and its value, and those of [Stack.LinkStats], [Stack.ACKStats],
// [Stack.MemoryStats] and [Stack.FailoverStats] as "Link.", "ACK.", "Memory." and "Failover.". None
// of them ever falls. What netstack counts as sent is without the ACKs that are held or were not
// sent after all. What rises and falls is in [Stack.Gauges].
func (s *Stack) Counters() iter.Seq2[string, uint64] {
	return counterValues(s, func(name string) bool { return !slices.Contains(gauges, name) })
}

// Gauges yields every value that is as of now and can fall, such as "TCP.CurrentEstablished",
// named like those of [Stack.Counters].
func (s *Stack) Gauges() iter.Seq2[string, uint64] {
	return counterValues(s, func(name string) bool { return slices.Contains(gauges, name) })
}

// counterValues yields the counters and gauges that are wanted.
func counterValues(s *Stack, wanted func(name string) bool) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		sent := s.acks.told.without(s.ACKStats(), s.net.Stats())
		some := func(name string, n uint64) bool {
			if of, ok := sent[name]; ok {
				n = of
			}
			return !wanted(name) || yield(name, n)
		}
		_ = walk("", reflect.ValueOf(s.net.Stats()), some) &&
			walk("Link", reflect.ValueOf(s.LinkStats()), some) &&
			walk("ACK", reflect.ValueOf(s.ACKStats()), some) &&
			walk("Memory", reflect.ValueOf(s.MemoryStats()), some) &&
			walk("Failover", reflect.ValueOf(s.FailoverStats()), some)
	}
}

// walk visits the counters below v, whose path is prefix; it returns false when yield did.
func walk(prefix string, v reflect.Value, yield func(string, uint64) bool) bool {
	if c, ok := v.Interface().(*tcpip.StatCounter); ok {
		return yield(prefix, c.Value())
	}
	switch v.Kind() {
	case reflect.Uint64:
		return yield(prefix, v.Uint())
	case reflect.Struct:
	default:
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

// Rule is a rule of the device, or one that waits for a device.
type Rule = rdma.RuleInfo

// Rules lists the rules by which the device leads frames to the stack, in the order in which they
// count, and those that wait for a device. It asks the device for the counts. Empty if the link is
// not one of package link/rdma.
func (s *Stack) Rules() []Rule {
	if s.link == nil {
		return nil
	}
	return s.link.Rules()
}

// Filter returns Config.Filter; nil: there is none.
func (s *Stack) Filter() *Filter { return s.cfg.Filter }

// Capture writes the frames of the stack's link to w as a pcapng file, until ctx ends, limit frames
// are written (0: no limit), w fails or the stack is closed. Each Write is whole blocks of the
// file. Any number of captures run at a time; none slows the link by waiting for its writer, see
// [capture.Tap]. The error is that of the options or of w.
func (s *Stack) Capture(ctx context.Context, w io.Writer, opts capture.Options, limit int) error {
	if s.link == nil {
		return errors.New("this stack is on a link of its own making, which captures nothing; " +
			"open the stack on a device, or capture at the link")
	}
	opts.Clock = s.cfg.Clock
	tap, err := capture.New(opts)
	if err != nil {
		return err
	}
	s.link.AddTap(tap)
	defer s.link.RemoveTap(tap)
	stop := context.AfterFunc(s.life.ctx, tap.Close)
	defer stop()
	return tap.WriteTo(ctx, w, aboutLink(s), limit)
}

// aboutLink describes the link in the file.
func aboutLink(s *Stack) capture.About {
	a := capture.About{Program: "rdma-netstack", Name: cmp.Or(s.Name(), "slice"),
		Description: "slice " + s.HardwareAddr().String()}
	switch dev, port := s.Device(), s.PacketPort(); {
	case dev != nil:
		a.Hardware = dev.Name() + " (mlx5)"
	case port != nil:
		a.Hardware = port.Name() + " (" + cmp.Or(port.Driver(), "netdev") + ")"
	}
	return a
}
