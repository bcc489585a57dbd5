package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const patience = 20 * time.Second

func newNet(t *testing.T, name string) *Net {
	t.Helper()
	need.NetNS(t)
	n, err := New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// cabled makes two namespaces joined by a cable with one address of each family at each end.
func cabled(t *testing.T) (a, b *Net) {
	t.Helper()
	a, b = newNet(t, "a"), newNet(t, "b")
	if err := Cable(a, "left", b, "right"); err != nil {
		t.Fatal(err)
	}
	up(t, a, "left", "192.0.2.1/24", "2001:db8::1/64")
	up(t, b, "right", "192.0.2.2/24", "2001:db8::2/64")
	return a, b
}

func up(t *testing.T, n *Net, ifname string, addrs ...string) {
	t.Helper()
	s := Setup{MTU: 1400}
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, netip.MustParsePrefix(a))
	}
	if err := n.Do(func() error { return Up(ifname, s) }); err != nil {
		t.Fatal(err)
	}
}

func TestNetOpenUseClose(t *testing.T) {
	n := newNet(t, "one")
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.Readlink(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	var seen string
	err = n.Do(func() (err error) {
		seen,
			err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil || seen != inside || seen == own {
		t.Fatalf("inside Do: namespace %s, %v; want %s, and not our own %s", seen, err, inside, own)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Do(func() error { return nil }); err == nil {
		t.Error("Do in a closed namespace: no error")
	}
	if err := n.Start(exec.Command("true")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Start in a closed namespace: %v", err)
	}
}

func TestNetCloseConcurrently(t *testing.T) {
	n := newNet(t, "many")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			cmd := exec.Command("sleep", "60")
			if n.Start(cmd) == nil {
				defer cmd.Wait()
			}
			n.Close()
		})
	}
	all.Wait()
}

func TestSocketsReachTheOtherSide(t *testing.T) {
	a, b := cabled(t)
	for _, to := range []string{"192.0.2.2:80", "[2001:db8::2]:80"} {
		t.Run(to, func(t *testing.T) {
			ln, err := b.Listen("tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			conn, err := a.DialContext(t.Context(), "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			if got := conn.RemoteAddr().String(); got != to {
				t.Errorf("connected to %s, want %s", got, to)
			}
			conn.Close()
		})
	}
}

func TestNothingIsLeft(t *testing.T) {
	stays := newNet(t, "stays")
	goes := newNet(t, "goes")
	if err := Cable(stays, "left", goes, "right"); err != nil {
		t.Fatal(err)
	}
	updates, done := make(chan netlink.LinkUpdate, 16), make(chan struct{})
	defer close(done)
	if err := stays.Do(func() error { return netlink.LinkSubscribe(updates, done) }); err != nil {
		t.Fatal(err)
	}
	if err := goes.Close(); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(patience)
	// the kernel removes a namespace in the background, and the cable's near end with the far one
	for {
		select {
		case u := <-updates:
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == "left" {
				return
			}
		case <-timeout:
			t.Fatal("the interface of a closed namespace still exists")
		}
	}
}

func TestChildrenDieWithTheNet(t *testing.T) {
	n := newNet(t, "short")
	cmd := exec.Command("sleep", "600")
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	child, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if inside, _ := os.Readlink(n.Path()); err != nil || child != inside {
		t.Errorf("child runs in %s (%v), want %s", child, err, inside)
	}
	n.Close()
	cmd.Wait()
	if got := cmd.ProcessState.String(); got != "signal: killed" {
		t.Errorf("child ended with %q", got)
	}
}

func TestPortSeesFrames(t *testing.T) {
	a, b := cabled(t)
	var left, right *Port
	if err := a.Do(func() (err error) { left, err = OpenPort("left"); return err }); err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	if err := b.Do(func() (err error) { right, err = OpenPort("right"); return err }); err != nil {
		t.Fatal(err)
	}
	defer right.Close()

	frame := append([]byte{2, 0, 0, 0, 0, 99}, left.MAC...)
	frame = append(frame, 0x88, 0xb5)
	frame = append(frame, "a frame of the local experimental type, to a third party"...)
	buf := make([]byte, 2048)
	for end := time.Now().Add(patience); ; {
		if err := left.Send(frame); err != nil { // again: the cable's far end may not be up yet
			t.Fatal(err)
		}
		got, err := right.Recv(buf, time.Now().Add(patience/50))
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if string(got) == string(frame) {
			break
		}
	}
	if _, err := left.Recv(buf, time.Now().Add(-time.Second)); !errors.Is(err,
		os.ErrDeadlineExceeded) {
		t.Errorf("receive after the deadline: %v", err)
	}

	packet := func(etherType uint16, at int, protocol byte) []byte {
		f := append([]byte(nil), frame[:12]...)
		f = append(binary.BigEndian.AppendUint16(f, etherType), make([]byte, 60)...)
		f[14+at] = protocol
		return f
	}
	tcp4, tcp6 := packet(unix.ETH_P_IP, 9, unix.IPPROTO_TCP), packet(unix.ETH_P_IPV6, 6,
		unix.IPPROTO_TCP)
	for range 4096 { // more than the receive buffer holds
		if err := left.Send(tcp4); err != nil {
			t.Fatal(err)
		}
	}
	if err := right.LeaveOutTCP(); err != nil {
		t.Fatal(err)
	}
	others := [][]byte{packet(unix.ETH_P_IP, 9, unix.IPPROTO_ICMP),
		packet(unix.ETH_P_IPV6, 6, unix.IPPROTO_UDP), packet(unix.ETH_P_ARP, 9, unix.IPPROTO_TCP)}
	for _, want := range others {
		for _, f := range [][]byte{tcp4, tcp6, want} {
			if err := left.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		for {
			got, err := right.Recv(buf, time.Now().Add(patience))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) == string(tcp4) || string(got) == string(tcp6) {
				t.Fatalf("it receives TCP: %x", got)
			}
			if string(got) == string(want) { // not one of the kernel's own
				break
			}
		}
	}
}

func TestErrorsNameTheInterface(t *testing.T) {
	n := newNet(t, "empty")
	err := n.Do(func() error { return Up("nosuch0", Setup{}) })
	if err == nil || err.Error() != "find interface nosuch0: Link not found" {
		t.Errorf("Up of a missing interface: %v", err)
	}
	if err := n.Do(func() error { _, err := OpenPort("nosuch0"); return err }); err == nil {
		t.Error("OpenPort of a missing interface: no error")
	}
}

// TestUpAwaitsIPv6 asks for the way to an interface's own address as soon as Up returns, with and
// without a carrier. Linux makes the route later than the address.
func TestUpAwaitsIPv6(t *testing.T) {
	for range 20 {
		a, b := newNet(t, "a"), newNet(t, "b")
		if err := Cable(a, "left", b, "right"); err != nil {
			t.Fatal(err)
		}
		for _, n := range []struct {
			*Net
			ifname string
			addr   netip.Prefix
		}{
			{a, "left", netip.MustParsePrefix("2001:db8::1/64")}, // without a carrier
			{b, "right", netip.MustParsePrefix("2001:db8::2/64")},
		} {
			err := n.Do(func() error {
				if err := Up(n.ifname, Setup{Addresses: []netip.Prefix{n.addr}}); err != nil {
					return err
				}
				routes, err := netlink.RouteGet(n.addr.Addr().AsSlice())
				if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
					return fmt.Errorf("route to %s once it is up: %+v, %v", n.addr, routes, err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		a.Close()
		b.Close()
	}
}

// TestUpLeavesHeldAddress calls Up where an address waits for a carrier before Linux looks for its
// duplicates.
func TestUpLeavesHeldAddress(t *testing.T) {
	a, b := newNet(t, "a"), newNet(t, "b")
	if err := Cable(a, "left", b, "right"); err != nil {
		t.Fatal(err)
	}
	held := netip.MustParsePrefix("2001:db8::1/64")
	other := netip.MustParsePrefix("2001:db8::2/64")
	err := a.Do(func() error {
		link, err := netlink.LinkByName("left")
		if err != nil {
			return err
		}
		detected := &netlink.Addr{IPNet: &net.IPNet{IP: held.Addr().AsSlice(),
			Mask: net.CIDRMask(held.Bits(), 128)}}
		// the other's work item comes after the held one's
		if err := errors.Join(netlink.LinkSetUp(link), netlink.AddrAdd(link, detected),
			addAddress(link, other), awaitLocal(link, other.Addr())); err != nil {
			return err
		}
		return Up("left", Setup{Addresses: []netip.Prefix{held}})
	})
	if err != nil {
		t.Error(err)
	}
}

// The process's own namespace is entered as it is, and stays.
func TestOwnNamespace(t *testing.T) {
	n, err := Own("own")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.Readlink(n.Path())
	own, err2 := os.Readlink("/proc/self/ns/net")
	if err != nil || err2 != nil || inside != own {
		t.Errorf("in %s, want %s: %v, %v", inside, own, err, err2)
	}
	out := new(strings.Builder)
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	cmd.Stdout = out
	if err := errors.Join(n.Start(cmd), cmd.Wait()); err != nil ||
		strings.TrimSpace(out.String()) != own {
		t.Errorf("a child is in %s, want %s: %v", out, own, err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
