package metrics

import "github.com/rdma-netstack/rdma-netstack/stack"

// writeNetwork writes what IP, TCP and UDP count.
func (p *page) writeNetwork(st *stack.Stack) {
	s := st.Stats()
	count := func(name, help string, n uint64) { p.family(counter, name, help, of(n)) }
	count("ip_delivered_packets_total", "IP packets delivered to TCP, UDP and others.",
		s.IPDelivered)
	count("ip_sent_packets_total", "IP packets sent.", s.IPSent)
	p.family(counter, "ip_received_errors_total", "Received IP packets that were dropped.",
		of(s.IPMalformed, "reason", "malformed"),
		of(s.IPInvalidDestination, "reason", "invalid_destination"),
		of(s.GroupFrameDrops, "reason", "group_frame"))
	count("address_conflicts_total",
		"Packets by which another host claims an address of ours.", s.AddressConflicts)
	count("hardware_address_conflicts_total", "Packets of another host with our MAC.",
		s.HardwareAddrConflicts)
	count("hardware_address_changes_total", "Changes of the netdev's MAC that were followed.",
		s.HardwareAddrChanges)
	count("neighbour_moves_total", "Changes of a neighbour's hardware address.", s.NeighbourMoves)
	p.family(counter, "neighbour_queue_drops_total",
		"Packets dropped that waited for a neighbour's hardware address.",
		of(s.NeighbourDrops, "reason", "one_neighbour"),
		of(s.NeighbourOverflows, "reason", "all_neighbours"))
	count("dhcp_refused_total", "Answers of DHCP servers that are no lease.", s.DHCPRefused)

	count("tcp_accepted_total", "Handshakes completed by listeners.", s.TCPAccepted)
	count("tcp_dialed_total", "Handshakes begun by dials.", s.TCPDialed)
	count("tcp_failed_dials_total", "Dials that ended in an error.", s.TCPFailedDials)
	p.family(gauge, "tcp_paced_connections", "Connections that have a rate.", of(s.TCPPaced))
	p.family(gauge, "tcp_window_paced_connections", "Connections that are kept to the rate of "+
		"their window since they have lost segments.", of(s.TCPWindowPaced))
	count("tcp_pacing_waits_total", "Waits of writes for the rate of their connection.",
		s.TCPPacingWaits)
	count("tcp_pacing_stalls_total", "Waits of writes of connections with a rate whose windows "+
		"allow less.", s.TCPPacingStalls)
	count("tcp_retransmitted_segments_total", "TCP segments sent again, by the link too.",
		s.TCPRetransmits)
	counters := map[string]uint64{}
	for name, n := range st.Counters() {
		counters[name] = n
	}
	count("tcp_sent_segments_total", "TCP segments sent.", counters["TCP.SegmentsSent"])
	count("tcp_received_segments_total", "Valid TCP segments received.",
		counters["TCP.ValidSegmentsReceived"])
	count("tcp_timeouts_total", "Retransmission timeouts.", s.TCPTimeouts)
	p.family(counter, "tcp_resets_total", "TCP resets.",
		of(s.TCPResetsReceived, "direction", "rx"), of(s.TCPResetsSent, "direction", "tx"))
	count("listen_overflows_total", "SYNs and ACKs dropped as a listener's backlog was full.",
		s.TCPListenDrops)
	m := st.MemoryStats()
	p.family(gauge, "tcp_memory_bytes", "Bytes in TCP connections, not read or not acknowledged.",
		of(m.Used))
	p.family(gauge, "tcp_memory_limit_bytes", "The most that they may hold.", of(m.Limit))
	count("tcp_memory_pressures_total", "Times that they held two thirds of it.", m.Pressures)
	count("tcp_memory_overflows_total", "Times that they held all of it.", m.Overflows)
	p.family(gauge, "tcp_time_wait_limit", "The most connections in TIME-WAIT.", of(m.TimeWaitMax))
	count("tcp_time_wait_ended_total",
		"Connections that did not stay in TIME-WAIT as there were too many.", m.TimeWaitEnded)
	count("udp_received_datagrams_total", "UDP datagrams received.", s.UDPReceived)
	count("udp_sent_datagrams_total", "UDP datagrams sent.", s.UDPSent)
	count("udp_receive_overflows_total", "UDP datagrams dropped as nobody read them in time.",
		s.UDPReceiveBufferErr)
	count("udp_stamps_lost_total", "Transmit time stamps dropped as nobody read them in time.",
		s.UDPStampsLost)
	p.family(gauge, "udp_paced_sockets", "UDP sockets that have a rate.", of(s.UDPPaced))
	count("udp_pacing_waits_total", "Writes that have waited for the rate of their UDP socket.",
		s.UDPPacingWaits)
	count("udp_unknown_port_total", "UDP datagrams to ports without a socket.", s.UDPUnknownPort)
	p.family(counter, "checksum_errors_total", "Received packets with a wrong checksum.",
		of(s.TCPChecksumErrors, "protocol", "tcp"), of(s.UDPChecksumErrors, "protocol", "udp"))

	a := st.ACKStats()
	count("tcp_acks_held_total", "TCP acknowledgements not sent at once.", a.Held)
	count("tcp_acks_saved_total", "Of these, never sent, as a later packet said the same.", a.Saved)
}

// states of TCP connections, in the words of ss.
var states = []string{"SYN-SENT", "SYN-RECV", "ESTAB", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT",
	"LAST-ACK", "CLOSING", "TIME-WAIT"}

// writeSockets writes how many sockets there are, and not whose.
func (p *page) writeSockets(all []stack.Socket) {
	tcp, listeners, udp := map[string]uint64{}, uint64(0), uint64(0)
	var waiting int
	for _, s := range all {
		switch {
		case s.Network == "udp":
			udp++
		case s.State == "LISTEN":
			listeners++
			waiting += s.RecvQ
		default:
			tcp[s.State]++
		}
	}
	var byState []sample
	for _, state := range states {
		byState = append(byState, of(tcp[state], "state", state))
	}
	p.family(gauge, "tcp_connections", "TCP connections by state.", byState...)
	p.family(gauge, "tcp_listeners", "Listening TCP sockets.", of(listeners))
	p.family(gauge, "tcp_unaccepted_connections", "Connections that wait for Accept.",
		of(uint64(waiting)))
	p.family(gauge, "udp_sockets", "UDP sockets.", of(udp))
}
