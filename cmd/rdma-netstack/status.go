package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func statusCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{
		Use: "status [SECTION]", Short: "state of a running server", Args: noWords,
		Long: `Prints what a running server is, its health, and its drops and errors. Its sections are
commands.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.showStatus(cmd.Context(), out)
		}}
	f.addTo(cmd)
	cmd.AddCommand(append(statusSections(out), filterSection(out))...)
	return cmd
}

// statusSections returns the sections of status. They were commands, and still are, but hidden.
func statusSections(out streams) []*cobra.Command {
	return []*cobra.Command{healthCommand(out), errorsCommand(out), rulesCommand(out),
		statsCommand(out), netstatCommand(out)}
}

// lookFlags holds those of the commands that look at a running server.
type lookFlags struct {
	pid  int
	json bool
}

// addTo adds the flags to a command, below its own.
func (f *lookFlags) addTo(cmd *cobra.Command, options ...option) {
	addFlags(cmd, "Flags", append(options, f.pidOption(cmd),
		opt("json", "", &f.json, "print JSON"))...)
}

func (f *lookFlags) pidOption(cmd *cobra.Command) option {
	return opt("pid", "PID", &f.pid, "which server, if several run", runningServers(cmd))
}

// ask reads what the server that the flags mean has at a path.
func (f *lookFlags) ask(ctx context.Context, path string, into any) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	return server.Get(ctx, path, into)
}

// server returns the one that the flags mean.
func (f *lookFlags) server(ctx context.Context) (running.Server, error) {
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	if err != nil {
		return running.Server{}, err
	}
	var pids []string
	for _, s := range all {
		if s.PID == f.pid {
			return s, nil
		}
		pids = append(pids, fmt.Sprint(s.PID))
	}
	switch {
	case len(all) == 0:
		return running.Server{}, running.ErrNone
	case f.pid != 0:
		return running.Server{}, fmt.Errorf("process %d is no server; those that run: %s", f.pid,
			strings.Join(pids, ", "))
	case len(all) > 1:
		return running.Server{}, usageError{fmt.Errorf("several servers run; say which by --pid: "+
			"one of %s", strings.Join(pids, ", "))}
	}
	return all[0], nil
}

// servers returns all that run, or the one that the flags mean.
func (f *lookFlags) servers(ctx context.Context) ([]running.Server, error) {
	if f.pid != 0 {
		s, err := f.server(ctx)
		return []running.Server{s}, err
	}
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	if err == nil && len(all) == 0 {
		err = running.ErrNone
	}
	return all, err
}

// overview holds what status prints without a section.
type overview struct {
	Info   admin.Info       `json:"info"`
	Health []admin.Reporter `json:"health"`
	Errors []admin.Problem  `json:"errors"`
}

func (f *lookFlags) showStatus(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	var o overview
	for path, into := range map[string]any{"/info": &o.Info, "/health": &o.Health,
		"/errors": &o.Errors} {
		if err := server.Get(ctx, path, into); err != nil {
			return err
		}
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(o)
	}
	var addresses []string
	for _, a := range o.Info.Addresses {
		addresses = append(addresses, a.String())
	}
	fmt.Fprintf(out.stdout, "%s\naddresses %s, MAC %s, MTU %d\nframes by %s of %s, since %s\n\n",
		strings.Join(o.Info.Command, " "), strings.Join(addresses, " "), o.Info.MAC, o.Info.MTU,
		o.Info.Backend, o.Info.About, o.Info.Started.Local().Format(time.DateTime))
	if err := printHealth(out.stdout, server, o.Health); err != nil {
		return err
	}
	fmt.Fprintln(out.stdout)
	return printErrors(out.stdout, o.Errors)
}

func healthCommand(out streams) *cobra.Command {
	var f healthFlags
	cmd := &cobra.Command{
		Use:   "health [show|recover|dump] [REPORTER]",
		Short: "health reporters of a running server",
		Long: `Prints the health of a running server, in the words of devlink health. Reporters are

    tx, rx   the send and receive queues, which recover at once from an error
    link     the port's link
    device   whether it is there and works
    stack    whether there can be connections
    memory   whether there is enough of it

    show     state, how often in error and recovered, and the reason of the last error
    recover  look for a device that is away now, also one that failed within its grace
             period
    dump     of tx, rx or device: the descriptors (WQE) and completions (CQE) in the last
             64 slots of each ring, kept at the last errors, or if there was none: as of
             now`,
		ValidArgsFunction: completeWords(func() []string {
			return append([]string{"show", "recover", "dump"}, reporters()...)
		}),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := f.take(words); err != nil {
				return err
			}
			return f.showHealth(cmd.Context(), out)
		}}
	f.addTo(cmd, opt("now", "", &f.now, "a dump as of now in any case"))
	return cmd
}

// healthFlags holds what to do with which reporter.
type healthFlags struct {
	lookFlags
	now            bool
	verb, reporter string
}

// take takes the words: what to do, then the reporter.
func (f *healthFlags) take(words []string) error {
	f.verb = "show"
	if len(words) > 0 && slices.Contains([]string{"show", "recover", "dump"}, words[0]) {
		f.verb, words = words[0], words[1:]
	}
	if len(words) > 0 {
		f.reporter, words = words[0], words[1:]
	}
	switch {
	case len(words) > 0:
		return usageError{fmt.Errorf("unexpected argument %q", words[0])}
	case f.reporter != "" && !slices.Contains(reporters(), f.reporter):
		return usageError{fmt.Errorf("no reporter %q: want one of %s", f.reporter,
			strings.Join(reporters(), ", "))}
	case f.verb != "show" && f.reporter == "":
		return usageError{fmt.Errorf("%s needs a reporter: one of %s", f.verb,
			strings.Join(reporters(), ", "))}
	case f.now && f.verb != "dump":
		return usageError{fmt.Errorf("--now is for dump")}
	}
	return nil
}

func reporters() []string { return []string{"tx", "rx", "link", "device", "stack", "memory"} }

func (f *healthFlags) showHealth(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	query := neturl.Values{"reporter": {f.reporter}}
	if f.now {
		query.Set("now", "1")
	}
	var all []admin.Reporter
	switch f.verb {
	case "dump":
		var dumps []admin.Dump
		if err := server.Get(ctx, "/health/dump?"+query.Encode(), &dumps); err != nil {
			return err
		}
		if f.json {
			return json.NewEncoder(out.stdout).Encode(dumps)
		}
		return printDumps(out.stdout, dumps)
	case "recover":
		err = server.Post(ctx, "/health/recover?"+query.Encode(), &all)
	default:
		err = server.Get(ctx, "/health", &all)
	}
	if err != nil {
		return err
	}
	if f.reporter != "" {
		all = slices.DeleteFunc(all, func(r admin.Reporter) bool {
			return r.Reporter != f.reporter
		})
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	return printHealth(out.stdout, server, all)
}

// printHealth prints as devlink health show does, with reason and notice below.
func printHealth(w io.Writer, server running.Server, all []admin.Reporter) error {
	fmt.Fprintf(w, "pid/%d:\n", server.PID)
	for _, r := range all {
		fmt.Fprintf(w, "  reporter %s\n    state %s error %d recover %d", r.Reporter, r.State,
			r.Error, r.Recover)
		if r.LastDump != nil {
			at := r.LastDump.Local()
			fmt.Fprintf(w, " last_dump_date %s last_dump_time %s", at.Format(time.DateOnly),
				at.Format(time.TimeOnly))
		}
		fmt.Fprintf(w, " grace_period %d auto_recover %v auto_dump %v\n", r.GracePeriod,
			r.AutoRecover, r.AutoDump)
		if r.Reason != "" {
			fmt.Fprintf(w, "    reason %s\n", r.Reason)
		}
		if r.Notice != "" {
			fmt.Fprintf(w, "    notice %s\n", r.Notice)
		}
	}
	return nil
}

// printDumps prints a table for each queue: descriptors, then completions.
func printDumps(w io.Writer, dumps []admin.Dump) error {
	for _, d := range dumps {
		fmt.Fprintf(w, "%s at %s", d.Queue, d.Time.Local().Format("2006-01-02 15:04:05.000"))
		if d.Reason != "" {
			fmt.Fprintf(w, ": %s", d.Reason)
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  \tSLOT\tSTATE\tFIELDS")
		for _, e := range d.WQEs {
			fmt.Fprintf(t, "  wqe\t%d\t%s\t%s\n", e.Slot, e.State, e.WQE.Text)
		}
		for _, e := range d.CQEs {
			fmt.Fprintf(t, "  cqe\t%d\t%s\t%s\n", e.Slot, e.State, e.Completion.Text)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func errorsCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{
		Use: "errors", Short: "drops and errors of a running server", Args: noWords,
		Long: `Prints every counter of drops and errors of a running server that is not 0, with what it means and
what to do.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.listErrors(cmd.Context(), out)
		}}
	f.addTo(cmd)
	return cmd
}

