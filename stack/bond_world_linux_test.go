package stack_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack"
	software "github.com/rdma-netstack/rdma-netstack/tests/lib/card"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// bonded is a stack on the host's own address on a bond of two cards' ports, and a switch outside:
//
//	        ┌ eth0 card 0 port0 ─── w0 ┐
//	bond0 ──┤                          ├─ br0 outside: clients
//	        └ eth1 card 1 port1 ─── w1 ┘
//
// This kernel need not have the bonding driver: bond0 is a bridge whose port is the active member,
// and what is said of it is the test's.
type bonded struct {
	t       *testing.T
	outside *lab.Net
	nics    [2]*simnic.NIC
	nodes   [2]atomic.Pointer[uverbs.Kernel] // opened last
	gone    [2]atomic.Bool
	facts   *stack.BondFacts
	stack   *stack.Stack
}

const bondIP, bondPeerIP = "10.9.0.1", "10.9.0.2"

var bondMAC = net.HardwareAddr{2, 0, 0x5e, 0, 0x53, 0x20}

// inNamespace runs the test in a process whose threads are all in a network namespace of its own,
// and is false in any other.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const child = "STACK_TEST_NAMESPACE"
	if os.Getenv(child) != "" {
		return true
	}
	need.NetNS(t)
	need.TUN(t)
	n, err := lab.New("host")
	must(t, err)
	defer n.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v",
		"-test.timeout=1m")
	cmd.Env = append(os.Environ(), child+"=1")
	var out outputs
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, n.Start(cmd))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if testing.Verbose() {
		t.Log(out.String())
	}
	return false
}

// newBonded makes the world in this process's namespace, with the first port active.
func newBonded(t *testing.T, mode string, change func(*stack.Config)) *bonded {
	t.Helper()
	w := &bonded{t: t, facts: &stack.BondFacts{Changed: make(chan struct{}, 1),
		Members: map[string]dv.Config{},
		Below:   hostnet.Below{Bond: true, Mode: mode, MAC: bondMAC}}}
	var err error
	w.outside, err = lab.New("outside")
	must(t, err)
	t.Cleanup(func() { w.outside.Close() })
	must(t, w.outside.Do(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}})
	}))
	for i := range w.nics {
		w.addPort(i)
	}
	must(t, w.outside.Do(func() error {
		return lab.Up("br0", lab.Setup{Addresses: []netip.Prefix{
			netip.MustParsePrefix(bondPeerIP + "/24")}})
	}))
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bond0",
		HardwareAddr: bondMAC}}))
	w.carry(0)
	must(t, lab.Up("bond0", lab.Setup{Addresses: []netip.Prefix{
		netip.MustParsePrefix(bondIP + "/24")}}))
	w.sends(0)
	cfg := stack.Config{Host: true, NIC: dv.NIC{Device: "bond0", RxQueues: 2, TxQueues: 2},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	quick(&cfg)
	if change != nil {
		change(&cfg)
	}
	w.stack, err = stack.Open(context.Background(), stack.WithBond(cfg, w.facts))
	must(t, err)
	t.Cleanup(func() { must(t, w.stack.Close()) })
	return w
}

// addPort makes card i, its netdev and its cable to the switch.
func (w *bonded) addPort(i int) {
	eth, port, cable := fmt.Sprint("eth", i), fmt.Sprint("port", i), fmt.Sprint("w", i)
	here, err := os.Open("/proc/self/ns/net")
	must(w.t, err)
	defer here.Close()
	must(w.t, w.outside.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: cable},
			PeerName: port, PeerNamespace: netlink.NsFd(here.Fd())}); err != nil {
			return err
		}
		if err := enslave(cable, "br0"); err != nil {
			return err
		}
		return lab.Up(cable, lab.Setup{})
	}))
	must(w.t, software.Netdev(eth, port, bondMAC))
	nic, cfg, err := software.Open(eth, port, bondMAC)
	must(w.t, err)
	w.t.Cleanup(func() { nic.Close() })
	w.nics[i] = nic
	cfg.Model.Kernel = func() (uverbs.Kernel, error) {
		if w.gone[i].Load() {
			return nil, unix.EIO
		}
		node, err := kernel.Opener(nic)()
		w.nodes[i].Store(&node)
		return node, err
	}
	w.facts.Members[eth] = cfg
	w.facts.Below.Devices = append(w.facts.Below.Devices, hostnet.Port{Name: eth, MAC: bondMAC,
		Card: fmt.Sprintf("0000:c%d:00", i), RDMA: true})
}

