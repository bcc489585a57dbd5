package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// Recorder writes frames to a capture file that tcpdump and wireshark read. Its
// methods may be called from any goroutine.
type Recorder struct {
	mu  sync.Mutex
	out io.Writer
	buf []byte
	err error // the first, after which nothing is written
}

// NewRecorder writes the file header to out. Each frame then becomes one Write.
// The caller keeps out, flushes and closes it.
func NewRecorder(out io.Writer) (*Recorder, error) {
	var h [pcapFileHdr]byte
	putPcapFileHeader(&h)
	if _, err := out.Write(h[:]); err != nil {
		return nil, fmt.Errorf("start capture file: %w", err)
	}
	return &Recorder{out: out}, nil
}

// Record appends frames, all with the same time. A checksum left to be completed
// is completed in the file; an unsegmented frame stays in one piece.
func (r *Recorder) Record(at time.Time, frames ...frame.Frame) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		if r.err != nil {
			return
		}
		var h [pcapRecordHdr]byte
		putPcapRecordHeader(&h, at, len(f.Data))
		r.buf = append(append(r.buf[:0], h[:]...), f.Data...)
		f.Data = r.buf[pcapRecordHdr:]
		f.CompleteChecksum()
		_, r.err = r.out.Write(r.buf)
	}
}

// Err returns the first error of writing, nil if there was none.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Capture returns w with everything that passes in either direction recorded to
// out, with the time of c. A failure to record does not disturb the wire; Close reports it.
func Capture(w Wire, out io.Writer, c clock.Clock) (Wire, error) {
	r, err := NewRecorder(out)
	if err != nil {
		return nil, err
	}
	return &captured{Wire: w, rec: r, clock: c}, nil
}

type captured struct {
	Wire
	rec   *Recorder
	clock clock.Clock
}

func (c *captured) Start(recv func([]frame.Frame)) error {
	return c.Wire.Start(func(frames []frame.Frame) {
		c.rec.Record(c.clock.Now(), frames...)
		recv(frames)
	})
}

func (c *captured) Send(frames []frame.Frame) (int, error) {
	c.rec.Record(c.clock.Now(), frames...)
	return c.Wire.Send(frames)
}

func (c *captured) Close() error {
	return errors.Join(c.Wire.Close(), c.rec.Err())
}

// Replay is a capture file as a wire: the port receives what is in the file, and
// what it sends is dropped; put Capture around it to keep that.
type Replay struct {
	in    *pcapReader
	speed float64
	clock clock.Clock
	done  chan struct{}
	quit  chan struct{}

	mu      sync.Mutex // covers what follows
	started bool
	closed  bool
	err     error
}

var _ Wire = (*Replay)(nil)

// NewReplay reads in, a pcap file of Ethernet frames, from the Start of the
// wire on. Speed 1 keeps the pace of the recording by c, 2 doubles it, 0 waits for
// nothing. The caller keeps in and closes it after the wire.
func NewReplay(in io.Reader, speed float64, c clock.Clock) (*Replay, error) {
	r, err := newPcapReader(in)
	if err != nil {
		return nil, err
	}
	return &Replay{in: r, speed: speed, clock: c,
		done: make(chan struct{}), quit: make(chan struct{})}, nil
}

// Start begins to replay on a goroutine of its own.
func (r *Replay) Start(recv func([]frame.Frame)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case r.started:
		return ErrStarted
	}
	r.started = true
	go func() {
		defer close(r.done)
		err := r.playFrames(recv)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}()
	return nil
}

func (r *Replay) playFrames(recv func([]frame.Frame)) error {
	var first, began time.Time
	for {
		at, data, err := r.in.nextFrame()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if began.IsZero() {
			first, began = at, r.clock.Now()
		}
		if !r.waitUntilDue(first, began, at) {
			return ErrClosed
		}
		recv([]frame.Frame{{Data: data}})
	}
}

// waitUntilDue sleeps until a frame of time at is due, and reports whether the wire is
// still open then.
func (r *Replay) waitUntilDue(first, began, at time.Time) bool {
	var due time.Duration
	if r.speed > 0 {
		due = r.clock.Until(began.Add(time.Duration(float64(at.Sub(first)) / r.speed)))
	}
	if due <= 0 {
		select {
		case <-r.quit:
			return false
		default:
			return true
		}
	}
	t := r.clock.NewTimer(due)
	defer t.Stop()
	select {
	case <-r.quit:
		return false
	case <-t.C:
		return true
	}
}

