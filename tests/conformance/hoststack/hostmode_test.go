//go:build linux

package hoststack

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	simkernel "github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/card"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/onwire"
)

// hostWorld is two stacks on the addresses of two kernels (stack.Config.Host), each in the network
// namespace that has them, on packet sockets. Their ports are different ones, so that a note tells
// them apart.
func hostWorld(t *testing.T) *world {
	onCable := dv.Config{NIC: dv.NIC{Device: cable}}
	return stacksOnHosts(t, "host mode", cabledWorld(t), onCable, onCable, stack.BackendAuto)
}

// xdpWorld returns hostWorld with the server through AF_XDP.
func xdpWorld(t *testing.T) *world {
	w := worldOn(t, func(server, client *lab.Net) (string, error) {
		err := lab.Cable(server, cable, client, cable)
		if err == nil {
			onwire.Make(t, cable, server, client)
		}
		return cable, err
	})
	onCable := dv.Config{NIC: dv.NIC{Device: cable}}
	return stacksOnHosts(t, "host mode through AF_XDP", w, onCable, onCable, stack.BackendXDP)
}

// ringsWorld is hostWorld on the rings of two software ConnectX, whose netdevs are the kernels'.
func ringsWorld(t *testing.T) *world {
	var server, client dv.Config
	w := worldOn(t, func(s, c *lab.Net) (string, error) {
		const port = "port0"
		if err := lab.Cable(s, port, c, port); err != nil {
			return port, err
		}
		var errs [2]error
		server, errs[0] = cardOf(t, s, port, 1)
		client, errs[1] = cardOf(t, c, port, 2)
		return port, errors.Join(errs[:]...)
	})
	return stacksOnHosts(t, "host mode on rings", w, server, client, stack.BackendAuto)
}

// cardOf gives a host a card at the end of the cable that is called port.
func cardOf(t *testing.T, n *lab.Net, port string, number byte) (cfg dv.Config, _ error) {
	_, cfg, err := openCard(t, n, port, number)
	return cfg, err
}

func openCard(t *testing.T, n *lab.Net, port string, number byte) (nic *simnic.NIC, cfg dv.Config,
	_ error) {
	mac := net.HardwareAddr{2, 0, 0x5e, 0, 0x53, number}
	err := n.Do(func() (err error) {
		if err = card.Netdev(cable, port, mac); err != nil {
			return err
		}
		if nic, cfg, err = card.Open(cable, port, mac); err == nil {
			t.Cleanup(func() { nic.Close() })
		}
		return err
	})
	return nic, cfg, err
}

// TestFragmentsMayBeTaken requires health to say that the rings of a device may take the first
// fragment of a datagram: its kernel has no rules that lead to Linux.
func TestFragmentsMayBeTaken(t *testing.T) {
	need.TUN(t)
	for _, c := range []struct {
		linux simkernel.Config
		want  string
	}{
		{simkernel.Config{}, "<nil>"},
		{simkernel.Config{Release: simkernel.Linux54}, "no rule of the device can leave " +
			"fragments to Linux: it may take the first of a datagram, which is lost then"},
	} {
		const port = "port0"
		host, far := laidCable(t, port)
		nic, cfg, err := openCard(t, host, port, 2)
		if err != nil {
			t.Fatal(err)
		}
		linux := simkernel.New(nic, c.linux)
		cfg.NIC.Model.Kernel = func() (uverbs.Kernel, error) { return linux.OpenNode() }
		wireAddresses(t, host, far)
		on := inside{host, kernel{}}.onHost(t, cfg.NIC, stack.BackendAuto, 0)
		st := on.sockets.(netstack).Stack
		for _, h := range st.Health() {
			if got := fmt.Sprint(h.Notice); h.Reporter == "rx" && got != c.want {
				t.Errorf("%+v: %s, want %s", c.linux, got, c.want)
			}
		}
	}
}

