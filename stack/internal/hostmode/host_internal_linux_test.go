package hostmode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// world holds a host whose netdev is eth0, with what Host tells others of.
type world struct {
	t    *testing.T
	net  *lab.Net
	host *Host

	ports map[packet.Ports]bool // told to the packet sockets
	rules map[dv.HostRule]bool
	block map[netip.Addr]bool // addresses whose block the device leads to rings
	addrs []netip.Prefix      // of the stack
	mac   net.HardwareAddr
	mtu   int
	name  string

	refuses error // why the device takes no rule
}

// newWorld makes one with these addresses.
func newWorld(t *testing.T, addrs ...string) *world {
	t.Helper()
	need.NetNS(t)
	w := &world{t: t, ports: map[packet.Ports]bool{}, rules: map[dv.HostRule]bool{},
		block: map[netip.Addr]bool{}}
	var err error
	w.net, err = lab.New("host")
	w.must(err)
	t.Cleanup(func() { w.net.Close() })
	peer, err := lab.New("peer")
	w.must(err)
	t.Cleanup(func() { peer.Close() })
	w.must(lab.Cable(w.net, "eth0", peer, "eth0"))
	w.must(peer.Do(func() error { return lab.Up("eth0", lab.Setup{}) }))
	var prefixes []netip.Prefix
	for _, a := range addrs {
		prefixes = append(prefixes, netip.MustParsePrefix(a))
	}
	w.must(w.net.Do(func() error { return lab.Up("eth0", lab.Setup{Addresses: prefixes}) }))
	w.do(func() (err error) {
		h, found, err := Find(nil, dv.NIC{Device: "eth0"}, clock.Clock{}, nil)
		if err != nil {
			return err
		}
		w.host, w.addrs, w.mac = h, slices.Clone(found.Addresses), found.MAC
		w.serve(h)
		_, _, err = h.ClaimBlock(t.Context())
		return err
	})
	t.Cleanup(func() { w.must(w.host.Close()) })
	return w
}

// serve gives a host a stack that is this world.
func (w *world) serve(h *Host) {
	g := gstack.New(gstack.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() {
		cancel()
		g.Destroy()
	})
	h.Serve(&env.Env{Name: "eth0", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Clock: clock.Clock{}, Net: g, Ctx: ctx, Go: func(f func()) { go f() }}, w, w)
	h.UseNetdev(&netdev{w: w, done: make(chan struct{})})
	h.UseRules(w)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// do runs f in the host's namespace, where the kernel's sockets are to be.
func (w *world) do(f func() error) {
	w.t.Helper()
	w.must(w.net.Do(f))
}

// netdev keeps what packet sockets are told.
type netdev struct {
	packet.Netdev
	w    *world
	done chan struct{}
}

func (n *netdev) SetPorts(list []packet.Ports) error {
	clear(n.w.ports)
	return n.ChangePorts(list, nil)
}

func (n *netdev) ChangePorts(added, removed []packet.Ports) error {
	for _, p := range removed {
		delete(n.w.ports, p)
	}
	for _, p := range added {
		n.w.ports[p] = true
	}
	return nil
}

func (n *netdev) Stats() packet.Stats   { return packet.Stats{} }
func (n *netdev) Done() <-chan struct{} { return n.done }
func (n *netdev) Err() error            { return nil }
func (n *netdev) Close() error          { return nil }

func (w *world) AddBlock(_ context.Context, _ uint16, addrs ...netip.Addr) error {
	for _, a := range addrs {
		w.block[a] = true
	}
	return nil
}

func (w *world) RemoveBlock(_ uint16, addrs ...netip.Addr) error {
	for _, a := range addrs {
		delete(w.block, a)
	}
	return nil
}

func (w *world) AddRule(_ context.Context, r dv.HostRule) error {
	if w.refuses == nil {
		w.rules[r] = true
	}
	return w.refuses
}

func (w *world) RemoveRule(r dv.HostRule) error {
	delete(w.rules, r)
	return nil
}

func (w *world) HardwareAddr() net.HardwareAddr { return w.mac }
func (w *world) HasZone(zone string) bool       { return zone == w.host.Name() }
func (w *world) FollowMTU(mtu int)              { w.mtu = mtu }

func (w *world) FollowMAC(name string, mac net.HardwareAddr) time.Duration {
	w.name, w.mac = name, mac
	return 0
}

func (w *world) ReopenNetdev(string) (packet.Netdev, error) { return nil, errors.ErrUnsupported }

func (w *world) AddAddress(_ context.Context, p netip.Prefix) error {
	w.addrs = append(w.addrs, p)
	return nil
}

func (w *world) RemoveAddress(p netip.Prefix) {
	w.addrs = slices.DeleteFunc(w.addrs, func(q netip.Prefix) bool { return p == q })
}

func (w *world) AbortConnectionsOf(netip.Addr)                               {}
func (w *world) AddressesChanged()                                           {}
func (w *world) Configure(env.Source, []env.Route, []netip.Addr) (err error) { return nil }

// program stands for a listener or a UDP socket of a program.
type program struct {
	binding *Binding
	at      At
	udp     bool

	mu      sync.Mutex
	conns   []*net.TCPConn
	refused bool
	got     chan string // payloads of datagrams
}

func (p *program) Backlog() int { return 8 }

func (p *program) Accept(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused {
		Reset(c)
		return
	}
	_, _ = c.Write([]byte{0}) // for asks
	p.conns = append(p.conns, c)
}

func (p *program) Waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) > 0
}

