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

// frameFilter returns a classic BPF program that passes frames to addresses; and to every group if
// all is true; of VLAN vlan, or of none, or with a mere priority, if that is 0.
func frameFilter(addresses [][6]byte, all bool, vlan uint16) []unix.SockFilter {
	var program []unix.SockFilter
	for _, a := range addresses {
		program = append(program,
			loadFrom(unix.BPF_W, 2), jumpIf(unix.BPF_JEQ, binary.BigEndian.Uint32(a[2:]), 0, 3),
			loadFrom(unix.BPF_H, 0), jumpIf(unix.BPF_JEQ, uint32(binary.BigEndian.Uint16(a[:])), 0,
				1),
			toVLAN)
	}
	if all {
		program = append(program, loadFrom(unix.BPF_B, 0), jumpIf(unix.BPF_JSET, 1, 0, 1), toVLAN)
	}
	program = append(program, drop)
	for i := range program {
		if program[i] == toVLAN {
			program[i].K = uint32(len(program) - i - 1)
		}
	}
	var tagged, untagged uint8 = 0, 3 // a priority is as good as no tag
	if vlan != 0 {
		untagged = 4
	}
	return append(program,
		loadFrom(unix.BPF_W, adVLANPresent), jumpIf(unix.BPF_JEQ, 0, untagged, tagged),
		loadFrom(unix.BPF_H, adVLANTag),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: vlanID},
		jumpIf(unix.BPF_JEQ, uint32(vlan), 0, 1),
		pass, drop)
}

func loadFrom(size uint16, at int32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: uint32(at)}
}

// jumpIf leaves out yes or no instructions.
func jumpIf(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
}

var (
	drop   = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	pass   = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}
	toVLAN = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA}
)

// rejectAll returns a filter that passes no frame.
func rejectAll() []unix.SockFilter { return []unix.SockFilter{drop} }

// setFilter puts a filter in the place of the one before.
func setFilter(fd int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
