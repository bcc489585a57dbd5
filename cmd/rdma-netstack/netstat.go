package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func netstatCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{
		Use: "netstat", Short: "IP, TCP and UDP of a running server", Args: noWords,
		Long: `Prints what a running server has counted of IP, TCP and UDP, in the words of netstat -s.
rdma-netstack stats has all counters, by name.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.showNetstat(cmd.Context(), out)
		}}
	always := true
	f.addTo(cmd, opt("s,statistics", "", &always, "statistics, which it prints always"))
	return cmd
}

// sentence describes a line of netstat -s (net-tools statistics.c): words with one number, which
// is the sum of counters.
type sentence struct {
	words    string
	counters []string
	always   bool // also with 0
}

// protocol is the sentences under one title.
type protocol struct {
	title string
	lines []sentence
}

func protocols() []protocol {
	return []protocol{
		{"Ip", []sentence{
			{"%d total packets received", counted("ip_packets_received"), true},
			{"%d with invalid headers", counted("ip_malformed_packets_received"), false},
			{"%d with invalid addresses", []string{"ip_invalid_destination_addresses_received",
				"ip_invalid_source_addresses_received"}, false},
			{"%d incoming packets delivered", counted("ip_packets_delivered"), true},
			{"%d requests sent out", counted("ip_packets_sent"), true},
			{"%d outgoing packets dropped", counted("ip_outgoing_packet_errors"), false},
		}},
		{"Tcp", []sentence{
			{"%d active connection openings", counted("tcp_active_connection_openings"), true},
			{"%d passive connection openings", counted("tcp_passive_connection_openings"), true},
			{"%d failed connection attempts", counted("tcp_failed_connection_attempts"), true},
			{"%d connection resets received", counted("tcp_established_resets"), true},
			{"%d connections established", counted("tcp_current_established"), true},
			{"%d segments received", []string{"tcp_valid_segments_received",
				"tcp_invalid_segments_received"}, true},
			{"%d segments sent out", counted("tcp_segments_sent"), true},
			{"%d segments retransmitted", counted("tcp_retransmits"), true},
			{"%d bad segments received", counted("tcp_invalid_segments_received"), true},
			{"%d resets sent", counted("tcp_resets_sent"), true},
			{"InCsumErrors: %d", counted("tcp_checksum_errors"), false},
		}},
		{"Udp", []sentence{
			{"%d packets received", counted("udp_packets_received"), true},
			{"%d packets to unknown port received", counted("udp_unknown_port_errors"), true},
			{"%d packet receive errors", counted("udp_malformed_packets_received"), true},
			{"%d packets sent", counted("udp_packets_sent"), true},
			{"%d receive buffer errors", counted("udp_receive_buffer_errors"), true},
			{"%d send buffer errors", counted("udp_packet_send_errors"), true},
			{"InCsumErrors: %d", counted("udp_checksum_errors"), false},
		}},
		{"TcpExt", []sentence{
			{"%d times the listen queue of a socket overflowed",
				counted("tcp_listen_overflow_ack_drop"), false},
			{"%d SYNs to LISTEN sockets dropped", counted("tcp_listen_overflow_syn_drop"), false},
			{"%d SYN cookies sent", counted("tcp_listen_overflow_syn_cookie_sent"), false},
			{"%d SYN cookies received", counted("tcp_listen_overflow_syn_cookie_rcvd"), false},
			{"%d invalid SYN cookies received",
				counted("tcp_listen_overflow_invalid_syn_cookie_rcvd"), false},
			{"%d fast retransmits", counted("tcp_fast_retransmit"), false},
			{"%d retransmits in slow start", counted("tcp_slow_start_retransmits"), false},
			{"TCPTimeouts: %d", counted("tcp_timeouts"), false},
			{"TCPSackRecovery: %d", counted("tcp_sack_recovery"), false},
			{"TCPLossProbeRecovery: %d", counted("tcp_tlp_recovery"), false},
		}},
	}
}

// counted returns one counter.
func counted(name string) []string { return []string{name} }

func (f *lookFlags) showNetstat(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	var c admin.Counters
	if err := server.Get(ctx, "/stats", &c); err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(netstatNumbers(c))
	}
	printNetstat(out.stdout, c)
	return out.stdout.err()
}

func (s *sentence) sum(c admin.Counters) (n uint64) {
	for _, name := range s.counters {
		of, _ := c.Value(name)
		n += of
	}
	return n
}

func printNetstat(w io.Writer, c admin.Counters) {
	for _, p := range protocols() {
		title := p.title + ":\n"
		for _, s := range p.lines {
			if n := s.sum(c); n > 0 || s.always {
				fmt.Fprintf(w, title+"    "+s.words+"\n", n)
				title = ""
			}
		}
	}
}

// netstatNumbers returns the same by title and words.
func netstatNumbers(c admin.Counters) map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for _, p := range protocols() {
		all[p.title] = map[string]uint64{}
		for _, s := range p.lines {
			words := strings.Trim(strings.Replace(s.words, "%d", "", 1), " :")
			all[p.title][words] = s.sum(c)
		}
	}
	return all
}
