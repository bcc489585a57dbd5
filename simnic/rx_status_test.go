package simnic

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// TestVerdicts checks the header status in completions.
func TestVerdicts(t *testing.T) {
	change := func(f []byte, at int, v byte) []byte {
		f = append([]byte(nil), f...)
		f[at] = v
		return f
	}
	options := append([]byte(nil), frame60...)
	options[14] = 0x46
	options = concat(options[:34], []byte{1, 1, 1, 1}, options[34:])
	binary.BigEndian.PutUint16(options[16:], 50)
	options[24], options[25] = 0, 0
	binary.BigEndian.PutUint16(options[24:], ^frame.Sum(options[14:38]))
	v6tcp := dump(`02000000 00020200 00000001 86dd 6000000000180640 fd000000000000000000000000000001 fd000000000000000000000000000002
		03e807d0 00000001 00000001 5018ffff 00000000 61626364`)
	p := frame.Parse(v6tcp)
	binary.BigEndian.PutUint16(v6tcp[p.ChecksumAt():],
		^frame.AddSums(frame.Sum(v6tcp[p.L4At:]), p.PseudoSum(v6tcp, len(v6tcp)-p.L4At)))
	v6ext := concat(v6tcp[:20], []byte{0}, v6tcp[21:54], []byte{6, 0, 1, 4, 0, 0, 0, 0}, v6tcp[54:])
	v6ext[19] += 8
	v6frag := concat(v6tcp[:20], []byte{44}, v6tcp[21:54], []byte{6, 0, 0, 1, 0, 0, 0, 0},
		v6tcp[54:])
	v6frag[19] += 8
	noCsum := change(change(frame60, 40, 0), 41, 0)
	tests := []struct {
		name  string
		frame []byte
		ok    byte // L2 1, L3 2, L4 4
		types byte
	}{
		{"IPv4 UDP", frame60, 7, 0x28},
		{"IPv4 TCP with data", tcpFrame72, 7, 0x48},
		{"IPv4 pure ACK", tcpSegment(0, 0, 0x10), 7, 0x38},
		{"IPv4 SYN", tcpSegment(0, 0, 0x02), 7, 0x18},
		{"bad IP checksum", change(frame60, 24, 0), 5, 0x28},
		{"bad UDP checksum", change(frame60, 50, 0xff), 3, 0x28},
		{"no UDP checksum", noCsum, 7, 0x28},
		{"fragment", change(frame60, 20, 0x20), 1, 0x88},
		{"ICMP", change(frame60, 23, 1), 1, 0x08},
		{"options", options, 7, 0x2a},
		{"ARP", change(change(frame60, 12, 8), 13, 6), 1, 0},
		{"datagram longer than the frame", change(frame60, 16, 1), 1, 0x28},
		{"IPv6 TCP", v6tcp, 7, 0x44},
		{"IPv6 with an option header", v6ext, 7, 0x46},
		{"IPv6 fragment", v6frag, 3, 0x86},
		{"short IPv4", change(frame60, 14, 0x4f)[:40], 1, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := newRecvRig(t, recvOptions{})
			r.rq.post(seg(2048, r.key.Key(), r.addr))
			r.give(tc.frame)
			e := r.cq.mustPoll(t)
			if e[0x1c] != tc.ok || e[0x1d] != tc.types {
				t.Errorf("ok %#02x types %#02x, want %#02x %#02x", e[0x1c], e[0x1d], tc.ok,
					tc.types)
			}
			q := frame.Parse(tc.frame)
			want := frame.Sum(tc.frame[q.L3At:q.End])
			if q.L3 == 0 {
				want = 0
			}
			if got := be16(e[0x14:]); got != want && got^want != 0xffff {
				t.Errorf("checksum %#04x, want %#04x", got, want)
			}
		})
	}
}

// TestOffloadedFrames delivers frames that arrive with offloads left to do.
func TestOffloadedFrames(t *testing.T) {
	r := newRecvRig(t, recvOptions{tir: hashTIR(false, false)})
	for i := range 8 {
		r.rq.post(seg(2048, r.key.Key(), r.addr+uint64(i)*2048))
	}
	whole := tcpSegment(0, 4000, 0x18)
	p := frame.Parse(whole)
	seeded := append([]byte(nil), whole...)
	p.SeedChecksum(seeded)
	r.wire.recv([]frame.Frame{
		{Data: seeded, NeedsCsum: true, CsumStart: 34, CsumOffset: 16, GSO: frame.GSOTCPv4,
			HdrLen: 66, MSS: 1448}})
	for i, n := range []int{1448, 1448, 1104} {
		flags := byte(0x10)
		if i == 2 {
			flags = 0x18
		}
		want := tcpSegment(i*1448, n, flags)
		binary.BigEndian.PutUint16(want[18:], be16(whole[18:])+uint16(i))
		fixChecksums(want)
		e := r.cq.mustPoll(t)
		expect(t, "segment", r.buf[i*2048:i*2048+len(want)], want)
		if e[0x1c] != 7 || e[0x1d] != 0x48 || binary.BigEndian.Uint32(e[0xc:]) != 0x51ccc178 ||
			be16(e[0x14:]) != frame.Sum(want[14:]) {
			t.Errorf("completion %x, sum %04x", e, frame.Sum(want[14:]))
		}
	}
	single := flowFrame(2, 75)
	p = frame.Parse(single)
	seeded = append([]byte(nil), single...)
	p.SeedChecksum(seeded)
	r.wire.recv([]frame.Frame{{Data: seeded, NeedsCsum: true, CsumStart: 34, CsumOffset: 6}})
	e := r.cq.mustPoll(t)
	expect(t, "completed frame", r.buf[3*2048:3*2048+75], single)
	if e[0x1c] != 7 || be16(e[0x14:]) != frame.Sum(single[14:]) {
		t.Errorf("completion %x", e)
	}
}
