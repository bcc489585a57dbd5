package hostmode

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// TestPathMTU has a router in the way whose next link takes packets of 600 bytes: it says so by
// ICMP, and what the server sends must become that small.
func TestPathMTU(t *testing.T) { onBoth(t, pathMTU) }

func pathMTU(t *testing.T, w *world) {
	far := newNet(t, "far")
	must(t, lab.Cable(w.outside, "eth1", far, "eth0"))
	must(t, w.outside.Do(func() error { return lab.Up("eth1", lab.Setup{MTU: 600}) }))
	up(t, w.outside, "eth1", "10.9.1.1/24")
	up(t, far, "eth0", "10.9.1.2/24")
	route(t, far, "eth0", "0.0.0.0/0", "10.9.1.1")
	route(t, w.host, "eth0", "10.9.1.0/24", outsideIP)
	must(t, w.outside.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}))
	s := w.start(t, "tcp :7000", "tcp :8080")
	c, err := dial(far, hostIP+":7000")
	must(t, err)
	defer c.Close()
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	got, err := io.ReadAll(c)
	if want := bytes.Repeat(pattern, bulkSize/len(pattern)); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes of %d came: %v", len(got), len(want), err)
	}
	s.stop()
}

// TestAddressesChange removes an address under connections and gives it back.
func TestAddressesChange(t *testing.T) { onBoth(t, addressesChange) }

func addressesChange(t *testing.T, w *world) {
	const second = "10.9.0.5"
	up(t, w.host, "eth0", second+"/24")
	s := w.start(t, "tcp :8080", "udp :5300")
	greeted := func(at string) net.Conn {
		t.Helper()
		c, err := dial(w.outside, at+":8080")
		must(t, err)
		t.Cleanup(func() { c.Close() })
		must(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
		if _, err := io.ReadFull(c, make([]byte, len("stack "))); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, gone := greeted(hostIP), greeted(second)
	change := func(do func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		must(t, w.host.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(second + "/24")
			if err != nil {
				return err
			}
			return do(link, a)
		}))
	}
	change(netlink.AddrDel)
	if _, err := io.Copy(io.Discard, gone); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of the address removed: %v, want %v", err, syscall.ECONNRESET)
	}
	if _, err := first.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	change(netlink.AddrAdd)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := dial(w.outside, second+":8080")
		if err == nil {
			must(t, visit(c, "stack", 1, 1000))
			break
		}
		if time.Now().After(end) {
			t.Fatal("the address that is back is not served:", err)
		}
	}
	c, err := dial(w.host, second+":8080")
	must(t, err)
	must(t, visit(c, "kernel", 1, 1000))
	must(t, datagrams(w.outside, second, 3, 100))
	must(t, datagrams(w.host, second, 3, 100))
	s.stop()
}

// TestAsk sends datagrams from an unconnected socket to where the kernel sends otherwise.
func TestAsk(t *testing.T) { onBoth(t, ask) }

func ask(t *testing.T, w *world) {
	for at, n := range map[string]*lab.Net{outsideIP: w.outside, bridgeIP: w.host,
		containerIP: w.container} {
		pc, err := n.ListenPacket("udp", at+":9200")
		must(t, err)
		defer pc.Close()
		go func() {
			b := make([]byte, 100)
			for {
				n, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				pc.WriteTo(b[:n], from)
			}
		}()
	}
	s := w.start(t)
	for _, at := range []string{outsideIP, bridgeIP, containerIP} {
		if got := s.do("ask " + at + ":9200"); got != "question from "+at+":9200" {
			t.Errorf("to %s: %s", at, got)
		}
	}
	if got := s.ok("stats"); !strings.Contains(got, `"Sent":2`) {
		t.Errorf("want two by the kernel: %s", got)
	}
}

// TestZones dials, sends to and listens on link-local addresses whose zone is the netdev, by name
// and by index, as programs on Linux's own sockets may; addresses are printed with its name.
func TestZones(t *testing.T) { onBoth(t, zones) }

func zones(t *testing.T, w *world) {
	s := w.start(t)
	own, index := linkLocal(t, w.host)
	peer, peerIndex := linkLocal(t, w.outside)
	echo := func() error {
		ln, err := net.Listen("tcp", "[::]:7")
		if err != nil {
			return err
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				go func() {
					defer c.Close()
					io.Copy(c, c)
				}()
			}
		}()
		pc, err := net.ListenPacket("udp", "[::]:7")
		if err != nil {
			return err
		}
		t.Cleanup(func() { pc.Close() })
		go echoDatagrams(pc)
		return nil
	}
	must(t, w.outside.Do(echo))
	must(t, w.container.Do(echo))
	printed := peer + "%eth0"
	for port, zone := range map[string]string{"9001": "eth0", "9002": index} {
		to := "[" + peer + "%" + zone + "]:7"
		if got, want := s.ok("ask "+to), "question from ["+printed+"]:7"; got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
		if got, want := s.ok("dial "+to+" 1"), "dialled: stack 1, kernel 0"; got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
		from, want := s.ok("dialfrom "+port+" "+to), "from ["+own+"%eth0]:"+port
		if from != want {
			t.Errorf("%s: %s, want %s", to, from, want)
		}
	}
	for port, zone := range map[string]string{"8001": "eth0", "8002": index} {
		at := "[" + own + "%" + zone + "]:" + port
		if got, want := s.ok("tcp "+at), "listening on ["+own+"%eth0]:"+port; got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
		c, err := dial(w.outside, "["+own+"%"+peerIndex+"]:"+port)
		must(t, err)
		c.Close()
	}
	if got := s.do("dial [fe80::1%nodev]:7 1"); !strings.Contains(got, "invalid argument") {
		t.Errorf("a zone that is no netdev: %s, want EINVAL, as on Linux", got)
	}
	inside, _ := linkLocal(t, w.container)
	to := "[" + inside + "%br0]:7" // another netdev's zone: the kernel dials
	if got, want := s.ok("dial "+to+" 1"), "dialled: stack 0, kernel 1"; got != want {
		t.Errorf("%s: %s, want %s", to, got, want)
	}
	s.stop()
}

// linkLocal returns the link-local address of a namespace's eth0 and the index of that.
func linkLocal(t *testing.T, n *lab.Net) (address, index string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); address == "" && time.Now().Before(end); {
		must(t, n.Do(func() error {
			ifi, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			index = strconv.Itoa(ifi.Index)
			addrs, err := ifi.Addrs()
			for _, a := range addrs {
				if ip := a.(*net.IPNet).IP; ip.IsLinkLocalUnicast() {
					address = ip.String()
				}
			}
			return err
		}))
	}
	if address == "" {
		t.Fatal("eth0 has no link-local address")
	}
	return address, index
}
