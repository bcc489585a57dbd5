//go:build linux

package unmodified

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/backing"
	"github.com/rdma-netstack/rdma-netstack/internal/running"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/stack/metrics"
)

// Program decides about the sockets of this process. Its methods may be called from any goroutine.
type Program struct {
	cfg     *Config
	wrong   error // what is wrong with the environment
	openSim OpenSim
	log     *slog.Logger
	counts  [socketKinds][socketWays]atomic.Uint64
	logged  sync.Map // reasons for which a kernel socket has had its line
	files   sync.Map // of type fileID, to func() (Socket, bool): see openFile

	// standIns returns the filters of stand-ins, and makes them first.
	standIns func() *backing.Filters

	// opened is the stack, nil until the first socket.
	opened atomic.Pointer[stack.Stack]
	// byKernel is set for good when the stack did not open and Config.FallBack holds.
	byKernel atomic.Bool

	mu sync.Mutex // held while the stack opens
}

// FromEnvironment returns the program that environ, such as os.Environ, configures, or nil if the
// environment says nothing or belongs to another process, whose child this one is. Log lines go to
// logTo. Mistakes in the environment are errors of the first socket, and are logged.
func FromEnvironment(environ []string, logTo io.Writer, openSim OpenSim) *Program {
	cfg, err := ReadConfig(environ)
	if cfg == nil && err == nil {
		return nil
	}
	p := &Program{cfg: cfg, wrong: err, openSim: openSim,
		standIns: sync.OnceValue(newStandInFilters)}
	p.log = newLogger(cfg, logTo)
	if owner := ownerOf(environ); owner != 0 && owner != os.Getpid() {
		p.log.Info("rdma-netstack: the slice is another process's, whose environment this "+
			"one has; its sockets are the kernel's", "owner", owner,
			"instead", "unset "+Prefix+ownerKey)
		return nil
	}
	if err != nil {
		p.log.Error("rdma-netstack: no socket can be made", "reason", err)
	}
	if info, ok := debug.ReadBuildInfo(); ok && resolvesByC(info.Settings, environ) {
		p.log.Warn("rdma-netstack: names are resolved by C's library, whose sockets are the "+
			"kernel's", "instead", "leave netdns=cgo out of GODEBUG")
	}
	return p
}

// resolvesByC reports whether a program of these settings resolves names by C's library.
func resolvesByC(settings []debug.BuildSetting, environ []string) bool {
	var cgo bool
	var godebug string
	for _, s := range settings {
		switch s.Key {
		case "CGO_ENABLED":
			cgo = s.Value == "1"
		case "DefaultGODEBUG":
			godebug = s.Value
		}
	}
	for _, v := range environ {
		if s, ok := strings.CutPrefix(v, "GODEBUG="); ok {
			godebug += "," + s // what is said last holds
		}
	}
	byC := false
	for _, setting := range strings.Split(godebug, ",") {
		if v, ok := strings.CutPrefix(setting, "netdns="); ok {
			byC = strings.Contains(v, "cgo")
		}
	}
	return cgo && byC
}

// For returns a program whose stack is open already: for tests of what package net does on it.
func For(st *stack.Stack, cfg *Config, log *slog.Logger) *Program {
	p := &Program{cfg: cfg, log: log, standIns: sync.OnceValue(newStandInFilters)}
	p.opened.Store(st)
	return p
}

// newStandInFilters makes filters that last as long as the process.
func newStandInFilters() *backing.Filters {
	return backing.NewFilters(backing.Device{}, clock.Clock{})
}

func newLogger(cfg *Config, to io.Writer) *slog.Logger {
	switch {
	case cfg == nil:
		return slog.New(slog.NewTextHandler(to, nil))
	case cfg.Silent:
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: cfg.LogLevel}))
}

// ownerOf returns the process that marked the environment, or 0.
func ownerOf(environ []string) int {
	for _, v := range environ {
		if s, ok := strings.CutPrefix(v, Prefix+ownerKey+"="); ok {
			pid, _ := strconv.Atoi(s)
			return pid
		}
	}
	return 0
}

