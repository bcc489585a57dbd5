package metrics

import "github.com/rdma-netstack/rdma-netstack/stack"

// writeLink writes what the link endpoint counts.
func (p *page) writeLink(st *stack.Stack) {
	s, l := st.Stats(), st.LinkStats()
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	p.family(gauge, "link_up", "1 while the port has a link.", truth(s.LinkUp))
	count("link_changes_total", "Times that the port's link changed.", s.LinkChanges)
	p.family(gauge, "mtu_bytes", "The largest IP packet that is sent.", of(uint64(st.MTU())))
	p.family(gauge, "netdev_mtu_bytes",
		"The MTU of the rings' netdev; rings may take less. 0 without rings.",
		of(uint64(st.NetdevMTU())))
	count("mtu_changes_total", "Times that the MTU of the uplink changed.",
		s.MTUChanges)
	count("rx_spread_refused_total",
		"Times that a device did not spread flows over another number of queues.", l.SpreadRefused)
	p.family(counter, "stack_packets_total", "Packets exchanged with netstack.",
		of(s.RxPackets, "direction", "rx"), of(s.TxPackets, "direction", "tx"))
	p.family(counter, "stack_bytes_total", "Their bytes.",
		of(s.RxBytes, "direction", "rx"), of(s.TxBytes, "direction", "tx"))
	count("rx_merged_segments_total", "Received frames that went into a packet with others.",
		l.RxMerged)
	count("rx_superseded_acks_total",
		"Received pure ACKs left out, as a later one of the same batch says all that they say.",
		l.RxSupersededACKs)
	p.family(counter, "tcp_gap_acks_total",
		"Received ACKs of a gap too young to be a loss, or faster than TCP takes them, by what "+
			"became of them.",
		of(l.RxACKsLate, "outcome", "late"), of(l.RxACKsKept, "outcome", "kept"))
	count("checksum_software_total", "Received frames whose checksum was verified in software.",
		l.RxVerified)
	p.family(gauge, "rx_waiting_bytes", "Received segments without data that wait in the stack.",
		of(l.RxWaiting))
	count("tx_segmented_packets_total", "Sent packets that were left to the NIC to segment.",
		l.TxLSO)
	count("tx_segmented_datagrams_total",
		"Of these, packets of datagrams of one size (UDP_SEGMENT).", l.TxUSO)
	count("tx_waits_total", "Waits of a sender for room in a send queue.", l.TxWaits)
	p.family(gauge, "tx_backlog_segments", "Segments that wait for room in a send queue.",
		of(l.TxBacklog))
	p.family(gauge, "tx_backlog_max_segments", "The most that have waited for one queue.",
		of(l.TxBacklogMax))
	rules := map[string]uint64{}
	kinds := []string{}
	for _, r := range st.Rules() {
		kind := r.To
		if r.Program != 0 {
			kind = "AF_XDP" // whichever of the queues have a socket
		}
		if rules[kind]++; rules[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	var byKind []sample
	for _, kind := range kinds {
		byKind = append(byKind, of(rules[kind], "kind", kind))
	}
	p.family(gauge, "rules", "Rules of the device, or the XDP program, by where they lead frames.",
		byKind...)
}

// writeDropped writes what was dropped, and why: by rings or packet sockets, and above them.
func (p *page) writeDropped(st *stack.Stack, r rings) {
	s, l := st.Stats(), st.LinkStats()
	var ring rxQueue
	for _, q := range r.rx {
		ring.tooLong += q.tooLong
		ring.failed += q.failed
		ring.malformed += q.malformed
	}
	why := []sample{of(l.RxOutOfBuffer, "reason", "out_of_buffer"),
		of(ring.tooLong, "reason", "too_long"), of(ring.failed, "reason", "completion_error"),
		of(ring.malformed, "reason", "malformed"), of(s.RxUnknown, "reason", "unknown_protocol")}
	for reason, n := range l.RxDrops() {
		why = append(why, of(n, "reason", reason))
	}
	p.family(counter, "rx_dropped_total", "Received frames that were dropped, by reason.", why...)
	var refused, lost uint64
	for _, q := range r.tx {
		refused += q.refused
		lost += q.lost
	}
	p.family(counter, "tx_dropped_total", "Packets that were not sent, by reason.",
		of(refused, "reason", "refused"), of(lost, "reason", "lost_in_reset"),
		of(l.TxDropped, "reason", "no_room"), of(l.TxErrors, "reason", "error"),
		of(l.TxFiltered, "reason", "filtered"),
		of(l.TxBacklogDropped, "reason", "backlog"), of(l.None.TxFrames, "reason", "no_backend"))
}

// backends lists the words for what an uplink is; link: one that stack.New was given.
var backends = []string{"rings", "packet", "xdp", "none", "link"}

// writeBackend writes what the uplink is now, and what became of the device.
func (p *page) writeBackend(st *stack.Stack) {
	now := BackendOf(st)
	var all []sample
	for _, b := range backends {
		all = append(all, truth(b == now, "backend", b))
	}
	p.family(gauge, "backend_info", "1 for what the uplink is now, 0 for the others.", all...)
	f := st.FailoverStats()
	p.family(counter, "device_losses_total", "Losses of the device, by who told first.",
		of(f.Failed, "cause", "failed"), of(f.Removed, "cause", "removed"))
	p.writeSwitches(st.BackendSwitches())
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	count("device_returns_total", "Times that the device was taken into use again.", f.Returned)
	count("device_refused_total", "Looks for the device that found none that can serve.", f.Refused)
	count("fallback_losses_total", "Ends of the packet sockets that stand in for the device.",
		f.PortLosses)
	count("netdev_moves_total",
		"Times that the device's netdev left for another network namespace.", f.Moved)
	count("outages_total", "Times without any link for longer than --max-outage.", f.Outages)
	p.family(counter, "device_away_seconds_total", "How long the device has been away.",
		fraction(float64(f.AwayMilliseconds)/1000))
	p.family(gauge, "fallback_last_seconds",
		"How long after the last loss of the device was known packet sockets sent frames.",
		fraction(float64(f.LastFallbackMicroseconds)/1e6))
	p.family(gauge, "device_open_last_seconds",
		"How long the device took to open at its last return.",
		fraction(float64(f.LastOpenMilliseconds)/1000))
	p.family(counter, "dark_seconds_total", "How long there was no link of any kind.",
		fraction(float64(f.DarkMilliseconds)/1000))
}

// writeSwitches writes how often the uplink has changed.
func (p *page) writeSwitches(all []stack.BackendSwitch) {
	var samples []sample
	for _, b := range all {
		samples = append(samples, of(b.Count, "from", b.From, "to", b.To, "cause", b.Cause))
	}
	p.family(counter, "backend_switches_total", "Changes of the uplink.", samples...)
}

// BackendOf says what the uplink is: rings, packet, xdp, none, or a link that stack.New was
// given.
func BackendOf(st *stack.Stack) string {
	link, port := st.LinkStatus(), st.PacketPort()
	switch {
	case port != nil && port.Stats().XDP != nil:
		return "xdp"
	case !link.Since.IsZero():
		return link.Backend.String()
	case port != nil:
		return "packet"
	case st.Device() != nil:
		return "rings"
	}
	return "link"
}
