package rdma

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// TestSwitchUnderTraffic exchanges 32 MiB with a kernel while the endpoint moves between packet
// sockets of an interface, nothing, and the rings of a NIC on that interface: not a byte is
// missing, and every kind has had some of them.
func TestSwitchUnderTraffic(t *testing.T) {
	h, peer, port := overPort(t, packet.Config{Queues: 2}, Options{})
	nic, err := simnic.New(simnic.Config{MAC: net.HardwareAddr{2, 0, 0, 1, 0, 1}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	if err := h.netns.Do(func() error {
		w, err := wire.OpenPacket("eth0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { w.Close() })
		return nic.ConnectWire(w)
	}); err != nil {
		t.Fatal(err)
	}
	dev, err := dv.Open(context.Background(), dv.Config{NIC: dv.NIC{
		MAC:      net.HardwareAddr{2, 0, 0, 0, 0, 1},
		RxQueues: 4,
		Model: dv.Model{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim1", MAC: nic.MAC(), MTU: nic.MTU()},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.ep.Close()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	go echo(h.listen(t, h.v4, 80))
	conn := dialIn(t, peer, "tcp", netip.AddrPortFrom(h.v4, 80))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	go conn.Write(sent)
	got := make([]byte, len(sent))
	const part = 1 << 20
	for i := 0; i < len(sent); i += part {
		if _, err := io.ReadFull(conn, got[i:i+part]); err != nil {
			t.Fatalf("after %d bytes: %v, %+v", i, err, h.ep.Stats())
		}
		to := [...]Backend{Rings(dev), None(), Sockets(port), Rings(dev), Sockets(port)}
		next := to[i/part%len(to)]
		if next.Kind() == BackendPacket {
			if err := port.Unmute(); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.ep.Switch(next); err != nil {
			t.Fatal(err)
		}
		if next.Kind() != BackendPacket {
			if err := port.Mute(); err != nil {
				t.Fatal(err)
			}
		}
		if next.Kind() == BackendNone {
			if err := h.ep.Switch(Rings(dev)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(got, sent) {
		t.Fatal("not what was sent")
	}
	if s := h.ep.Stats(); s.Rings.RxPackets == 0 || s.Packet.RxPackets == 0 ||
		s.Rings.TxFrames == 0 || s.Packet.TxFrames == 0 || s.RxBadChecksum != 0 ||
		s.Rings.RxPackets+s.Packet.RxPackets != s.RxPackets {
		t.Errorf("%+v", s)
	}
}
