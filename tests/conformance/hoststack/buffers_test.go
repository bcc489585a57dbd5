//go:build linux

package hoststack

import (
	"runtime"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestFullBuffers: a socket that nobody reads keeps as many datagrams as one of the kernel's with a
// receive buffer of the same size.
func TestFullBuffers(t *testing.T) {
	need.Root(t)
	kernel := kernelWorld(t)
	worlds := []*world{stackWorld(t), hostWorld(t)}
	for _, buffer := range []int{0, 16 << 10, 64 << 10, 1 << 20} {
		for _, size := range []int{1, 64, 512, 1200, 1472, 4000} {
			want := kernel.keeps(t, size, buffer, 8192)
			for _, ours := range worlds {
				if got := ours.keeps(t, size, buffer, want); got < want {
					t.Errorf("%s, a buffer of %d (0: the default): %d datagrams of %d bytes, the "+
						"kernel keeps %d", ours.name, buffer, got, size, want)
				}
			}
		}
	}
}

// keeps returns how many datagrams of size bytes a socket of the server has of at most most, which
// were sent while nobody read.
func (w *world) keeps(t *testing.T, size, buffer, most int) (n int) {
	r := &run{T: t, world: w, notes: notes{world: w, names: map[string]string{}}}
	p := r.packet("udp4", w.server4.String())
	if buffer > 0 {
		r.must(p.SetReadBuffer(buffer))
	}
	c := r.connected(p)
	data, before := pattern(size), w.delivered()
	for i := range most {
		_, err := c.Write(data)
		r.must(err)
		if i%32 == 31 || i == most-1 { // the rings of the NIC are not looked at here
			w.awaitDatagrams(t, before+uint64(i)+1)
		}
	}
	wait := ample
	if w.datagrams == nil { // what the kernel has kept is there
		wait = brief
	}
	r.must(p.SetReadDeadline(time.Now().Add(wait)))
	for buf := make([]byte, size+1); n < most; n++ {
		got, _, err := p.ReadFrom(buf)
		if err != nil {
			break
		}
		if got != size {
			t.Fatalf("%s: %d bytes of %d", w.name, got, size)
		}
	}
	r.must(p.Close())
	return n
}

// delivered returns how many datagrams the server's sockets have got; 0 where that is a kernel's.
func (w *world) delivered() uint64 {
	if w.datagrams == nil {
		return 0
	}
	return w.datagrams()
}

// awaitDatagrams waits until the server's sockets have got or dropped that many; a kernel's have.
func (w *world) awaitDatagrams(t *testing.T, n uint64) {
	for end := soon(); w.datagrams != nil && w.datagrams() < n; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: %d datagrams of %d have come", w.name, w.datagrams(), n)
		}
	}
}
