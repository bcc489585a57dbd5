package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/failover"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// removable is a stack on a software NIC at one end of a cable, whose other end is a kernel's. The
// NIC can be removed, and the interface that it is on is there all the time.
type removable struct {
	stack *stack.Stack
	nic   *simnic.NIC
	nets  [2]*lab.Net // ours, and the other end's
	peer  *lab.Net
}

const removableAddress = "10.9.0.1"

func newRemovable(t *testing.T, change func(*stack.Config), mac ...net.HardwareAddr) *removable {
	t.Helper()
	need.NetNS(t)
	netpair.CheckLeaks(t)
	var nets [2]*lab.Net
	for i := range nets {
		n, err := lab.New("failover test")
		must(t, err)
		t.Cleanup(func() { n.Close() })
		nets[i] = n
	}
	must(t, lab.Cable(nets[0], "eth0", nets[1], "eth0"))
	var ours lab.Setup
	if len(mac) > 0 {
		ours.MAC = mac[0] // of eth0
	}
	for i, setup := range []lab.Setup{ours, {Addresses: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.2/24")}}} {
		must(t, nets[i].Do(func() error { return lab.Up("eth0", setup) }))
	}
	r := &removable{nic: card(t, "sim_a", 1), nets: nets, peer: nets[1]}
	cfg := onCard(r.nic, 2, removableAddress+"/24")
	quick(&cfg)
	if change != nil {
		change(&cfg)
	}
	must(t, nets[0].Do(func() (err error) {
		w, err := wire.OpenPacket("eth0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { w.Close() })
		if err := r.nic.ConnectWire(w); err != nil {
			return err
		}
		r.stack, err = stack.Open(context.Background(), cfg)
		return err
	}))
	t.Cleanup(func() { must(t, r.stack.Close()) })
	return r
}

// await waits until the link is in a state on a backend.
func (r *removable) await(t *testing.T, what string, ok func(failover.Status) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(r.stack.LinkStatus()); {
		if time.Now().After(deadline) {
			t.Fatalf("not %s: %+v", what, r.stack.LinkStatus())
		}
		time.Sleep(time.Millisecond)
	}
}

// remove removes the NIC, and returns once its objects are gone, too.
func (r *removable) remove(t *testing.T, on rdma.BackendKind) {
	t.Helper()
	refused := r.stack.LinkStatus().Refused
	r.nic.FailDevice()
	r.await(t, "on "+on.String(), func(s failover.Status) bool { return s.Backend == on })
	r.await(t, "closed", func(s failover.Status) bool { return s.Refused > refused })
}

// back returns the NIC, and how long it took to be at work.
func (r *removable) back(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	r.nic.RestoreDevice()
	r.await(t, "back", func(s failover.Status) bool { return s.State == failover.Up })
	return time.Since(began)
}

// dial connects from the kernel at the other end.
func (r *removable) dial(t *testing.T, port int) net.Conn {
	t.Helper()
	c, err := r.peer.DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", removableAddress, port))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// bulk sends pattern over c again and again until stop, and compares what comes back.
func bulk(c net.Conn, stop *atomic.Bool) error {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	got := make([]byte, len(sent))
	for !stop.Load() {
		wrote := background(func() error { _, err := c.Write(sent); return err })
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if err := <-wrote; err != nil {
			return err
		}
		if !bytes.Equal(got, sent) {
			return errors.New("not what was sent")
		}
	}
	return nil
}

// TestRemovedUnderTraffic removes the device under 8 bulk transfers and 64 HTTP clients, which are
// the kernel's, and returns it: no connection is lost, and frames go through packet sockets and
// then from rings. How long each part takes is printed. Recover stands for the kernel's word that
// the device is back, which there is none of for the software NIC.
func TestRemovedUnderTraffic(t *testing.T) {
	r := newRemovable(t, func(c *stack.Config) { c.Uplink.Fallback = "eth0" })
	serveEcho(t, r.stack, 7)
	l, err := r.stack.Listen("tcp", ":80")
	must(t, err)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(bytes.Repeat([]byte("x"), 4096))
	})}
	go web.Serve(l)
	t.Cleanup(func() { web.Close() })

	var stop atomic.Bool
	var wg, first sync.WaitGroup
	var lost, requests atomic.Int64
	for range 8 {
		c := r.dial(t, 7)
		wg.Go(func() {
			if err := bulk(c, &stop); err != nil {
				t.Errorf("bulk: %v", err)
			}
		})
	}
	for range 64 {
		client := &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := r.peer.DialContext(ctx, network, address)
				return &keptConn{Conn: c, lost: &lost}, err
			}}}
		served := sync.OnceFunc(first.Done)
		first.Add(1)
		wg.Go(func() {
			defer client.CloseIdleConnections()
			defer served()
			for !stop.Load() {
				if err := get(client, "http://"+removableAddress); err != nil {
					t.Errorf("HTTP: %v", err)
					return
				}
				requests.Add(1)
				served()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	first.Wait() // for the first answer to each client
	for cycle := range 3 {
		before := requests.Load()
		r.progress(t, &requests, before+64)
		frames := r.stack.LinkStats().Packet.TxFrames
		began := time.Now()
		r.nic.FailDevice()
		for r.stack.LinkStats().Packet.TxFrames == frames {
			if time.Since(began) > 30*time.Second {
				t.Fatal("no frame through packet sockets")
			}
			runtime.Gosched()
		}
		sent := time.Since(began)
		r.progress(t, &requests, requests.Load()+64)
		refused := r.stack.LinkStatus().Refused
		r.await(t, "closed", func(s failover.Status) bool { return s.Refused > refused })
		began = time.Now()
		r.nic.RestoreDevice()
		r.stack.Recover()
		r.await(t, "back", func(s failover.Status) bool { return s.State == failover.Up })
		s := r.stack.LinkStatus()
		t.Logf("cycle %d: the first frame through packet sockets after %v (sending %v after it "+
			"was known, receiving %v); from rings %v after the return, opening %v: %v", cycle, sent,
			s.FallbackTook, s.ReceiveTook, time.Since(began), s.OpenTook,
			r.stack.Device().Opening().LogValue())
		r.progress(t, &requests, requests.Load()+64)
	}
	stop.Store(true)
	wg.Wait()
	s := r.stack.LinkStatus()
	if lost.Load() != 0 || s.Losses != 3 || s.Returns != 3 {
		t.Errorf("%d connections of 64 clients were lost, %+v", lost.Load(), s)
	}
	if st := r.stack.LinkStats(); st.None.TxFrames != 0 || st.Packet.RxPackets == 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d requests", requests.Load())
}

// keptConn is a client's connection, which only the client may end. On a busy machine it does:
// where its writing goroutine has not run 50 ms after the answer (maxWriteWaitBeforeConnReuse of
// net/http).
type keptConn struct {
	net.Conn
	closed atomic.Bool
	lost   *atomic.Int64
}

func (c *keptConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *keptConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !c.closed.Load() {
		c.lost.Add(1)
	}
	return n, err
}

// progress waits until n requests were answered.
func (r *removable) progress(t *testing.T, requests *atomic.Int64, n int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); requests.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) || t.Failed() {
			t.Fatalf("%d requests, want %d: %+v, %+v", requests.Load(), n, r.stack.LinkStatus(),
				r.stack.LinkStats())
		}
	}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && n != 4096 {
		err = fmt.Errorf("%d bytes", n)
	}
	return err
}

