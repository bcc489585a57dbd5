package rdma

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

func TestUntag(t *testing.T) {
	plain := append([]byte(ourMAC+peerMAC), 0x08, 0x06, 1, 2, 3, 4)
	with := func(tags ...byte) []byte { return slices.Insert(bytes.Clone(plain), 12, tags...) }
	for _, c := range []struct {
		name     string
		vlan     uint16
		frame    []byte
		stripped int // tag control information; -1: none
		ok       bool
	}{
		{"no tag, no VLAN", 0, plain, -1, true},
		{"priority tag, no VLAN", 0, with(0x81, 0, 0xe0, 0), -1, true},
		{"stripped priority tag, no VLAN", 0, plain, 0xe000, true},
		{"tag, no VLAN", 0, with(0x81, 0, 0, 100), -1, false},
		{"stripped tag, no VLAN", 0, plain, 100, false},
		{"no tag", 100, plain, -1, false},
		{"our tag", 100, with(0x81, 0, 0, 100), -1, true},
		{"our tag with a priority", 100, with(0x81, 0, 0xb0, 100), -1, true},
		{"our tag, stripped", 100, plain, 0xb064, true},
		{"another tag", 100, with(0x81, 0, 0, 101), -1, false},
		{"another tag, stripped", 100, plain, 101, false},
		{"priority tag", 100, with(0x81, 0, 0xe0, 0), -1, false},
		{"our tag behind our tag", 100, with(0x81, 0, 0, 100), 100, false},
		{"service tag", 100, with(0x88, 0xa8, 0, 100), -1, false},
		{"half a tag", 100, append([]byte(ourMAC+peerMAC), 0x81, 0, 0), -1, false},
	} {
		w := testWorker()
		w.vlan = c.vlan
		p := dv.Packet{Data: bytes.Clone(c.frame)}
		if c.stripped >= 0 {
			p.Flags, p.VLAN = dv.RxVLAN, uint16(c.stripped)
		}
		var l hdr.Packet
		if ok := w.stripVLAN(&p, &l); ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		} else if ok && (!bytes.Equal(p.Data, plain) ||
			l.EtherType != 0x0806 || l.L3 != hdr.EthLen) {
			t.Errorf("%s: left %x, %+v", c.name, p.Data, l)
		}
	}
}

func TestClassSelector(t *testing.T) {
	ip := func(etherType uint16, first, second byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte(ourMAC+peerMAC), etherType), first,
			second)
	}
	for name, c := range map[string]struct {
		frame []byte
		want  uint8
	}{
		"IPv4 expedited":   {ip(0x0800, 0x45, 46<<2), 5},
		"IPv4 best effort": {ip(0x0800, 0x45, 3), 0},
		"IPv4 CS7":         {ip(0x0800, 0x45, 56<<2), 7},
		"IPv6 expedited":   {ip(0x86dd, 0x6b, 0x80), 5}, // traffic class 0xb8
		"IPv6 CS1":         {ip(0x86dd, 0x62, 0x0f), 1},
		"ARP":              {ip(0x0806, 0xff, 0xff), 0},
		"no bytes of IP":   {ip(0x0800, 0x45, 0xff)[:15], 0},
	} {
		if got := hdr.ClassSelector(c.frame); got != c.want {
			t.Errorf("%s: priority %d, want %d", name, got, c.want)
		}
	}
}

// tags counts the tags of the frames that pass, by their content.
type tags struct {
	wire.Wire
	mu   sync.Mutex
	seen map[int]int // -1: none
}

func (w *tags) Send(frames []frame.Frame) (int, error) {
	w.mu.Lock()
	for _, f := range frames {
		tci := -1
		if binary.BigEndian.Uint16(f.Data[12:]) == typeVLAN {
			tci = int(binary.BigEndian.Uint16(f.Data[14:]))
		}
		w.seen[tci]++
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

// TestInAVLAN: two hosts of one VLAN exchange data by TCP, with segmentation by the NIC, by UDP and
// by whole datagrams, and no frame leaves without a tag.
func TestInAVLAN(t *testing.T) {
	var cable *tags
	a, b := pair(t, setup{dv: dv.Config{NIC: dv.NIC{VLAN: 100}}, wire: func(w wire.Wire) wire.Wire {
		cable = &tags{Wire: w, seen: map[int]int{}}
		return cable
	}})
	for _, at := range []netip.Addr{b.v4, b.v6} {
		go echo(b.listen(t, at, 80))
		conn := a.dial(t, at, 80)
		data := bytes.Repeat([]byte("0123456789"), 50000)
		go conn.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%v: %v", at, err)
		}
	}
	in := b.udp(t, netip.AddrPortFrom(b.v4, 53), netip.AddrPort{})
	headers := datagram(a, b, false, 5)
	headers[hdr.EthLen+1] = 46 << 2
	if err := a.ep.WriteDatagram(headers, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, _, err := in.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	cable.mu.Lock()
	defer cable.mu.Unlock()
	if cable.seen[100] == 0 || cable.seen[5<<13|100] != 1 || len(cable.seen) != 2 {
		t.Errorf("tags seen: %v", cable.seen)
	}
	if a.ep.Stats().TxLSO == 0 {
		t.Error("the NIC segmented nothing")
	}
}

// TestOtherVLAN: a host outside the VLAN receives nothing from a host in it.
func TestOtherVLAN(t *testing.T) {
	w := testWorker()
	w.vlan = 100
	w.classifyAndMerge(w.load(0, segment(0).Bytes()))
	if n := w.count.drops[dropOtherVLAN].Load(); n != 1 || len(w.merge.runs) != 0 {
		t.Errorf("%d counted, %d runs", n, len(w.merge.runs))
	}
}
