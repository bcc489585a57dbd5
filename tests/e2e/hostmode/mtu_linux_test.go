package hostmode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// setMTU gives an interface another MTU.
func setMTU(t testing.TB, n *lab.Net, ifname string, mtu int) {
	t.Helper()
	must(t, n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	}))
}

// setHostMTU gives eth0 another MTU, and the port of its card: what a driver does.
func (w *world) setHostMTU(t testing.TB, s *server, mtu int) {
	t.Helper()
	if w.rings {
		setMTU(t, w.host, "port0", mtu)
		if s != nil {
			s.ok("portmtu " + strconv.Itoa(mtu))
		}
	}
	setMTU(t, w.host, w.netdev, mtu)
}

// noSegments has the cable take no segments that are longer than its MTU, as a wire.
func (w *world) noSegments(t testing.TB) {
	t.Helper()
	for n, ifname := range map[*lab.Net]string{w.host: w.cableEnd(), w.outside: "eth0"} {
		must(t, n.Do(func() error {
			out, err := exec.Command("ethtool", "-K", ifname, "tso", "off", "gso", "off", "gro",
				"off").CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}))
	}
}

// cableEnd is the host's end of the cable.
func (w *world) cableEnd() string {
	if w.rings {
		return "port0"
	}
	return "eth0"
}

// awaitMTU waits until the server's stack has an MTU, and returns all it says of it.
func awaitMTU(t *testing.T, s *server, mtu int) (said string) {
	t.Helper()
	eventually(t, fmt.Sprint("the stack's MTU is ", mtu), func() bool {
		said = s.ok("mtu")
		return strings.HasPrefix(said, strconv.Itoa(mtu)+" ")
	})
	return said
}

// served dials, and has a quarter of a megabyte echoed.
func served(t *testing.T, w *world, what string) {
	t.Helper()
	for _, at := range []string{hostIP, hostIPv6} {
		c, err := dial(w.outside, net.JoinHostPort(at, "8080"))
		must(t, err)
		if err := withLimit(c, func() error { return visit(c, "stack", 3, 256<<10) }); err != nil {
			t.Errorf("%s, a new connection to %s: %v", what, at, err)
		}
	}
}

// withLimit is do, which must not take 20 s: the server is silent then.
func withLimit(c net.Conn, do func() error) error {
	limit := time.AfterFunc(20*time.Second, func() { c.Close() })
	defer limit.Stop()
	return do()
}

// converse has bytes echoed by a connection that stays open.
func converse(c *buffered, n int) error {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(payload(5, n))
		wrote <- err
	}()
	got, err := io.ReadAll(io.LimitReader(c, int64(n)))
	if err == nil && string(got) != string(payload(5, n)) {
		err = fmt.Errorf("%d bytes came back, not the %d sent", len(got), n)
	}
	return errors.Join(err, <-wrote)
}

// datagramsOnce sends datagrams of several sizes, behind each one a marker to another socket of the
// client's, and requires that each is answered once.
func datagramsOnce(t *testing.T, w *world, what string, sizes ...int) {
	t.Helper()
	for _, at := range []string{hostIP, hostIPv6} {
		for _, size := range sizes {
			if n, err := answers(w, net.JoinHostPort(at, "5300"), size); n != 1 || err != nil {
				t.Errorf("%s, a datagram of %d bytes to %s: %d answers, want 1; %v", what, size, at,
					n, err)
			}
		}
	}
}

// answers counts the answers to a datagram. Those of the stack and of the kernel's socket come by
// different ways: ten datagrams of one byte, behind it, have to come first, and a quarter of a
// second has to pass without another.
func answers(w *world, at string, size int) (n int, err error) {
	var c net.Conn
	if err := w.outside.Do(func() (err error) {
		c, err = net.Dial("udp", at)
		return err
	}); err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.Write(payload(7, size)); err != nil {
		return 0, err
	}
	for range 10 {
		if _, err := c.Write([]byte{1}); err != nil {
			return 0, err
		}
	}
	b := make([]byte, 64<<10)
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for markers := 0; ; {
		m, err := c.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n, nil
		case err != nil:
			return n, err
		case m == 1:
			markers++
		case m != size || string(b[:m]) != string(payload(7, size)):
			return n, fmt.Errorf("%d bytes came back, %d sent", m, size)
		default:
			n++
		}
		if markers == 10 && n > 0 {
			c.SetReadDeadline(time.Now().Add(250 * time.Millisecond))
		}
	}
}

// TestMTUChanges changes the MTU of the host's netdev, up and down, under a server: connections
// from before and new ones go on as those of the kernel do, and each datagram comes once.
func TestMTUChanges(t *testing.T) {
	for name, rings := range map[string]bool{"packet sockets": false, "rings": true} {
		t.Run(name, func(t *testing.T) { changeMTU(t, newWorldOn(t, rings)) })
	}
}

func changeMTU(t *testing.T, w *world) {
	w.setHostMTU(t, nil, 9000)
	setMTU(t, w.outside, "eth0", 9000)
	w.noSegments(t)
	s := w.start(t, "tcp :8080", "udp :5300")
	var old []*buffered
	for _, at := range []string{hostIP, hostIPv6} {
		c, err := dial(w.outside, net.JoinHostPort(at, "8080"))
		must(t, err)
		met, err := meet(c, "stack")
		must(t, err)
		defer met.Close()
		old = append(old, met)
	}
	check := func(what string, sizes ...int) {
		t.Helper()
		for _, c := range old {
			if err := converse(c, 256<<10); err != nil {
				t.Errorf("%s, the connection to %v: %v", what, c.RemoteAddr(), err)
			}
		}
		served(t, w, what)
		datagramsOnce(t, w, what, sizes...)
	}
	awaitMTU(t, s, 9000)
	check("9000", 1000, 3000, 8000, 20000)

	w.setHostMTU(t, s, 1500)
	awaitMTU(t, s, 1500)
	served(t, w, "the host lowered, the network not")
	setMTU(t, w.outside, "eth0", 1500)
	check("lowered", 1000, 1472, 1473, 3000, 8000)

	w.setHostMTU(t, s, 9000)
	setMTU(t, w.outside, "eth0", 9000)
	if said := awaitMTU(t, s, 9000); !strings.HasSuffix(said, " -") {
		t.Errorf("raised to what it was: %s", said)
	}
	check("raised", 1000, 1473, 8000, 8972, 20000)
	s.stop()
}

// TestMTURaisedBeyondBuffers: rings whose buffers were made for 1500 bytes take a little more, say
// so, and serve on. Datagrams in fragments come by the kernel.
func TestMTURaisedBeyondBuffers(t *testing.T) {
	w := newWorldOn(t, true)
	w.noSegments(t)
	s := w.start(t, "tcp :8080", "udp :5300")
	awaitMTU(t, s, 1500)
	w.setHostMTU(t, s, 9000)
	setMTU(t, w.outside, "eth0", 9000)
	said := awaitMTU(t, s, 1582)
	want := "1582 9000 link: the netdev has an MTU of 9000 bytes, and the receive buffers, made " +
		"for a smaller one, take 1582: start the server again to use it"
	eventually(t, want, func() bool {
		said = s.ok("mtu")
		return said == want
	})
	served(t, w, "raised beyond the buffers")
	datagramsOnce(t, w, "raised beyond the buffers", 1000, 1534, 20000)
	w.setHostMTU(t, s, 1500)
	setMTU(t, w.outside, "eth0", 1500)
	eventually(t, "the notice is gone", func() bool { return s.ok("mtu") == "1500 1500 -" })
	served(t, w, "lowered again")
	s.stop()
}
