package stack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
	"github.com/rdma-netstack/rdma-netstack/internal/random"
)

// FuzzReceiveICMP parses what strangers send as ICMP, and IPv6 packets with extension headers.
func FuzzReceiveICMP(f *testing.F) {
	quoted4 := []byte{0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
		0, 7, 0, 9, 0, 8, 0, 0}
	quoted6 := append([]byte{0x60, 0, 0, 0, 0, 16, 44, 64}, make([]byte, 32)...)
	quoted6 = append(quoted6, 17, 0, 0, 1, 0, 0, 0, 1, 0, 7, 0, 9, 0, 8, 0, 0)
	f.Add(false, append([]byte{3, 4, 0, 0, 0, 0, 5, 20}, quoted4...))
	f.Add(true, append([]byte{2, 0, 0, 0, 0, 0, 5, 20}, quoted6...))
	f.Add(true, append([]byte{4, 2, 0, 0, 0, 0, 0, 44}, append([]byte{0x60, 0, 0, 0, 0, 16, 0, 64},
		append(make([]byte, 32), 60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0x80, 4, 0, 0, 0, 0)...)...))
	f.Fuzz(func(t *testing.T, v6 bool, b []byte) {
		if m, ok := parseICMP(v6, b); ok {
			size := header.IPv4AddressSize
			if v6 {
				size = header.IPv6AddressSize
			}
			if m.local.Len() != size || m.remote.Len() != size {
				t.Errorf("addresses of %d and %d bytes", m.local.Len(), m.remote.Len())
			}
			if what, ok := m.meaning(); ok && what.errno == 0 {
				t.Error("an error without a number")
			}
		}
		if len(b) < icmpHeaderLen {
			return
		}
		answeredToAll(b[icmpHeaderLen:])
	})
}

// TestPathMTUExpires: a path MTU is used for ten minutes (net.ipv4.route.mtu_expires), a larger one
// is not believed meanwhile, and the number of destinations is bounded.
func TestPathMTUExpires(t *testing.T) {
	c := clocktest.New()
	p := newPathMTUs(c.Clock(), random.From(nil))
	to := toAddress(netip.MustParseAddr("192.0.2.9"))
	p.learn(to, 1300)
	p.learn(to, 1400)
	if e := p.of(to); e == nil || e.mtu != 1300 {
		t.Fatalf("the path has %+v, want 1300", e)
	}
	c.Advance(pathMTULifetime - time.Second)
	if p.of(to) == nil {
		t.Error("the path's MTU is forgotten after less than ten minutes")
	}
	p.learn(to, 1300)
	c.Advance(2 * time.Second)
	if p.of(to) == nil {
		t.Error("an MTU that was told again is forgotten")
	}
	c.Advance(pathMTULifetime)
	if p.of(to) != nil {
		t.Error("the path's MTU is still used after ten minutes")
	}
	p.learn(to, 1400)
	if e := p.of(to); e == nil || e.mtu != 1400 {
		t.Errorf("the path has %+v, want 1400", e)
	}
	for i := range uint32(maxPathMTUs + 100) {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0a000000+i)
		p.learn(toAddress(netip.AddrFrom4(a)), 1300)
	}
	if n := len(p.entries); n > maxPathMTUs {
		t.Errorf("%d path MTUs are remembered, more than %d", n, maxPathMTUs)
	}
}

// TestEarlySYNsAreBounded: a program that has netstack dial by itself leaves no SYNs behind.
func TestEarlySYNsAreBounded(t *testing.T) {
	e := newICMPErrors(nil)
	for i := range maxEarly + 100 {
		e.note(flow{localPort: uint16(i)}, uint32(i))
	}
	if n := len(e.early); n > maxEarly {
		t.Errorf("%d SYNs are remembered, more than %d", n, maxEarly)
	}
	f := flow{localPort: 9999}
	e.note(f, 7)
	d := e.dial(f)
	if !d.sent || d.sequence != 7 {
		t.Fatal(fmt.Sprint("the dial does not know its SYN: ", d))
	}
	for _, sequence := range []uint32{6, 9, 1 << 31} {
		m := icmpMessage{localPort: f.localPort, sequence: sequence}
		if e.fail(&m, syscall.EHOSTUNREACH); d.errno.Load() != 0 {
			t.Errorf("a message about sequence number %d has ended the dial", sequence)
		}
	}
	m := icmpMessage{localPort: f.localPort, sequence: 7}
	if e.fail(&m, syscall.EHOSTUNREACH); d.errno.Load() != uint32(syscall.EHOSTUNREACH) {
		t.Error("a message about the SYN has not ended the dial")
	}
}
