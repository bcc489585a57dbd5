package xdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Numbers of bpf(2) (include/uapi/linux/bpf.h).
const (
	cmdMapCreate, cmdMapUpdate, cmdMapDelete = 0, 2, 3
	cmdProgLoad, cmdProgByID, cmdInfo        = 5, 13, 15
	cmdLinkCreate                            = 28

	mapHash, mapArray, mapSockets = 1, 2, 17
	mapNoPreallocation            = 1

	typeXDP, attachXDP = 6, 37
)

// newMap makes a map.
func newMap(kind, key, value, entries, flags uint32, name string) (int, error) {
	r := new(request).addFields(kind, key, value, entries, flags, 0, 0).addName(name)
	fd, err := r.callKernel(cmdMapCreate)
	if err != nil {
		return -1, explainPrivilege(fmt.Sprintf("make the BPF map %q", name), err)
	}
	return fd, nil
}

// putElement sets an element of a map.
func putElement(fd int, key, value []byte) error {
	_, err := new(request).addFields(uint32(fd), 0).addAddress(key).addAddress(value).
		addFields(0, 0).callKernel(cmdMapUpdate)
	return err
}

// dropElement removes an element of a map. One that is not there is no error.
func dropElement(fd int, key []byte) error {
	_, err := new(request).addFields(uint32(fd), 0).addAddress(key).addAddress(nil).addFields(0, 0).
		callKernel(cmdMapDelete)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// programName names for "bpftool prog" and other processes a program of ours.
const programName = "rdma_netstack"

// loadProgram lets the kernel verify a program.
func loadProgram(program []byte) (int, error) {
	license := []byte("Apache-2.0\x00") // the helpers are not for GPL programs alone
	load := func(log []byte) (int, error) {
		level := uint32(min(len(log), 1))
		return new(request).addFields(typeXDP, uint32(len(program)/8)).addAddress(program).
			addAddress(license).addFields(level, uint32(len(log))).addAddress(log).addFields(0, 0).
			addName(programName).addFields(0, attachXDP).callKernel(cmdProgLoad)
	}
	fd, err := load(nil)
	if err == nil {
		return fd, nil
	}
	if !errors.Is(err, unix.EPERM) { // once more, for what the verifier says
		log := make([]byte, 64<<10)
		if fd, err = load(log); err == nil {
			return fd, nil
		}
		if said := bytes.TrimRight(log, "\x00\n"); len(said) > 0 {
			err = fmt.Errorf("%w: %s", err, said)
		}
	}
	return -1, explainPrivilege("load the XDP program", err)
}

// attachProgram makes a link of a program and an interface, which ends with its descriptor.
func attachProgram(program, ifindex int, flags uint32) (int, error) {
	return new(request).addFields(uint32(program), uint32(ifindex), attachXDP, flags).
		callKernel(cmdLinkCreate)
}

// nameOfProgram returns the name of a program of anybody's; "" where that may not be known: it
// needs CAP_SYS_ADMIN.
func nameOfProgram(id uint32) string {
	fd, err := new(request).addFields(id, 0, 0).callKernel(cmdProgByID)
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
	_, err := new(request).addFields(uint32(fd), programInfoLen).addAddress(info).
		callKernel(cmdInfo)
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