func (f *lookFlags) listErrors(ctx context.Context, out streams) error {
	var all []admin.Problem
	if err := f.ask(ctx, "/errors", &all); err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	return printErrors(out.stdout, all)
}

func printErrors(w io.Writer, all []admin.Problem) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no drops, no errors")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COUNT\tNAME\tMEANING\tADVICE")
	for _, p := range all {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", p.Count, p.Name, p.Meaning, p.Advice)
	}
	return t.Flush()
}

func rulesCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{Use: "rules", Short: "what NICs lead to running servers", Args: noWords,
		Long: `Lists the rules by which NICs lead frames to running servers, in the order in which they count: a
frame goes by the first that matches, those that no rule matches go to Linux. All of them come
before those of ethtool -N and tc.

    PRIO    0 to 15; of rules with the same, the order is not defined where they overlap
    OWNER   process, and the tag that keeps others from the same frames; shared: others
            may join. With --backend xdp the XDP program that leads the frames, which comes
            before all of Linux
    PACKETS what matched since the device was opened; - where the device does not count`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.listRules(cmd.Context(), out) }}
	f.addTo(cmd)
	return cmd
}

// ownedRule describes a rule and the server that has it.
type ownedRule struct {
	PID int `json:"pid"`
	stack.Rule
}

func (f *lookFlags) listRules(ctx context.Context, out streams) error {
	servers, err := f.servers(ctx)
	if err != nil {
		return err
	}
	all := []ownedRule{}
	for _, s := range servers {
		var rules []stack.Rule
		if err := s.Get(ctx, "/rules", &rules); err != nil {
			return err
		}
		for _, r := range rules {
			all = append(all, ownedRule{s.PID, r})
		}
	}
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	t := tabwriter.NewWriter(out.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PRIO\tMATCH\tTO\tOWNER\tPACKETS\tBYTES")
	for _, r := range all {
		packets, bytes := "-", "-"
		if r.Counted {
			packets, bytes = fmt.Sprint(r.Packets), fmt.Sprint(r.Bytes)
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Priority, r.Match, r.destination(), r.owner(),
			packets, bytes)
	}
	return t.Flush()
}

// destination returns where the frames go, or why they do not.
func (r *ownedRule) destination() string {
	if r.Waiting != "" {
		return "waits: " + r.Waiting
	}
	return r.To
}

func (r *ownedRule) owner() string {
	switch {
	case r.Waiting != "":
		return fmt.Sprint(r.PID)
	case r.Program != 0:
		return fmt.Sprintf("%d, XDP program %d", r.PID, r.Program)
	case r.Tag == 0:
		return fmt.Sprintf("%d, shared", r.PID)
	}
	return fmt.Sprintf("%d, tag %#06x", r.PID, r.Tag)
}

func statsCommand(out streams) *cobra.Command {
	var f statsFlags
	cmd := &cobra.Command{Use: "stats", Short: "counters of a running server", Args: noWords,
		Long: `Prints every counter of a running server that is not 0: of the rings (rx0_packets is of receive
queue 0), the link and netstack, as ethtool -S and nstat do.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.showStats(cmd.Context(), out) }}
	f.addTo(cmd,
		opt("interval", "DURATION", &f.interval, "print what was added since the line before, "+
			"each time, such as 1s"),
		opt("count", "N", &f.count, "how often (default until Ctrl-C)"),
		opt("all", "", &f.zeros, "print those that are 0, too"))
	return cmd
}

// statsFlags holds those of stats.
type statsFlags struct {
	lookFlags
	interval time.Duration
	count    int
	zeros    bool
}

func (f *statsFlags) showStats(ctx context.Context, out streams) error {
	if f.interval < 0 || f.count < 0 || f.count > 0 && f.interval == 0 {
		return usageError{fmt.Errorf("--interval %v --count %d: want a time, such as 1s, and a "+
			"number", f.interval, f.count)}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	if f.interval > 0 {
		return each(ctx, server, f.interval, f.count, func(before, now admin.Counters) error {
			return printCounters(out, now, before, f.zeros, f.json)
		})
	}
	var now admin.Counters
	if err := server.Get(ctx, "/stats", &now); err != nil {
		return err
	}
	return printCounters(out, now, admin.Counters{}, f.zeros, f.json)
}

// printCounters prints what was added since before, and gauges as they are.
func printCounters(out streams, now, before admin.Counters, zeros, asJSON bool) error {
	for name, n := range before.Counters {
		now.Counters[name] -= min(n, now.Counters[name])
	}
	if asJSON {
		return json.NewEncoder(out.stdout).Encode(now)
	}
	if !before.Time.IsZero() {
		fmt.Fprintf(out.stdout, "%s, in %.3f s:\n", now.Time.Format(time.RFC3339),
			now.Time.Sub(before.Time).Seconds())
	}
	for _, name := range now.Names() {
		if n, _ := now.Value(name); n != 0 || zeros {
			fmt.Fprintf(out.stdout, "     %s: %d\n", name, n)
		}
	}
	return out.stdout.err()
}

func netstatCommand(out streams) *cobra.Command {
	var f lookFlags
	cmd := &cobra.Command{
		Use: "netstat", Short: "IP, TCP and UDP of a running server", Args: noWords,
		Long: `Prints what a running server has counted of IP, TCP and UDP, in the words of netstat -s.
rdma-netstack status stats has all counters, by name.`,
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

// protocol lists the sentences under one title.
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
			{"%d DSACKs received", counted("tcp_segments_acked_with_dsack"), false},
			{"%d DSACKs sent", counted("link_tx_duplicates_told"), false},
			{"TCPSackRecovery: %d", counted("tcp_sack_recovery"), false},
			{"TCPLossProbeRecovery: %d", counted("tcp_tlp_recovery"), false},
		}},
	}
}

// counted returns one counter.
func counted(name string) []string { return []string{name} }

func (f *lookFlags) showNetstat(ctx context.Context, out streams) error {
	var c admin.Counters
	if err := f.ask(ctx, "/stats", &c); err != nil {
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
