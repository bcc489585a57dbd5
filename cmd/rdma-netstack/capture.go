package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/link/capture"
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

// keepOpen hides the Close of a writer.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// captureFile writes one or several files of a capture. The zero value with a name is ready.
type captureFile struct {
	name  string
	limit int64 // bytes; 0: one file
	ring  int   // files; 0: as many as it takes

	out    io.WriteCloser
	header []byte // section and interface, with which each file begins
	size   int64
	number int // of the file
}

// captureCounts counts frames.
type captureCounts struct{ frames, lost uint64 }

// copy writes the blocks of from, whole ones, and counts them.
func (c *captureFile) copy(from io.Reader) (n captureCounts, err error) {
	in := capture.NewSplitter(from)
	for {
		block, err := in.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		switch block.Kind {
		case capture.BlockHeader:
			c.header = append(c.header, block.Bytes...)
		case capture.BlockLink:
			c.header = append(c.header, block.Bytes...)
			err = c.begin()
		case capture.BlockFrame:
			n.frames++
			err = c.write(block.Bytes)
		case capture.BlockCounts:
			n.lost = block.Lost
			err = c.write(block.Bytes)
		}
		if err != nil {
			return n, err
		}
	}
}

// begin opens the next file, unless out is set from outside, and writes the header.
func (c *captureFile) begin() error {
	if c.out == nil {
		f, err := os.OpenFile(c.path(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		c.out = f
	}
	n, err := c.out.Write(c.header)
	c.size = int64(n)
	return err
}

// path returns the file's name, as tcpdump makes it.
func (c *captureFile) path() string {
	switch {
	case c.ring > 0:
		width := len(fmt.Sprint(c.ring - 1))
		return fmt.Sprintf("%s%0*d", c.name, width, c.number%c.ring)
	case c.number > 0:
		return fmt.Sprint(c.name, c.number)
	}
	return c.name
}

func (c *captureFile) write(block []byte) error {
	if c.out == nil {
		return errors.New("the capture begins without a header, which no server does")
	}
	if c.limit > 0 && c.size+int64(len(block)) > c.limit && c.size > int64(len(c.header)) {
		if err := c.close(); err != nil {
			return err
		}
		c.number++
		if err := c.begin(); err != nil {
			return err
		}
	}
	n, err := c.out.Write(block)
	c.size += int64(n)
	return err
}

// close may be called again.
func (c *captureFile) close() error {
	if c.out == nil {
		return nil
	}
	err := c.out.Close()
	c.out = nil
	return err
}

// Wireshark runs the programs in its extcap directory to list interfaces and to capture from them
// (doc/extcap.adoc of Wireshark): here the running servers, one interface each.

// extcapPrefix stands before the process id in the name of an interface.
const extcapPrefix = "rdma-netstack-"

// extcapOptions says what Wireshark's dialogue for an interface offers.
const extcapOptions = "arg {number=0}{call=--wire}{type=boolflag}{default=false}" +
	"{display=Cut sent segments as the NIC does}\n" +
	"arg {number=1}{call=--count}{type=unsigned}{default=0}" +
	"{display=End after so many frames (0: never)}\n"

// withExtcap adds the command that Wireshark means, which names none.
func withExtcap(args []string) []string {
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--extcap-") }) {
		return append([]string{"extcap"}, args...)
	}
	return append([]string{}, args...) // nil is os.Args to package cobra
}

func extcapCommand(out streams) *cobra.Command {
	var f extcapFlags
	cmd := &cobra.Command{Use: "extcap", Hidden: true, Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.answer(cmd.Context(), out) }}
	addFlags(cmd, "Flags",
		opt("extcap-interfaces", "", &f.interfaces, ""),
		opt("extcap-dlts", "", &f.dlts, ""),
		opt("extcap-config", "", &f.config, ""),
		opt("capture", "", &f.capture, ""),
		opt("extcap-interface", "NAME", &f.name, ""),
		opt("fifo", "FILE", &f.fifo, ""),
		opt("extcap-capture-filter", "FILTER", &f.filter, ""),
		opt("extcap-version", "VERSION", &f.version, ""),
		opt("wire", "", &f.wire, ""),
		opt("count", "N", &f.count, ""))
	return cmd
}

// extcapFlags holds the flags that Wireshark gives.
type extcapFlags struct {
	interfaces, dlts, config, capture bool
	name, fifo, filter, version       string

	wire  bool // as --extcap-config has it
	count int
}

func (f *extcapFlags) answer(ctx context.Context, out streams) error {
	switch {
	case f.interfaces:
		return listInterfaces(ctx, out)
	case f.dlts:
		_, err := fmt.Fprintln(out.stdout, "dlt {number=1}{name=EN10MB}{display=Ethernet}")
		return err
	case f.config:
		_, err := fmt.Fprint(out.stdout, extcapOptions)
		return err
	case f.capture:
		return f.run(ctx, out)
	case f.filter != "": // is it right?
		if _, err := capture.ParseFilter(f.filter); err != nil {
			fmt.Fprintln(out.stdout, err) // Wireshark shows what is printed
		}
		return nil
	}
	return usageError{errors.New("want one of --extcap-interfaces, --extcap-dlts, " +
		"--extcap-config and --capture, as Wireshark gives them")}
}

// listInterfaces prints a line for each server that runs.
func listInterfaces(ctx context.Context, out streams) error {
	fmt.Fprintln(out.stdout, "extcap {version=1.0}{help=https://github.com/rdma-netstack/"+
		"rdma-netstack}{display=rdma-netstack}")
	all, err := running.Find(ctx, running.Directories(os.Getenv))
	for _, s := range all {
		var info struct{ Name, MAC string }
		if s.Get(ctx, "/info", &info) == nil {
			fmt.Fprintf(out.stdout, "interface {value=%s%d}{display=slice %s of process %d}\n",
				extcapPrefix, s.PID, info.MAC, s.PID)
		}
	}
	return err
}

// run captures into Wireshark's FIFO.
func (f *extcapFlags) run(ctx context.Context, out streams) error {
	pid, err := strconv.Atoi(strings.TrimPrefix(f.name, extcapPrefix))
	if err != nil {
		return fmt.Errorf("interface %q is not of --extcap-interfaces", f.name)
	}
	c := captureFlags{file: f.fifo, direction: "inout", time: "host", filter: f.filter,
		count: f.count, wire: f.wire, progress: out.stderr, results: out.stdout}
	c.pid = pid
	server, err := c.server(ctx)
	if err != nil {
		return err
	}
	return c.run(ctx, server)
}
