package card_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// veth runs do in a network namespace with two ends of a cable that are up, "port" and "peer".
func veth(t *testing.T, do func() error) {
	t.Helper()
	need.NetNS(t)
	ns, err := lab.New("doctor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Do(func() error {
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port"},
			PeerName: "peer"})
		return errors.Join(err, lab.Up("port", lab.Setup{}), lab.Up("peer", lab.Setup{}), do())
	}); err != nil {
		t.Fatal(err)
	}
}

// TestNetdev sends frames from a netdev and sees those that it receives.
func TestNetdev(t *testing.T) {
	veth(t, func() error {
		port, err := card.OpenNetdev("port")
		if err != nil {
			return err
		}
		peer, err := lab.OpenPort("peer")
		if err != nil {
			return errors.Join(err, port.Close())
		}
		defer peer.Close()
		came := make(chan []byte, 64)
		recv := func(frames []frame.Frame) {
			for _, f := range frames {
				came <- bytes.Clone(f.Data)
			}
		}
		if err := errors.Join(port.Start(recv), swap(port.Start(recv))); err != nil {
			return err
		}
		// an interface that is just up drops frames until the kernel has seen its carrier
		there, back := experiment(peer.MAC, 1), experiment(broadcast, 2)
		if err := again(func(deadline time.Time) (bool, error) {
			n, err := port.Send([]frame.Frame{{Data: there}})
			if n != 1 || err != nil {
				return false, fmt.Errorf("sent %d frames: %w", n, err)
			}
			buf := make([]byte, 2048)
			got, err := peer.Recv(buf, deadline)
			return bytes.Equal(got, there), timeout(err)
		}); err != nil {
			return fmt.Errorf("from the netdev: %w", err)
		}
		if err := again(func(deadline time.Time) (bool, error) {
			err := peer.Send(back)
			select {
			case got := <-came:
				return bytes.Equal(got, back), err
			case <-time.After(time.Until(deadline)):
				return false, err
			}
		}); err != nil {
			return fmt.Errorf("to the netdev: %w", err)
		}
		return errors.Join(port.Close(), port.Close())
	})
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// again tries until it was done, each time with a deadline; it gives up after a minute.
func again(try func(deadline time.Time) (done bool, err error)) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if done, err := try(time.Now().Add(100 * time.Millisecond)); done || err != nil {
			return err
		}
	}
	return errors.New("nothing came in a minute")
}

// timeout turns the error of a deadline into none.
func timeout(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// swap turns the error of a second Start into none.
func swap(err error) error {
	if errors.Is(err, wire.ErrStarted) {
		return nil
	}
	return errors.New("a second Start was let pass")
}

func experiment(dst net.HardwareAddr, n byte) []byte {
	f := make([]byte, 60)
	copy(f, dst)
	copy(f[6:], []byte{2, 0, 0, 0, 0, 9, 0x88, 0xb5, n})
	return f
}

// TestUnicastList finds an address as long as a packet socket asks for it.
func TestUnicastList(t *testing.T) {
	veth(t, func() error {
		ifc, err := net.InterfaceByName("port")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		mreq := unix.PacketMreq{Ifindex: int32(ifc.Index), Type: unix.PACKET_MR_UNICAST, Alen: 6}
		copy(mreq.Address[:], ourMAC)
		listed := func() (bool, error) {
			list, err := card.UnicastList("port")
			return slices.ContainsFunc(list, func(a net.HardwareAddr) bool {
				return bytes.Equal(a, ourMAC)
			}), err
		}
		before, err1 := listed()
		err2 := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq)
		during, err3 := listed()
		err4 := unix.Close(fd)
		after, err5 := listed()
		if before || !during || after {
			t.Errorf("listed before %v, during %v, after %v", before, during, after)
		}
		return errors.Join(err1, err2, err3, err4, err5)
	})
}

// TestNoNetdev wants a sentence about a netdev that is not there.
func TestNoNetdev(t *testing.T) {
	if _, err := card.OpenNetdev("nonesuch0"); err == nil {
		t.Error("it opened")
	}
	if _, err := card.UnicastList("nonesuch0"); err == nil {
		t.Error("it has a list")
	}
	if _, _, err := card.Device(card.Config{}); err == nil && os.Getenv("RDMA_DEVICE") == "" {
		t.Error("no name names a device")
	}
}
