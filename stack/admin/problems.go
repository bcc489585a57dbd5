package admin

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
)

// Problem describes a counter of drops or errors that is not 0.
type Problem struct {
	Name    string `json:"name"`
	Count   uint64 `json:"count"`
	Meaning string `json:"meaning"`
	Advice  string `json:"advice"`
}

// explanation holds what is said of the counters whose whole name matches.
type explanation struct {
	name            string // a regular expression
	meaning, advice string
}

// matcher is an explanation whose name is compiled.
type matcher struct {
	explanation
	is *regexp.Regexp
}

// matchers are in the order of the path of a frame: ring, link, IP, TCP, UDP; health comes
// first. Their names are compiled once, at the first use.
var matchers = sync.OnceValue(func() (all []matcher) {
	for _, e := range slices.Concat(healthExplanations(), ringExplanations(),
		networkExplanations(), transportExplanations()) {
		all = append(all, matcher{e, regexp.MustCompile("^(" + e.name + ")$")})
	}
	return all
})

func healthExplanations() []explanation {
	return []explanation{
		{`health_(tx|rx)_error`, "times that queues went into error, and were reset",
			"health dump shows the descriptor and completion of the last; the log its syndrome"},
		{`health_link_error`, "times that the link went away",
			"the cable, the switch, or the device itself: see health show"},
		{`health_device_error`, "times that the device failed or was removed",
			"routine for a virtual function; else see dmesg and devlink health"},
		{`health_stack_error`, "times that connections could not be",
			"see failover_outages, and the log for the end of the stack"},
		{`health_memory_error`, "times that TCP connections came near to one of their limits",
			"see memory_pressures and memory_time_wait_ended"},
		{`memory_overflows`, "times that connections held as much as they may: writes waited, and " +
			"data that nobody read was dropped",
			"find who does not read by ss; else raise Config.TCP.MaxMemory"},
		{`failover_failed`, "losses of the device that it told itself",
			"see dmesg and devlink health; health dump device shows its rings then"},
		{`failover_removed`, "losses of the device that the kernel told first",
			"it was removed, unbound or reloaded: routine for a virtual function"},
		{`failover_port_losses`, "ends of the packet sockets that stand in for the device",
			"their interface was removed: name one that stays by --fallback"},
		{`failover_refused`, "looks for the device that found none, or one that cannot serve",
			"normal while it is away; the log and health show have the reason"},
		{`failover_outages`, "times without any link for longer than --max-outage",
			"connections ended with ENETDOWN: see --fallback, and why the device stayed away"},
		{`failover_held`, "times that the device failed again within the grace period",
			"it is left alone until health recover device"},
		{`failover_away_milliseconds`, "how long the device has been away, all in all",
			"frames went through packet sockets meanwhile, or were dropped"},
		{`failover_dark_milliseconds`, "how long there was no link of any kind",
			"name an interface that stays by --fallback"},
	}
}

