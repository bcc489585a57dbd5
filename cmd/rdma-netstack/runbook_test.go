package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

var updateRunbook = flag.Bool("update-runbook", false,
	"write what the commands print into docs/runbook.md")

const runbook = "../../docs/runbook.md"

// sickWorld is a server that a problem is planted in, and what is behind its cable.
type sickWorld struct {
	t        *testing.T
	server   *stack.Stack
	nic      *simnic.NIC // of the server; nil: it has packet sockets
	far      wire.Wire   // ours to send frames by, if there is no client
	client   *stack.Stack
	kernel   *lab.Net     // of a client that is not a stack
	cut      atomic.Bool  // plan.cable carries nothing from the server
	paused   atomic.Int64 // how often the port was
	listener net.Listener // of connect
	log      *syncBuffer
	around   host.Config // what report takes for the machine
}

// plan is how a world is made.
type plan struct {
	nic       dv.NIC // of the server
	faults    wire.FaultConfig
	clientMTU int         // of a client; 0: there is none
	portMTU   int         // of the server's port; 0: 1500
	caps      simnic.Caps // of the server's NIC; the zero value: those of its card
	// processors gives GOMAXPROCS, if it is more; 0: it stays
	processors int
	kernel     kernelClient
	cable      func(w *sickWorld, near wire.Wire) wire.Wire // around the server's end, unless nil
	uplink     stack.UplinkOptions
	tcp        stack.TCPOptions
	debug      []string // what clients may ask the server for debugging
	filter     string   // of the server
}

// kernelClient says whether the client is the kernel of another namespace, and by what the server
// reaches it.
type kernelClient uint8

const (
	noKernel   kernelClient = iota
	behindTAP               // its NIC has a cable to a TAP of the kernel's
	behindVeth              // by packet sockets
)

var (
	sickAddress   = netip.MustParsePrefix("192.0.2.10/24")
	clientAddress = netip.MustParsePrefix("192.0.2.1/24")
	otherMAC      = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x66}
)

// newSickWorld opens a server that the commands find by --pid, and a client if there is one.
func newSickWorld(t *testing.T, p plan) *sickWorld {
	t.Helper()
	w := &sickWorld{t: t, log: &syncBuffer{}}
	w.around.Pause = func(netdev string) (host.Pause, error) {
		if netdev != "sim0" {
			return host.Pause{}, fmt.Errorf("no port %s", netdev)
		}
		return host.Pause{Received: uint64(w.paused.Load())}, nil
	}
	if before := runtime.GOMAXPROCS(0); p.processors > 0 && p.processors < before {
		runtime.GOMAXPROCS(p.processors)
		t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	}
	s := &slice{about: "sim"}
	t.Cleanup(func() { s.closeAfter(nil) })
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelWarn,
		ReplaceAttr: withoutTime}))
	filter, err := stack.NewFilter(p.filter)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stack.Config{NIC: p.nic, Logger: log, Addresses: []netip.Prefix{sickAddress},
		Uplink: p.uplink, TCP: p.tcp, Filter: filter}
	var far wire.Wire
	if p.kernel == behindVeth {
		w.server = w.openOnVeth(cfg)
	} else {
		near := w.newCable(p, &far)
		w.server, w.nic = w.open(1, near, simnic.Config{MTU: p.portMTU, Caps: p.caps}, cfg)
	}
	s.stack = w.server
	if err := s.serveAdmin(&serveFlags{debug: p.debug}, log); err != nil {
		t.Fatal(err)
	}
	switch {
	case p.kernel != noKernel:
		return w
	case p.clientMTU == 0:
		w.far = far
		if err := far.Start(func([]frame.Frame) {}); err != nil {
			t.Fatal(err)
		}
		return w
	}
	w.client, _ = w.open(2, far, simnic.Config{MTU: p.clientMTU}, stack.Config{
		NIC:       dv.NIC{MTU: p.clientMTU, Rings: dv.Rings{DelayDrop: true}},
		Addresses: []netip.Prefix{clientAddress}})
	return w
}

