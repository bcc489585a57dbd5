package uverbs

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// ErrReplay is wrapped by errors of a replayed Kernel whose requests differ from those of the
// recording.
var ErrReplay = errors.New("conversation differs from the recorded one")

// Replay returns a Kernel with the replies of the trace r, which Record wrote. The requests must be
// the same, in the same order. The first difference is returned as an error that wraps ErrReplay,
// from that call and all later ones. Event descriptors are real but get no events. Doorbell stores
// have no effect. Close fails if the trace has calls that were not made.
func Replay(r io.Reader) (Kernel, error) {
	p := &player{live: map[int32]int32{}}
	for d := json.NewDecoder(r); ; {
		var c tracedCall
		err := d.Decode(&c)
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err == nil && (c.Ioctl == nil) == (c.Mmap == nil) {
			err = errors.New("neither an ioctl nor an mmap")
		}
		if err != nil {
			return nil, fmt.Errorf("read trace, call %d: %w", len(p.calls)+1, err)
		}
		p.calls = append(p.calls, c)
	}
}

type player struct {
	mu     sync.Mutex
	calls  []tracedCall
	at     int             // next call
	live   map[int32]int32 // descriptor of this process -> number in the trace
	peers  []int           // write ends of the event descriptors
	closed bool
	err    error // the first difference
}

func (p *player) Ioctl(buf []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, err := parse(buf)
	if err != nil {
		return p.differ(err.Error())
	}
	t, err := asked.request(p.nameOf)
	if err != nil {
		return err
	}
	c, err := p.next(tracedCall{Call: "ioctl", Name: asked.name(), Ioctl: t})
	if err != nil {
		return err
	}
	if answer := errnoByName(c.Errno); answer != nil {
		return answer
	}
	for i, a := range asked.attrs {
		if err := p.answer(asked, a, c.Ioctl.Attrs[i], buf); err != nil {
			return err
		}
	}
	return nil
}

// next returns the recorded call if it is the one being made; p.mu is held.
func (p *player) next(asked tracedCall) (tracedCall, error) {
	switch {
	case p.closed:
		return tracedCall{}, unix.EBADF
	case p.err != nil:
		return tracedCall{}, p.err
	case p.at == len(p.calls):
		return tracedCall{}, p.differ("nothing more was asked")
	}
	c := p.calls[p.at]
	want, have := c.question(), asked.question()
	if want != have {
		return tracedCall{}, p.differ(fmt.Sprintf("%s, not %s", want, have))
	}
	p.at++
	return c, nil
}

// question renders a call without its replies.
func (c tracedCall) question() string {
	c.Errno, c.Name = "", ""
	if c.Ioctl != nil {
		t := *c.Ioctl
		t.Attrs = append([]tracedAttr(nil), t.Attrs...)
		for i := range t.Attrs {
			t.Attrs[i].Out = ""
		}
		c.Ioctl = &t
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // plain structs
	}
	return string(b)
}

func (p *player) differ(how string) error {
	if p.err == nil {
		p.err = fmt.Errorf("call %d was %s: %w", p.at+1, how, ErrReplay)
	}
	return p.err
}

// answer writes the recorded reply of one attribute to the caller's memory.
func (p *player) answer(asked parsed, a parsedAttr, rec tracedAttr, buf []byte) error {
	if a.dir != dirOut && a.dir != dirNew {
		return nil
	}
	b, err := hex.DecodeString(rec.Out)
	if err != nil || a.dir == dirOut && len(b) != int(a.Len) || a.dir == dirNew && len(b) != 8 {
		return p.differ("answered with something that does not fit")
	}
	if at, ok := asked.fdGiven(a); ok && at+4 <= len(b) {
		fd, err := p.open(int32(binary.NativeEndian.Uint32(b[at:])))
		if err != nil {
			return err
		}
		binary.NativeEndian.PutUint32(b[at:], uint32(fd))
	}
	if a.dir == dirOut {
		return mmio.WriteUser(a.Data, b)
	}
	w := a.IoctlAttr
	w.Data = binary.NativeEndian.Uint64(b)
	PutStruct(buf[a.at:], w)
	return nil
}

// open creates an event descriptor without events until p is closed.
func (p *player) open(name int32) (int, error) {
	var fds [2]int
	syscall.ForkLock.RLock()
	err := unix.Pipe(fds[:])
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	p.peers = append(p.peers, fds[1])
	p.live[int32(fds[0])] = name
	return fds[0], nil
}

func (p *player) nameOf(fd int32) int32 {
	if n, ok := p.live[fd]; ok {
		return n
	}
	return fd
}

func (p *player) Mmap(offset int64, length int, writable bool) (*Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.next(tracedCall{Call: "mmap", Mmap: &tracedMmap{offset, length, writable}})
	if err == nil {
		err = errnoByName(c.Errno)
	}
	if err != nil {
		return nil, err
	}
	return &Page{Trap: func(int, uint64) {}}, nil
}

// Close ends the replay.
func (p *player) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return unix.EBADF
	}
	p.closed = true
	for _, fd := range p.peers {
		unix.Close(fd)
	}
	if p.err == nil && p.at < len(p.calls) {
		return fmt.Errorf("%d of %d calls were not made: %w",
			len(p.calls)-p.at, len(p.calls), ErrReplay)
	}
	return nil
}
