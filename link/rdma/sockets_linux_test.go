package rdma

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/link/packet"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// overPort is a stack on packet sockets of one end of a veth pair, and the namespace of the other
// end, whose kernel is the peer.
func overPort(t testing.TB, cfg packet.Config, opts Options) (*host, *lab.Net, *packet.Port) {
	t.Helper()
	need.NetNS(t)
	checkGoroutines(t)
	var nets [2]*lab.Net
	for i := range nets {
		n, err := lab.New("packet test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nets[i] = n
	}
	if err := lab.Cable(nets[0], "eth0", nets[1], "eth0"); err != nil {
		t.Fatal(err)
	}
	h := &host{v4: netip.MustParseAddr("10.9.0.1"), v6: netip.MustParseAddr("fd00::1")}
	var port *packet.Port
	for i, addresses := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.9.0.2/24"),
		netip.MustParsePrefix("fd00::2/24")}} {
		if err := nets[i].Do(func() error {
			return lab.Up("eth0", lab.Setup{Addresses: addresses})
		}); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Device, cfg.MAC = "eth0", net.HardwareAddr{2, 0, 0, 0, 0, 1}
	if err := nets[0].Do(func() (err error) {
		port, err = packet.Open(cfg)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := port.Close(); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.After(20 * time.Second); !port.LinkUp(); {
		select {
		case <-port.LinkChanged():
		case <-deadline:
			t.Fatal("no carrier")
		}
	}
	h.backend, h.netns = sockets{Interface: port}, nets[0]
	h.open(t, setup{opts: opts})
	return h, nets[1], port
}

// dialIn dials from the peer's kernel.
func dialIn(t testing.TB, n *lab.Net, network string, a netip.AddrPort) net.Conn {
	t.Helper()
	conn, err := n.DialContext(t.Context(), network, a.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestOverPort exchanges 8 MiB with a kernel in each direction, in both IP versions: segments
// arrive merged and leave unsegmented, without checksums.
func TestOverPort(t *testing.T) {
	for _, tt := range []struct {
		name   string
		queues int
		v6     bool
	}{{"v4", 1, false}, {"v6", 1, true}, {"v4 on 4 queues", 4, false}} {
		t.Run(tt.name, func(t *testing.T) {
			h, peer, port := overPort(t, packet.Config{Queues: tt.queues}, Options{})
			at := h.v4
			if tt.v6 {
				at = h.v6
			}
			go echo(h.listen(t, at, 80))
			sent := bytes.Repeat([]byte("0123456789abcdef"), 512<<10)
			conn := dialIn(t, peer, "tcp", netip.AddrPortFrom(at, 80))
			go conn.Write(sent)
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("not what was sent (%v)", err)
			}
			var rx, tx uint64
			st := port.Stats()
			for i := range st.Rx {
				rx, tx = rx+st.Rx[i].Merged, tx+st.Tx[i].GSO
			}
			if e := h.ep.Stats(); rx == 0 || tx == 0 || e.TxLSO == 0 || e.RxBadChecksum != 0 {
				t.Errorf("%d merged, %d to be cut up, %+v", rx, tx, e)
			}
		})
	}
}

// TestOverPortInterfaceDeleted removes the interface during a transfer: the workers end by
// themselves.
func TestOverPortInterfaceDeleted(t *testing.T) {
	h, peer, port := overPort(t, packet.Config{Queues: 2}, Options{})
	go echo(h.listen(t, h.v4, 80))
	conn := dialIn(t, peer, "tcp", netip.AddrPortFrom(h.v4, 80))
	go io.Copy(conn, endless{})
	if _, err := io.CopyN(io.Discard, conn, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := peer.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}); err != nil {
		t.Fatal(err)
	}
	<-port.Done()
	h.ep.mu.Lock()
	g := h.ep.workers
	h.ep.mu.Unlock()
	g.running.Wait()
}

// endless never ends.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestOverPortDatagrams answers datagrams on the fast path, where the peer's are cut from one
// (UDP_SEGMENT), and requires that none is lost and none has a wrong checksum.
func TestOverPortDatagrams(t *testing.T) {
	h, peer, _ := overPort(t, packet.Config{}, Options{})
	h.ep.SetLocalAddresses([]netip.Prefix{netip.PrefixFrom(h.v4, 24), netip.PrefixFrom(h.v6, 64)})
	for _, at := range []netip.Addr{h.v4, h.v6} {
		server := h.udp(t, netip.AddrPortFrom(at, 53), netip.AddrPort{})
		go func() {
			buf := make([]byte, 2000)
			for {
				n, from, err := server.ReadFrom(buf)
				if err != nil {
					return
				}
				server.WriteTo(buf[:n], from)
			}
		}()
		conn := dialIn(t, peer, "udp", netip.AddrPortFrom(at, 53)).(*net.UDPConn)
		raw, err := conn.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1000)
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789"), 2050)
		if _, err := conn.Write(sent); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for len(got) < len(sent) {
			buf := make([]byte, 2000)
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatalf("%v: %d bytes of %d: %v, %+v", at, len(got), len(sent), err, h.ep.Stats())
			}
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("%v: not what was sent", at)
		}
	}
	if s := h.ep.Stats(); s.RxFastPath == 0 || s.RxBadChecksum != 0 {
		t.Errorf("%+v", s)
	}
}

// TestOverPortCutDatagrams sends many datagrams to a kernel by one call: as one frame that the
// kernel below the sockets cuts up.
func TestOverPortCutDatagrams(t *testing.T) {
	h, peer, port := overPort(t, packet.Config{}, Options{})
	for _, at := range []string{"10.9.0.2:53", "[fd00::2]:53"} {
		to := netip.MustParseAddrPort(at)
		conn, err := peer.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := h.udp(t, netip.AddrPort{}, to) // resolves the neighbour
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		buf := make([]byte, 2000)
		if _, _, err := conn.ReadFrom(buf); err != nil {
			t.Fatal(err)
		}
		var mac tcpip.LinkAddress
		if err := peer.Do(func() error {
			ifi, err := net.InterfaceByName("eth0")
			if err == nil {
				mac = tcpip.LinkAddress(ifi.HardwareAddr)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		payload := patternOf(20001)
		d := Datagram{Headers: datagramTo(h, mac, to.Addr(), len(payload)), Payload: payload,
			Segment: 1000}
		before := port.Stats().Tx[0].GSO
		if n, terr := h.ep.WriteDatagrams([]Datagram{d}); n != 1 || terr != nil {
			t.Fatal(terr)
		}
		var got []byte
		for len(got) < len(payload) {
			n, _, err := conn.ReadFrom(buf)
			if err != nil || n != min(1000, len(payload)-len(got)) {
				t.Fatalf("%v: %d bytes behind %d, %v", at, n, len(got), err)
			}
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, payload) {
			t.Errorf("%v: not what was sent", at)
		}
		if n := port.Stats().Tx[0].GSO - before; port.Tx(0).MaxDatagrams() > 0 && n != 1 {
			t.Errorf("%v: %d frames for the kernel to cut up", at, n)
		}
	}
}
