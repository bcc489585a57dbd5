package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

const ssHelp = `Usage: rdma-netstack ss [-t] [-u] [-l] [-a] [-n] [-i] [-p] [--pid PID] [--json]

Lists the sockets of a running server, as ss of iproute2 does for the kernel's: connections, unless
-l or -a says otherwise. One-letter flags may be written together: -tulni.

  -t          TCP sockets
  -u          UDP sockets (default: both)
  -l          listening sockets only
  -a          listening sockets, too
  -n          numeric addresses and ports, which are always printed
  -i          what TCP knows of each connection. Times in milliseconds
  -p          the process
` + lookFlagsHelp

func ssCommand() command {
	return command{"ss", "sockets of a running server", ssHelp, listSockets}
}

// ssFlags choose what is listed.
type ssFlags struct {
	lookFlags
	tcp, udp, listening, all, info, process bool
}

func listSockets(ctx context.Context, args []string, out streams) error {
	var f ssFlags
	fs := newFlags()
	f.define(fs)
	fs.BoolVar(&f.tcp, "t", false, "")
	fs.BoolVar(&f.udp, "u", false, "")
	fs.BoolVar(&f.listening, "l", false, "")
	fs.BoolVar(&f.all, "a", false, "")
	fs.Bool("n", false, "")
	fs.BoolVar(&f.info, "i", false, "")
	fs.BoolVar(&f.process, "p", false, "")
	if err := parse(fs, apart(args, "tulanip")); err != nil {
		return err
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	var all []stack.Socket
	if err := server.Get(ctx, "/sockets", &all); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s stack.Socket) bool { return !f.wants(s) })
	if f.json {
		return json.NewEncoder(out.stdout).Encode(all)
	}
	process := ""
	if f.process {
		process = fmt.Sprintf("users:((\"rdma-netstack\",pid=%d))", server.PID)
	}
	return f.print(out.stdout, all, process)
}

// apart splits flags of one letter that are written together: -tu is -t -u.
func apart(args []string, letters string) (out []string) {
	for _, a := range args {
		name, short := strings.CutPrefix(a, "-")
		if !short || len(name) < 2 || strings.Trim(name, letters) != "" {
			out = append(out, a)
			continue
		}
		for _, l := range name {
			out = append(out, "-"+string(l))
		}
	}
	return out
}

// wants says whether a socket is listed. A UDP socket without a peer counts as listening.
func (f *ssFlags) wants(s stack.Socket) bool {
	if f.tcp != f.udp && f.tcp != (s.Network == "tcp") {
		return false
	}
	return f.all || f.listening == (s.State == "LISTEN" || s.State == "UNCONN")
}

func (f *ssFlags) print(w io.Writer, all []stack.Socket, process string) error {
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "Netid\tState\tRecv-Q\tSend-Q\tLocal Address:Port\tPeer Address:Port\tProcess")
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", s.Network, s.State, s.RecvQ, s.SendQ,
			end(s.Local), end(s.Remote), process)
	}
	t.Flush()
	rows := bufio.NewScanner(&table)
	for i := -1; rows.Scan(); i++ {
		fmt.Fprintln(w, strings.TrimRight(rows.Text(), " "))
		if f.info && i >= 0 {
			if line := infoLine(all[i]); line != "" {
				fmt.Fprintln(w, "\t "+line)
			}
		}
	}
	return nil
}

// end is an address and port as ss prints them.
func end(a netip.AddrPort) string {
	port := "*"
	if a.Port() != 0 {
		port = fmt.Sprint(a.Port())
	}
	if a.Addr().Is6() {
		return "[" + a.Addr().String() + "]:" + port
	}
	return a.Addr().String() + ":" + port
}

// infoLine is what ss -i prints below a socket.
func infoLine(s stack.Socket) string {
	if s.Network == "udp" {
		return fmt.Sprintf("drops:%d", s.Drops)
	}
	i := s.TCP
	if i == nil {
		return ""
	}
	return fmt.Sprintf("%s rto:%g rtt:%g/%g mss:%d cwnd:%d ssthresh:%d bytes_acked:%d "+
		"bytes_received:%d segs_out:%d segs_in:%d unacked:%d retrans:%d", i.Congestion,
		ms(i.RTO), ms(i.RTT), ms(i.RTTVar), i.MSS, i.Cwnd, i.Ssthresh, i.BytesAcked,
		i.BytesReceived, i.SegsOut, i.SegsIn, i.Unacked, i.Retrans)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
