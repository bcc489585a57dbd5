package wire

import (
	"bytes"
	"errors"
	"os/exec"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"golang.org/x/sys/unix"
)

// vethTo makes a cable between two namespaces, with an end called veth0 in each.
func vethTo(a, b *netns) {
	a.ip("link add veth0 type veth peer name veth0 netns " + b.pid())
}

// probeVLAN says whether this kernel has VLAN interfaces.
func probeVLAN(ns *netns) (err error) {
	tool := need.Tool(ns.t, "ip")
	ns.do(func() {
		_, err = exec.Command(tool, "link", "add", "link", "lo", "name", "probe", "type",
			"vlan", "id", "5").Output()
	})
	return err
}

// A kernel on a veth, a packet socket on the other end of the cable, and behind
// it a kernel on a TAP: partial checksums and unsegmented frames arrive whole.
func TestPacketCarriesTCP(t *testing.T) {
	for name, vlan := range map[string]bool{"untagged": false, "vlan": true} {
		t.Run(name, func(t *testing.T) {
			host, port, far := newNetNS(t), newNetNS(t), newNetNS(t)
			vethTo(host, port)
			port.up("veth0", "")
			p, tap := port.openPacket("veth0"), far.openTAP("tap0")
			if p.Name() != "veth0" {
				t.Errorf("name is %q", p.Name())
			}
			unsegmented, partial := bridge(t, p, tap)
			hostIf, farIf := "veth0", "tap0"
			if vlan {
				need.That(t, "vlan", probeVLAN(host))
				host.up(hostIf, "")
				far.up(farIf, "")
				host.ip("link add link veth0 name veth0.5 type vlan id 5")
				far.ip("link add link tap0 name tap0.5 type vlan id 5")
				hostIf, farIf = "veth0.5", "tap0.5"
			}
			host.up(hostIf, "10.99.0.1/24")
			far.up(farIf, "10.99.0.2/24")
			tcpStream(t, host, far, "10.99.0.1:8000", 4<<20)
			if unsegmented.Load() == 0 || partial.Load() == 0 {
				t.Errorf("%d unsegmented frames, %d with a partial checksum",
					unsegmented.Load(), partial.Load())
			}
			if p.Lost() != 0 {
				t.Errorf("%d frames lost", p.Lost())
			}
		})
	}
}

// What a raw socket of the host sends arrives byte for byte, tag included; what
// the host end itself sends through our interface does not.
func TestPacketFrames(t *testing.T) {
	host, port := newNetNS(t), newNetNS(t)
	vethTo(host, port)
	port.up("veth0", "")
	host.up("veth0", "")
	port.awaitRunning("veth0", true)
	host.awaitRunning("veth0", true)
	p, peer := port.openPacket("veth0"), host.openPacket("veth0")
	atPort, atHost := newFrameLog(), newFrameLog()
	if err := errors.Join(p.Start(atPort.recv), peer.Start(atHost.recv)); err != nil {
		t.Fatal(err)
	}
	var sent []frame.Frame
	for tags := range 3 {
		sent = append(sent, udpFrame(t, tags))
	}
	for _, w := range []Wire{peer, p} {
		if n, err := w.Send(sent); n != len(sent) || err != nil {
			t.Fatalf("send: %d, %v", n, err)
		}
	}
	for name, log := range map[string]*frameLog{"port": atPort, "host": atHost} {
		got := log.wait(len(sent))
		if len(got) != len(sent) {
			t.Errorf("%s got %d frames", name, len(got))
		}
		for i := range got {
			if !bytes.Equal(got[i].Data, sent[i].Data) {
				t.Errorf("%s: frame %d is\n%x, not\n%x", name, i, got[i].Data, sent[i].Data)
			}
		}
	}
	if n, err := p.Send([]frame.Frame{{Data: make([]byte, 3000)}}); n != 0 ||
		!errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a frame longer than the interface takes: %d, %v", n, err)
	}
}

func TestPacketLifetime(t *testing.T) {
	ns := newNetNS(t)
	ns.do(func() {
		if _, err := OpenPacket("nobody"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("no such interface: %v", err)
		}
	})
	ns.up("lo", "")
	p := ns.openPacket("lo")
	if err := p.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	ns.ip("link set lo down")
	ns.ip("link set lo up")
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if _, err := p.Send([]frame.Frame{numbered(0)}); !errors.Is(err, ErrClosed) {
		t.Errorf("send after Close: %v", err)
	}
}