// newCable returns the server's end of a cable. What is at the other end goes into far, unless it
// is a kernel.
func (w *sickWorld) newCable(p plan, far *wire.Wire) (near wire.Wire) {
	w.t.Helper()
	near, *far = wire.Pair()
	if p.kernel == behindTAP {
		need.TUN(w.t)
		w.kernel = w.newNet("client")
		if err := w.kernel.Do(func() error {
			tap, err := wire.OpenTAP("eth0")
			if err != nil {
				return err
			}
			near = tap
			return lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{clientAddress}})
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	if p.faults != (wire.FaultConfig{}) {
		near = wire.WithFaults(near, p.faults)
	}
	if p.cable != nil {
		near = p.cable(w, near)
	}
	return near
}

// openOnVeth opens the server by packet sockets on veth0, in a namespace of its own, with the
// client's kernel at the other end.
func (w *sickWorld) openOnVeth(cfg stack.Config) (st *stack.Stack) {
	w.t.Helper()
	var at *lab.Net
	at, w.kernel = vethLab(w.t)
	onwire.Make(w.t, "veth0", at, w.kernel)
	cfg.NIC.Device, cfg.Uplink.Backend = "veth0", stack.BackendPacket
	if err := at.Do(func() (err error) {
		st, err = stack.Open(w.t.Context(), cfg)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { shutdownStack(st) })
	return st
}

// newNet makes a namespace for the length of the test.
func (w *sickWorld) newNet(name string) *lab.Net {
	w.t.Helper()
	need.NetNS(w.t)
	n, err := lab.New(name)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { n.Close() })
	return n
}

// open makes a stack on a software NIC at the wire.
func (w *sickWorld) open(n byte, at wire.Wire, card simnic.Config,
	cfg stack.Config) (*stack.Stack, *simnic.NIC) {
	w.t.Helper()
	card.MAC, card.Seed = net.HardwareAddr{2, 0, 0, 1, 0, n}, uint64(n)
	card.MTU = max(1500, card.MTU)
	nic, err := simnic.New(card)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { nic.Close() })
	if err := nic.ConnectWire(at); err != nil {
		w.t.Fatal(err)
	}
	useSim(&cfg.NIC, nic)
	cfg.NIC.MAC = net.HardwareAddr{2, 0, 0, 0, 0, n}
	st, err := stack.Open(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { shutdownStack(st) })
	return st, nic
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// udpFrame is a datagram to a port of the server, from a host that the server has not asked for.
func udpFrame(port uint16, payload int) frame.Frame {
	udp := make([]byte, 8+payload)
	udp[0], udp[1], udp[2], udp[3] = 0x30, 0x39, byte(port>>8), byte(port)
	udp[4], udp[5] = byte(len(udp)>>8), byte(len(udp)) // no checksum, RFC 768
	ip := []byte{0x45, 0, byte((20 + len(udp)) >> 8), byte(20 + len(udp)), 0, 0, 0, 0, 64, 17, 0, 0,
		192, 0, 2, 1, 192, 0, 2, 10}
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = sum&0xffff + sum>>16
	ip[10], ip[11] = ^byte(sum>>8), ^byte(sum)
	return frame.Frame{Data: probe.EtherFrame(net.HardwareAddr{2, 0, 0, 0, 0, 1}, otherMAC, 0x0800,
		append(ip, udp...))}
}

// pageCommand is a command in the page: what it prints, as far as lines match.
type pageCommand struct {
	args string
	only string // a regular expression of lines; empty: all
}

// sickness is a section of the page.
type sickness struct {
	name  string
	plan  plan
	plant func(w *sickWorld)
	shows []pageCommand
	wants []string // a regular expression each, of what is printed: what tells the cause
}

func sicknesses() []sickness {
	return []sickness{
		{"full ring", plan{nic: dv.NIC{Rings: dv.Rings{RxQueueSize: 64}}}, fullRing,
			[]pageCommand{{"status errors", `^COUNT|link_rx_out_of_buffer|rx0_stalls`}},
			[]string{`link_rx_out_of_buffer +frames that the NIC dropped`, `rx0_stalls`}},
		{"lossy wire", plan{faults: wire.FaultConfig{Drop: 0.03, Seed: 1}, clientMTU: 1500},
			lossyWire, []pageCommand{{"status errors", `^COUNT|tcp_retransmits`},
				{"ss -tin", ""}, {"status netstat", `^Tcp:|segments`}},
			[]string{`tcp_retransmits +segments sent again`, `retrans:0/[1-9]`,
				`[1-9]\d* segments retransmitted`}},
		{"wrong MTU", plan{nic: dv.NIC{MTU: 1500}, portMTU: 9000, clientMTU: 9000}, wrongMTU,
			[]pageCommand{{"status errors", `^COUNT|rx0_drops_too_long`},
				{"status stats", `rx0_drops_too_long`}},
			[]string{`rx0_drops_too_long +received frames longer than a buffer`}},
		{"receive buffer too small", plan{clientMTU: 1500}, smallBuffer,
			[]pageCommand{{"status errors", `^COUNT|udp_receive_buffer_errors`}, {"ss -uani", ""}},
			[]string{`udp_receive_buffer_errors +datagrams dropped as nobody read`,
				`UNCONN +[1-9]`, `drops:[1-9]`}},
		{"duplicate address", plan{}, duplicateAddress,
			[]pageCommand{{"status errors", `^COUNT|address_conflicts`}},
			[]string{`address_conflicts +packets by which another host claims`}},
		{"denied client", plan{filter: "chain input { tcp dport 80 accept; udp dport 53 accept; " +
			"policy drop; }"}, deniedClient,
			[]pageCommand{{"filter show", ""}, {"status errors", `^COUNT|link_rx_filtered`}},
			[]string{`deny +[1-9]\d* packets +192.0.2.1/32 +until`, `policy +[1-9]\d* packets +drop`,
				`link_rx_filtered +packets that the filter has dropped`}},
	}
}

// await waits until a counter of the server has come to n.
func (w *sickWorld) await(name string, n uint64) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, _ := admin.Count(w.server).Value(name)
		if c >= n {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s is %d, want %d", name, c, n)
		}
	}
}

