package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// payloads is a wire that records how many bytes of payload each TCP frame over IPv4 or IPv6 has.
type payloads struct {
	wire.Wire
	mu    sync.Mutex
	sizes []int // of frames with any
}

func (w *payloads) Send(frames []frame.Frame) (int, error) {
	w.mu.Lock()
	for _, f := range frames {
		ip, at, end := f.Data[14:], 20, 0
		switch kind := binary.BigEndian.Uint16(f.Data[12:]); {
		case kind == 0x800 && ip[9] == 6:
			end = int(binary.BigEndian.Uint16(ip[2:]))
		case kind == 0x86dd && ip[6] == 6:
			at, end = 40, 40+int(binary.BigEndian.Uint16(ip[4:]))
		default:
			continue
		}
		if n := end - at - int(ip[at+12]>>4)*4; n > 0 {
			w.sizes = append(w.sizes, n)
		}
	}
	w.mu.Unlock()
	return w.Wire.Send(frames)
}

func (w *payloads) drain() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.sizes
	w.sizes = nil
	return s
}

// wholeRig is two stacks on software NICs with a connection whose sender's cable is tapped.
type wholeRig struct {
	tap  *payloads
	from *TCPConn
	got  chan []byte // what the receiver has read when the sender has closed
}

func newWholeRig(t *testing.T, network, to string) *wholeRig {
	t.Helper()
	r := &wholeRig{got: make(chan []byte, 1)}
	rig := newDirectRigOn(t, false, func(w wire.Wire) wire.Wire {
		r.tap = &payloads{Wire: w}
		return r.tap
	})
	l, err := rig.receiver.Listen(network, to)
	must(t, err)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		all, _ := io.ReadAll(c)
		r.got <- all
	}()
	conn, err := rig.sender.DialTimeout(network, to, time.Minute)
	must(t, err)
	t.Cleanup(func() { conn.Close(); l.Close() })
	r.from = conn.(*TCPConn)
	return r
}

// pattern is n bytes in which no piece is like another.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7919 >> 8)
	}
	return b
}

// cut makes slices of b of those sizes in turn, some of them empty.
func cut(b []byte, sizes ...int) (v net.Buffers) {
	for i := 0; len(b) > 0; i++ {
		n := min(sizes[i%len(sizes)], len(b))
		v = append(v, b[:n:n])
		b = b[n:]
	}
	return v
}

// TestWritesFillFrames sends what several packets hold, in each way: all frames on the wire are as
// large as they may be. Linux makes such frames of sendfile, splice and writev.
func TestWritesFillFrames(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(c *TCPConn, b []byte, file string) (int64, error)
	}{
		{"Write", func(c *TCPConn, b []byte, _ string) (int64, error) {
			for rest := b; len(rest) > 0; rest = rest[c.WriteSize():] {
				if _, err := c.Write(rest[:c.WriteSize()]); err != nil {
					return 0, err
				}
			}
			return int64(len(b)), nil
		}},
		{"ReadFrom a file", func(c *TCPConn, _ []byte, file string) (int64, error) {
			f, err := os.Open(file)
			if err != nil {
				return 0, err
			}
			defer f.Close()
			return c.ReadFrom(f)
		}},
		{"WriteBuffers of 1,000", func(c *TCPConn, b []byte, _ string) (int64, error) {
			v := cut(b, 1+len(b)/1000)
			return c.WriteBuffers(&v)
		}},
		{"ReadFrom buffers", func(c *TCPConn, b []byte, _ string) (int64, error) {
			v := cut(b, 100, 0, 3)
			return c.ReadFrom(&v)
		}},
		{"Write under pressure", func(c *TCPConn, b []byte, _ string) (int64, error) {
			c.stack.memory.watching.Store(true)
			n, err := c.Write(b)
			return int64(n), err
		}},
	} {
		for network, at := range map[string]string{"tcp4": "192.0.2.2:9",
			"tcp6": "[2001:db8::2]:9"} {
			t.Run(fmt.Sprint(tt.name, " ", network), func(t *testing.T) {
				r := newWholeRig(t, network, at)
				size, mss := r.from.WriteSize(), r.from.stack.fields.segmentSize(r.from.ep)
				if size < 60000 || size > 65535 || size%mss != 0 {
					t.Fatalf("WriteSize is %d, a segment %d", size, mss)
				}
				want := pattern(4 * size)
				file := filepath.Join(t.TempDir(), "file")
				must(t, os.WriteFile(file, want, 0o600))
				n, err := tt.send(r.from, want, file)
				if err != nil || n != int64(len(want)) {
					t.Fatalf("sent %d of %d: %v", n, len(want), err)
				}
				must(t, r.from.CloseWrite())
				if got := <-r.got; !bytes.Equal(got, want) {
					t.Fatalf("%d other bytes arrived, of %d", len(got), len(want))
				}
				sizes := r.tap.drain()
				short := slices.DeleteFunc(slices.Clone(sizes),
					func(n int) bool { return n == mss })
				if len(short) > 0 {
					t.Errorf("of %d frames %d have not %d bytes: %v", len(sizes), len(short), mss,
						short)
				}
			})
		}
	}
}

