package stack_test

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// TestBondFailsOver has the bond send by the other port, again and again, under transfers: none is
// lost, and what is sent from then on leaves by that port.
func TestBondFailsOver(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newBonded(t, "active-backup", nil)
	serveEcho(t, w.stack, 7)
	w.rules(2)
	transfers := w.transfers(8)
	for n := range 6 {
		active, former := (n+1)%2, n%2
		w.plugged(former, false)
		w.failOver(active)
		before := w.sent()
		w.await("traffic by the other port", func() bool {
			return w.sent()[active] > before[active]+1000
		})
		if now := w.sent(); now[former] != before[former] {
			t.Errorf("port %d has sent %d frames more", former, now[former]-before[former])
		}
		w.plugged(former, true)
	}
	transfers.end()
	if s := w.stack.LinkStats(); s.Packet.TxFrames > 0 || w.stack.LinkStatus().Losses > 0 {
		t.Errorf("%d frames by packet sockets, %+v", s.Packet.TxFrames, w.stack.LinkStatus())
	}
}

// TestBondLosesDevices takes the device of each port away, and both, and returns them: those that
// are left carry on, and packet sockets while there is none.
func TestBondLosesDevices(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newBonded(t, "active-backup", nil)
	serveEcho(t, w.stack, 7)
	transfers := w.transfers(4)
	w.lose(1) // the one in reserve
	w.awaitDevices(1)
	w.rules(1)
	w.giveBack(1)
	w.awaitDevices(2)
	w.rules(2)

	w.lose(0) // the one that sends: its port does so for the packet sockets
	w.awaitDevices(1)
	before := w.stack.LinkStats().Packet.TxFrames
	w.await("traffic by packet sockets", func() bool {
		return w.stack.LinkStats().Packet.TxFrames > before+100
	})
	w.failOver(1)
	sent := w.sent()[1]
	w.await("traffic by the other port", func() bool { return w.sent()[1] > sent+100 })
	w.giveBack(0)
	w.awaitDevices(2)
	if s := w.stack.LinkStatus(); s.Losses != 0 || s.Backend != rdma.BackendRings {
		t.Errorf("with one device left: %+v", s)
	}

	w.lose(0)
	w.lose(1)
	w.await("packet sockets", func() bool {
		return w.stack.LinkStatus().Backend == rdma.BackendPacket
	})
	w.giveBack(0)
	w.giveBack(1)
	w.awaitDevices(2)
	w.rules(2)
	sent = w.sent()[1]
	w.await("traffic by rings again", func() bool { return w.sent()[1] > sent+100 })
	transfers.end()
}

// TestBondMemberLeaves takes a port out of the bond and puts it back: its rings and rules go, and
// come back.
func TestBondMemberLeaves(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newBonded(t, "active-backup", nil)
	serveEcho(t, w.stack, 7)
	transfers := w.transfers(4)
	for range 3 {
		w.failOver(1)
		var left hostnet.Port
		w.change(func(b *hostnet.Below) { left, b.Devices = b.Devices[0], b.Devices[1:] })
		w.awaitDevices(1)
		w.rules(1)
		sent := w.sent()[1]
		w.await("traffic", func() bool { return w.sent()[1] > sent+100 })
		w.change(func(b *hostnet.Below) { b.Devices = append([]hostnet.Port{left}, b.Devices...) })
		w.awaitDevices(2)
		w.rules(2)
		w.failOver(0)
		sent = w.sent()[0]
		w.await("traffic", func() bool { return w.sent()[0] > sent+100 })
	}
	transfers.end()
}

// TestBondSpreads has both ports of a bond send, each flow by one of them; once a port has lost its
// carrier all are by the other.
func TestBondSpreads(t *testing.T) {
	for _, mode := range []string{"balance-xor", "802.3ad"} {
		t.Run(mode, func(t *testing.T) {
			if !inNamespace(t) {
				return
			}
			w := newBonded(t, mode, nil)
			w.sendsFromNow(0, 1)
			serveEcho(t, w.stack, 7)
			transfers := w.transfers(16)
			before := w.sent()
			w.await("traffic by both ports", func() bool {
				now := w.sent()
				return now[0] > before[0]+1000 && now[1] > before[1]+1000
			})
			for i, nic := range w.nics {
				if nic.Counters().Slice.RxPackets == 0 {
					t.Errorf("nothing was received by port %d", i)
				}
			}
			for i := range w.nics {
				w.plugged(i, false)
				w.failOver(1 - i)
				before := w.sent()
				w.await("traffic by the other port", func() bool {
					return w.sent()[1-i] > before[1-i]+1000
				})
				if now := w.sent(); now[i] != before[i] {
					t.Errorf("port %d has sent %d frames more", i, now[i]-before[i])
				}
				w.plugged(i, true)
				w.sendsFromNow(0, 1)
			}
			transfers.end()
		})
	}
}

// TestBondBackup: what comes by the port in reserve, as a switch floods what it does not know where
// to send, is dropped; that by the other is answered once.
func TestBondBackup(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	w := newBonded(t, "active-backup", nil)
	must(t, w.outside.Do(func() error { // it never learns who is where
		for _, port := range []string{"w0", "w1"} {
			l, err := netlink.LinkByName(port)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetLearning(l, false); err != nil {
				return err
			}
		}
		return nil
	}))
	for i := range w.nics { // it forgets what it knew
		w.plugged(i, false)
		w.plugged(i, true)
	}
	pc, err := w.stack.ListenPacket("udp", ":7")
	must(t, err)
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
	c, err := w.outside.DialContext(t.Context(), "udp", bondIP+":7")
	must(t, err)
	defer c.Close()
	b := make([]byte, 100)
	for i := 0; w.stack.LinkStats().RxBackup < 100; i++ {
		must(t, c.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err := c.Write([]byte{byte(i)})
		must(t, err)
		n, err := c.Read(b)
		must(t, err)
		if n != 1 || b[0] != byte(i) {
			t.Fatalf("to question %d the answer is %x", i, b[:n])
		}
	}
}
