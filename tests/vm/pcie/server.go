package pcie

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxTransfer is the maximum size of a register access, in bytes, as announced to the client.
const maxTransfer = 1 << 20

// maxFDs is the maximum number of descriptors with one message.
const maxFDs = 8

// versionReply is our reply in the version handshake: no migration, no multiple writes in one
// message, so that every guest store is one message.
const versionReply = `{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576,"pgsizes":4096,"max_dma_maps":65535}}`

// server is one client's connection. A single goroutine reads messages and executes each before it
// reads the next, so guest accesses keep their order.
type server struct {
	conn *net.UnixConn
	fn   *Function
	oob  [256]byte
	head [headerSize]byte
}

// serve handles messages until the client closes the connection.
func (s *server) serve() error {
	for {
		m, err := s.receive()
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
			errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		payload, err := s.handle(&m)
		closeAll(m.fds)
		if err := s.answer(&m, payload, err); err != nil {
			return err
		}
	}
}

// answer sends the reply if the client requested one. A refused request is always answered.
func (s *server) answer(m *message, payload []byte, err error) error {
	if err == nil && !m.wantsReply() {
		return nil
	}
	errno := uint32(0)
	if err != nil {
		s.fn.log.Warn("vfio-user request refused", "command", m.command, "error", err)
		errno = uint32(unix.EINVAL)
		var no unix.Errno
		if errors.As(err, &no) {
			errno = uint32(no)
		}
		if !m.wantsReply() {
			return nil
		}
	}
	if _, err := s.conn.Write(m.reply(payload, errno)); err != nil {
		return fmt.Errorf("vfio-user reply: %w", err)
	}
	return nil
}

// receive reads one message. Descriptors come with its first byte.
func (s *server) receive() (message, error) {
	n, oobn, _, _, err := s.conn.ReadMsgUnix(s.head[:], s.oob[:])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return message{}, err
	}
	fds, err := parseFDs(s.oob[:oobn])
	if err != nil {
		return message{}, err
	}
	if _, err := io.ReadFull(s.conn, s.head[n:]); err != nil {
		closeAll(fds)
		return message{}, err
	}
	m, size, err := parseHeader(s.head[:])
	if err != nil {
		closeAll(fds)
		return message{}, err
	}
	m.fds, m.body = fds, make([]byte, size)
	if _, err := io.ReadFull(s.conn, m.body); err != nil {
		closeAll(fds)
		return message{}, err
	}
	return m, nil
}

// parseFDs returns the descriptors of a control message, close-on-exec.
func parseFDs(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("vfio-user control message: %w", err)
	}
	var fds []int
	for _, c := range msgs {
		f, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue
		}
		fds = append(fds, f...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// takeFD passes descriptor i of the message to the caller, -1 if there is none.
func (m *message) takeFD(i int) int {
	if i >= len(m.fds) {
		return -1
	}
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

// handle executes one message and returns the payload of the reply.
func (s *server) handle(m *message) ([]byte, error) {
	s.fn.mu.Lock()
	defer s.fn.mu.Unlock()
	switch m.command {
	case cmdVersion:
		return append([]byte{0, 0, 0, 0}, append([]byte(versionReply), 0)...), nil
	case cmdDMAMap:
		return nil, s.dmaMap(m)
	case cmdDMAUnmap:
		return m.body[:min(24, len(m.body))], s.fn.dma.unmap(m.u64(8), m.u64(16))
	case cmdGetInfo:
		return deviceInfo(), nil
	case cmdGetRegionInfo:
		return regionInfo(m.u32(8)), nil
	case cmdGetIRQInfo:
		return irqInfo(m.u32(8)), nil
	case cmdSetIRQs:
		return nil, s.setIRQs(m)
	case cmdRegionRead:
		return s.regionRead(m)
	case cmdRegionWrite:
		return s.regionWrite(m)
	case cmdReset:
		s.fn.reset()
		return nil, nil
	}
	return nil, fmt.Errorf("vfio-user command %d: %w", m.command, unix.ENOSYS)
}

// dmaMap: argsz u32, flags u32 (1 read, 2 write), offset u64, address u64, size u64, optionally one
// descriptor.
func (s *server) dmaMap(m *message) error {
	if len(m.body) < 32 {
		return fmt.Errorf("DMA map of %d bytes: %w", len(m.body), unix.EINVAL)
	}
	return s.fn.dma.add(m.u64(16), m.u64(24), m.takeFD(0), int64(m.u64(8)), m.u32(4)&2 != 0)
}

// setIRQs: argsz u32, flags u32, index u32, start u32, count u32; flags 0x24 = eventfds,
// 0x21 = none.
func (s *server) setIRQs(m *message) error {
	flags, index, start, count := m.u32(4), m.u32(8), m.u32(12), m.u32(16)
	if index != irqMSIX {
		return nil
	}
	if flags&4 == 0 {
		s.fn.irq.clear()
		return nil
	}
	if count > maxFDs || start >= numVectors || start+count > numVectors {
		return fmt.Errorf("interrupts %d to %d of %d: %w", start,
			start+count, numVectors, unix.EINVAL)
	}
	for i := range count {
		s.fn.irq.set(int(start+i), m.takeFD(int(i)))
	}
	return nil
}

// regionRead: offset u64, region u32, count u32; the reply repeats them and adds the data.
func (s *server) regionRead(m *message) ([]byte, error) {
	count := m.u32(12)
	if len(m.body) < 16 || count > maxTransfer {
		return nil, fmt.Errorf("read of %d bytes: %w", count, unix.EINVAL)
	}
	out := make([]byte, 16+count)
	copy(out, m.body[:16])
	return out, s.fn.read(m.u32(8), m.u64(0), out[16:])
}

func (s *server) regionWrite(m *message) ([]byte, error) {
	count := int(m.u32(12))
	if len(m.body) < 16 || len(m.body)-16 < count {
		return nil, fmt.Errorf("write of %d bytes in a message of %d: %w",
			count, len(m.body), unix.EINVAL)
	}
	return m.body[:16], s.fn.write(m.u32(8), m.u64(0), m.body[16:16+count])
}

// Region and interrupt indices of VFIO (include/uapi/linux/vfio.h).
const (
	regionBAR0   = 0
	regionConfig = 7
	numRegions   = 9
	irqMSIX      = 2
	numIRQs      = 5
)

// deviceInfo: argsz, flags (1 reset, 2 PCI), number of regions, number of interrupt types.
func deviceInfo() []byte { return words(16, 3, numRegions, numIRQs) }

// regionInfo: argsz, flags (1 read, 2 write), index, capability offset, size u64, file offset u64.
func regionInfo(index uint32) []byte {
	size := uint32(0)
	switch index {
	case regionBAR0:
		size = barSize
	case regionConfig:
		size = configSize
	}
	flags := uint32(0)
	if size != 0 {
		flags = 3
	}
	return words(32, flags, index, 0, size, 0, 0, 0)
}

// irqInfo: argsz, flags (1 eventfd), index, count.
func irqInfo(index uint32) []byte {
	if index == irqMSIX {
		return words(16, 1, index, numVectors)
	}
	return words(16, 1, index, 0)
}

// words encodes little-endian 32-bit words.
func words(w ...uint32) []byte {
	b := make([]byte, 0, 4*len(w))
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}
