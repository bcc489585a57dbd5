package stack_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// mtuOption is the option of a router's advertisement (RFC 4861 section 4.6.4).
func mtuOption(mtu uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{5, 1, 0, 0}, mtu)
}

// routeMTUs are the longest packets to hosts on the link.
func routeMTUs(t *testing.T, s *stack.Stack) (v4, v6 int) {
	t.Helper()
	mtu := func(to tcpip.Address, protocol tcpip.NetworkProtocolNumber, header int) int {
		r, err := s.Netstack().FindRoute(1, tcpip.Address{}, to, protocol, false)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		return int(r.MTU()) + header
	}
	v4 = mtu(tcpip.AddrFrom4([4]byte{224, 0, 0, 9}), header.IPv4ProtocolNumber,
		header.IPv4MinimumSize)
	v6 = mtu(tcpip.AddrFrom16([16]byte{0: 0xff, 1: 2, 15: 9}), header.IPv6ProtocolNumber,
		header.IPv6MinimumSize)
	return v4, v6
}

// TestAdvertisedMTU: what Linux takes of router advertisements (net/ipv6/ndisc.c
// ndisc_router_discovery): 1280 to the link's 1500, for IPv6 only; a datagram is cut accordingly.
func TestAdvertisedMTU(t *testing.T) {
	s, st := onStation(t, stack.Config{Addressing: stack.AddressOptions{
		DuplicateDetection: -1,
		Timeout:            time.Millisecond,
	}, Dynamic: stack.SLAAC,
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
	for i, c := range []struct{ told, want int }{
		{1279, 1500}, {1280, 1280}, {1400, 1400}, {1501, 1400}, {0, 1400}, {1 << 31, 1400},
		{1500, 1500}, {1300, 1300},
	} {
		mark := fmt.Sprintf("fe80::%x", i+2)
		st.send(advertised("fe80::1", mtuOption(uint32(c.told)), resolvers(600, mark)))
		eventually(t, "the advertisement taken", func() bool {
			return slices.ContainsFunc(s.Servers(), func(a netip.Addr) bool {
				return a.WithZone("") == netip.MustParseAddr(mark)
			})
		})
		ok := func() bool {
			v4, v6 := routeMTUs(t, s)
			return v4 == 1500 && v6 == c.want
		}
		eventually(t, fmt.Sprint("IPv6's MTU is ", c.want), ok)
	}
	if s.MTU() != 1500 {
		t.Errorf("the link's MTU is %d", s.MTU())
	}
	c, err := s.ListenPacket("udp6", "[::]:0")
	must(t, err)
	defer c.Close()
	_, err = c.WriteTo(make([]byte, 1400),
		net.UDPAddrFromAddrPort(netip.MustParseAddrPort("[ff02::9]:9")))
	must(t, err)
	const fragment = 44
	eventually(t, "two fragments", func() bool {
		return st.count([]byte{0x33, 0x33, 0, 0, 0, 9}, func(f []byte) bool {
			return f[20] == fragment && len(f) <= 14+1300
		}) == 2
	})
}

// TestLeasedMTU: option 26 as dhclient takes it: 576 and less are an error of the server's, and the
// link's is the most. IPv6 keeps 1280.
func TestLeasedMTU(t *testing.T) {
	d, client := leased(t, 2*time.Second)
	for _, c := range []struct {
		told         uint16
		mtu, v6      int
		refusedAfter bool
	}{
		{0, 1500, 1500, false}, {1400, 1400, 1400, false}, {577, 577, 1280, false},
		{9000, 1500, 1500, false}, {1300, 1300, 1300, false}, {576, 1500, 1500, true},
		{68, 1500, 1500, true},
	} {
		before, refused := d.acks.Load(), client.Stats().DHCPRefused
		d.mtu.Store(uint32(c.told))
		eventually(t, "two renewals", func() bool { return d.acks.Load() >= before+2 })
		var v4, v6 int
		eventually(t, "the MTU", func() bool {
			v4, v6 = routeMTUs(t, client)
			return v4 == c.mtu && v6 == c.v6 && client.MTU() == c.mtu
		})
		if got := client.Stats().DHCPRefused > refused; got != c.refusedAfter {
			t.Errorf("an MTU of %d is refused: %v", c.told, got)
		}
	}
}