func ringExplanations() []explanation {
	return []explanation{
		{`link_spread_refused`, "the device refused another number of receive queues for flows",
			"flows stay on the queues that they have; the log line of health names the reason, " +
				"such as firmware that does not modify indirection tables; --spread all asks once"},
		{`rx\d+_drops_too_long`, "received frames longer than a buffer",
			"a sender has a larger MTU: give --mtu, or mend the sender's"},
		{`rx\d+_drops_flushed`, "receive buffers returned by a queue in error",
			"no frame was lost by these; rxN_resets and the log say what happened"},
		{`rx\d+_drops_error`, "receive completions with an error",
			"the log has the syndrome; rdma-netstack doctor checks the card"},
		{`rx\d+_drops_malformed`, "completions that a NIC should not write",
			"report it with rdma-netstack devices --verbose"},
		{`rx\d+_stalls`, "times that a receive ring had no buffer left",
			"the process did not get to run in time: more --queues, --rx-mode polling, or fewer " +
				"other loads on its processors"},
		{`rx\d+_resets|tx\d+_resets`, "times that a queue was replaced after an error",
			"the log has the syndrome; now and then is normal where a port is paused"},
		{`tx\d+_drops_refused`, "packets that the send queue does not take: too short or too long",
			"the MTU of the stack and of the port differ: see --mtu"},
		{`tx\d+_drops_lost`, "packets in a send queue that was replaced",
			"TCP sends them again; the log says why the queue was replaced"},
		{`tx\d+_stalls`, "posts that found the send ring full",
			"normal under load; if it keeps rising with a slow link, pause frames are the cause"},
		{`rx\d+_dropped`, "frames for which the packet socket had no room",
			"the process did not get to run in time: more --queues, or rings of an mlx5 device"},
		{`rx\d+_too_long|rx\d+_malformed`, "frames that the packet socket could not describe",
			"turn large receive offload of the interface off: ethtool -K IF lro off"},
		{`tx\d+_dropped`, "frames that the interface refused",
			"it is down, or its MTU is smaller than the stack's"},
		{`tx\d+_full`, "sends that found the packet socket or the interface's queue full",
			"normal under load"},
		{`link_rx_out_of_buffer`, "frames that the NIC dropped for want of a receive buffer",
			"as for rxN_stalls; others who use the port are counted, too"},
		{`link_rx_bad_checksum`, "frames with a wrong checksum",
			"a cable, a switch or a peer's offload damages frames: ethtool -S of both ends"},
		{`link_rx_sent_away_dropped`, "frames of an upgrade, held back or passed on, without room",
			"TCP sends them again; a flood of SYNs or datagrams came during the upgrade"},
		{`link_rx_shed`, "segments without data dropped, as too many waited",
			"a flood of ACKs or SYNs; ss -a shows where from. Config.Uplink.RxLimit is the bound"},
		{`link_(rx|tx)_filtered`, "packets that the filter has dropped",
			"filter show has the rules that dropped them; a capture each packet with its rule"},
		{`link_rx_refused`, "clients that came while the server drained, with its port open",
			"none: they try again and are refused, or served by another"},
		{`link_tx_dropped|link_tx_errors`, "packets that found no room in time, or were refused",
			"the link is down or slower than what is sent; TCP sends them again"},
		{`link_tx_backlog_dropped`, "segments that waited when the device went",
			"TCP sends them again"},
	}
}

func networkExplanations() []explanation {
	return []explanation{
		{`rx_unknown`, "frames of protocols that the stack does not speak",
			"harmless: LLDP, spanning tree and the like"},
		{`dropped_packets|nics_tx_packets_dropped_no_buffer_space`,
			"packets that netstack dropped", "see the counters of the protocols"},
		{`address_conflicts`, "packets by which another host claims an address of ours",
			"two hosts have the address: give one another. The log has the other's MAC"},
		{`hardware_addr_conflicts`, "packets of another host with our MAC",
			"two servers were given the same --mac"},
		{`neighbour_drops`, "packets that waited for a neighbour's MAC and gave way to newer ones",
			"a host or router does not answer ARP or neighbour discovery in time"},
		{`neighbour_overflows`, "packets to neighbours beyond what may wait for MACs",
			"many addresses are sent to at once that nobody has"},
		{`group_frame_drops`, "packets for this host alone in frames to a group or to all",
			"a host sends them wrongly, or to have many hosts answer; a capture has its MAC"},
		{`dhcp_refused`, "answers of DHCP servers that are no lease",
			"a server is misconfigured, or hostile; the log has its address"},
		{`resolvers_refused`, "resolvers that routers advertised beyond what is remembered",
			"a router is misconfigured, or hostile"},
		{`arp_(malformed|disabled)_packets_received|arp_outgoing_.*(dropped|errors)`,
			"ARP messages that could not be used or sent", "see link_tx_dropped"},
		{`nics_(malformed_l4_rcvd|disabled_rx)_(packets|bytes)`, "packets with broken headers",
			"as for ip_malformed_packets_received"},
		{`nics_neighbor_dropped_.*|nics_neighbor_unreachable_entry_lookups`,
			"neighbours that do not answer, or answered what nobody asked",
			"a host or router is gone, or somebody forges ARP: arping shows who answers"},
		{`icmp_v[46]_packets_received_(dst_unreachable|time_exceeded)`,
			"ICMP errors for packets of ours",
			"routers or hosts refuse what we send: check routes"},
		{`icmp_v[46]_packets_(received_invalid|sent_dropped)|icmp_v6_.*dropped_by_host|` +
			`igmp_.*(errors|invalid|dropped)`, "messages that could not be used or sent",
			"a few are normal"},
		{`ip_malformed_(packets|fragments)_received|ip_option_unknown_received|` +
			`ip_disabled_packets_received`,
			"IP packets whose headers make no sense", "a peer is broken or hostile"},
		{`ip_invalid_(destination|source)_addresses_received`,
			"packets for or from addresses that cannot be",
			"harmless where broadcasts of other subnets pass; else a peer has stale ARP entries"},
		{`ip_outgoing_packet_errors`, "packets that the link refused", "see link_tx_dropped"},
		{`ip_ip_tables_.*_dropped|ip_forwarding_.*`, "packets that netstack's tables dropped",
			"the program has set rules in Netstack()"},
	}
}

