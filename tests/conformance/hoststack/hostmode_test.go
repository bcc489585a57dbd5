//go:build linux

package hoststack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

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

// stacksOnHosts puts stacks in the place of the kernels of w. What the client receives is seen by
// packet sockets, which see nothing of AF_XDP: that is the server's.
func stacksOnHosts(t *testing.T, name string, w *world, onServer, onClient dv.Config,
	backend stack.Backend) *world {
	w.name = name
	server, client := w.server.(inside), w.client.(inside)
	w.server = server.onHost(t, onServer.NIC, backend, 0)
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