// Done is closed when the last frame was delivered.
func (r *Replay) Done() <-chan struct{} { return r.done }

// Err says after Done whether the file was read to its end.
func (r *Replay) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Send takes frames and forgets them.
func (r *Replay) Send(frames []frame.Frame) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, ErrClosed
	}
	return len(frames), nil
}

// Offloads is everything: nothing is done with the frames.
func (r *Replay) Offloads() frame.Offload {
	return frame.OffloadCsum | frame.OffloadTSO4 | frame.OffloadTSO6 | frame.OffloadUSO
}

// Close stops the replay.
func (r *Replay) Close() error {
	r.mu.Lock()
	started := r.started
	if !r.closed {
		r.closed = true
		close(r.quit)
	}
	r.mu.Unlock()
	if started {
		<-r.done
	}
	return nil
}

// The classic capture file (draft-ietf-opsawg-pcap), link type Ethernet. Files are written
// little-endian with nanosecond times; both byte orders and both resolutions are read.
const (
	pcapMagicMicro = 0xa1b2c3d4
	pcapMagicNano  = 0xa1b23c4d
	pcapEthernet   = 1
	pcapSnapLen    = 256 << 10 // bytes: more than any frame, so that nothing is cut
	pcapFileHdr    = 24
	pcapRecordHdr  = 16
)

// ErrNotPcap tells the reader of something else than a capture of Ethernet frames returns.
var ErrNotPcap = errors.New("wire: not a pcap file of Ethernet frames")

// putPcapFileHeader encodes the file header.
func putPcapFileHeader(b *[pcapFileHdr]byte) {
	*b = [pcapFileHdr]byte{}
	le := binary.LittleEndian
	le.PutUint32(b[0:], pcapMagicNano)
	le.PutUint16(b[4:], 2) // version 2.4
	le.PutUint16(b[6:], 4)
	le.PutUint32(b[16:], pcapSnapLen)
	le.PutUint32(b[20:], pcapEthernet)
}

// putPcapRecordHeader encodes the header of a frame of n bytes, kept whole.
func putPcapRecordHeader(b *[pcapRecordHdr]byte, at time.Time, n int) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(at.Unix()))
	le.PutUint32(b[4:], uint32(at.Nanosecond()))
	le.PutUint32(b[8:], uint32(n))
	le.PutUint32(b[12:], uint32(n))
}

// pcapReader reads one capture file from its start.
type pcapReader struct {
	r     *bufio.Reader
	order binary.ByteOrder
	tick  time.Duration // what one unit of the fraction field is worth
	buf   []byte
}

func newPcapReader(r io.Reader) (*pcapReader, error) {
	p := &pcapReader{r: bufio.NewReaderSize(r, 64<<10)}
	var h [pcapFileHdr]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return nil, fmt.Errorf("read the pcap file header: %w (%w)", ErrNotPcap, err)
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(h[0:]) {
		case pcapMagicMicro:
			p.order, p.tick = order, time.Microsecond
		case pcapMagicNano:
			p.order, p.tick = order, time.Nanosecond
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("magic %x: %w", h[0:4], ErrNotPcap)
	}
	if link := p.order.Uint32(h[20:]) & 0xffff; link != pcapEthernet {
		return nil, fmt.Errorf("link type %d: %w", link, ErrNotPcap)
	}
	return p, nil
}

// nextFrame returns the next frame and its time, or io.EOF after the last. The frame is valid until
// the next call. A file that ends inside a record is io.ErrUnexpectedEOF.
func (p *pcapReader) nextFrame() (time.Time, []byte, error) {
	var h [pcapRecordHdr]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return time.Time{}, nil, err
	}
	kept := p.order.Uint32(h[8:])
	if kept > pcapSnapLen {
		return time.Time{}, nil, fmt.Errorf("a record of %d bytes: %w", kept, ErrNotPcap)
	}
	if cap(p.buf) < int(kept) {
		p.buf = make([]byte, max(int(kept), 2048))
	}
	p.buf = p.buf[:kept]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return time.Time{}, nil, err
	}
	frac := time.Duration(p.order.Uint32(h[4:])) * p.tick
	return time.Unix(int64(p.order.Uint32(h[0:])), int64(frac)), p.buf, nil
}