// Own marks the environment as this process's, so that children, which inherit it, do not open the
// slice a second time.
func (p *Program) Own() error { return os.Setenv(Prefix+ownerKey, strconv.Itoa(os.Getpid())) }

// LogEarly logs that the kernel has made sockets before there was a Program.
func (p *Program) LogEarly(sockets int) {
	if sockets == 0 {
		return
	}
	p.counts[tcpListener][kernel].Add(uint64(sockets))
	p.log.Warn("rdma-netstack: sockets were made before the program had its configuration, in the "+
		"initialisation of a package; they are the kernel's", "sockets", sockets)
}

// kernelContext marks the context of dials that the stack itself does by the kernel.
type kernelContext struct{}

// Open makes the socket of a listener, whose remote address is nil, or of a conn. Both results are
// nil where the kernel is to make it. It may return a conn of the kernel's. control runs the
// program's Control function and may be nil. network is tcp or udp, with 4 or 6 if the family is
// decided.
func (p *Program) Open(ctx context.Context, network string, local, remote net.Addr,
	control func(syscall.RawConn) error) (Socket, net.Conn, error) {
	if ctx.Value(kernelContext{}) != nil {
		return nil, nil, nil
	}
	if p.wrong != nil {
		return nil, nil, fmt.Errorf("rdma-netstack: %w", p.wrong)
	}
	q := request{network: network, local: addrPortOf(local), remote: addrPortOf(remote),
		dials: remote != nil}
	if why := p.kernelsBy(q); why != "" {
		return nil, nil, p.leave(q, why)
	}
	st, err := p.stack()
	if err != nil {
		return nil, nil, fmt.Errorf("rdma-netstack: %w", err)
	}
	if st == nil {
		return nil, nil, p.leave(q, "the stack did not open")
	}
	if why := p.kernelsByAddress(st, q); why != "" {
		return nil, nil, p.leave(q, why)
	}
	s := newStandIn(network, p.cfg.Stack.NIC.Device, p.standIns, p.noteKept)
	if control != nil {
		if err := control(controlConn{s}); err != nil {
			s.closeDescriptor()
			return nil, nil, err
		}
		if device := s.boundElsewhere(); device != "" {
			s.closeDescriptor()
			return nil, nil, p.leave(q, "bound to "+device)
		}
		q.network = s.networkSet(q.network)
	}
	m := maker{p: p, st: st, ctx: context.WithValue(ctx, kernelContext{}, true), q: q, standIn: s}
	socket, conn, err := m.makeSocket(local, remote)
	if socket == nil {
		s.closeDescriptor()
	}
	return socket, conn, err
}

// request describes a socket that a program asks for.
type request struct {
	network       string
	local, remote netip.AddrPort // the zero value where there is none
	dials         bool
}

func (q request) transport() string { return q.network[:3] }

func (q request) kind() socketKind {
	switch {
	case q.transport() == "udp":
		return udpSocket
	case q.dials:
		return tcpDialed
	}
	return tcpListener
}

func (q request) String() string {
	if q.dials {
		return q.network + " to " + q.remote.String()
	}
	return q.network + " " + q.local.String()
}

// addrPortOf returns the address of a *net.TCPAddr or *net.UDPAddr, without a zone.
func addrPortOf(a net.Addr) netip.AddrPort {
	var ip net.IP
	var port int
	switch a := a.(type) {
	case *net.TCPAddr:
		ip, port = a.IP, a.Port
	case *net.UDPAddr:
		ip, port = a.IP, a.Port
	default:
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port))
}

