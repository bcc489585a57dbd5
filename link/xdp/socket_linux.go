package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

const (
	ringSize = 2048 // entries of each ring, a power of two
	ringMask = ringSize - 1

	// chunk gives the room for a frame, in bytes: a page. With chunks of 2 KiB mlx5e needs keys of
	// keys, and igb cuts frames at 1 KiB.
	chunk    = 4096
	rxFrames = ringSize
	txFrames = ringSize // SendRings

	// headroom repeats what the kernel keeps free in front of a received frame
	// (XDP_PACKET_HEADROOM), and tail what some drivers need behind it for struct skb_shared_info.
	headroom, tail = 256, 320
	// maxMTU gives the largest MTU whose frames, with a tag and a checksum behind, fit a chunk.
	maxMTU = chunk - headroom - tail - ethLen - vlanLen - 4

	// txRoom stays free in front of a frame to be sent: its last bytes are struct
	// xsk_tx_metadata, with launch_time (linux 6.14), of which earlier kernels read less.
	txRoom      = 64
	metadataLen = 24
)

// ring represents one of the four rings of a socket, of which one side is ours.
type ring struct {
	mapped                    []byte
	producer, consumer, flags *atomic.Uint32
	descs                     []unix.XDPDesc // of what is received and sent
	addrs                     []uint64       // of frames to fill, and of frames that have been sent
	at                        uint32         // our index
}

// socket represents an AF_XDP socket with memory of its own (a UMEM):
//
//	free of the kernel ──fill ring──▶ NIC or kernel ──rx ring──▶ held by the caller ──▶ fill ring
//	free to send ──tx ring──▶ NIC or kernel ──completion ring──▶ free to send
//
// Its receiving side has one owner, its sending side the holder of a txQueue's lock.
type socket struct {
	fd                 int
	memory             *mmio.Region
	frames             []byte // memory's
	rx, tx, fill, done ring
	held               []uint64 // addresses of received frames that the caller has
	free               []uint64 // addresses of frames to send that nobody has
	metadata           bool     // a frame to be sent may have metadata: linux 6.8
	zeroCopy           bool     // set by bind

	sends atomic.Uint64 // system calls
}

// newSocket makes a socket that is bound to nothing yet, which is all of it that needs privileges.
func newSocket(send Send) (*socket, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, explainPrivilege("make an AF_XDP socket", err)
	}
	s := &socket{fd: fd}
	if err := s.makeRings(send); err != nil {
		return nil, errors.Join(err, s.closeSocket())
	}
	return s, nil
}

// makeRings registers memory and makes the rings.
func (s *socket) makeRings(send Send) (err error) {
	count := framesFor(send)
	// Children do not have the memory: their copies would move it from under the NIC.
	if s.memory, err = mmio.Alloc(count * chunk); err != nil {
		return err
	}
	s.frames = s.memory.Bytes()
	if err := s.registerMemory(); err != nil {
		return err
	}
	names := []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING}
	if send == SendRings {
		names = append(names, unix.XDP_TX_RING)
	}
	for _, name := range names {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, name, ringSize); err != nil {
			return fmt.Errorf("make ring %d of an AF_XDP socket: %w", name, err)
		}
	}
	if err := s.mapRings(send); err != nil {
		return err
	}
	for i := range uint64(rxFrames) {
		s.fill.addrs[i] = i * chunk
	}
	s.fill.at = rxFrames
	s.fill.producer.Store(s.fill.at)
	for i := rxFrames; i < count; i++ {
		s.free = append(s.free, uint64(i)*chunk)
	}
	return nil
}

// framesFor returns how many frames the memory of a socket has.
func framesFor(send Send) int {
	if send == SendRings {
		return rxFrames + txFrames
	}
	return rxFrames
}

