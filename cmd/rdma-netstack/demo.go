package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

func demoCommand(out streams) *cobra.Command {
	f := demoFlags{clients: "programs", queues: 2}
	cmd := &cobra.Command{Use: "demo", Args: noWords,
		Short: "demonstrate everything on this machine, without a NIC",
		Long: `Demonstrates on this machine how one port is shared between Linux and a slice. No NIC and no
configuration are needed. The command makes network namespaces, starts a software ConnectX, and
connects its port to the namespace "outside". HTTP and DNS servers answer on a slice of the port,
inside this process; a kernel HTTP server answers on the port's network interface, in the namespace
"host". ping, curl and dig, or Go clients where these are not installed, check both while the
network interface is under load. A table of frames and bytes per owner follows. The command removes
all that it made, however it ends.

Needs root, or unprivileged user namespaces.

Exit code: 0 if every check succeeds, 1 otherwise.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.demonstrate(cmd.Context(), out)
		}}
	addFlags(cmd, "Flags",
		opt("json", "", &f.json, "print one JSON object: ok, checks, counters"),
		opt("stay", "", &f.stay, "keep everything running after the checks, print commands to "+
			"try and the URL of the slice's status page, for a browser of this machine; wait for "+
			"Ctrl-C"),
		opt("clients", "programs|go", &f.clients, "ping, curl, dig where installed, or Go "+
			"clients on kernel sockets only"),
		opt("links", "tap|veth", &f.links, "TAP interfaces, or veth pairs with packet sockets "+
			"(default tap where /dev/net/tun can be opened, else veth)"),
		opt("queues", "N", &f.queues, "receive queues of the slice, or auto"),
		opt("address", "host", func(s string) error {
			if f.host = s == "host"; !f.host {
				return errors.New("want host")
			}
			return nil
		}, "the other demonstration: HTTP and DNS servers of this process on an address and a MAC "+
			"that Linux has, too, with a kernel HTTP server on another port, and clients outside "+
			"and on the host itself. Rules of the software ConnectX tell them apart",
			oneOf("host")),
		opt("faults", "LIST", &f.faults, "faults of the wire, such as "+
			"drop=1%,reorder=5%,dup=1%,delay=2ms"),
		opt("record", "FILE", &f.record, "write every frame on the wire to a pcap file"))
	return cmd
}

// demoFlags say how the demo runs.
type demoFlags struct {
	json, stay     bool
	host           bool // on the host's own address
	clients, links string
	queues         queueCount
	record         string
	faults         wire.FaultConfig
	limit          time.Duration       // for one check
	tamper         func(*stack.Config) // for tests: misconfigures the slice
}

// Time limits of one check, on a good wire and on a bad one.
const (
	demoTimeout       = time.Minute
	faultyDemoTimeout = 3 * time.Minute
)

func (f *demoFlags) check() error {
	switch {
	case f.clients != "programs" && f.clients != "go":
		return usageError{fmt.Errorf("--clients %q: want programs or go", f.clients)}
	case f.links != "" && f.links != linkTAP && f.links != linkVeth:
		return usageError{fmt.Errorf("--links %q: want tap or veth", f.links)}
	}
	return nil
}

// faulty reports whether the wire may lose frames.
func (f *demoFlags) faulty() bool { return f.faults != wire.FaultConfig{} }

// lossy reports whether so many frames are lost that large transfers take minutes.
func (f *demoFlags) lossy() bool { return f.faults.Drop+f.faults.Corrupt > 0.02 }

func (f demoFlags) demonstrate(ctx context.Context, out streams) error {
	if err := f.check(); err != nil {
		return err
	}
	f.limit = demoTimeout
	if f.faulty() {
		f.limit = faultyDemoTimeout
	}
	p := newPrinter(f, out)
	if err := lab.CanMakeNets(); errors.Is(err, unix.EPERM) {
		return p.inUserNamespace(out)
	} else if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	if err := p.demonstrate(ctx); err != nil {
		return p.failed(err)
	}
	if !p.report.OK {
		return exitCode(exitFailed)
	}
	return nil
}

// printer reports on the demo while it runs, or at its end as JSON.
type printer struct {
	flags  demoFlags
	text   io.Writer // nowhere with --json
	out    *output
	report demoReport
}

// demoReport holds what demo --json prints.
type demoReport struct {
	OK bool `json:"ok"`
	// the error that ended the demo early
	Error    string             `json:"error,omitempty"`
	Checks   []result           `json:"checks"`
	Counters map[string]traffic `json:"counters"`
	Host     *stack.HostStats   `json:"host,omitempty"` // with --address host
	Seconds  float64            `json:"seconds"`
	Try      []string           `json:"try,omitempty"` // with --stay: commands for another terminal
	// with --stay: the URL of the status page
	StatusPage string `json:"status_page,omitempty"`
}

// traffic prints a simnic.Traffic: it counts frames as they are on the wire, and their bytes
// without FCS.
type traffic struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
}

func newPrinter(f demoFlags, out streams) *printer {
	p := &printer{flags: f, text: out.stdout, out: out.stdout,
		report: demoReport{Checks: []result{}, Counters: map[string]traffic{}}}
	if f.json {
		p.text = io.Discard
	}
	return p
}

// inUserNamespace runs the same command again in a user namespace, where it has the privileges it
// needs, with a listener of this one for the status page, if there is a loopback interface.
func (p *printer) inUserNamespace(out streams) error {
	var files []*os.File
	if p.flags.stay {
		if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			defer l.Close()
			if page, err := l.(*net.TCPListener).File(); err == nil {
				defer page.Close()
				files = append(files, page)
			}
		}
	}
	code, err := lab.RunAsNamespaceRoot(out.args, out.stdout.to, out.stderr, files...)
	if err != nil {
		return p.failed(err)
	}
	if code != exitDone {
		return exitCode(code)
	}
	return nil
}

func (p *printer) demonstrate(ctx context.Context) (err error) {
	began := time.Now()
	w, err := newWorld(ctx, p.flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p.introduce(w)
	if !p.flags.host {
		w.load.start(ctx)
	}
	for _, c := range w.checks() {
		r := w.try(ctx, c)
		p.report.Checks = append(p.report.Checks, r)
		fmt.Fprintf(p.text, "  %-4s  %-16s %s\n", map[bool]string{true: "ok", false: "FAIL"}[r.OK],
			r.Name, r.Detail)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	w.load.stop()
	p.printOwners(w, time.Since(began))
	if p.flags.stay {
		p.offer(w)
	}
	p.finish()
	if p.flags.stay {
		<-ctx.Done()
	}
	return nil
}

func (p *printer) introduce(w *world) {
	if w.flags.host {
		fmt.Fprintf(p.text, "One address, two owners: %s and %s, MAC %s, on the port of a "+
			"software ConnectX.\nPorts 80 and 53 are servers in this process, port %d is a "+
			"server on a kernel socket.\n\n", w.netdev.v4.Addr(), w.netdev.v6.Addr(),
			w.netdev.mac, kernelPort)
		return
	}
	fmt.Fprintf(p.text, "One port, two owners. The NIC is a software ConnectX in this process "+
		"(%s), its port on a %s link.\n\n", w.nic.Config().Name, w.links)
	t := tabwriter.NewWriter(p.text, 2, 0, 2, ' ', 0)
	for _, row := range []struct {
		station
		what string
	}{
		{w.client, "clients on kernel sockets in a namespace: ping, HTTP, DNS"},
		{w.slice, "HTTP and DNS servers in this process, on the NIC's descriptor rings"},
		{w.netdev, "the port as Linux has it, in a namespace: a kernel HTTP server, under load " +
			"all the time"},
	} {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", row.name, row.v4.Addr(), row.v6.Addr(), row.mac,
			row.what)
	}
	t.Flush()
	if w.flags.faulty() {
		fmt.Fprintf(p.text, "\n  on the wire: %s\n", w.flags.faults)
	}
	fmt.Fprintln(p.text)
}

// printOwners prints what the NIC has received for each owner of its port, and sent.
func (p *printer) printOwners(w *world, took time.Duration) {
	p.report.Seconds = took.Round(time.Millisecond).Seconds()
	c := w.nic.Counters()
	t := tabwriter.NewWriter(p.text, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nowner\tframes in\tbytes in\tframes out\tbytes out\t")
	for _, r := range []struct {
		name string
		simnic.Traffic
	}{{"slice", c.Slice}, {"netdev", c.Netdev}} {
		p.report.Counters[r.name] = traffic{r.RxPackets, r.RxBytes, r.TxPackets, r.TxBytes}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t\n", r.name, r.RxPackets, r.RxBytes, r.TxPackets,
			r.TxBytes)
	}
	t.Flush()
	if h, ok := w.stack.HostStats(); ok {
		p.report.Host = &h
		fmt.Fprintf(p.text, "\nfor the servers, by the kernel: %d connections, %d datagrams in, "+
			"%d out; frames that no rule took: %d\n", h.Accepted, h.Received, h.Sent, h.Unsteered)
	}
	failed := 0
	for _, c := range p.report.Checks {
		if !c.OK {
			failed++
		}
	}
	summary := fmt.Sprintf("%d checks, all ok,", len(p.report.Checks))
	if failed > 0 {
		summary = fmt.Sprintf("%d of %d checks FAILED", failed, len(p.report.Checks))
	}
	fmt.Fprintf(p.text, "\n%s in %.1f s.\n", summary, took.Seconds())
}

// finish judges, and prints the JSON object.
func (p *printer) finish() {
	p.report.OK = p.report.Error == "" &&
		!slices.ContainsFunc(p.report.Checks, func(c result) bool { return !c.OK })
	if p.flags.json {
		json.NewEncoder(p.out).Encode(p.report)
	}
}

// failed reports that the demo ended early, and returns err for its one line on stderr.
func (p *printer) failed(err error) error {
	if p.report.Seconds == 0 { // the object is not printed yet
		p.report.Error = err.Error()
		p.finish()
	}
	return err
}

// offer prints what can be tried while the demo stays: commands for another terminal, and the
// status page, which it serves until the world's end.
func (p *printer) offer(w *world) {
	p.report.Try = w.commands()
	if l, err := statusListener(); err == nil {
		p.report.StatusPage = "http://" + l.Addr().String() + "/"
		p.report.Try = append(p.report.Try,
			"curl "+p.report.StatusPage+"status   # of the status page")
		web := &http.Server{ReadHeaderTimeout: adminTime, Handler: admin.OnlyHosts(admin.ReadOnly(
			admin.Handler(admin.Config{Stack: w.stack, About: "software ConnectX",
				Netdev: netdevTraffic(w.nic)})))}
		w.cleanup.add(web.Close)
		go web.Serve(l)
	}
	fmt.Fprintf(p.text, "\nEverything stays up until Ctrl-C. From another terminal%s:\n\n",
		map[bool]string{true: " of the same user"}[inUserNamespace()])
	for _, c := range p.report.Try {
		fmt.Fprintf(p.text, "  %s\n", c)
	}
	if p.report.StatusPage != "" {
		fmt.Fprintf(p.text, "\nStatus page of the slice: %s\n", p.report.StatusPage)
	}
	fmt.Fprintln(p.text)
}

// netdevTraffic returns what counts the frames of the software NIC's netdev, which is in a network
// namespace of its own.
func netdevTraffic(nic *simnic.NIC) func() admin.Traffic {
	return func() admin.Traffic {
		c := nic.Counters().Netdev
		return admin.Traffic{Name: demoPort, RxPackets: c.RxPackets, RxBytes: c.RxBytes,
			TxPackets: c.TxPackets, TxBytes: c.TxBytes}
	}
}

// commands returns commands for another terminal that reach the demo.
func (w *world) commands() (all []string) {
	enter := "nsenter --net="
	if inUserNamespace() {
		enter = fmt.Sprintf("nsenter --user=/proc/%d/ns/user --preserve-credentials --net=",
			os.Getpid())
	}
	at := func(n *lab.Net, format string, args ...any) {
		all = append(all, enter+n.Path()+" "+fmt.Sprintf(format, args...))
	}
	slice, netdev := w.slice.v4.Addr(), w.netdev.v4.Addr()
	if w.flags.host {
		at(w.host, "curl http://%s/-/status.json", slice)
		at(w.outside, "curl http://%s:%d/-/status.json", slice, kernelPort)
	} else {
		at(w.outside, "ping -c 3 %s", slice)
		at(w.outside, "ping -c 3 %s", w.slice.v6.Addr())
		at(w.outside, "curl http://%s/-/status.json   # the kernel's server, on the netdev", netdev)
		at(w.outside, "ip neigh   # two MAC addresses, one port")
		at(w.host, "ip -s link show %s   # the netdev's side", demoPort)
	}
	at(w.outside, "curl http://%s/-/status.json", slice)
	at(w.outside, "dig @%s www.example AAAA", slice)
	return all
}

// inUserNamespace reports whether this process is root only of a user namespace that it was started
// in.
func inUserNamespace() bool {
	own, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && string(own) != "         0          0 4294967295\n"
}

// statusListener returns where the status page is served: on a free port of the loopback interface
// that the user has. In a namespace of its own the demo was started with it.
func statusListener() (net.Listener, error) {
	if file := lab.Given(); file != nil {
		defer file.Close()
		return net.FileListener(file)
	}
	return net.Listen("tcp", "127.0.0.1:0")
}
