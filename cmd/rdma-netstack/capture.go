package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
)

const captureHelp = `Usage: rdma-netstack capture -w FILE|- [flags] [FILTER]

Writes the frames of a running server to a pcapng file, which tcpdump and Wireshark read, until
Ctrl-C: what tcpdump does for the kernel's interfaces. The server does not wait for the file. Frames
lost for that reason are counted at the end, and in the file.

  rdma-netstack capture -w - | wireshark -k -i -
  rdma-netstack capture -w dns.pcapng -c 1000 udp port 53

  -w FILE           where to; - is standard output
  -c N              end after N frames
  -s BYTES          keep so many bytes of each frame (default: all)
  -Q in|out|inout   direction (default: inout)
  -C MEGABYTES      begin another file when one would get larger: FILE, FILE1, FILE2 and so on
  -W N              with -C: at most N files, after which the first is written anew
  --queue N         frames of this queue only; may be repeated
  --wire            cut sent segments that the NIC is to cut, as it does
  --time nic|host   time of received frames: the NIC's, or the host's (default)
  --pid PID         which server, if several run

FILTER is an expression of tcpdump's: host, net, port, portrange with src and dst; ip, ip6, arp,
tcp, udp, icmp, icmp6, sctp, vlan, broadcast, multicast, ether host, less, greater; and, or, not,
parentheses. For all else there is "$(tcpdump -ddd -y EN10MB FILTER)".

Frames that the server drops, received ones or its own, have the reason as a comment. The program is
an extcap plug-in of Wireshark, too: a link to it in Wireshark's directory for them (Help, About
Wireshark, Folders) lists running servers among the interfaces.
`

func captureCommand() command {
	return command{name: "capture", line: "frames of a running server, to a pcapng file",
		help: captureHelp, run: captureTo, looks: true}
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

func captureTo(ctx context.Context, args []string, out streams) error {
	f := captureFlags{progress: out.stderr, results: out.stdout}
	if err := f.parse(args); err != nil {
		return err
	}
	if err := f.check(isTerminal(os.Stdout)); err != nil {
		return usageError{err}
	}
	server, err := f.server(ctx)
	if err != nil {
		return err
	}
	return f.run(ctx, server)
}

func (f *captureFlags) parse(args []string) error {
	fs := newFlags()
	fs.IntVar(&f.pid, "pid", 0, "")
	fs.StringVar(&f.file, "w", "", "")
	fs.IntVar(&f.count, "c", 0, "")
	fs.IntVar(&f.snaplen, "s", 0, "")
	fs.StringVar(&f.direction, "Q", "inout", "")
	fs.IntVar(&f.megabytes, "C", 0, "")
	fs.IntVar(&f.files, "W", 0, "")
	fs.BoolVar(&f.wire, "wire", false, "")
	fs.StringVar(&f.time, "time", "host", "")
	stringList(fs, "queue", &f.queues)
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return errHelp
	case err != nil:
		return usageError{errors.New(rewordFlagError(err.Error()))}
	}
	f.filter = strings.Join(fs.Args(), " ")
	return nil
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