// TestFragmentsDropped requires fragments that are dropped for want of room to be told: by a line
// in the log, in health and by a counter.
func TestFragmentsDropped(t *testing.T) {
	host, far := cabledHost(t)
	var port *lab.Port
	if err := far.Do(func() (err error) {
		port, err = lab.OpenPort(cable)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	lines := make(chan string, 100)
	on := openInside(t, host, stack.Config{Host: true, NIC: dv.NIC{Device: cable},
		Logger: slog.New(slog.NewTextHandler(lineWriter(lines), nil))})
	c, err := on.ListenPacket("udp", netip.AddrPortFrom(wireHost4, 5300).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var mac net.HardwareAddr
	if err := host.Do(func() error {
		link, err := netlink.LinkByName(cable)
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d := make([]byte, 3*1448)
	for id := range uint16(4000) { // of more than 4 MiB, the second fragments
		ip := piece(icmpError{}, d, id, 1448, 2*1448, true)
		frame := slices.Concat(mac, []byte{2, 0, 0x5e, 0, 0x53, 9, 8, 0}, ip)
		if err := port.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.After(30 * time.Second)
	for told := false; !told; {
		select {
		case line := <-lines:
			told = strings.Contains(line, "level=WARN") &&
				strings.Contains(line, "fragments are dropped")
		case <-deadline:
			t.Fatal("no line in the log")
		}
	}
	st := on.sockets.(netstack).Stack
	if stats, _ := st.HostStats(); stats.FragmentsDropped == 0 {
		t.Error("no fragment is counted")
	}
	if rx := st.Health()[1]; rx.Reporter != "rx" || rx.Notice == nil ||
		!strings.Contains(rx.Notice.Error(), "fragments") {
		t.Errorf("health says %+v", rx)
	}
}

// lineWriter gets what is written to a log, each line in one call.
type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}

// TestNoPortLeftOnHost uses all ports that a stack on the host's addresses opens sockets from: the
// errors are those of Linux with a port range that is used up.
func TestNoPortLeftOnHost(t *testing.T) {
	w := hostWorld(t)
	ln, err := w.client.Listen("tcp4", netip.AddrPortFrom(w.client4, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, c := range []struct {
		name string
		open func() (io.Closer, error)
		want error
		call string
	}{
		{"TCP connect", func() (io.Closer, error) {
			return w.server.DialContext(t.Context(), "tcp", ln.Addr().String())
		}, syscall.EADDRNOTAVAIL, "connect"},
		{"TCP listen", func() (io.Closer, error) {
			return w.server.Listen("tcp", netip.AddrPortFrom(w.server4, 0).String())
		}, syscall.EADDRINUSE, "bind"},
		{"UDP connect", func() (io.Closer, error) {
			return w.server.DialContext(t.Context(), "udp", ln.Addr().String())
		}, syscall.EAGAIN, "connect"},
		{"UDP bind", func() (io.Closer, error) {
			return w.server.ListenPacket("udp", netip.AddrPortFrom(w.server4, 0).String())
		}, syscall.EADDRINUSE, "bind"},
	} {
		var open []io.Closer
		var err error
		for err == nil && len(open) < 1000 {
			var o io.Closer
			if o, err = c.open(); err == nil {
				open = append(open, o)
			}
		}
		t.Logf("%s: %d sockets, then %v", c.name, len(open), err)
		var call *os.SyscallError
		if !errors.Is(err, c.want) || !errors.As(err, &call) || call.Syscall != c.call {
			t.Errorf("%s: after %d sockets %v, want %s: %v", c.name, len(open), err, c.call, c.want)
		}
		for _, o := range open {
			o.Close()
		}
	}
}

// stacksOnHosts puts stacks in the place of the kernels of w. What the client receives is seen by
// packet sockets, which see nothing of AF_XDP: that is the server's.
func stacksOnHosts(t *testing.T, name string, w *world, onServer, onClient dv.Config,
	backend stack.Backend) *world {
	w.name = name
	server, client := w.server.(inside), w.client.(inside)
	onStack := server.onHost(t, onServer.NIC, backend, 0)
	w.server, w.datagrams = onStack, datagramsOf(onStack.sockets.(netstack).Stack)
	taken, err := client.ListenPacket("udp", netip.AddrPortFrom(w.client4, firstPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.client = client.onHost(t, onClient.NIC, min(backend, stack.BackendPacket), 0)
	w.deaf = func(r *run) string { // beside the first, which has the interface's program
		return r.full(server.onHost(r, onServer.NIC, min(backend, stack.BackendPacket), 1))
	}
	return w
}

// firstPort is the first of those that a stack connects from, unless it is taken.
const firstPort = 61440

// onHost opens a stack on the addresses of the namespace. backlog is TCPOptions.Backlog.
func (i inside) onHost(t testing.TB, nic dv.NIC, backend stack.Backend, backlog int) inside {
	t.Helper()
	nic.RxQueues, nic.TxQueues = 1, 1
	return openInside(t, i.n, stack.Config{Host: true, NIC: nic,
		Uplink: stack.UplinkOptions{Backend: backend},
		TCP:    stack.TCPOptions{Backlog: backlog}})
}
