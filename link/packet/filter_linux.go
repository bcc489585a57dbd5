package packet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Offsets of what the kernel knows beside the frame (include/uapi/linux/filter.h).
const (
	adVLANTag     = -0x1000 + 44
	adVLANPresent = -0x1000 + 48
)

// vlanID is the network's number in the tag control information.
const vlanID = 0x0fff

// frameFilter is a classic BPF program that passes frames to mac, broadcast and groups, of VLAN
// vlan; of none, or with a mere priority, if that is 0.
func frameFilter(mac [6]byte, vlan uint16) []unix.SockFilter {
	load := func(size uint16, at int32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: uint32(at)}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	const pass, drop = 11, 12 // the last two instructions
	to := func(at, target uint8) uint8 { return target - at - 1 }
	untagged, tagged := to(7, pass), uint8(0)
	if vlan != 0 {
		untagged = to(7, drop)
	}
	return []unix.SockFilter{
		0:    load(unix.BPF_W, 2),
		1:    jump(unix.BPF_JEQ, binary.BigEndian.Uint32(mac[2:]), 0, to(1, 4)),
		2:    load(unix.BPF_H, 0),
		3:    jump(unix.BPF_JEQ, uint32(binary.BigEndian.Uint16(mac[:])), to(3, 6), 0),
		4:    load(unix.BPF_B, 0),
		5:    jump(unix.BPF_JSET, 1, 0, to(5, drop)),
		6:    load(unix.BPF_W, adVLANPresent),
		7:    jump(unix.BPF_JEQ, 0, untagged, tagged),
		8:    load(unix.BPF_H, adVLANTag),
		9:    {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: vlanID},
		10:   jump(unix.BPF_JEQ, uint32(vlan), to(10, pass), to(10, drop)),
		pass: {Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		drop: {Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
}

// nothing is a filter that passes no frame.
func nothing() []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
}

// setFilter puts a filter in the place of the one before.
func setFilter(fd int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
