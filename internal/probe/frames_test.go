package probe

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// The kernel on the other end judges the frames by answering them.
func TestKernelAnswersFrames(t *testing.T) {
	w := newWorld(t)
	var port *lab.Port
	if err := w.near.Do(func() (err error) {
		port,
			err = lab.OpenPort("eth0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	near, far := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

	mac := ask(t, port, ARPFrame(port.MAC, near, far),
		func(s Frame) bool { return s.ARPSender == far }).Src
	if mac.String() == port.MAC.String() {
		t.Fatalf("ARP reply came from ourselves, %s", mac)
	}
	got := ask(t, port, EchoFrame(mac, port.MAC, near, far, 0x1234, 7),
		func(s Frame) bool { return s.EchoReply })
	if got.ID != 0x1234 || got.Seq != 7 || got.Src.String() != mac.String() ||
		got.Dst.String() != port.MAC.String() {
		t.Errorf("echo reply %+v", got)
	}
}

// ask sends the request every second until it is answered: an interface drops what it is given
// between the time it is set up and the time its kernel has noticed the cable, which no call of
// ours can wait for.
func ask(t *testing.T, port *lab.Port, request []byte, answers func(Frame) bool) Frame {
	t.Helper()
	buf := make([]byte, 2048)
	for range 30 {
		if err := port.Send(request); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Second); ; {
			frame, err := port.Recv(buf, deadline)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := ParseFrame(frame); answers(s) {
				return s
			}
		}
	}
	t.Fatal("nobody answered 30 requests in 30 s")
	return Frame{}
}

func FuzzParseFrame(f *testing.F) {
	a, b := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	f.Add(EchoFrame(a, b, x, y, 1, 2))
	f.Add(ARPFrame(a, x, y))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if s := ParseFrame(frame); s.EchoReply && s.EchoRequest {
			t.Errorf("both request and reply: %+v", s)
		}
	})
}
