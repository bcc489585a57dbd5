package backing

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Device is the network device whose packets the kernel's sockets are not to have.
type Device struct {
	// Index gives the ifindex of received packets (skb->dev): of a bond or a netvsc device that of
	// the upper one.
	Index int
	// Last, unless 0, says that the device is gone, and may be made again with a number that is not
	// known yet: what comes by a device with a larger ifindex than Last is not passed either.
	// Linux gives rising numbers.
	Last int
}

const adIfindex = -0x1000 + 8 // SKF_AD_OFF + SKF_AD_IFINDEX (include/uapi/linux/filter.h)

var (
	drop = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	pass = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}
)

// silent drops everything.
func silent() []unix.SockFilter { return []unix.SockFilter{drop} }

// others passes what has not come in by the device.
func (d Device) others() []unix.SockFilter {
	return append(d.begin(), d.is(0, 1), drop, pass)
}

// begun passes of these what belongs to a connection that has begun: no SYN alone. The packet that
// a socket of TCP filters starts with the TCP header.
func (d Device) begun() []unix.SockFilter {
	return append(d.begin(), d.is(0, 1), drop,
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: atFlags},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: flagSYN | flagACK},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: flagSYN, Jf: 1},
		drop, pass)
}

// begin loads the ifindex, and drops what is beyond Last.
func (d Device) begin() []unix.SockFilter {
	at := int32(adIfindex)
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(at)}}
	if d.Last == 0 {
		return program
	}
	return append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K,
		K: uint32(d.Last), Jf: 1}, drop)
}

// is leaves out so many instructions if the ifindex is the device's, or is not.
func (d Device) is(yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(d.Index),
		Jt: yes, Jf: no}
}

// attach puts a filter of the socket's own in the place of the one before.
func attach(fd int, program []unix.SockFilter) error {
	return explainAttach("SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET,
		unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
}

// explainAttach adds what an error means. Kernels with Linux commit 5d39580f68e6 want CAP_NET_ADMIN
// for a filter of a TCP socket.
func explainAttach(option string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("this kernel wants CAP_NET_ADMIN for filters of TCP sockets, which the "+
			"host's own address needs: setcap cap_net_raw,cap_net_admin+ep on the program, "+
			"docker --cap-add NET_ADMIN, or be root: %w", err)
	}
	return os.NewSyscallError("setsockopt "+option, err)
}
