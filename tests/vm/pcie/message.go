package pcie

import (
	"encoding/binary"
	"fmt"
)

// vfio-user message header, 16 bytes, little-endian: id u16, command u16, size u32 (with
// the header), flags u32, errno u32 (QEMU docs/interop/vfio-user.rst, "Header").
const headerSize = 16

// maxMessage is the maximum size of one message: maxTransfer of the version reply plus the header.
const maxMessage = maxTransfer + 64

const (
	flagReply   = 0x1
	flagNoReply = 0x10
	flagError   = 0x20
)

// command is a vfio-user message type.
type command uint16

const (
	cmdVersion       command = 1
	cmdDMAMap        command = 2
	cmdDMAUnmap      command = 3
	cmdGetInfo       command = 4
	cmdGetRegionInfo command = 5
	cmdGetIRQInfo    command = 7
	cmdSetIRQs       command = 8
	cmdRegionRead    command = 9
	cmdRegionWrite   command = 10
	cmdReset         command = 13
)

// message is one request of the client with its descriptors. Its handler owns the descriptors it
// takes out of fds; the server closes the rest.
type message struct {
	id      uint16
	command command
	flags   uint32
	body    []byte
	fds     []int
}

func (m *message) wantsReply() bool { return m.flags&flagNoReply == 0 }

// parseHeader decodes a header and returns the length of the body that follows.
func parseHeader(h []byte) (m message, body int, err error) {
	size := int(binary.LittleEndian.Uint32(h[4:]))
	if size < headerSize || size > maxMessage {
		return m, 0, fmt.Errorf("vfio-user message of %d bytes, want %d to %d",
			size, headerSize, maxMessage)
	}
	m = message{
		id:      binary.LittleEndian.Uint16(h[0:]),
		command: command(binary.LittleEndian.Uint16(h[2:])),
		flags:   binary.LittleEndian.Uint32(h[8:]),
	}
	return m, size - headerSize, nil
}

// reply encodes the answer to m: payload on success, else only an errno.
func (m *message) reply(payload []byte, errno uint32) []byte {
	flags := uint32(flagReply)
	if errno != 0 {
		flags, payload = flags|flagError, nil
	}
	b := make([]byte, headerSize, headerSize+len(payload))
	binary.LittleEndian.PutUint16(b[0:], m.id)
	binary.LittleEndian.PutUint16(b[2:], uint16(m.command))
	binary.LittleEndian.PutUint32(b[4:], uint32(headerSize+len(payload)))
	binary.LittleEndian.PutUint32(b[8:], flags)
	binary.LittleEndian.PutUint32(b[12:], errno)
	return append(b, payload...)
}

// u32 and u64 read a field of the body; a body too short reads as zero and is refused
// where its length matters.
func (m *message) u32(off int) uint32 {
	if len(m.body) < off+4 {
		return 0
	}
	return binary.LittleEndian.Uint32(m.body[off:])
}

func (m *message) u64(off int) uint64 {
	return uint64(m.u32(off)) | uint64(m.u32(off+4))<<32
}
