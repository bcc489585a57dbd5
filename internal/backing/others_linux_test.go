package backing

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// TestPassAllBut has another program accept who comes by the device, but for the ends that stay the
// other stack's: these get no answer until they are no longer listed.
func TestPassAllBut(t *testing.T) {
	for host, peer := range map[string]string{"192.0.2.1": "192.0.2.2", "fd00:2::1": "fd00:2::2"} {
		for _, n := range []int{1, leaf + 1, MaxOthers} {
			t.Run(fmt.Sprint(host, " without ", n), func(t *testing.T) {
				onBoth(t, func(t *testing.T, w *world) {
					testPassAllBut(t, w, netip.MustParseAddr(host), netip.MustParseAddr(peer), n)
				})
			})
		}
	}
}

func testPassAllBut(t *testing.T, w *world, host, peer netip.Addr, n int) {
	for addr, n := range map[netip.Addr]*lab.Net{host: w.host, peer: w.peer} {
		if addr.Is6() {
			must(t, n.Do(func() error {
				return lab.Up("eth0", lab.Setup{Addresses: []netip.Prefix{
					netip.PrefixFrom(addr, 64)}})
			}))
		}
	}
	w.at = host
	s := w.open(t, TCP, 8080)
	l, err := s.Listener(64)
	must(t, err)
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go io.Copy(c, c)
		}
	}()
	all := ends(peer, n)
	must(t, s.PassAllBut(all))
	var clients []net.Conn
	for i := range 12 {
		listed := all[i*len(all)/12/2*2]
		if c, err := dialFrom(w.peer, listed, host, moment/10); !isTimeout(err) {
			t.Errorf("from %v, which is listed: %v, %v", listed, c, err)
		}
		c, err := dialFrom(w.peer, netip.AddrPortFrom(peer, uint16(40000+i)), host, patience)
		must(t, err)
		defer c.Close()
		clients = append(clients, c)
	}
	must(t, s.Silence()) // does nothing
	must(t, s.Refuse())  // likewise
	w.filters.SetDevice(w.device)
	must(t, s.FollowDevice())
	must(t, s.PassAllBut(nil))
	must(t, s.PassAllBut(nil))
	c, err := dialFrom(w.peer, all[0], host, patience)
	must(t, err)
	defer c.Close()
	for _, c := range append(clients, c) {
		_, err := c.Write([]byte("hello"))
		must(t, err)
		_, err = io.ReadFull(c, make([]byte, 5))
		must(t, err)
	}
	if err := s.PassAllBut(ends(peer, MaxOthers+1)); err == nil {
		t.Error("more ends than there can be")
	}
}

// ends are n remote ends: every second one, from the first on, is the peer's.
func ends(peer netip.Addr, n int) (all []netip.AddrPort) {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range n {
		b, port := peer.AsSlice(), uint16(20000+i)
		if i%2 == 1 {
			b[len(b)-1], port = byte(random.Uint32())|3, uint16(random.Uint32())
		}
		a, _ := netip.AddrFromSlice(b)
		all = append(all, netip.AddrPortFrom(a, port))
	}
	return all
}

// dialFrom connects to port 8080 of a host.
func dialFrom(n *lab.Net, from netip.AddrPort, to netip.Addr,
	limit time.Duration) (c net.Conn, err error) {
	err = n.Do(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: limit}
		c, err = d.Dial("tcp", netip.AddrPortFrom(to, 8080).String())
		return err
	})
	return c, err
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
