package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// mistake is one error in an otherwise correct command.
type mistake struct {
	name  string
	make  func(r *rawNode, w *write)
	errno unix.Errno
}

// set32 is the mistake of a wrong number at an offset of the command struct.
func set32(name string, at int, v uint32, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode,
		w *write) {
		binary.NativeEndian.PutUint32(w.core[at:], v)
	}, errno}
}

// uhw32 is the mistake of a wrong number at an offset of the driver's part, if there is one.
func uhw32(name string, at int, v uint32, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode, w *write) {
		if at+4 <= len(w.uhw) {
			binary.NativeEndian.PutUint32(w.uhw[at:], v)
		}
	}, errno}
}

// uhwLen is the mistake of a driver's part of another length; bytes added to it are ones.
func uhwLen(name string, n int, errno unix.Errno) mistake {
	return mistake{name, func(_ *rawNode, w *write) {
		for len(w.uhw) < n {
			w.uhw = append(w.uhw, 1)
		}
		w.uhw = w.uhw[:n]
	}, errno}
}

// tail is the mistake of bytes of ones after the command struct.
func tail(errno unix.Errno) mistake {
	return mistake{"tail not zero",
		func(_ *rawNode, w *write) { w.core = append(w.core, 1, 1, 1, 1, 1, 1, 1, 1) }, errno}
}

// machine is a mistake in the machine's state.
func machine(name string, change func(*Config), errno unix.Errno) mistake {
	return mistake{name, func(r *rawNode, _ *write) { change(&r.linux.cfg) }, errno}
}

const nobody = 0x7777 // a free handle

// order is a command that succeeds, and its mistakes in order.
type order struct {
	make     func() write
	mistakes []mistake
}

func TestOrderOfChecks(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	o := r.objects()
	cfg := r.linux.cfg
	for name, order := range orders(r, o) {
		for i, first := range order.mistakes {
			t.Run(name+"/"+first.name, func(t *testing.T) {
				for _, second := range append([]mistake{{"nothing else", func(*rawNode, *write) {},
					0}}, order.mistakes[i+1:]...) {
					r.at = 1 << 19
					r.linux.cfg = cfg
					w := order.make()
					second.make(r, &w)
					first.make(r, &w)
					pinned, handles := r.linux.pinned.Load(), len(r.node.handles)
					if errno := r.do(&w); errno != first.errno {
						t.Errorf("with %s: %v, want %v", second.name, errno, first.errno)
					}
					if now := r.linux.pinned.Load(); now != pinned ||
						len(r.node.handles) != handles {
						t.Fatalf("with %s: %d pages stay pinned, %d handles", second.name,
							now-pinned, len(r.node.handles)-handles)
					}
				}
			})
		}
	}
	r.linux.cfg = cfg
}

// Every command that the order test breaks works when nothing is wrong.
func TestCommandsWork(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	o := r.objects()
	for name, order := range orders(r, o) {
		if name == "MODIFY_QP" {
			continue // its base is an invalid transition already
		}
		r.at = 1 << 19
		w := order.make()
		if errno := r.do(&w); errno != 0 {
			t.Errorf("%s: %v", name, errno)
		}
	}
}