// fullRing sends more at once than the ring of a server that gets no processor has room for.
func fullRing(w *sickWorld) {
	burst := make([]frame.Frame, 4096)
	for i := range burst {
		burst[i] = udpFrame(9999, 100)
	}
	for range 20 {
		if _, err := w.far.Send(burst); err != nil {
			w.t.Fatal(err)
		}
	}
	w.await("link_rx_out_of_buffer", 1)
	w.await("rx0_stalls", 1)
}

// lossyWire sends 4 MiB to a client and leaves the connection open.
func lossyWire(w *sickWorld) {
	ln, err := w.server.Listen("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	const size = 4 << 20
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			conn.Write(make([]byte, size))
		}
	}()
	conn, err := w.client.Dial("tcp", "192.0.2.10:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	if _, err := io.ReadFull(conn, make([]byte, size)); err != nil {
		w.t.Fatal(err)
	}
	w.await("tcp_retransmits", 1)
	for deadline := time.Now().Add(time.Minute); !w.acknowledged(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not all is acknowledged: %+v", w.server.Sockets())
		}
	}
}

// acknowledged reports whether the server has no data under way.
func (w *sickWorld) acknowledged() bool {
	for _, s := range w.server.Sockets() {
		if s.TCP != nil && (s.SendQ > 0 || s.TCP.Unacked > 0) {
			return false
		}
	}
	return true
}

// wrongMTU has a client of MTU 9000 send to a server of 1500.
func wrongMTU(w *sickWorld) {
	conn, err := w.client.Dial("udp", "192.0.2.10:9999")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	for range 12 {
		conn.Write(make([]byte, 8000)) // ICMP may refuse one; the rest goes
	}
	w.await("rx0_drops_too_long", 1)
}

// smallBuffer sends datagrams to a socket that nobody reads.
func smallBuffer(w *sickWorld) {
	server, err := w.server.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 10), Port: 53})
	if err == nil {
		err = server.SetReadBuffer(8 << 10)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { server.Close() })
	conn, err := w.client.Dial("udp", "192.0.2.10:53")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	for range 100 {
		conn.Write(make([]byte, 1000))
	}
	w.await("udp_packets_received", 1)
	w.await("udp_receive_buffer_errors", 1)
}

