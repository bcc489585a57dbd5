package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// TestMTUOfPacketSockets changes the MTU of a netdev, with a MAC address of our own on it, down and
// up: connections from before and new ones go on, within NIC.MTU.
func TestMTUOfPacketSockets(t *testing.T) {
	need.NetNS(t)
	for _, most := range []int{0, 4000} {
		t.Run(fmt.Sprint("NIC.MTU ", most), func(t *testing.T) { mtuOfPacketSockets(t, most) })
	}
}

func mtuOfPacketSockets(t *testing.T, most int) {
	netpair.CheckLeaks(t)
	var nets [2]*lab.Net
	for i := range nets {
		n, err := lab.New("MTU test")
		must(t, err)
		t.Cleanup(func() { n.Close() })
		nets[i] = n
	}
	must(t, lab.Cable(nets[0], "eth0", nets[1], "eth0"))
	setMTU := func(mtu int) {
		t.Helper()
		for _, n := range nets {
			must(t, n.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.LinkSetMTU(link, mtu)
			}))
		}
	}
	for i, setup := range []lab.Setup{{}, {Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.2/24")}}} {
		must(t, nets[i].Do(func() error { // no segments on the cable that are longer than its MTU
			return errors.Join(lab.Up("eth0", setup), exec.Command("ethtool", "-K", "eth0", "tso",
				"off", "gso", "off", "gro", "off").Run())
		}))
	}
	setMTU(9000)
	var s *stack.Stack
	must(t, nets[0].Do(func() (err error) {
		s, err = stack.Open(context.Background(),
			stack.Config{Uplink: stack.UplinkOptions{Backend: stack.BackendPacket},
				NIC:        dv.NIC{Device: "eth0", MTU: most},
				Addressing: stack.AddressOptions{DuplicateDetection: -1},
				Addresses:  []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24")}})
		return err
	}))
	t.Cleanup(func() { must(t, s.Close()) })
	ln, err := s.Listen("tcp", ":80")
	must(t, err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := nets[1].DialContext(t.Context(), "tcp", "10.9.0.1:80")
		must(t, err)
		return c
	}
	old := dial()
	defer old.Close()
	for _, mtu := range []int{9000, 1500, 9000, 1280, 3000} {
		setMTU(mtu)
		want := mtu
		if most > 0 {
			want = min(mtu, most)
		}
		eventually(t, fmt.Sprint("an MTU of ", want), func() bool { return s.MTU() == want })
		fresh := dial()
		for what, c := range map[string]net.Conn{"from before": old, "new": fresh} {
			data := bytes.Repeat([]byte{byte(mtu), 1, 2}, 100<<10)
			c.SetDeadline(time.Now().Add(20 * time.Second))
			go c.Write(data)
			got := make([]byte, len(data))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("an MTU of %d, a connection %s: %v", mtu, what, err)
			}
		}
		fresh.Close()
	}
	if n := s.Stats().MTUChanges; n < 2 {
		t.Errorf("%d changes of the MTU counted", n)
	}
}