// enslave makes port one of master's, "": of nobody's.
func enslave(port, master string) error {
	p, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	if master == "" {
		return netlink.LinkSetNoMaster(p)
	}
	m, err := netlink.LinkByName(master)
	if err != nil {
		return err
	}
	return netlink.LinkSetMaster(p, m)
}

// carry has Linux's frames go by port i, and none by the other, at which Linux would answer.
func (w *bonded) carry(i int) {
	w.t.Helper()
	active, other := fmt.Sprint("eth", i), fmt.Sprint("eth", 1-i)
	must(w.t, setUp(other, false))
	must(w.t, enslave(other, ""))
	must(w.t, enslave(active, "bond0"))
	must(w.t, setUp(active, true))
}

func setUp(name string, up bool) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(l)
	}
	return netlink.LinkSetDown(l)
}

// change changes the facts, of which the stack is told.
func (w *bonded) change(change func(*hostnet.Below)) {
	w.facts.Mu.Lock()
	change(&w.facts.Below)
	w.facts.Mu.Unlock()
	select {
	case w.facts.Changed <- struct{}{}:
	default:
	}
}

// sends says by which ports the bond sends.
func (w *bonded) sends(ports ...int) {
	w.change(func(b *hostnet.Below) {
		for i := range b.Devices {
			b.Devices[i].Sends, b.Devices[i].Receives = false, b.Mode != "active-backup"
		}
		for _, i := range ports {
			b.Devices[i].Sends, b.Devices[i].Receives = true, true
		}
	})
}

// sendsFromNow is sends, and waits until the stack does likewise. The ports are others than before.
func (w *bonded) sendsFromNow(ports ...int) {
	w.t.Helper()
	before := w.stack.LinkStats().Switches
	w.sends(ports...)
	w.await("another backend", func() bool { return w.stack.LinkStats().Switches > before })
}

// plugged takes the cable of port i out, or puts it back.
func (w *bonded) plugged(i int, in bool) {
	w.t.Helper()
	must(w.t, w.outside.Do(func() error { return setUp(fmt.Sprint("w", i), in) }))
}

// failOver has the bond send by port i, as Linux does: the first frame tells the switch.
func (w *bonded) failOver(i int) {
	w.t.Helper()
	w.carry(i)
	w.sendsFromNow(i)
	c, err := net.Dial("udp", bondPeerIP+":9")
	must(w.t, err)
	_, err = c.Write([]byte("here"))
	must(w.t, err)
	c.Close()
}

func (w *bonded) awaitDevices(n int) {
	w.t.Helper()
	w.await(fmt.Sprint(n, " devices"), func() bool { return len(w.stack.Devices()) == n })
}

func (w *bonded) await(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not %s: %+v, %d devices", what, w.stack.LinkStatus(),
				len(w.stack.Devices()))
		}
	}
}

func (w *bonded) dial(port int) net.Conn {
	w.t.Helper()
	c, err := w.outside.DialContext(w.t.Context(), "tcp", fmt.Sprintf("%s:%d", bondIP, port))
	must(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	return c
}

// sent is how many frames of the stack each card has sent.
func (w *bonded) sent() (n [2]uint64) {
	for i, nic := range w.nics {
		n[i] = nic.Counters().Slice.TxPackets
	}
	return n
}

// lose takes the RDMA device of port i away, whose netdev stays.
func (w *bonded) lose(i int) {
	w.gone[i].Store(true)
	(*w.nodes[i].Load()).Close()
}

// giveBack ends that.
func (w *bonded) giveBack(i int) { w.gone[i].Store(false) }

// rules requires that n devices have the rule for port 7, and no rule waits.
func (w *bonded) rules(n int) {
	w.t.Helper()
	have := 0
	for _, r := range w.stack.Rules() {
		if r.Waiting != "" {
			w.t.Errorf("%s waits: %s", r.Match, r.Waiting)
		}
		if strings.HasPrefix(r.Match, "TCP port 7 of "+bondIP) {
			have++
		}
	}
	if have != n {
		w.t.Errorf("port 7 has %d rules, want %d", have, n)
	}
}

// transfers are connections that send and receive all the time.
type transfers struct {
	stop atomic.Bool
	all  sync.WaitGroup
}

// transfers starts n of them to port 7.
func (w *bonded) transfers(n int) *transfers {
	w.t.Helper()
	a := new(transfers)
	for range n {
		c := w.dial(7)
		a.all.Go(func() {
			if err := bulk(c, &a.stop); err != nil {
				w.t.Errorf("bulk: %v", err)
			}
		})
	}
	return a
}

// end waits for what they have begun.
func (a *transfers) end() {
	a.stop.Store(true)
	a.all.Wait()
}

// outputs is what a process prints.
type outputs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *outputs) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *outputs) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
