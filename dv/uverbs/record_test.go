package uverbs

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// Record returns a Kernel that passes all calls on to k and writes each call, with request and
// reply, to w: one line of JSON per call, which Replay reads. Calls run one at a time. Doorbell
// stores, and events read from descriptors, are not recorded.
//
// A failure to write ends the recording, but calls still reach k; Close reports it.
func Record(k Kernel, w io.Writer) Kernel {
	return &recorder{kernel: k, out: json.NewEncoder(w), names: map[int32]int32{}}
}

type recorder struct {
	kernel Kernel

	mu    sync.Mutex
	out   *json.Encoder
	names map[int32]int32 // descriptor -> number in the trace
	next  int32
	err   error // first failure of the recording
}

func (r *recorder) Ioctl(buf []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := parse(buf)
	var t *tracedIoctl
	if err == nil {
		t, err = p.request(r.nameOf)
	}
	if err != nil {
		r.fail(err)
		return r.kernel.Ioctl(buf)
	}
	answer := r.kernel.Ioctl(buf)
	if answer == nil {
		r.fail(r.collect(p, t, buf))
	}
	r.line(tracedCall{Call: "ioctl", Name: p.name(), Errno: errnoName(answer), Ioctl: t})
	return answer
}

// collect adds the replies in buf to t.
func (r *recorder) collect(p parsed, t *tracedIoctl, buf []byte) error {
	for i, a := range p.attrs {
		b, err := a.given(buf)
		if err != nil {
			return err
		}
		if at, ok := p.fdGiven(a); ok && at+4 <= len(b) {
			fd := int32(binary.NativeEndian.Uint32(b[at:]))
			binary.NativeEndian.PutUint32(b[at:], uint32(r.newName(fd)))
		}
		t.Attrs[i].Out = hex.EncodeToString(b)
	}
	return nil
}

// given returns the bytes of a reply, nil for inputs.
func (a parsedAttr) given(buf []byte) ([]byte, error) {
	switch a.dir {
	case dirOut:
		b := make([]byte, a.Len)
		return b, mmio.ReadUser(a.Data, b)
	case dirNew:
		var w IoctlAttr
		GetStruct(buf[a.at:], &w)
		return binary.NativeEndian.AppendUint64(nil, w.Data), nil
	}
	return nil, nil
}

func (r *recorder) nameOf(fd int32) int32 {
	if n, ok := r.names[fd]; ok {
		return n
	}
	return fd
}

func (r *recorder) newName(fd int32) int32 {
	r.next++
	r.names[fd] = r.next
	return r.next
}

func (r *recorder) Mmap(offset int64, length int, writable bool) (*Page, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, err := r.kernel.Mmap(offset, length, writable)
	r.line(tracedCall{Call: "mmap", Errno: errnoName(err),
		Mmap: &tracedMmap{offset, length, writable}})
	return p, err
}

// Close closes the recorded kernel.
func (r *recorder) Close() error {
	err := r.kernel.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.err != nil {
		return fmt.Errorf("record conversation: %w", r.err)
	}
	return err
}

// line writes one call; r.mu is held.
func (r *recorder) line(c tracedCall) {
	if r.err == nil {
		r.fail(r.out.Encode(c))
	}
}

// fail ends the recording if err is not nil; r.mu is held.
func (r *recorder) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}
