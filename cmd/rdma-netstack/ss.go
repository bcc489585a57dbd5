package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func ssCommand(out streams) *cobra.Command {
	var f ssFlags
	cmd := &cobra.Command{Use: "ss", Short: "sockets of a running server", Args: noWords,
		Long: `Lists the sockets of a running server, with the columns and words of ss of iproute2: connections,
unless -l or -a says otherwise. One-letter flags may be written together: -tulni.

A server on the host's own address has connections that the kernel accepted for it, from this
machine and by other interfaces: -i has the word kernel first for these.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.listSockets(cmd.Context(), out)
		}}
	f.addTo(cmd,
		opt("t,tcp", "", &f.tcp, "TCP sockets"),
		opt("u,udp", "", &f.udp, "UDP sockets (default: both)"),
		opt("l,listening", "", &f.listening, "listening sockets only"),
		opt("a,all", "", &f.all, "listening sockets, too"),
		opt("n,numeric", "", &f.numeric, "rates as numbers; addresses and ports are always "+
			"printed so"),
		opt("i,info", "", &f.info, "what TCP knows of each connection. Times in milliseconds"),
		opt("p,processes", "", &f.process, "the process"),
		opt("H,no-header", "", &f.noHeader, "without the titles"))
	return cmd
}

// ssFlags choose what is listed.
type ssFlags struct {
	lookFlags
	tcp, udp, listening, all, info, process, numeric, noHeader bool
}

func (f *ssFlags) listSockets(ctx context.Context, out streams) error {
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	all, err := server.Sockets(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s stack.Socket) bool { return !f.wants(s) })
	if f.json {
		return admin.WriteSockets(out.stdout, all)
	}
	process, err := f.processOf(ctx, server)
	if err != nil {
		return err
	}
	return f.print(out.stdout, all, process)
}

// processOf returns what ss -p says of the server; empty without -p.
func (f *ssFlags) processOf(ctx context.Context, server running.Server) (string, error) {
	if !f.process {
		return "", nil
	}
	var info admin.Info
	err := server.Get(ctx, "/info", &info)
	if err != nil {
		return "", err
	}
	name := ""
	if len(info.Command) > 0 {
		name = filepath.Base(info.Command[0])
	}
	return fmt.Sprintf("users:((%q,pid=%d))", name, server.PID), nil
}

// wants says whether a socket is listed. A UDP socket without a peer counts as listening.
func (f *ssFlags) wants(s stack.Socket) bool {
	if f.tcp != f.udp && f.tcp != (s.Network == "tcp") {
		return false
	}
	return f.all || f.listening == (s.State == "LISTEN" || s.State == "UNCONN")
}

// ssColumn describes a column as ss of iproute2 has it (misc/ss.c, columns): addresses to the
// right, so that they meet their ports.
type ssColumn struct {
	delimiter, title string
	right            bool
}

var ssColumns = [...]ssColumn{{"", "Netid", false}, {" ", "State", false}, {" ", "Recv-Q", false},
	{" ", "Send-Q", false}, {" ", "Local Address:", true}, {"", "Port", false},
	{" ", "Peer Address:", true}, {"", "Port", false}, {" ", "Process", false}}

// ssRow holds a socket's row and the line below it.
type ssRow struct {
	cells [len(ssColumns)]string
	below string
}

func (f *ssFlags) row(s stack.Socket, process string) (r ssRow) {
	local, localPort := end(s.Local)
	peer, peerPort := end(s.Remote)
	r.cells = [...]string{s.Network, s.State, fmt.Sprint(s.RecvQ), fmt.Sprint(s.SendQ), local,
		localPort, peer, peerPort, process}
	if f.info {
		r.below = f.infoLine(s)
	}
	return r
}

// print prints the table. Netid is left out where there is one kind only, as ss does.
func (f *ssFlags) print(w io.Writer, all []stack.Socket, process string) error {
	var title ssRow
	for i, c := range ssColumns {
		title.cells[i] = c.title
	}
	rows := []ssRow{title}
	for _, s := range all {
		rows = append(rows, f.row(s, process))
	}
	first := 0
	if f.tcp != f.udp {
		first = 1
	}
	var width [len(ssColumns)]int
	for _, r := range rows {
		for i, cell := range r.cells {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	if f.noHeader {
		rows = rows[1:]
	}
	lines := bufio.NewWriterSize(w, 64<<10) // which keeps its first error
	for _, r := range rows {
		lines.WriteString(r.line(first, width))
		if r.below != "" {
			lines.WriteString("\n\t ")
			lines.WriteString(r.below)
		}
		lines.WriteByte('\n')
	}
	return lines.Flush()
}

// line returns the row from column first on, without spaces at its end.
func (r *ssRow) line(first int, width [len(ssColumns)]int) string {
	var b strings.Builder
	for i := first; i < len(ssColumns); i++ {
		if i > first {
			b.WriteString(ssColumns[i].delimiter)
		}
		if ssColumns[i].right {
			fmt.Fprintf(&b, "%*s", width[i], r.cells[i])
		} else {
			fmt.Fprintf(&b, "%-*s", width[i], r.cells[i])
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// end returns an address with its colon, and a port, as ss prints them.
func end(a netip.AddrPort) (address, port string) {
	port = "*"
	if a.Port() != 0 {
		port = fmt.Sprint(a.Port())
	}
	if !a.Addr().Is6() {
		return a.Addr().String() + ":", port
	}
	address = "[" + a.Addr().WithZone("").String() + "]"
	if zone := a.Addr().Zone(); zone != "" {
		address += "%" + zone
	}
	return address + ":", port
}

// infoLine returns what ss -i prints below a socket (misc/ss.c, tcp_stats_print): its words and
// their order, and like it without what is 0 or at its default.
func (f *ssFlags) infoLine(s stack.Socket) string {
	if s.Network == "udp" {
		return fmt.Sprintf("drops:%d", s.Drops) // ss has it as d in skmem
	}
	i := s.TCP
	if i == nil {
		return ""
	}
	var b strings.Builder
	word := func(wanted bool, format string, args ...any) {
		if wanted {
			fmt.Fprintf(&b, format, args...)
			b.WriteByte(' ')
		}
	}
	word(s.Kernel, "kernel")
	word(i.Timestamps, "ts")
	word(i.SACK, "sack")
	word(i.Congestion != "", "%s", i.Congestion)
	word(i.SndWscale+i.RcvWscale > 0, "wscale:%d,%d", i.SndWscale, i.RcvWscale)
	word(i.RTO > 0, "rto:%g", ms(i.RTO))
	word(i.RTT > 0, "rtt:%g/%g", ms(i.RTT), ms(i.RTTVar))
	word(i.MSS > 0, "mss:%d", i.MSS)
	word(i.Cwnd > 0, "cwnd:%d", i.Cwnd)
	word(i.Ssthresh > 0 && i.Ssthresh < noThreshold, "ssthresh:%d", i.Ssthresh)
	word(i.BytesAcked > 0, "bytes_acked:%d", i.BytesAcked)
	word(i.BytesReceived > 0, "bytes_received:%d", i.BytesReceived)
	word(i.SegsOut > 0, "segs_out:%d", i.SegsOut)
	word(i.SegsIn > 0, "segs_in:%d", i.SegsIn)
	if i.RTT > 0 {
		bits := float64(i.MSS) * float64(i.Cwnd) * 8 / i.RTT.Seconds()
		word(bits > 0, "send %sbps", f.bits(bits))
	}
	word(i.Unacked > 0, "unacked:%d", i.Unacked)
	// the first is of segments in flight, which netstack does not tell
	word(i.Retrans > 0, "retrans:0/%d", i.Retrans)
	return strings.TrimRight(b.String(), " ")
}

// noThreshold and more is no slow start threshold (linux TCP_INFINITE_SSTHRESH; ss leaves out
// 0xffff and more).
const noThreshold = 0xffff

// bits returns a rate as ss prints it: a number with -n, else in K or M.
func (f *ssFlags) bits(n float64) string {
	switch {
	case f.numeric:
		return fmt.Sprintf("%.0f", n)
	case n > 1e6:
		return fmt.Sprintf("%.1fM", n/1e6)
	case n > 1e3:
		return fmt.Sprintf("%.1fK", n/1e3)
	}
	return fmt.Sprintf("%g", n)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
