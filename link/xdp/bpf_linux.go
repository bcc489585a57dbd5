package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
)

// newMap makes a map.
func newMap(kind, key, value, entries, flags uint32, name string) (int, error) {
	fd, err := bpf.NewMap(kind, key, value, entries, flags, name)
	if err != nil {
		return -1, explainPrivilege(fmt.Sprintf("make the BPF map %q", name), err)
	}
	return fd, nil
}

// loadProgram lets the kernel verify a program.
func loadProgram(program []byte) (int, error) {
	fd, err := bpf.LoadProgram(unix.BPF_PROG_TYPE_XDP, unix.BPF_XDP, program)
	if err != nil {
		return -1, explainPrivilege("load the XDP program", err)
	}
	return fd, nil
}

// attachProgram makes a link of a program and an interface, which ends with its descriptor.
func attachProgram(program, ifindex int, flags uint32) (int, error) {
	return new(bpf.Request).AddFields(uint32(program), uint32(ifindex), unix.BPF_XDP, flags).
		Call(unix.BPF_LINK_CREATE)
}

// nameOfProgram returns the name of a program of anybody's; "" where that may not be known: it
// needs CAP_SYS_ADMIN.
func nameOfProgram(id uint32) string {
	fd, err := new(bpf.Request).AddFields(id, 0, 0).Call(unix.BPF_PROG_GET_FD_BY_ID)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := infoOfProgram(fd)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info[atProgramName:])
}

// idOfProgram returns the number of a loaded program, 0 if the kernel does not tell.
func idOfProgram(fd int) uint32 {
	info, err := infoOfProgram(fd)
	if err != nil {
		return 0
	}
	return binary.NativeEndian.Uint32(info[atProgramID:])
}

// Where struct bpf_prog_info has its fields, and how much of it is asked for.
const atProgramID, atProgramName, programInfoLen = 4, 64, 80

func infoOfProgram(fd int) ([]byte, error) {
	info := make([]byte, programInfoLen)
	_, err := new(bpf.Request).AddFields(uint32(fd), programInfoLen).AddAddress(info).
		Call(unix.BPF_OBJ_GET_INFO_BY_FD)
	return info, err
}

// explainPrivilege adds what an error of a privileged call means.
func explainPrivilege(doing string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: AF_XDP needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW while it "+
			"opens: setcap cap_bpf,cap_net_admin,cap_net_raw+ep on the program, be root, or use "+
			"packet sockets: %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// nativeBytes returns a number as the kernel's maps have it.
func nativeBytes(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
