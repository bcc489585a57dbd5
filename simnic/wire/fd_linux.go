package wire

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Sizes of the receive side of a wire that is a file descriptor.
const (
	fdBatch  = 16       // frames handed on at once, at most
	fdBytes  = 96 << 10 // bytes after which a batch ends, to stay in the cache
	fdBuffer = 66 << 10 // bytes: a frame of 64 KiB, its headers, vnet header, room for a tag
)

// fileWire holds what TAP and Packet have in common: a descriptor in the Go poller
// that speaks frames with a vnet header, a goroutine that reads it, and senders.
type fileWire struct {
	file     *os.File
	raw      syscall.RawConn
	offloads frame.Offload
	read     func(fd int, buf []byte) (frame.Frame, error) // one frame into buf

	mu      sync.Mutex // covers started and closed
	started bool
	closed  bool
	reader  sync.WaitGroup
	lost    atomic.Uint64

	tx     sync.Mutex // one Send at a time: what follows is its scratch
	hdr    [frame.VnetHdrLen]byte
	data   []byte
	sent   error
	sendFn func(fd uintptr) bool
}

// errNotFrame marks something that was read and is no frame: it is counted and skipped.
var errNotFrame = errors.New("not a frame")

// initFD takes over fd, which is non-blocking and ready to be polled.
func (w *fileWire) initFD(fd int, name string, o frame.Offload) error {
	w.file = os.NewFile(uintptr(fd), name)
	raw, err := w.file.SyscallConn()
	if err != nil {
		return errors.Join(err, w.file.Close())
	}
	w.raw, w.offloads = raw, o
	w.sendFn = func(fd uintptr) bool {
		_, w.sent = mmio.WriteNow(int(fd), w.hdr[:], w.data)
		return true
	}
	return nil
}

// Start begins reception on a goroutine of its own, which ends at Close or when
// the interface disappears.
func (w *fileWire) Start(recv func([]frame.Frame)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return ErrClosed
	case w.started:
		return ErrStarted
	}
	w.started = true
	w.reader.Go(func() { w.receiveAll(recv) })
	return nil
}

// receiveAll reads all there is, hands it on in batches, and parks when there is nothing.
func (w *fileWire) receiveAll(recv func([]frame.Frame)) {
	r := &fdReader{wire: w, recv: recv, batch: make([]frame.Frame, 0, fdBatch)}
	for i := range r.bufs {
		r.bufs[i] = make([]byte, fdBuffer)
	}
	fill := r.readAll // made once, so that reading does not allocate
	for r.failed == nil && w.raw.Read(fill) == nil {
	}
}

// fdReader is the receiver's scratch.
type fdReader struct {
	wire   *fileWire
	recv   func([]frame.Frame)
	bufs   [fdBatch][]byte
	batch  []frame.Frame
	failed error // nothing can be read after it
}

// readAll reads until there is nothing more, or no buffer, and hands on what it read.
// It reports false when there is nothing, and the poller calls it again when there
// is: to find out a second time would be another call of the kernel per batch.
func (r *fdReader) readAll(fd uintptr) bool {
	defer r.handOn()
	for bytes := 0; len(r.batch) < fdBatch && bytes < fdBytes; {
		f, err := r.wire.read(int(fd), r.bufs[len(r.batch)])
		switch {
		case err == nil:
			r.batch = append(r.batch, f)
			bytes += len(f.Data)
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, errNotFrame):
			r.wire.lost.Add(1)
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			// The interface went down; it may come back.
		default:
			r.failed = err
			return true
		}
	}
	return true
}

func (r *fdReader) handOn() {
	if len(r.batch) > 0 {
		r.recv(r.batch)
		r.batch = r.batch[:0]
	}
}

// Send writes the frames. The interface being down (unix.EIO, unix.ENETDOWN) or
// a frame it does not take ends it; the rest is not tried.
func (w *fileWire) Send(frames []frame.Frame) (int, error) {
	w.tx.Lock()
	defer w.tx.Unlock()
	for i := range frames {
		if err := w.sendFrame(frames[i]); err != nil {
			return i, fmt.Errorf("send %d bytes to %s: %w", len(frames[i].Data), w.file.Name(), err)
		}
	}
	return len(frames), nil
}

func (w *fileWire) sendFrame(f frame.Frame) error {
	frame.PutVnet(&w.hdr, f)
	w.data = f.Data
	err := w.raw.Write(w.sendFn)
	w.data = nil
	if err != nil {
		return ErrClosed // the poller has no other reason to refuse
	}
	return w.sent
}

// Offloads returns the frames the kernel behind the descriptor takes.
func (w *fileWire) Offloads() frame.Offload { return w.offloads }

// Lost counts what the kernel handed over and could not be used: cut short, or
// with a header that does not fit it.
func (w *fileWire) Lost() uint64 { return w.lost.Load() }

// Close closes the descriptor and waits for the receiver. It must not be called
// from inside the receiver.
func (w *fileWire) Close() error {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	var err error
	if !again {
		err = w.file.Close()
	}
	w.reader.Wait()
	return err
}