// serveEcho echoes what connections to a port send.
func serveEcho(t *testing.T, s *stack.Stack, port int) {
	t.Helper()
	l, err := s.ListenTCP("tcp", &net.TCPAddr{Port: port})
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
}

// TestNetdevMACTaken gives the netdev, whose MAC the stack has, one that another process has:
// health and the log say so, and once that process has ended it is followed. Connections go on.
func TestNetdevMACTaken(t *testing.T) {
	mine := net.HardwareAddr{2, 0, 0, 0, 0x53, 1}
	first, second := net.HardwareAddr{2, 0, 0, 0, 0x53, 2}, net.HardwareAddr{2, 0, 0, 0, 0x53, 3}
	need.NetNS(t)
	var setMAC func(net.HardwareAddr)
	r := newRemovable(t, func(c *stack.Config) {
		c.NIC.Steering.AllowNetdevMAC, c.NIC.MAC = true, mine
		c.NIC.Model.Facts.MAC, c.NIC.Model.Facts.Netdev = mine, "eth0"
		c.HealthChanged = nil
	}, mine)
	setMAC = func(mac net.HardwareAddr) {
		must(t, r.nets[0].Do(func() error { return lab.Up("eth0", lab.Setup{MAC: mac}) }))
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(hangs); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not %s: MAC %v, %+v", what, r.stack.HardwareAddr(), r.stack.Health())
			}
		}
	}
	is := func(mac net.HardwareAddr) func() bool {
		return func() bool { return bytes.Equal(r.stack.HardwareAddr(), mac) }
	}
	serveEcho(t, r.stack, 7)
	var stop atomic.Bool
	c := r.dial(t, 7)
	done := background(func() error { return bulk(c, &stop) })
	setMAC(first)
	until("followed", is(first))
	other, err := dv.Open(t.Context(), dv.Config{NIC: dv.NIC{
		MAC: second,
		Model: dv.Model{
			Kernel: kernel.Opener(r.nic),
			Facts:  dv.PortFacts{Name: "other", MAC: mine, MTU: r.nic.MTU()},
		},
	}})
	must(t, err)
	setMAC(second)
	until("in error", func() bool {
		h := r.stack.Health()
		i := slices.IndexFunc(h, func(h stack.Health) bool { return h.Reporter == "link" })
		return h[i].State == stack.InError && errors.Is(h[i].Reason, dv.ErrMAC)
	})
	if !is(first)() {
		t.Errorf("MAC %v", r.stack.HardwareAddr())
	}
	must(t, other.Close())
	until("followed", is(second))
	until("healthy", func() bool {
		return !slices.ContainsFunc(r.stack.Health(), func(h stack.Health) bool {
			return h.State != stack.Healthy
		})
	})
	if n := r.stack.Stats().HardwareAddrChanges; n != 2 {
		t.Errorf("%d changes", n)
	}
	c2 := r.dial(t, 7) // a connection of later
	stop.Store(true)
	must(t, result(t, "bulk", done))
	must(t, c2.Close())
}
