package stack

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestDatagramsAddUp sends more than a socket holds, to a socket whose datagrams bypass netstack
// and to others, fragmented or not, and requires each to be read or counted as dropped.
func TestDatagramsAddUp(t *testing.T) {
	need.Long(t, "counts 3000 datagrams many times, 5 s")
	const sent, buffer = 600, 64 << 10
	for _, size := range []int{10, 1400, 3000} {
		for _, c := range []struct {
			name   string
			closed bool // no fast path
			listen func(*Stack) (*UDPConn, error)
		}{
			{"direct", false, func(s *Stack) (*UDPConn,
				error) {
				return s.ListenUDP("udp4", &net.UDPAddr{Port: 53})
			}},
			{"endpoint", true, func(s *Stack) (*UDPConn,
				error) {
				return s.ListenUDP("udp4", &net.UDPAddr{Port: 53})
			}},
			{"member of a group", false, func(s *Stack) (*UDPConn, error) {
				return s.ListenMulticastUDP("udp4", nil,
					&net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 53})
			}},
		} {
			t.Run(fmt.Sprint(c.name, " ", size), func(t *testing.T) {
				r := newDirectRig(t, c.closed)
				to, err := c.listen(r.receiver)
				must(t, err)
				must(t, to.SetReadBuffer(buffer))
				from, err := r.sender.ListenUDP("udp4", nil)
				must(t, err)
				at := netip.MustParseAddrPort("192.0.2.2:53")
				send(t, from, to, at, []byte("resolved"))
				arrived := func() uint64 { return r.receiver.Stats().UDPReceived }
				before := r.receiver.Stats()
				for i := range uint64(sent) {
					if c.name != "direct" && i%2 == 1 && to.forGroup {
						_, err = from.WriteToUDPAddrPort(make([]byte, size),
							netip.MustParseAddrPort("224.0.0.251:53"))
					} else {
						_, err = from.WriteToUDPAddrPort(make([]byte, size), at)
					}
					must(t, err)
					// so that the ring loses none
					end := time.Now().Add(time.Minute)
					for ; arrived() != before.UDPReceived+i+1; time.Sleep(time.Millisecond / 8) {
						if time.Now().After(end) {
							t.Fatalf("%d of %d arrived", arrived()-before.UDPReceived, i+1)
						}
					}
				}
				dropped := r.receiver.Stats().UDPReceiveBufferErr - before.UDPReceiveBufferErr
				must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
				for range sent - dropped {
					n, _, err := to.ReadFromUDPAddrPort(make([]byte, 1<<12))
					if err != nil || n != size {
						t.Fatalf("read %d bytes, %v; %d of %d are counted as dropped", n, err,
							dropped, sent)
					}
				}
				must(t, to.SetReadDeadline(time.Unix(1, 0)))
				if n, terr := to.rxq.dequeue(make([]byte, 8)); terr == nil {
					t.Errorf("%d datagrams dropped, %d read, and one more: %+v", dropped,
						sent-dropped, n)
				}
				if dropped == 0 && size > 1000 {
					t.Error("nothing was dropped: this shows nothing")
				}
			})
		}
	}
}

// TestGroupsOnTheNIC: multicast frames that the device copies to us reach the members, in the order
// in which they were sent, mixed with unicast; and a socket receives nothing of a group that the
// stack is not in.
func TestGroupsOnTheNIC(t *testing.T) {
	for _, group := range []netip.Addr{netip.MustParseAddr("224.0.0.251"),
		netip.MustParseAddr("ff05::fb")} {
		for _, closed := range []bool{false, true} {
			r := newDirectRig(t, closed)
			network, host := "udp4", netip.MustParseAddrPort("192.0.2.2:53")
			if group.Is6() {
				network, host = "udp6", netip.MustParseAddrPort("[2001:db8::2]:53")
			}
			from, err := r.sender.ListenUDP(network, nil)
			must(t, err)
			to, err := r.receiver.ListenUDP(network, &net.UDPAddr{Port: 53})
			must(t, err)
			send(t, from, to, host, []byte("resolved"))
			all := netip.AddrPortFrom(group, 53)
			for _, in := range []bool{false, true, false} {
				if in {
					must(t, to.JoinGroup(nil, net.UDPAddrFromAddrPort(all)))
				}
				want := ""
				for i := range 201 { // the last one is for the host: all before it have been seen
					at := host
					if i%3 == 1 {
						at = all
					}
					b := fmt.Append(nil, i)
					if in || at == host {
						want += string(b) + " "
					}
					_, err := from.WriteToUDPAddrPort(b, at)
					must(t, err)
				}
				got := ""
				must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
				for b := make([]byte, 8); len(got) < len(want); {
					n, _, err := to.ReadFromUDPAddrPort(b)
					if err != nil {
						t.Fatalf("%v closed %t, member %t: %v after %q",
							group, closed, in, err, got)
					}
					got += string(b[:n]) + " "
				}
				if got != want {
					t.Errorf("%v closed %t, member %t: read %q\nsent %q",
						group, closed, in, got, want)
				}
				if in {
					must(t, to.LeaveGroup(nil, net.UDPAddrFromAddrPort(all)))
				}
			}
		}
	}
}