// deniedClient sends to a port that no rule lets in, and then from a host that is denied.
func deniedClient(w *sickWorld) {
	send := func(port uint16, n int) {
		for range n {
			if _, err := w.far.Send([]frame.Frame{udpFrame(port, 100)}); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	send(9999, 3)
	w.await("link_rx_filtered", 3)
	if err := w.server.Filter().Deny(netip.MustParsePrefix("192.0.2.1/32"),
		time.Hour); err != nil {
		w.t.Fatal(err)
	}
	send(53, 20)
	w.await("link_rx_filtered", 23)
}

// duplicateAddress has another host say that the address is its own.
func duplicateAddress(w *sickWorld) {
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	us := sickAddress.Addr().AsSlice()
	arp = append(append(append(arp, otherMAC...), us...), net.HardwareAddr{255, 255, 255, 255, 255,
		255}...)
	f := probe.EtherFrame(net.HardwareAddr{255, 255, 255, 255, 255, 255}, otherMAC, 0x0806,
		append(arp, us...))
	if _, err := w.far.Send([]frame.Frame{{Data: f}}); err != nil {
		w.t.Fatal(err)
	}
	w.await("address_conflicts", 1)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(w.log.String(),
		otherMAC.String()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("the log is %q", w.log)
		}
	}
}

// TestRunbook plants each problem of docs/runbook.md and runs the commands that it shows. What they
// print is what the page has, but for numbers and spaces.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, p := range sicknesses() {
		t.Run(p.name, func(t *testing.T) {
			w := newSickWorld(t, p.plan)
			p.plant(w)
			printed := p.run(t, w)
			for _, want := range p.wants {
				if !regexp.MustCompile(want).MatchString(printed) {
					t.Errorf("nothing matches %s in\n%s", want, printed)
				}
			}
			page = inPage(t, page, p.name, printed)
		})
	}
	if *updateRunbook && !t.Failed() {
		if err := os.WriteFile(runbook, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// run is the commands of a section with what they print.
func (p *sickness) run(t *testing.T, w *sickWorld) string {
	t.Helper()
	var b strings.Builder
	for _, c := range p.shows {
		stdout, stderr, code := look(append(strings.Fields(c.args), "--pid",
			fmt.Sprint(os.Getpid()))...)
		if code != exitDone || stderr != "" {
			t.Fatalf("%s: code %d, %s", c.args, code, stderr)
		}
		fmt.Fprintf(&b, "$ rdma-netstack %s\n", c.args)
		for line := range strings.Lines(stdout) {
			if c.only == "" || regexp.MustCompile(c.only).MatchString(line) {
				b.WriteString(line)
			}
		}
	}
	if log := w.log.String(); strings.Contains(log, otherMAC.String()) {
		b.WriteString("the server's log:\n")
		b.WriteString(strings.TrimSpace(strings.SplitAfter(log, "\n")[0]) + "\n")
	}
	return b.String()
}

// inPage compares what was printed with the page's block of that name, and returns the page with
// the block replaced.
func inPage(t *testing.T, page, name, printed string) string {
	t.Helper()
	begin := "<!-- printed by the test: " + name + " -->\n```\n"
	before, rest, ok := strings.Cut(page, begin)
	block, after, closed := strings.Cut(rest, "```\n")
	if !ok || !closed {
		t.Fatalf("the page has no block that begins with %q", begin)
	}
	if alike(block) != alike(printed) && !*updateRunbook {
		t.Errorf("the page has\n%s\nand the commands print\n%s\ngo test -run TestRunbook "+
			"./cmd/rdma-netstack -update-runbook writes the page", block, printed)
	}
	return before + begin + printed + "```\n" + after
}

// alike is text with all numbers made one, and spaces.
func alike(text string) string {
	text = regexp.MustCompile(`[0-9.]+[0-9KM]*`).ReplaceAllString(text, "0")
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return l == "" }), "\n")
}
