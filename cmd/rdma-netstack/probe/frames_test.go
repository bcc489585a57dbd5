package probe

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// The kernel on the other end judges the frames by answering them.
func TestKernelAnswersFrames(t *testing.T) {
	w := newWorld(t)
	var port *lab.Port
	if err := w.near.Do(func() (err error) { port, err = lab.OpenPort("eth0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	near, far := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

	if err := port.Send(ARPFrame(port.MAC, near, far)); err != nil {
		t.Fatal(err)
	}
	mac := await(t, port, func(s Sighting) bool { return s.ARPSender == far }).Src
	if mac.String() == port.MAC.String() {
		t.Fatalf("ARP reply came from ourselves, %s", mac)
	}
	if err := port.Send(EchoFrame(mac, port.MAC, near, far, 0x1234, 7)); err != nil {
		t.Fatal(err)
	}
	got := await(t, port, func(s Sighting) bool { return s.EchoReply })
	if got.ID != 0x1234 || got.Seq != 7 || got.Src.String() != mac.String() || got.Dst.String() != port.MAC.String() {
		t.Errorf("echo reply %+v", got)
	}
}

func await(t *testing.T, port *lab.Port, wanted func(Sighting) bool) Sighting {
	t.Helper()
	buf := make([]byte, 2048)
	for {
		frame, err := port.Recv(buf, time.Now().Add(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if s := See(frame); wanted(s) {
			return s
		}
	}
}

func FuzzSee(f *testing.F) {
	a, b := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	f.Add(EchoFrame(a, b, x, y, 1, 2))
	f.Add(ARPFrame(a, x, y))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if s := See(frame); s.EchoReply && s.EchoRequest {
			t.Errorf("both request and reply: %+v", s)
		}
	})
}
