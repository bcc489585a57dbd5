package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
)

func captureCommand(out streams) *cobra.Command {
	f := captureFlags{progress: out.stderr, results: out.stdout, direction: "inout", time: "host"}
	cmd := &cobra.Command{Use: "capture -w FILE|- [flags] [FILTER]",
		Short: "frames of a running server, to a pcapng file",
		Long: `Writes the frames of a running server to a pcapng file, which tcpdump and Wireshark read, until
Ctrl-C: what tcpdump does for the kernel's interfaces. The server does not wait for the file. Frames
lost for that reason are counted at the end, and in the file.

FILTER is an expression of tcpdump's: host, net, port, portrange with src and dst; ip, ip6, arp,
tcp, udp, icmp, icmp6, sctp, vlan, broadcast, multicast, ether host, less, greater; and, or, not,
parentheses. For all else there is "$(tcpdump -ddd -y EN10MB FILTER)".

Frames that the server drops, received ones or its own, have the reason as a comment. The program is
an extcap plug-in of Wireshark, too: a link to it in Wireshark's directory for them (Help, About
Wireshark, Folders) lists running servers among the interfaces.`,
		Example: `  rdma-netstack capture -w - | wireshark -k -i -
  rdma-netstack capture -w dns.pcapng -c 1000 udp port 53`,
		RunE: func(cmd *cobra.Command, words []string) error {
			f.filter = strings.Join(words, " ")
			return f.captureTo(cmd.Context())
		}}
	addFlags(cmd, "Flags",
		opt("w,write", "FILE", &f.file, "where to; - is standard output"),
		opt("c,count", "N", &f.count, "end after N frames"),
		opt("s,snapshot-length", "BYTES", &f.snaplen, "keep so many bytes of each frame "+
			"(default all)"),
		opt("Q,direction", "in|out|inout", &f.direction, "direction"),
		opt("C,file-size", "MEGABYTES", &f.megabytes, "begin another file when one would get "+
			"larger: FILE, FILE1, FILE2 and so on"),
		opt("W,file-count", "N", &f.files, "with -C: at most N files, after which the first "+
			"is written anew"),
		opt("queue", "N", &f.queues, "frames of this queue only; may be repeated"),
		opt("wire", "", &f.wire, "cut sent segments that the NIC is to cut, as it does"),
		opt("time", "nic|host", &f.time, "time of received frames: the NIC's, or the host's"),
		f.pidOption(cmd))
	cmd.Flags().SetInterspersed(false) // - in a filter is no flag
	return cmd
}

// captureFlags holds the flags of capture.
type captureFlags struct {
	lookFlags
	file              string
	count, snaplen    int
	direction, time   string
	megabytes, files  int
	queues            []string
	wire              bool
	filter            string
	progress, results io.Writer
}

func (f *captureFlags) captureTo(ctx context.Context) error {
	if err := f.check(isTerminal(os.Stdout)); err != nil {
		return usageError{err}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	return f.run(ctx, server)
}

// check says what is wrong with the flags. The server checks what it reads itself.
func (f *captureFlags) check(terminal bool) error {
	switch {
	case f.file == "":
		return errors.New("where to? give -w FILE, or -w - and a pipe to wireshark -k -i -")
	case f.file == "-" && terminal:
		return errors.New("-w -: standard output is a terminal; give a pipe, or -w FILE")
	case f.time != "nic" && f.time != "host":
		return fmt.Errorf("--time %s: want nic or host", f.time)
	case f.count < 0 || f.megabytes < 0 || f.files < 0:
		return errors.New("-c, -C and -W want a number that is not negative")
	case f.files > 0 && f.megabytes == 0:
		return errors.New("-W is for files of a limited size: give -C MEGABYTES, too")
	case f.megabytes > 0 && f.file == "-":
		return errors.New("-C begins new files, which standard output has not: give -w FILE")
	}
	return nil
}

// path returns what the server is asked.
func (f *captureFlags) path() string {
	q := neturl.Values{"direction": {f.direction}, "time": {f.time}, "queue": f.queues}
	if f.filter != "" {
		q.Set("filter", f.filter)
	}
	if f.count > 0 {
		q.Set("count", strconv.Itoa(f.count))
	}
	if f.snaplen != 0 {
		q.Set("snaplen", strconv.Itoa(f.snaplen))
	}
	if f.wire {
		q.Set("wire", "")
	}
	return "/capture?" + q.Encode()
}

// run captures until ctx ends, and then writes what the server still has.
func (f *captureFlags) run(ctx context.Context, server running.Server) error {
	until, end := io.Pipe() // the server ends when this does
	defer context.AfterFunc(ctx, func() { end.Close() })()
	answer, err := server.Stream(context.WithoutCancel(ctx), f.path(), until)
	if err != nil {
		return err
	}
	defer answer.Close()
	to := &captureFile{name: f.file, limit: int64(f.megabytes) * 1e6, ring: f.files}
	if f.file == "-" {
		to.out = keepOpen{f.results}
	}
	counts, err := to.copy(answer)
	fmt.Fprintf(f.progress, "%d frames captured, %d lost for lack of room in the server's buffer\n",
		counts.frames, counts.lost)
	return errors.Join(err, to.close())
}