// kernelsBy says why a socket is the kernel's whatever the slice has, or "".
func (p *Program) kernelsBy(q request) string {
	at := q.local
	if q.dials {
		at = q.remote
		if !at.Addr().IsValid() || at.Addr().IsUnspecified() {
			return "dials this host"
		}
	}
	switch {
	case p.byKernel.Load():
		return "the stack did not open"
	case q.local.Addr().IsLoopback() || q.remote.Addr().IsLoopback():
		return "localhost"
	case q.transport() == "udp" && p.cfg.Stack.Host && q.local.Addr().IsMulticast():
		return "groups on the host's address"
	}
	for _, port := range p.cfg.KernelPorts {
		if port.matches(q.transport(), int(at.Port())) {
			return "port in " + Prefix + "KERNEL"
		}
	}
	for _, prefix := range p.cfg.KernelPrefixes {
		if prefix.Contains(at.Addr()) {
			return "address in " + Prefix + "KERNEL"
		}
	}
	if q.dials || len(p.cfg.Listen) == 0 || q.local.Port() == 0 && q.transport() == "udp" {
		return "" // a UDP socket without a port is a client's
	}
	for _, port := range p.cfg.Listen {
		if port.matches(q.transport(), int(q.local.Port())) {
			return ""
		}
	}
	return "port not in " + Prefix + "LISTEN"
}

// kernelsByAddress says why a socket is bound to an address that is not the slice's, or "".
func (p *Program) kernelsByAddress(st *stack.Stack, q request) string {
	a := q.local.Addr()
	if p.cfg.Stack.Host || !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return ""
	}
	for _, own := range st.Addrs() {
		if own.Addr().WithZone("") == a {
			return ""
		}
	}
	return "not an address of the slice"
}

// leave counts a socket that the kernel makes, and logs the first of its kind and reason.
func (p *Program) leave(q request, why string) error {
	p.countKernel(q.kind(), q, why)
	return nil
}

func (p *Program) countKernel(k socketKind, q request, why string) {
	p.counts[k][kernel].Add(1)
	if _, had := p.logged.LoadOrStore(k.String()+why, true); !had {
		p.log.Info("rdma-netstack: a socket of the kernel", "kind", k, "socket", q, "reason", why)
	}
}

// noteKept logs the first use of an option that the slice's sockets do not have.
func (p *Program) noteKept(option string) {
	if _, had := p.logged.LoadOrStore(option, true); !had {
		p.log.Warn("rdma-netstack: a socket option that does nothing on the slice", "option",
			option)
	}
}

// NoteRaw counts a socket that is neither TCP nor UDP, which the kernel makes.
func (p *Program) NoteRaw(network string) {
	p.counts[rawSocket][kernel].Add(1)
	if _, had := p.logged.LoadOrStore(network, true); !had {
		p.log.Info("rdma-netstack: a socket of the kernel", "kind", rawSocket, "socket", network,
			"reason", "neither TCP nor UDP: it has the host's address")
	}
}

