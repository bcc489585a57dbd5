package stack_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/netpair"
)

// overheard is a wire that records the frames sent on it.
type overheard struct {
	wire.Wire
	mu     sync.Mutex
	frames [][]byte // guarded by mu
}

func (w *overheard) Send(frames []frame.Frame) (int, error) {
	w.mu.Lock()
	for _, f := range frames {
		w.frames = append(w.frames, bytes.Clone(f.Data))
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

func (w *overheard) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames = nil
}

// heard reports whether a frame begins with head and ends with tail.
func (w *overheard) heard(head, tail []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.frames, func(f []byte) bool {
		return bytes.HasPrefix(f, head) &&
			bytes.HasSuffix(f, tail)
	})
}

// onWire opens a stack on a software NIC; other is the far end of its wire.
func onWire(t *testing.T, cfg stack.Config, other func(far wire.Wire)) (*stack.Stack,
	*simnic.NIC, *overheard) {
	t.Helper()
	netpair.CheckLeaks(t)
	n := cardWith(t, simnic.Config{Name: "sim_a", Seed: 1, Clock: cfg.Clock})
	near, far := wire.Pair()
	wire := &overheard{Wire: near}
	must(t, n.ConnectWire(wire))
	other(far)
	cfg.NIC, cfg.Addressing.DuplicateDetection = onCard(n, 1).NIC, -1
	s, err := stack.Open(context.Background(), cfg)
	need.That(t, "simnic", onlyUnsupported(err))
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, n, wire
}

// flap takes the link down, checks what the stack reports, and restores the link.
func flap(t *testing.T, s *stack.Stack, n *simnic.NIC, w *overheard) {
	t.Helper()
	n.SetLink(false)
	eventually(t, "the link down", func() bool { // and told, so that up is a change of its own
		st := s.Stats()
		return !st.LinkUp && st.LinkChanges == 1
	})
	w.forget()
	n.SetLink(true)
	eventually(t, "the link up", func() bool {
		st := s.Stats()
		return st.LinkUp &&
			st.LinkChanges == 2
	})
}