// registerMemory makes the memory known to the kernel: struct xdp_umem_reg, without the last field
// in kernels before 6.8.
func (s *socket) registerMemory() error {
	const withoutMetadata = 28
	ne := binary.NativeEndian
	var b []byte
	for _, v := range []uint64{s.memory.Addr(), uint64(len(s.frames))} {
		b = ne.AppendUint64(b, v)
	}
	for _, v := range []uint32{chunk, 0, unix.XDP_UMEM_TX_METADATA_LEN, metadataLen} {
		b = ne.AppendUint32(b, v)
	}
	err := unix.SetsockoptString(s.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, string(b))
	s.metadata = err == nil
	if errors.Is(err, unix.EINVAL) {
		ne.PutUint32(b[24:], 0)
		err = unix.SetsockoptString(s.fd, unix.SOL_XDP, unix.XDP_UMEM_REG,
			string(b[:withoutMetadata]))
	}
	if errors.Is(err, unix.ENOBUFS) {
		var limit unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
		return fmt.Errorf("AF_XDP needs %d KiB of locked memory per queue, and the process may "+
			"have %d KiB in all: ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, or "+
			"CAP_IPC_LOCK: %w", len(s.frames)>>10, limit.Cur>>10, err)
	}
	if err != nil {
		return fmt.Errorf("register %d KiB for AF_XDP: %w", len(s.frames)>>10, err)
	}
	return nil
}

// mapRings maps the rings that there are.
func (s *socket) mapRings(send Send) error {
	const fields, rings = 4, 4 // struct xdp_mmap_offsets: numbers of each ring, and their order
	var b [fields * rings * 8]byte
	n, err := readOption(s.fd, unix.XDP_MMAP_OFFSETS, b[:])
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d bytes: %w", n, unix.EPROTO) // before linux 5.4
	}
	if err != nil {
		return fmt.Errorf("ask where the rings of an AF_XDP socket are: %w", err)
	}
	for i, m := range []struct {
		ring  *ring
		page  int64
		entry int
	}{
		{&s.rx, unix.XDP_PGOFF_RX_RING, 16},
		{&s.tx, unix.XDP_PGOFF_TX_RING, 16},
		{&s.fill, unix.XDP_UMEM_PGOFF_FILL_RING, 8},
		{&s.done, unix.XDP_UMEM_PGOFF_COMPLETION_RING, 8},
	} {
		if m.ring == &s.tx && send != SendRings {
			continue
		}
		at := func(field int) uint64 {
			return binary.NativeEndian.Uint64(b[(i*fields+field)*8:])
		}
		mapped, err := unix.Mmap(s.fd, m.page, int(at(2))+ringSize*m.entry,
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("map a ring of an AF_XDP socket: %w", err)
		}
		m.ring.mapped = mapped
		m.ring.producer, m.ring.consumer = wordOf(mapped, at(0)), wordOf(mapped, at(1))
		m.ring.flags = wordOf(mapped, at(3))
		if m.entry == 16 {
			m.ring.descs = descriptorsOf(mapped, at(2), ringSize)
		} else {
			m.ring.addrs = addressesOf(mapped, at(2), ringSize)
		}
	}
	return nil
}

// bindTo gives the socket to a queue of an interface. unix.EBUSY: the queue has one.
func (s *socket) bindTo(ifindex, queue int, options Options) error {
	flags := uint16(unix.XDP_USE_NEED_WAKEUP)
	if options.Copy {
		flags |= unix.XDP_COPY // else it is the kernel's choice
	}
	err := unix.Bind(s.fd, &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(ifindex),
		QueueID: uint32(queue)})
	if err != nil {
		return fmt.Errorf("bind an AF_XDP socket to queue %d: %w", queue, err)
	}
	var b [4]byte
	if _, err := readOption(s.fd, unix.XDP_OPTIONS, b[:]); err != nil {
		return fmt.Errorf("ask how queue %d is bound: %w", queue, err)
	}
	s.zeroCopy = binary.NativeEndian.Uint32(b[:])&unix.XDP_OPTIONS_ZEROCOPY != 0
	return nil
}

// countReceived returns how many frames there are.
func (s *socket) countReceived() uint32 { return s.rx.producer.Load() - s.rx.at }

// takeDescriptor takes the next received frame, whose descriptor it returns with where the frame's
// chunk begins.
func (s *socket) takeDescriptor() (d unix.XDPDesc, at uint64) {
	d = s.rx.descs[s.rx.at&ringMask]
	s.rx.at++
	return d, d.Addr &^ (chunk - 1)
}

