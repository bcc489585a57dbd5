package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"golang.org/x/sys/unix"
)

// netns is a network namespace of its own, entered by a thread that runs what
// it is told and dies with the test.
type netns struct {
	t    testing.TB
	work chan func()
}

func newNetNS(t testing.TB) *netns {
	t.Helper()
	need.NetNS(t)
	ns := &netns{t, make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range ns.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("new network namespace: %v", err)
	}
	t.Cleanup(func() { close(ns.work) })
	return ns
}

// do runs f on the namespace's thread and waits for it.
func (ns *netns) do(f func()) {
	done := make(chan struct{})
	ns.work <- func() { defer close(done); f() }
	<-done
}

// ip runs the ip command inside.
func (ns *netns) ip(args string) {
	ns.t.Helper()
	tool := need.Tool(ns.t, "ip")
	var out []byte
	var err error
	ns.do(func() { out, err = exec.Command(tool, strings.Fields(args)...).CombinedOutput() })
	if err != nil {
		ns.t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// tid is a path to the namespace.
func (ns *netns) pid() string {
	var tid int
	ns.do(func() { tid = unix.Gettid() })
	return fmt.Sprint(tid)
}

func (ns *netns) openTAP(name string) *TAP {
	ns.t.Helper()
	var tap *TAP
	var err error
	ns.do(func() { tap, err = OpenTAP(name) })
	if err != nil {
		ns.t.Fatal(err)
	}
	ns.t.Cleanup(func() { _ = tap.Close() })
	return tap
}

func (ns *netns) openPacket(name string) *Packet {
	ns.t.Helper()
	var p *Packet
	var err error
	ns.do(func() { p, err = OpenPacket(name) })
	if err != nil {
		ns.t.Fatal(err)
	}
	ns.t.Cleanup(func() { _ = p.Close() })
	return p
}

// up gives the interface an address and raises it, without what IPv6 sends by itself.
func (ns *netns) up(name, addr string) {
	ns.t.Helper()
	ns.ip("link set " + name + " addrgenmode none")
	if addr != "" {
		ns.ip("addr add " + addr + " dev " + name)
	}
	ns.ip("link set " + name + " up")
}

// awaitRunning waits for the kernel to have noticed a change of the carrier, for
// which it takes up to a second. Until then it drops what is sent.
func (ns *netns) awaitRunning(name string, want bool) {
	for running := !want; running != want; runtime.Gosched() {
		ns.do(func() {
			i, err := net.InterfaceByName(name)
			if err != nil {
				ns.t.Fatal(err)
			}
			running = i.Flags&net.FlagRunning != 0
		})
	}
}

// bridge connects two wires and counts what passes unsegmented.
func bridge(t *testing.T, a, b Wire) (unsegmented, partial *atomic.Int64) {
	t.Helper()
	unsegmented, partial = new(atomic.Int64), new(atomic.Int64)
	pass := func(to Wire) func([]frame.Frame) {
		return func(frames []frame.Frame) {
			for _, f := range frames {
				if f.GSO != frame.GSONone {
					unsegmented.Add(1)
				}
				if f.NeedsCsum {
					partial.Add(1)
				}
			}
			_, _ = to.Send(frames)
		}
	}
	if err := errors.Join(a.Start(pass(b)), b.Start(pass(a))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return unsegmented, partial
}

// tcpStream moves n bytes from a client in one namespace to a server in the
// other and back, over the kernels' TCP, and compares them.
func tcpStream(t *testing.T, server, client *netns, addr string, n int) {
	t.Helper()
	var l net.Listener
	var err error
	server.do(func() { l, err = net.Listen("tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var echo sync.WaitGroup
	echo.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	var c net.Conn
	client.do(func() { c, err = net.DialTimeout("tcp", addr, 10*time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 31 >> 3)
	}
	echo.Go(func() {
		_, _ = c.Write(data)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(data), err)
	}
	echo.Wait()
}

func TestTAPLifetime(t *testing.T) {
	need.TUN(t)
	ns := newNetNS(t)
	tap := ns.openTAP("simtap0")
	if tap.Name() != "simtap0" {
		t.Errorf("name is %q", tap.Name())
	}
	const want = frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6
	if o := tap.Offloads(); o&want != want {
		t.Errorf("takes %v", o)
	}
	if n, err := tap.Send([]frame.Frame{numbered(0)}); n != 0 || !errors.Is(err, unix.EIO) {
		t.Errorf("send while the interface is down: %d, %v", n, err)
	}
	ns.do(func() {
		if _, err := OpenTAP("simtap0"); !errors.Is(err, unix.EBUSY) {
			t.Errorf("a second open: %v", err)
		}
		if _, err := OpenTAP("a-name-of-far-too-many-characters"); err == nil {
			t.Error("a name of 33 characters was taken")
		}
	})
	if err := tap.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	if err := tap.Start(func([]frame.Frame) {}); !errors.Is(err, ErrStarted) {
		t.Errorf("second start: %v", err)
	}
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() { _ = tap.Close() })
	}
	closers.Wait()
	if _, err := tap.Send([]frame.Frame{numbered(0)}); !errors.Is(err, ErrClosed) {
		t.Errorf("send after Close: %v", err)
	}
	if err := tap.Start(func([]frame.Frame) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("start after Close: %v", err)
	}
	ns.do(func() {
		if _, err := net.InterfaceByName("simtap0"); err == nil {
			t.Error("the interface outlives its wire")
		}
	})
}

func TestTAPNameByKernel(t *testing.T) {
	need.TUN(t)
	ns := newNetNS(t)
	first := ns.openTAP("sim%d")
	if first.Name() != "sim0" {
		t.Errorf("name is %q", first.Name())
	}
}

// Two kernels talk TCP through two TAPs: segmentation and checksums cross as
// metadata, both ways.
func TestTAPCarriesTCPUnsegmented(t *testing.T) {
	need.TUN(t)
	for _, addr := range []string{"10.99.0.1", "fd99::1"} {
		t.Run(addr, func(t *testing.T) {
			a, b := newNetNS(t), newNetNS(t)
			ta, tb := a.openTAP("tap0"), b.openTAP("tap0")
			unsegmented, partial := bridge(t, ta, tb)
			if strings.Contains(addr, ":") {
				a.up("tap0", addr+"/64 nodad")
				b.up("tap0", "fd99::2/64 nodad")
			} else {
				a.up("tap0", addr+"/24")
				b.up("tap0", "10.99.0.2/24")
			}
			tcpStream(t, a, b, net.JoinHostPort(addr, "8000"), 4<<20)
			if unsegmented.Load() == 0 || partial.Load() == 0 {
				t.Errorf("%d unsegmented frames, %d with a partial checksum",
					unsegmented.Load(), partial.Load())
			}
			if ta.Lost()+tb.Lost() != 0 {
				t.Errorf("%d and %d frames lost", ta.Lost(), tb.Lost())
			}
		})
	}
}

// The same through a wire that cuts every frame: the receiving kernel checks
// checksums and sequence numbers.
func TestTAPThroughCutting(t *testing.T) {
	need.TUN(t)
	for _, addr := range []string{"10.99.0.1", "fd99::1"} {
		t.Run(addr, func(t *testing.T) {
			a, b := newNetNS(t), newNetNS(t)
			faulty := WithFaults(a.openTAP("tap0"), FaultConfig{})
			bridge(t, faulty, b.openTAP("tap0"))
			if strings.Contains(addr, ":") {
				a.up("tap0", addr+"/64 nodad")
				b.up("tap0", "fd99::2/64 nodad")
			} else {
				a.up("tap0", addr+"/24")
				b.up("tap0", "10.99.0.2/24")
			}
			tcpStream(t, a, b, net.JoinHostPort(addr, "8000"), 1<<20)
			sent, received := faulty.Stats()
			if sent.Frames < 500 || received.Frames < 500 {
				t.Errorf("%d and %d frames for 1 MiB each way", sent.Frames, received.Frames)
			}
		})
	}
}

func TestTAPCarrier(t *testing.T) {
	need.TUN(t)
	ns := newNetNS(t)
	tap := ns.openTAP("tap0")
	ns.up("tap0", "")
	for _, up := range []bool{false, true} {
		if err := tap.SetCarrier(up); err != nil {
			t.Fatal(err)
		}
		ns.awaitRunning("tap0", up)
	}
}

// The interface is deleted under the wire: the reader ends, Close does not hang.
func TestTAPDeleted(t *testing.T) {
	need.TUN(t)
	ns := newNetNS(t)
	tap := ns.openTAP("tap0")
	if err := tap.Start(func([]frame.Frame) {}); err != nil {
		t.Fatal(err)
	}
	ns.ip("link del tap0")
	if n, err := tap.Send([]frame.Frame{numbered(0)}); n != 0 || err == nil {
		t.Errorf("send: %d, %v", n, err)
	}
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
}
