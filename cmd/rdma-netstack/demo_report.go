package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
)

// traffic is simnic.Traffic as it is printed: frames as they are on the wire, and their bytes
// without FCS.
type traffic struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
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

// printer reports on the demo while it runs, or at its end as JSON.
type printer struct {
	flags  demoFlags
	out    streams
	report demoReport
}

func newPrinter(f demoFlags, out streams) *printer {
	return &printer{
		flags:  f,
		out:    out,
		report: demoReport{Checks: []result{}, Counters: map[string]traffic{}},
	}
}

func (p *printer) say(format string, args ...any) {
	if !p.flags.json {
		fmt.Fprintf(p.out.stdout, format, args...)
	}
}

func (p *printer) intro(w *world) {
	p.say(
		"One port, two owners. The NIC is a software ConnectX in this process (%s), its port on "+
			"a %s link.\n\n",
		w.nic.Config().Name,
		w.links,
	)
	if !p.flags.json {
		t := tabwriter.NewWriter(p.out.stdout, 2, 0, 2, ' ', 0)
		for _, row := range []struct {
			station
			what string
		}{
			{w.client, "clients on kernel sockets in a namespace: ping, HTTP, DNS"},
			{w.slice, "HTTP and DNS servers in this process, on the NIC's descriptor rings"},
			{w.netdev,
				"the port as Linux has it, in a namespace: a kernel HTTP server, under load all " +
					"the time"},
		} {
			fmt.Fprintf(
				t,
				"  %s\t%s\t%s\t%s\t%s\n",
				row.name,
				row.v4.Addr(),
				row.v6.Addr(),
				row.mac,
				row.what,
			)
		}
		t.Flush()
	}
	if w.flags.faulty() {
		p.say("\n  on the wire: %s\n", w.flags.faults)
	}
	p.say("\n")
}

func (p *printer) check(r result) {
	p.report.Checks = append(p.report.Checks, r)
	verdict := "ok  "
	if !r.OK {
		verdict = "FAIL"
	}
	p.say("  %s  %-16s %s\n", verdict, r.Name, r.Detail)
}

// counters prints the table of received frames by receiver.
func (p *printer) counters(w *world, took time.Duration) {
	p.report.Seconds = took.Round(time.Millisecond).Seconds()
	p.owners(w)
	p.say("\n%s in %.1f s.\n", p.summary(), took.Seconds())
}

// owners prints what the NIC has received for each owner of its port, and sent.
func (p *printer) owners(w *world) {
	c := w.nic.Counters()
	rows := []struct {
		name string
		simnic.Traffic
	}{{"slice", c.Slice}, {"netdev", c.Netdev}}
	p.say("\n")
	t := tabwriter.NewWriter(p.out.stdout, 2, 0, 2, ' ', tabwriter.AlignRight)
	if !p.flags.json {
		fmt.Fprintln(t, "owner\tframes in\tbytes in\tframes out\tbytes out\t")
	}
	for _, r := range rows {
		p.report.Counters[r.name] = traffic{r.RxPackets, r.RxBytes, r.TxPackets, r.TxBytes}
		if !p.flags.json {
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t\n", r.name, r.RxPackets,
				r.RxBytes, r.TxPackets, r.TxBytes)
		}
	}
	if !p.flags.json {
		t.Flush()
	}
}

func (p *printer) summary() string {
	failed := 0
	for _, c := range p.report.Checks {
		if !c.OK {
			failed++
		}
	}
	if failed == 0 {
		return fmt.Sprintf("%d checks, all ok,", len(p.report.Checks))
	}
	return fmt.Sprintf("%d of %d checks FAILED", failed, len(p.report.Checks))
}

// flush prints the JSON object.
func (p *printer) flush() {
	p.report.OK = p.report.Error == ""
	for _, c := range p.report.Checks {
		p.report.OK = p.report.OK && c.OK
	}
	if p.flags.json {
		json.NewEncoder(p.out.stdout).Encode(p.report)
	}
}

// failed is for a demo that ended early; it returns err for its one line on stderr.
func (p *printer) failed(err error) error {
	if p.report.Seconds == 0 { // the object is not printed yet
		p.report.Error = err.Error()
		p.flush()
	}
	return err
}

// verdict returns nil if everything was ok.
func (p *printer) verdict() error {
	if !p.report.OK {
		return exitCode(exitFailed)
	}
	return nil
}

// commands are commands for another terminal that reach the demo.
func (w *world) commands() (all []string) {
	enter := "nsenter --net="
	if inUserNamespace() {
		enter = fmt.Sprintf("nsenter --user=/proc/%d/ns/user --preserve-credentials --net=",
			os.Getpid())
	}
	slice, netdev := w.slice.v4.Addr(), w.netdev.v4.Addr()
	for _, command := range []string{
		fmt.Sprintf("ping -c 3 %s", slice),
		fmt.Sprintf("ping -c 3 %s", w.slice.v6.Addr()),
		fmt.Sprintf("curl http://%s/-/status.json", slice),
		fmt.Sprintf("dig @%s www.example AAAA", slice),
		fmt.Sprintf("curl http://%s/-/status.json   # the kernel's server, on the netdev", netdev),
		"ip neigh   # two MAC addresses, one port",
	} {
		all = append(all, enter+w.outside.Path()+" "+command)
	}
	return append(
		all,
		fmt.Sprintf("%s%s ip -s link show %s   # the netdev's side",
			enter, w.host.Path(), demoPort),
	)
}

// inUserNamespace reports whether this process is root only of a user namespace that it was started
// in.
func inUserNamespace() bool {
	own, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && string(own) != "         0          0 4294967295\n"
}

// offer prints what can be tried while the demo stays: the commands, and the status page, which it
// serves until the world's end.
func (p *printer) offer(until *cleanup, st *stack.Stack, about string, commands []string) {
	if l, err := statusListener(); err == nil {
		p.report.StatusPage = "http://" + l.Addr().String() + "/"
		commands = append(commands, "curl "+p.report.StatusPage+"status   # of the status page")
		web := &http.Server{ReadHeaderTimeout: adminTime, Handler: admin.OnlyHosts(
			admin.ReadOnly(admin.Handler(admin.Config{Stack: st, About: about})))}
		until.add(web.Close)
		go web.Serve(l)
	}
	p.report.Try = commands
	p.say("\nEverything stays up until Ctrl-C. From another terminal%s:\n\n",
		map[bool]string{true: " of the same user"}[inUserNamespace()])
	for _, c := range commands {
		p.say("  %s\n", c)
	}
	if p.report.StatusPage != "" {
		p.say("\nStatus page of the slice: %s\n", p.report.StatusPage)
	}
	p.say("\n")
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

// pageListener returns a listener for a demo in another namespace; nil: there is no loopback
// interface. The caller closes it.
func pageListener() *os.File {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil
	}
	return file
}
