//go:build linux

package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// watchedWire copies, while it is watched, what the NIC sends, and takes finished frames only: none
// that somebody behind the NIC would cut up.
type watchedWire struct {
	wire.Wire
	mu   sync.Mutex
	on   bool     // guarded by mu
	sent [][]byte // guarded by mu
}

// watch begins, or begins anew.
func (w *watchedWire) watch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.sent = true, nil
}

// unwatch ends it, and returns what was sent meanwhile.
func (w *watchedWire) unwatch() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = false
	return w.sent
}

func (w *watchedWire) Offloads() frame.Offload {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on {
		return 0
	}
	return w.Wire.Offloads()
}

func (w *watchedWire) Send(frames []frame.Frame) (int, error) {
	w.mu.Lock()
	if w.on {
		for i := range frames {
			w.sent = append(w.sent, bytes.Clone(frames[i].Data))
		}
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

// testNetdevUSO makes the guest's kernel send datagrams of one call to the NIC, which cuts them up.
// mlx5e has GSO_PARTIAL for them: the kernel gives it those of one size in one LSO WQE, and a
// shorter one behind them in a WQE of its own. In the header of the LSO WQE is the UDP length of
// one datagram, which the model copies.
func testNetdevUSO(t *testing.T, w *world) {
	w.run(t, "ethtool", "-K", "eth0", "tx-udp-segmentation", "on")
	contains(t, w.run(t, "ethtool", "-k", "eth0"), "tx-udp-segmentation: on")
	for _, v := range []struct {
		from, to netip.Addr
		most     int // bytes of payload of a datagram
	}{
		{netdev4.Addr(), outside4.Addr(), 1472},
		{netdev6.Addr(), outside6.Addr(), 1452},
	} {
		for _, c := range []segmented{
			{size: v.most, total: 10 * v.most, lso: 1},
			{size: 1000, total: 64 * 1000, lso: 1},
			{size: 1000, total: 9*1000 + 1, lso: 1},
			{size: v.most, total: 44*v.most - 1, lso: 1},
			{size: 7, total: 2 * 7, lso: 1},
			{size: 1000, total: 1000 + 999, lso: 0},
			{size: 1000, total: 1000, lso: 0},
		} {
			c.from, c.to = v.from, v.to
			w.segments(t, c)
		}
	}
}

// segmented describes a call.
type segmented struct {
	from, to    netip.Addr
	size, total int    // bytes of payload, of a datagram and of all
	lso         uint64 // WQEs that the NIC cuts up
}

func (c segmented) String() string {
	return fmt.Sprintf("%v to %v, %d bytes in datagrams of %d", c.from, c.to, c.total, c.size)
}

// segments lets the guest make the call, and compares the datagrams that come to a socket outside,
// and the frames that the NIC sent, byte by byte.
func (w *world) segments(t *testing.T, c segmented) {
	t.Helper()
	conn, err := w.outside.ListenPacket("udp", netip.AddrPortFrom(c.to, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before := w.nic.Counters().LSOWQEs
	w.wire.watch()
	w.run(t, "/init", "segments", "-to", conn.LocalAddr().String(), "-size", fmt.Sprint(c.size),
		"-total", fmt.Sprint(c.total))
	want := rig.SegmentPattern(c.total)
	conn.SetReadDeadline(time.Now().Add(patience))
	from := 0 // the port
	for at := 0; at < c.total; at += c.size {
		b := make([]byte, 1<<16)
		n, addr, err := conn.ReadFrom(b)
		if err != nil {
			t.Fatalf("%v: %d bytes came: %v", c, at, err)
		}
		if part := want[at:min(at+c.size, c.total)]; !bytes.Equal(b[:n], part) {
			t.Fatalf("%v: %d bytes at %d are not the %d sent", c, n, at, len(part))
		}
		from = addr.(*net.UDPAddr).Port
	}
	to := conn.LocalAddr().(*net.UDPAddr).Port
	var sent [][]byte
	for _, f := range w.wire.unwatch() {
		if p := frame.Parse(f); p.Proto == frame.ProtoUDP && p.L4At != 0 &&
			binary.BigEndian.Uint16(f[p.L4At:]) == uint16(from) &&
			binary.BigEndian.Uint16(f[p.L4At+2:]) == uint16(to) {
			sent = append(sent, f[:p.End]) // which a card may pad
		}
	}
	if n := w.nic.Counters().LSOWQEs - before; n != c.lso {
		t.Errorf("%v: %d WQEs are cut up, want %d", c, n, c.lso)
	}
	if n := (c.total + c.size - 1) / c.size; len(sent) != n {
		t.Fatalf("%v: %d frames, want %d", c, len(sent), n)
	}
	for i, f := range sent {
		part := want[i*c.size : min((i+1)*c.size, c.total)]
		if expected := c.frameOf(sent[0], i, part); !bytes.Equal(f, expected) {
			t.Fatalf("%v: frame %d is\n%x, want\n%x", c, i, f, expected)
		}
	}
}

// frameOf returns what frame i must be, whose payload is part. Of the first one it has the MAC
// addresses, the ports, and what the kernel is free to choose: identification, "don't fragment",
// which it sets where all of a call fits into one packet, and flow label.
func (c segmented) frameOf(first []byte, i int, part []byte) []byte {
	ip := first[frame.EtherHeader:]
	b := bytes.Clone(first[:frame.EtherHeader])
	udp := make([]byte, 8, 8+len(part))
	var pseudo []byte
	if c.to.Is4() {
		h := append([]byte{0x45, 0, 0, 0, 0, 0, ip[6], 0, 64, 17, 0, 0}, c.from.AsSlice()...)
		h = append(h, c.to.AsSlice()...)
		binary.BigEndian.PutUint16(h[2:], uint16(20+8+len(part)))
		binary.BigEndian.PutUint16(h[4:], binary.BigEndian.Uint16(ip[4:])+uint16(i))
		binary.BigEndian.PutUint16(h[10:], ^sumOf(h))
		pseudo = append(bytes.Clone(h[12:20]), 0, 17, byte((8+len(part))>>8), byte(8+len(part)))
		copy(udp, ip[20:24])
		b = append(b, h...)
	} else {
		h := append([]byte{0x60, ip[1], ip[2], ip[3], 0, 0, 17, 64}, c.from.AsSlice()...)
		h = append(h, c.to.AsSlice()...)
		binary.BigEndian.PutUint16(h[4:], uint16(8+len(part)))
		pseudo = append(bytes.Clone(h[8:40]), 0, 0, byte((8+len(part))>>8), byte(8+len(part)),
			0, 0, 0, 17)
		copy(udp, ip[40:44])
		b = append(b, h...)
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(part)))
	sum := ^sumOf(append(append(pseudo, udp...), part...))
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return append(append(b, udp...), part...)
}

// sumOf returns the ones' complement sum of RFC 1071.
func sumOf(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i&1))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