func transportExplanations() []explanation {
	return []explanation{
		{`tcp_checksum_errors|udp_checksum_errors`,
			"TCP segments or datagrams with a wrong checksum", "as for link_rx_bad_checksum"},
		{`tcp_invalid_segments_received|udp_malformed_packets_received`,
			"segments or datagrams whose header makes no sense", "a peer is broken or hostile"},
		{`tcp_retransmits|tcp_(fast|slow_start)_retransmits|tcp_timeouts`,
			"segments sent again, and timeouts before",
			"lost on the way: compare the counters of switch and peer; late: the peer or this " +
				"host had no processor for two round trips; ss -i shows which connections"},
		{`tcp_failed_dials|tcp_failed_(connection_attempts|port_reservations)`,
			"dials that failed", "the peer refuses or does not answer; the program has the error"},
		{`tcp_listen_overflow_.*|tcp_forward_max_in_flight_drop`,
			"connection attempts beyond a listener's backlog",
			"the program accepts too slowly, or a SYN flood: see Recv-Q in ss -l"},
		{`tcp_established_(resets|timedout)`, "connections that ended by a reset or a timeout",
			"peers went away; ss -i before shows retransmissions"},
		{`tcp_segment_send_errors|udp_packet_send_errors`, "segments or datagrams not sent",
			"no route, no neighbour, or no room: see link_tx_dropped"},
		{`udp_receive_buffer_errors`, "datagrams dropped as nobody read them in time",
			"the program is too slow, or its buffer small: SetReadBuffer; ss -u shows the socket"},
		{`udp_unknown_port_errors`, "datagrams to ports without a socket",
			"a client has the wrong port, or the service is not running"},
	}
}

// Problems lists the counters of drops and errors that are not 0, with what they mean, in the order
// of a frame's path.
func Problems(c Counters) []Problem {
	all, names := []Problem{}, c.Names()
	for _, m := range matchers() {
		for _, name := range names {
			if n := c.Counters[name]; n > 0 && m.is.MatchString(name) {
				p := Problem{name, n, m.meaning, m.advice}
				if name == "tcp_retransmits" {
					p.Meaning = describeResent(n, c.Counters["tcp_segments_acked_with_dsack"])
				}
				all = append(all, p)
			}
		}
	}
	return all
}

// describeResent says of n segments that were sent again how many the peer had already: it reports
// them (RFC 2883).
func describeResent(n, duplicates uint64) string {
	late := min(n, duplicates)
	return fmt.Sprintf("segments sent again: %d were late, the peer had them already; %d lost, as "+
		"far as peers tell", late, n-late)
}

// Explained reports whether Problems knows a name.
func Explained(name string) bool {
	return slices.ContainsFunc(matchers(), func(m matcher) bool {
		return m.is.MatchString(name)
	})
}