func (p *program) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = true
	for _, c := range p.conns {
		Reset(c)
	}
	p.conns = nil
}

func (p *program) Receive(buf, _ []byte, _, _ netip.AddrPort) {
	select {
	case p.got <- string(buf[Headroom:]):
	default:
	}
}

// bind binds a program's socket.
func (w *world) bind(udp bool, at At) *program {
	w.t.Helper()
	p := &program{at: at, udp: udp, got: make(chan string, 8)}
	p.binding = ForListener(at, p)
	if udp {
		p.binding = ForReceiver(at, p)
	}
	w.do(func() error { return w.host.Bind(p.binding) })
	return p
}

// asks reports whether the program gets what is sent to an address of it by the kernel.
func (w *world) asks(p *program, a netip.Addr) error {
	at := netip.AddrPortFrom(a, p.at.Port).String()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if !p.udp {
		c, err := w.net.DialContext(ctx, "tcp", at)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	}
	c, err := w.net.DialContext(ctx, "udp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, send := range []string{"a question", "again"} { // the first may tell of a closed port
		if _, err := c.Write([]byte(send)); err != nil {
			return err
		}
	}
	select {
	case <-p.got:
		return nil
	case <-ctx.Done():
		return errors.New("no datagram came")
	}
}

var any4, any6 = At{V4: true}, At{V6: true}

func (a At) port(p uint16) At {
	a.Port = p
	return a
}

// TestOpenUseClose: the kernel serves at the ports of programs, and no longer once they are closed;
// Close ends all of it, twice and beside other calls.
func TestOpenUseClose(t *testing.T) {
	w := newWorld(t, "192.0.2.1/24", "2001:db8::1/64")
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	web, dns := w.bind(false, At{V4: true, V6: true, Port: 80}), w.bind(true, any4.port(53))
	for _, a := range append(localhost(), v4, v6) {
		if err := w.asks(web, a); err != nil {
			t.Errorf("ask for %v: %v", a, err)
		}
	}
	for _, a := range []netip.Addr{v4, localhost()[0]} {
		if err := w.asks(dns, a); err != nil {
			t.Errorf("ask %v: %v", a, err)
		}
	}
	w.host.Unbind(web.binding)
	w.host.Unbind(web.binding)
	if err := w.asks(web, v4); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed listener: %v, want ECONNREFUSED", err)
	}
	if s := w.host.Stats(); s.Accepted != 4 || s.Received < 2 || s.Netdev != "eth0" || !s.Rules {
		t.Errorf("%+v", s)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { w.must(w.host.Close()) })
		all.Go(func() { w.host.Unbind(dns.binding) })
		all.Go(func() { w.host.FragmentsDropped() })
	}
	all.Wait()
	if err := w.asks(dns, v4); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after Close: %v, want ECONNREFUSED", err)
	}
}

// TestTaken: a port of another program is refused with the cure, and nothing of it stays.
func TestTaken(t *testing.T) {
	w := newWorld(t, "192.0.2.1/24", "198.51.100.1/24")
	ln, err := w.net.Listen("tcp", "198.51.100.1:80")
	w.must(err)
	defer ln.Close()
	before := maps.Clone(w.ports)
	p := &program{}
	err = w.net.Do(func() error { return w.host.Bind(ForListener(any4.port(80), p)) })
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("%v, want EADDRINUSE", err)
	}
	w.host.mu.Lock()
	w.must(w.host.tellPorts())
	w.host.mu.Unlock()
	if !maps.Equal(w.ports, before) || len(w.rules) != 0 {
		t.Errorf("ports %v, rules %v", w.ports, w.rules)
	}
}