// TestWriteBuffersAsPackageNet compares WriteBuffers with net.Buffers.WriteTo on a connection of
// the kernel's: what arrives, what is returned, and what is left in the buffers.
func TestWriteBuffersAsPackageNet(t *testing.T) {
	for name, v := range map[string]func() net.Buffers{
		"none":  func() net.Buffers { return nil },
		"empty": func() net.Buffers { return net.Buffers{{}, nil, {}} },
		"one":   func() net.Buffers { return net.Buffers{pattern(5)} },
		"around": func() net.Buffers {
			return net.Buffers{nil, pattern(5), {}, pattern(3), nil}
		},
		"many":      func() net.Buffers { return cut(pattern(300000), 1, 0, 700, 20000) },
		"very many": func() net.Buffers { return cut(pattern(30000), 7) },
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			arrived := make(chan []byte, 1)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				all, _ := io.ReadAll(c)
				arrived <- all
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			must(t, err)
			theirs, ours := v(), v()
			n, err := theirs.WriteTo(c)
			must(t, err)
			must(t, c.Close())
			want := <-arrived

			r := newWholeRig(t, "tcp4", "192.0.2.2:9")
			m, err := r.from.WriteBuffers(&ours)
			must(t, err)
			must(t, r.from.CloseWrite())
			if got := <-r.got; !bytes.Equal(got, want) || m != n ||
				left(ours) != left(theirs) {
				t.Errorf("%d of %d bytes arrived, %d returned, %d left; package net: %d, %d",
					len(got), len(want), m, left(ours), n, left(theirs))
			}
		})
	}
}

func left(v net.Buffers) (n int) {
	for _, b := range v {
		n += len(b)
	}
	return n
}

// TestWriteBuffersLeavesTheRest stops a write by its deadline: what is left in the buffers is what
// has not been written.
func TestWriteBuffersLeavesTheRest(t *testing.T) {
	r := newWholeRig(t, "tcp4", "192.0.2.2:9")
	want := pattern(64 << 20)
	v := cut(slices.Clone(want), 100_000, 0, 17)
	must(t, r.from.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	n, err := r.from.WriteBuffers(&v)
	var op *net.OpError
	for err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &op) || op.Op != "writev" {
			t.Fatal(err)
		}
		if int(n)+left(v) != len(want) {
			t.Fatalf("%d written, %d left of %d", n, left(v), len(want))
		}
		must(t, r.from.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		var m int64
		m, err = r.from.WriteBuffers(&v)
		n += m
	}
	must(t, r.from.CloseWrite())
	if got := <-r.got; !bytes.Equal(got, want) || len(v) != 0 {
		t.Errorf("%d other bytes arrived, of %d; %d slices are left", len(got), len(want), len(v))
	}
}

// TestWriteAllocatesNothing counts the allocations of one write, of slices and of one.
func TestWriteAllocatesNothing(t *testing.T) {
	src := writeSource{}
	b := pattern(1000)
	v := cut(b, 10, 0, 300)
	into := make([]byte, 700)
	if n := testing.AllocsPerRun(100, func() {
		src = sourceOf(v)
		for src.left > 0 {
			if n, err := src.Read(into); n == 0 || err != nil {
				t.Fatal(n, err)
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