// TestLinkComesBack: after the link is restored, neighbours and switches get announcements again,
// and routers a solicitation.
func TestLinkComesBack(t *testing.T) {
	nobody := func(far wire.Wire) { must(t, far.Start(func([]frame.Frame) {})) }
	addresses := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"),
		netip.MustParsePrefix("2001:db8::1/64")}
	s, n, w := onWire(t, stack.Config{Addresses: addresses, Dynamic: stack.SLAAC,
		Addressing: stack.AddressOptions{Timeout: time.Millisecond}}, nobody)
	if st := s.Stats(); !st.LinkUp || st.LinkChanges != 0 {
		t.Fatalf("up %v, %d changes at start", st.LinkUp, st.LinkChanges)
	}
	flap(t, s, n, w)

	mac, own6 := s.HardwareAddr(), netip.MustParseAddr("2001:db8::1").AsSlice()
	ours := s.Addrs()
	linkLocal := ours[slices.IndexFunc(ours,
		func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })].Addr().AsSlice()
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	everybody := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for _, c := range []struct {
		name       string
		head, tail []byte
	}{
		{"gratuitous ARP",
			join(everybody, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac, []byte{192, 0, 2, 1},
				make([]byte, 6), []byte{192, 0, 2, 1}), nil},
		{"unsolicited neighbour advertisement, override flag set",
			join([]byte{0x33, 0x33, 0, 0, 0, 1}, mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58,
				255}, own6, netip.MustParseAddr("ff02::1").AsSlice(), []byte{136, 0}),
			join([]byte{0x20, 0, 0, 0}, own6, []byte{2, 1}, mac)},
		{"router solicitation",
			join([]byte{0x33, 0x33, 0, 0, 0, 2}, mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 58,
				255}, linkLocal, netip.MustParseAddr("ff02::2").AsSlice(), []byte{133, 0}),
			join([]byte{0, 0, 0, 0, 1, 1}, mac)},
	} {
		eventually(t, c.name, func() bool { return w.heard(c.head, c.tail) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.frames {
		if len(f) > 54 && f[12] == 0x86 && f[20] == 58 && sum16(icmpWithPseudo(f)) != 0xffff {
			t.Errorf("bad checksum: % x", f)
		}
	}
}

// TestNeighbourMovedUnheard: a neighbour that has got another hardware address while our link was
// down is found there once the link is up, although its announcement was not heard.
func TestNeighbourMovedUnheard(t *testing.T) {
	for _, host := range []string{"192.0.2.9", "2001:db8::9"} {
		t.Run(host, func(t *testing.T) {
			var at atomic.Pointer[[]byte]
			at.Store(&macOther)
			s, n, w := onWire(t, stack.Config{Addresses: []netip.Prefix{
				netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
				func(far wire.Wire) {
					must(t, far.Start(func(frames []frame.Frame) {
						for _, f := range frames {
							if a, ok := asked(f.Data); ok && a.String() == host {
								answer := answerFrom(*at.Load(), a)
								copy(answer, f.Data[6:12]) // to whom has asked
								_, _ = far.Send([]frame.Frame{{Data: answer}})
							}
						}
					}))
				})
			to := func(port uint16) (mac []byte) {
				out, err := s.ListenUDP("udp", nil)
				must(t, err)
				defer out.Close()
				must(t, errOf(out.WriteToUDPAddrPort([]byte("x"),
					netip.AddrPortFrom(netip.MustParseAddr(host), port))))
				eventually(t, "the datagram", func() bool {
					w.mu.Lock()
					defer w.mu.Unlock()
					for _, f := range w.frames {
						if p, ok := udpPort(f); ok && p == port {
							mac = f[:6]
						}
					}
					return mac != nil
				})
				return mac
			}
			if mac := to(1001); !bytes.Equal(mac, macOther) {
				t.Fatalf("sent to %v before", net.HardwareAddr(mac))
			}
			at.Store(&macMoved)
			if mac := to(1002); !bytes.Equal(mac, macOther) {
				t.Fatalf("sent to %v before the link was down", net.HardwareAddr(mac))
			}
			flap(t, s, n, w)
			// the link is up for Stats a moment before the stack acts on it
			eventually(t, "the announcement", func() bool {
				return w.heard(bytes.Repeat([]byte{0xff}, 6), nil)
			})
			if mac := to(1003); !bytes.Equal(mac, macMoved) {
				t.Errorf("sent to %v, want %v", net.HardwareAddr(mac), net.HardwareAddr(macMoved))
			}
		})
	}
}

// TestAnnouncedAgain: announcements that a send queue held when it was replaced, as its doorbells
// got lost, are repeated: what a switch has learned from another port is forgotten, although the
// server has nothing to send.
func TestAnnouncedAgain(t *testing.T) {
	for name, silent := range map[string]bool{"announced": false, "not announced": true} {
		t.Run(name, func(t *testing.T) {
			virtual := clocktest.New()
			s, n, w := onWire(t, stack.Config{Clock: virtual.Clock(),
				Addressing: stack.AddressOptions{NoAnnounce: silent},
				Addresses:  []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}},
				func(far wire.Wire) { must(t, far.Start(func([]frame.Frame) {})) })
			virtual.Advance(time.Minute)
			w.forget()
			lost := n.Inject(simnic.QueueFault{Kind: simnic.FaultLoseDoorbell})
			s.Announce()
			virtual.Advance(10 * time.Second)
			lost.Remove()
			head := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			if w.heard(head, nil) {
				t.Error("an announcement was sent without a doorbell")
			}
			virtual.Advance(10 * time.Second)
			if got := w.heard(head, nil); got == silent {
				t.Errorf("announced again: %v", got)
			}
		})
	}
}

// TestAnnouncedWhenRerouted: when another netdev may carry our frames, our addresses are announced
// at once, unless they are not announced at all.
func TestAnnouncedWhenRerouted(t *testing.T) {
	for name, silent := range map[string]bool{"announced": false, "not announced": true} {
		t.Run(name, func(t *testing.T) {
			virtual := clocktest.New()
			s, _, w := onWire(t, stack.Config{Clock: virtual.Clock(),
				Addressing: stack.AddressOptions{NoAnnounce: silent},
				Addresses:  []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}},
				func(far wire.Wire) { must(t, far.Start(func([]frame.Frame) {})) })
			virtual.Advance(time.Minute)
			w.forget()
			s.Reroute()
			virtual.Advance(time.Millisecond)
			if got := w.heard([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil); got == silent {
				t.Errorf("announced: %v", got)
			}
		})
	}
}

// TestMoveAnnouncedAgain: a stack that announces nothing tells the neighbours when its MAC has
// changed, as on the host's address, and again when the link comes up: it may have been down.
func TestMoveAnnouncedAgain(t *testing.T) {
	virtual := clocktest.New()
	s, _, w := onWire(t, stack.Config{Clock: virtual.Clock(),
		Addressing: stack.AddressOptions{NoAnnounce: true},
		Addresses:  []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}},
		func(far wire.Wire) { must(t, far.Start(func([]frame.Frame) {})) })
	virtual.Advance(time.Minute)
	heard := func(after func()) bool {
		w.forget()
		after()
		virtual.Advance(10 * time.Second)
		return w.heard([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil)
	}
	if heard(s.LinkIsUp) {
		t.Error("announced on a link that is up again")
	}
	if !heard(s.MACMoved) || !heard(s.LinkIsUp) {
		t.Error("not announced after the MAC has changed, or not again")
	}
}

// TestLinkComesBackDHCP: the client asks the server whether its address is still valid; if the
// server refuses, it asks for another.
func TestLinkComesBackDHCP(t *testing.T) {
	var d *dhcpServer
	server := func(far wire.Wire) {
		n := card(t, "sim_b", 2)
		must(t, n.ConnectWire(far))
		cfg := onCard(n, 1, "192.0.2.1/24")
		s, err := stack.Open(context.Background(), cfg)
		need.That(t, "simnic", onlyUnsupported(err))
		must(t, err)
		t.Cleanup(func() { s.Close() })
		d = newDHCPServer(t, s, "192.0.2.50", time.Hour)
	}
	s, n, w := onWire(t, stack.Config{Dynamic: stack.DHCPv4}, server)
	if !hasAddr(s, "192.0.2.50") {
		t.Fatalf("addresses %v", s.Addrs())
	}
	flap(t, s, n, w)
	eventually(t, "the address confirmed", func() bool { return d.confirmed.Load() == 1 })
	if !hasAddr(s, "192.0.2.50") {
		t.Errorf("the address went: %v", s.Addrs())
	}
	d.refuse.Store(true)
	d.offer("192.0.2.60")
	n.SetLink(false)
	n.SetLink(true)
	eventually(t, "another address", func() bool {
		return hasAddr(s, "192.0.2.60") &&
			!hasAddr(s, "192.0.2.50")
	})
}

// isReboot reports whether m requests an address from an earlier lease: RFC 2131 section 4.3.2,
// INIT-REBOOT.
func isReboot(m *dhcpv4.DHCPv4) bool {
	return m.MessageType() == dhcpv4.MessageTypeRequest && m.ServerIdentifier() == nil &&
		m.RequestedIPAddress() != nil && m.ClientIPAddr.Equal(net.IPv4zero)
}
