package stack

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// classTap records which protocols were sent with which traffic class and VLAN tag.
type classTap struct {
	wire.Wire
	mu   sync.Mutex
	seen map[string]int
}

func (w *classTap) Send(frames []frame.Frame) (int, error) {
	w.mu.Lock()
	for _, f := range frames {
		w.seen[describe(f.Data)]++
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

// describe says "IP version, protocol, traffic class, tag" of a frame.
func describe(frame []byte) string {
	tag, kind, ip := "none", binary.BigEndian.Uint16(frame[12:]), frame[14:]
	if kind == 0x8100 {
		tag, kind, ip = fmt.Sprintf("%#x", binary.BigEndian.Uint16(ip)),
			binary.BigEndian.Uint16(ip[2:]), ip[4:]
	}
	switch kind {
	case 0x0800:
		return fmt.Sprintf("4 %d %#x %s", ip[9], ip[1], tag)
	case 0x86dd:
		return fmt.Sprintf("6 %d %#x %s", ip[6], binary.BigEndian.Uint16(ip)>>4&0xff, tag)
	}
	return fmt.Sprintf("%#x - - %s", kind, tag)
}

func (w *classTap) want(t *testing.T, what string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[what] == 0 {
		t.Errorf("nothing left as %q: %v", what, w.seen)
	}
}

// classRig is two stacks in VLAN 7, of which the first marks what it sends as expedited (DSCP 46),
// its cable tapped.
func classRig(t *testing.T) (from, to *Stack, w *classTap) {
	t.Helper()
	a, b := wire.Pair()
	w = &classTap{Wire: a, seen: map[string]int{}}
	var stacks [2]*Stack
	for i, wire := range []wire.Wire{w, b} {
		nic, err := simnic.New(simnic.Config{Seed: uint64(i + 1)})
		must(t, err)
		t.Cleanup(func() { nic.Close() })
		must(t, nic.ConnectWire(wire))
		stacks[i], err = Open(context.Background(), Config{
			NIC: dv.NIC{
				Model: dv.Model{
					Kernel: kernel.Opener(nic),
					Facts: dv.PortFacts{Name: "sim", Netdev: "simnet", MAC: nic.MAC(),
						MTU: nic.MTU()},
				}, VLAN: 7,
			},
			Addresses: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i + 1)}),
					64),
			},
			Addressing: AddressOptions{DuplicateDetection: -1}, DSCP: []uint8{46, 0}[i],
		})
		must(t, err)
		t.Cleanup(func() { stacks[i].Close() })
	}
	return stacks[0], stacks[1], w
}

func TestTrafficClass(t *testing.T) {
	from, to, w := classRig(t)
	for version, at := range map[int]string{4: "192.0.2.2", 6: "2001:db8::2"} {
		t.Run(fmt.Sprintf("datagrams over IPv%d", version), func(t *testing.T) {
			in, err := to.ListenPacket("udp", net.JoinHostPort(at, "53"))
			must(t, err)
			out, err := from.Dial("udp", net.JoinHostPort(at, "53"))
			must(t, err)
			send := func() { // twice: through netstack, then by the header template
				for range 3 {
					_, err := out.Write([]byte("x"))
					must(t, err)
					_, _, err = in.ReadFrom(make([]byte, 10))
					must(t, err)
				}
			}
			send()
			w.want(t, fmt.Sprintf("%d 17 0xb8 0xa007", version))
			must(t, out.(*UDPConn).SetTrafficClass(0x28))
			send()
			w.want(t, fmt.Sprintf("%d 17 0x28 0x2007", version))
		})
		t.Run(fmt.Sprintf("TCP over IPv%d", version), func(t *testing.T) {
			l, err := from.Listen("tcp",
				net.JoinHostPort(map[int]string{4: "192.0.2.1", 6: "2001:db8::1"}[version], "80"))
			must(t, err)
			c, err := to.Dial("tcp", l.Addr().String())
			must(t, err)
			s, err := l.Accept()
			must(t, err)
			say := func() {
				_, err = s.Write([]byte("x"))
				must(t, err)
				_, err = io.ReadFull(c, make([]byte, 1))
				must(t, err)
			}
			say()
			w.want(t, fmt.Sprintf("%d 6 0xb8 0xa007", version))
			must(t, s.(*TCPConn).SetTrafficClass(0x40))
			say()
			w.want(t, fmt.Sprintf("%d 6 0x40 0x4007", version))
			must(t, s.Close())
			if err := s.(*TCPConn).SetTrafficClass(0); err == nil {
				t.Error("a closed conn takes a traffic class")
			}
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for what := range w.seen {
		if version, protocol := 0, 0; what[len(what)-4:] == "none" {
			t.Errorf("left without a tag: %q", what)
		} else if fmt.Sscan(what, &version, &protocol); protocol == 17 &&
			what != fmt.Sprintf("%d 17 0xb8 0xa007", version) &&
			what != fmt.Sprintf("%d 17 0x28 0x2007", version) {
			t.Errorf("a datagram left as %q", what)
		}
	}
}

func TestTrafficClassRange(t *testing.T) {
	if err := (Config{DSCP: 64}).Validate(); err == nil {
		t.Error("DSCP 64 is taken")
	}
	from, _, _ := classRig(t)
	c, err := from.ListenPacket("udp", ":0")
	must(t, err)
	for _, class := range []int{-1, 256} {
		if err := c.(*UDPConn).SetTrafficClass(class); err == nil {
			t.Errorf("class %d is taken", class)
		}
	}
}