// TestNoRule: where the device refuses the rule of a port the kernel has the port back.
func TestNoRule(t *testing.T) {
	w := newWorld(t, "192.0.2.1/24")
	w.refuses = unix.ENOSPC
	err := w.net.Do(func() error { return w.host.Bind(ForListener(any4.port(80), &program{})) })
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	ln, err := w.net.Listen("tcp", "192.0.2.1:80")
	w.must(err)
	w.must(ln.Close())
}

// TestPortsFollowModel: whatever programs bind, dial from and close while addresses come and go,
// packet sockets and device know of the ports that are bound or dialled from, and of no others.
func TestPortsFollowModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, "192.0.2.1/24", "2001:db8::1/64")
			m := model{world: w, dice: rand.New(rand.NewPCG(seed, 0))}
			for range 40 {
				m.step()
				m.check()
			}
		})
	}
}

// model describes what programs have, and does what they might.
type model struct {
	*world
	dice     *rand.Rand
	programs []*program
	dials    []dialling
	trace    []string
}

type dialling struct {
	addr  netip.Addr // the zero Addr: every one
	port  uint16
	ports []*Port
	held  []netip.Addr // that were addresses of ours then
}

// extra lists addresses that come and go.
var extra = []string{"192.0.2.7/24", "198.51.100.3/32", "2001:db8::7/64"}

func (m *model) step() {
	switch ports := []uint16{53, 80, 443}; m.dice.IntN(6) {
	case 0, 1:
		at := []At{any4, any6, {V4: true, V6: true}, {Addr: m.someAddr()}}[m.dice.IntN(4)]
		at.Port = ports[m.dice.IntN(3)]
		udp := m.dice.IntN(2) == 0
		m.note("bind", udp, at)
		m.programs = append(m.programs, m.bind(udp, at))
	case 2:
		if len(m.programs) > 0 {
			i := m.dice.IntN(len(m.programs))
			m.note("close", m.programs[i].udp, m.programs[i].at)
			m.host.Unbind(m.programs[i].binding)
			m.programs = slices.Delete(m.programs, i, i+1)
		}
	case 3:
		d := dialling{port: ports[m.dice.IntN(3)]}
		if m.dice.IntN(2) == 0 {
			d.addr = m.someAddr()
		}
		m.note("dial from", d.addr, d.port)
		for _, p := range m.addrs {
			if !d.addr.IsValid() || p.Addr() == d.addr {
				d.held = append(d.held, p.Addr())
			}
		}
		m.do(func() (err error) {
			d.ports, err = m.host.Hold(d.addr, d.port)
			return err
		})
		m.dials = append(m.dials, d)
	case 4:
		if len(m.dials) > 0 {
			i := m.dice.IntN(len(m.dials))
			m.note("dialled from", m.dials[i].addr, m.dials[i].port)
			m.host.DialEnded(m.dials[i].ports)
			m.dials = slices.Delete(m.dials, i, i+1)
		}
	case 5:
		m.toggle(extra[m.dice.IntN(len(extra))])
	}
	m.host.sweepPorts() // what was looked at too early
}

// toggle adds an address to the netdev, or removes it, and has Host follow.
func (m *model) toggle(address string) {
	p := netip.MustParsePrefix(address)
	m.note("toggle", p)
	a := &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	change, had := netlink.AddrAdd, slices.Contains(m.addrs, p)
	if had {
		change = netlink.AddrDel
	}
	m.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = change(link, a)
		}
		m.host.look()
		return err
	})
	if had == slices.Contains(m.addrs, p) {
		m.t.Fatalf("the stack has %v, as before: %v", m.addrs, m.trace)
	}
	for i := range m.dials {
		if d := &m.dials[i]; had {
			d.held = slices.DeleteFunc(d.held, func(a netip.Addr) bool { return a == p.Addr() })
		}
	}
}

func (m *model) note(what ...any) { m.trace = append(m.trace, fmt.Sprint(what...)) }

func (m *model) someAddr() netip.Addr { return m.addrs[m.dice.IntN(len(m.addrs))].Addr() }

