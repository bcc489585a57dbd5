package bpf

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// NewMap makes a map, whose descriptor is the caller's. kind is one of enum bpf_map_type, and key
// and value are sizes in bytes. The kernel takes 15 bytes of the name.
func NewMap(kind, key, value, entries, flags uint32, name string) (int, error) {
	return new(Request).AddFields(kind, key, value, entries, flags, 0, 0).AddName(name).
		Call(unix.BPF_MAP_CREATE)
}

// PutElement sets an element of a map.
func PutElement(fd int, key, value []byte) error {
	_, err := new(Request).AddFields(uint32(fd), 0).AddAddress(key).AddAddress(value).
		AddFields(0, 0).Call(unix.BPF_MAP_UPDATE_ELEM)
	return err
}

// GetElement reads the value of an element of a map, which must be as long as the map's.
func GetElement(fd int, key, value []byte) error {
	_, err := new(Request).AddFields(uint32(fd), 0).AddAddress(key).AddAddress(value).
		AddFields(0, 0).Call(unix.BPF_MAP_LOOKUP_ELEM)
	return err
}

// DropElement removes an element of a map. One that is not there is no error.
func DropElement(fd int, key []byte) error {
	_, err := new(Request).AddFields(uint32(fd), 0).AddAddress(key).AddAddress(nil).
		AddFields(0, 0).Call(unix.BPF_MAP_DELETE_ELEM)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// ProgramName names for "bpftool prog" and other processes a program of ours.
const ProgramName = "rdma_netstack"

// LoadProgram lets the kernel verify a program, whose descriptor is the caller's. kind is one of
// enum bpf_prog_type, and attach of enum bpf_attach_type, or 0. The error quotes the verifier.
func LoadProgram(kind, attach uint32, program []byte) (int, error) {
	license := []byte("Apache-2.0\x00") // the helpers are not for GPL programs alone
	load := func(log []byte) (int, error) {
		level := uint32(min(len(log), 1))
		return new(Request).AddFields(kind, uint32(len(program)/8)).AddAddress(program).
			AddAddress(license).AddFields(level, uint32(len(log))).AddAddress(log).AddFields(0, 0).
			AddName(ProgramName).AddFields(0, attach).Call(unix.BPF_PROG_LOAD)
	}
	fd, err := load(nil)
	if err == nil || errors.Is(err, unix.EPERM) {
		return fd, err
	}
	log := make([]byte, 64<<10) // once more, for what the verifier says
	if fd, err = load(log); err == nil {
		return fd, nil
	}
	if said := bytes.TrimRight(log, "\x00\n"); len(said) > 0 {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return -1, err
}