// stack returns the stack, and opens it first if need be. Nil without an error: the kernel makes
// all sockets.
func (p *Program) stack() (*stack.Stack, error) {
	if st := p.opened.Load(); st != nil {
		return st, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.openOnce()
}

// openOnce opens the stack if nobody has. p.mu is held.
func (p *Program) openOnce() (*stack.Stack, error) {
	if st := p.opened.Load(); st != nil || p.byKernel.Load() {
		return st, nil
	}
	st, err := p.openStack()
	switch {
	case err == nil:
		p.opened.Store(st)
	case p.cfg.FallBack:
		p.log.Error("rdma-netstack: the stack did not open; all sockets are the kernel's",
			"reason", err)
		p.byKernel.Store(true)
		return nil, nil
	}
	return st, err
}

func (p *Program) openStack() (*stack.Stack, error) {
	ctx := context.WithValue(context.Background(), kernelContext{}, true)
	cfg := p.cfg.Stack
	cfg.Logger = p.log
	if cfg.Filter == nil { // rdma-netstack filter may give it a list
		var err error
		if cfg.Filter, err = stack.NewFilter(""); err != nil {
			return nil, err
		}
	}
	var undo []func() error
	fail := func(err error) (*stack.Stack, error) {
		for _, f := range undo {
			err = errors.Join(err, f())
		}
		return nil, err
	}
	if cfg.NIC.Device == SimDevice {
		if p.openSim == nil {
			return nil, fmt.Errorf("%s%s=sim: this program is built without the software "+
				"ConnectX: build it with rdma-netstack build --sim", Prefix, deviceKey)
		}
		done, err := p.openSim(p.cfg.Sim, cfg.NIC.MTU, &cfg.NIC, p.log)
		if err != nil {
			return nil, err
		}
		undo = append(undo, done)
	}
	p.standIns() // now, as the program may give up the privileges that they take
	st, err := stack.Open(ctx, cfg)
	if err != nil {
		return fail(fmt.Errorf("open the slice: %w", err))
	}
	if err := p.serveAdmin(st); err != nil {
		return fail(errors.Join(err, st.Close()))
	}
	p.log.Info("rdma-netstack: the slice is open", "device", cfg.NIC.Device, "addresses",
		st.Addrs(), "mac", st.HardwareAddr().String(),
		"host", cfg.Host)
	return st, nil
}

// adminTime bounds how long a client of the admin socket takes for its request.
const adminTime = 10 * time.Second

// serveAdmin serves status and metrics where the rdma-netstack commands look for them.
func (p *Program) serveAdmin(st *stack.Stack) error {
	handler := admin.Handler(admin.Config{Stack: st, About: p.cfg.Stack.NIC.Device,
		Program: p.Counts,
		Checks:  []admin.Check{{Name: "device", Run: st.Unhealthy}}})
	errorLog := slog.NewLogLogger(p.log.Handler(), slog.LevelWarn)
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: adminTime, ErrorLog: errorLog}
	if l, err := running.Listen(running.Directories(os.Getenv)); err != nil {
		p.log.Info("rdma-netstack: the commands status, ss and top will not find this program",
			"reason", err)
	} else {
		go srv.Serve(l)
	}
	if p.cfg.Admin == "" {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.WithValue(context.Background(), kernelContext{}, true), "tcp",
		p.cfg.Admin)
	if err != nil {
		return fmt.Errorf("%sADMIN: %w", Prefix, err)
	}
	var names []string
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	public := &http.Server{Handler: admin.OnlyHosts(admin.ReadOnly(handler), names...),
		ReadHeaderTimeout: adminTime, ErrorLog: errorLog}
	go public.Serve(l)
	return nil
}

// InterfaceAddrs returns the addresses of an interface, or of all if it is nil. The slice's take
// the place of those of its netdev, which other hosts know it by. False: they are as the kernel
// says. It opens the stack; while another goroutine does, what that asks is the kernel's.
func (p *Program) InterfaceAddrs(ifi *net.Interface) ([]net.Addr, bool) {
	if p.wrong != nil || p.cfg.Stack.Host || ifi != nil && ifi.Name != p.cfg.Stack.NIC.Device {
		return nil, false
	}
	st := p.opened.Load()
	if st == nil {
		if !p.mu.TryLock() {
			return nil, false
		}
		st, _ = p.openOnce() // the first socket says why it does not open
		p.mu.Unlock()
		if st == nil {
			return nil, false
		}
	}
	if ifi != nil {
		return sliceAddrs(st), true
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, false
	}
	var addrs []net.Addr
	for _, i := range all {
		own, err := i.Addrs() // asks for each, see above
		if err != nil {
			return nil, false
		}
		addrs = append(addrs, own...)
	}
	return addrs, true
}

func sliceAddrs(st *stack.Stack) (all []net.Addr) {
	for _, p := range st.Addrs() {
		all = append(all, &net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	return all
}

// Counts returns how many sockets were made, by kind and by who made them.
func (p *Program) Counts() (all []metrics.ProgramSockets) {
	for k := range socketKinds {
		for w := range socketWays {
			all = append(all, metrics.ProgramSockets{Kind: k.String(), Way: w.String(),
				Count: p.counts[k][w].Load()})
		}
	}
	return all
}

type (
	socketKind uint8
	socketWay  uint8
)

const (
	tcpListener socketKind = iota
	tcpAccepted
	tcpDialed
	udpSocket
	rawSocket
	socketKinds
)

const (
	slice socketWay = iota
	kernel
	socketWays
)

func (k socketKind) String() string {
	return [...]string{"tcp_listener", "tcp_accepted", "tcp_dialed", "udp", "other"}[k]
}

func (w socketWay) String() string { return [...]string{"slice", "kernel"}[w] }