// takeFrame returns the next received frame, which the caller holds until returnHeld.
func (s *socket) takeFrame() []byte {
	d, at := s.takeDescriptor()
	s.held = append(s.held, at)
	return s.frames[d.Addr : d.Addr+uint64(d.Len) : d.Addr+uint64(d.Len)]
}

// releaseTaken tells the kernel what has been taken.
func (s *socket) releaseTaken() { s.rx.consumer.Store(s.rx.at) }

// returnHeld gives the frames that the caller has had back to the kernel.
func (s *socket) returnHeld() {
	if len(s.held) == 0 {
		return
	}
	for _, at := range s.held {
		s.fillWith(at)
	}
	s.held = s.held[:0]
	s.handFilled()
}

// returnReceived gives all frames back to the kernel that the caller has not taken yet, and returns
// how many there were.
func (s *socket) returnReceived() uint32 {
	n := s.countReceived()
	for range n {
		_, at := s.takeDescriptor()
		s.fillWith(at)
	}
	s.releaseTaken()
	s.handFilled()
	return n
}

// fillWith adds a chunk to those that handFilled hands over to the kernel.
func (s *socket) fillWith(at uint64) {
	s.fill.addrs[s.fill.at&ringMask] = at
	s.fill.at++
}

func (s *socket) handFilled() {
	s.fill.producer.Store(s.fill.at)
	s.wakeDriver()
}

// wakeDriver tells a driver that has run out of frames that there are some.
func (s *socket) wakeDriver() {
	if s.fill.flags.Load()&unix.XDP_RING_NEED_WAKEUP == 0 {
		return
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// reclaimSent takes back the frames that have been sent, and returns how many.
func (s *socket) reclaimSent() int {
	n := s.done.producer.Load() - s.done.at
	for range n {
		s.free = append(s.free, s.done.addrs[s.done.at&ringMask]&^(chunk-1))
		s.done.at++
	}
	if n > 0 {
		s.done.consumer.Store(s.done.at)
	}
	return int(n)
}

// postFrame adds a frame to those that send hands over.
func (s *socket) postFrame(addr uint64, size int, options uint32) {
	s.tx.descs[s.tx.at&ringMask] = unix.XDPDesc{Addr: addr, Len: uint32(size), Options: options}
	s.tx.at++
}

// sendPosted hands over what is posted. Without zero copy the kernel takes 32 frames per call.
func (s *socket) sendPosted() {
	s.tx.producer.Store(s.tx.at)
	for s.tx.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 {
		before := s.tx.consumer.Load()
		if before == s.tx.at {
			return
		}
		s.sends.Add(1)
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0,
			0)
		if s.zeroCopy || errno != 0 && s.tx.consumer.Load() == before {
			return
		}
	}
}

// counts holds the kernel's counters of a socket: struct xdp_statistics.
type counts struct {
	dropped, invalid, invalidSent, ringFull, fillEmpty uint64
}

func (s *socket) readCounts() (c counts) {
	var b [6 * 8]byte
	n, err := readOption(s.fd, unix.XDP_STATISTICS, b[:])
	if err != nil {
		return c
	}
	for i, field := range []*uint64{&c.dropped, &c.invalid, &c.invalidSent, &c.ringFull,
		&c.fillEmpty} {
		if (i+1)*8 <= n {
			*field = binary.NativeEndian.Uint64(b[i*8:])
		}
	}
	return c
}

// unmapAll gives the memory back. The descriptor is closed before, or nothing comes any more.
func (s *socket) unmapAll() (err error) {
	for _, r := range []*ring{&s.rx, &s.tx, &s.fill, &s.done} {
		if r.mapped != nil {
			err = errors.Join(err, unix.Munmap(r.mapped))
			r.mapped = nil
		}
	}
	if s.memory != nil {
		err = errors.Join(err, s.memory.Close())
	}
	return err
}

// closeSocket ends a socket that no queue has yet.
func (s *socket) closeSocket() error { return errors.Join(unix.Close(s.fd), s.unmapAll()) }