// check compares what the packet sockets and the device were told with what the programs have.
func (m *model) check() {
	m.t.Helper()
	ports, rules := map[packet.Ports]bool{}, map[dv.HostRule]bool{}
	first := m.host.Stats().FirstPort
	add := func(udp bool, a netip.Addr, port uint16) {
		ports[packet.Ports{UDP: udp, Addr: a, First: port, Last: port}] = true
		proto := map[bool]uint8{false: unix.IPPROTO_TCP, true: unix.IPPROTO_UDP}[udp]
		rules[dv.HostRule{Priority: dv.PriorityListener, Proto: proto, Addr: a, Port: port}] = true
	}
	block := map[netip.Addr]bool{}
	for _, own := range m.addrs {
		a := own.Addr()
		block[a] = true
		for _, udp := range []bool{false, true} {
			ports[packet.Ports{UDP: udp, Addr: a, First: first,
				Last: first + blockSize - 1}] = true
		}
		for _, p := range m.programs {
			every := !p.at.Addr.IsValid()
			if p.at.Addr == a || every && (a.Is4() && p.at.V4 || a.Is6() && p.at.V6) {
				add(p.udp, a, p.at.Port)
			}
		}
		for _, d := range m.dials {
			if slices.Contains(d.held, a) {
				add(false, a, d.port)
			}
		}
	}
	if !maps.Equal(ports, m.ports) {
		m.t.Fatalf("packet sockets know %v, want %v: %v", m.ports, ports, m.trace)
	}
	if !maps.Equal(rules, m.rules) {
		m.t.Fatalf("the device has %v, want %v: %v", m.rules, rules, m.trace)
	}
	if !maps.Equal(block, m.block) {
		m.t.Fatalf("blocks of %v, want %v: %v", m.block, block, m.trace)
	}
}

// TestFollow: name, MAC and MTU of the netdev are told as they change, by the goroutine of Follow.
func TestFollow(t *testing.T) {
	w := newWorld(t, "192.0.2.1/24")
	mac := net.HardwareAddr{2, 0, 0, 0, 7, 1}
	w.do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, "lan7"),
			netlink.LinkSetHardwareAddr(link, mac), netlink.LinkSetMTU(link, 1400),
			netlink.LinkSetUp(link))
	})
	w.do(func() error {
		w.host.look()
		return nil
	})
	if w.host.Name() != "lan7" || w.name != "lan7" || w.mac.String() != mac.String() ||
		w.mtu != 1400 {
		t.Errorf("%s, told %s with %v and MTU %d", w.host.Name(), w.name, w.mac, w.mtu)
	}
}

// TestRenamedMeanwhile renames the netdev after Host has asked what it is called, and gives its
// name to another one: Host is not to take that for its own.
func TestRenamedMeanwhile(t *testing.T) {
	for what, ask := range map[string]func(*Host) (net.HardwareAddr, error){
		"look": func(h *Host) (net.HardwareAddr, error) {
			h.look()
			return h.stack.HardwareAddr(), nil
		},
		"below": func(h *Host) (net.HardwareAddr, error) {
			below, err := h.Below()
			return below.MAC, err
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "192.0.2.1/24")
			mac := w.mac
			rename := sync.OnceFunc(func() {
				w.do(func() error {
					link, err := netlink.LinkByName("eth0")
					if err == nil {
						err = netlink.LinkSetName(link, "lan7")
					}
					return err
				})
				w.must(lab.Cable(w.net, "eth0", w.net, "eth1"))
			})
			w.host.kernel = renaming{w.host.kernel, rename}
			var got net.HardwareAddr
			w.do(func() (err error) {
				got, err = ask(w.host)
				return err
			})
			if w.host.Name() != "lan7" || got.String() != mac.String() ||
				!slices.Contains(w.addrs, netip.MustParsePrefix("192.0.2.1/24")) {
				t.Errorf("%s: MAC %v, addresses %v, want lan7: %v, 192.0.2.1", w.host.Name(), got,
					w.addrs, mac)
			}
		})
	}
}

// renaming calls rename before the kernel answers.
type renaming struct {
	Kernel
	rename func()
}

func (r renaming) Read(name string) (hostnet.Network, error) {
	r.rename()
	return r.Kernel.Read(name)
}

func (r renaming) Below(name string) (hostnet.Below, error) {
	r.rename()
	return r.Kernel.Below(name)
}
