package dv_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// refusingKernel refuses as many of the next commands as left says, and counts all.
type refusingKernel struct {
	uverbs.Kernel
	with           unix.Errno
	left, commands *atomic.Int64
}

func (k refusingKernel) Ioctl(buf []byte) error {
	defer k.commands.Add(1)
	if k.left.Add(-1) >= 0 {
		return k.with
	}
	return k.Kernel.Ioctl(buf)
}

// TestRefusedCommands: a device whose commands are all answered as those of a lost device are is
// lost, though no event tells so; one whose command fails alone is not.
func TestRefusedCommands(t *testing.T) {
	for _, c := range []struct {
		name string
		with unix.Errno
		many int64
		lost bool
	}{
		{"all with EIO", unix.EIO, 1 << 30, true},
		{"all with ENODEV", unix.ENODEV, 1 << 30, true},
		{"one with EIO", unix.EIO, 1, false},
		{"all with EINVAL", unix.EINVAL, 1 << 30, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var left, commands atomic.Int64
			s := newSim(t, simnic.Config{}, kernel.Config{})
			d := s.openHost(t, dv.Config{Interpose: func(k uverbs.Kernel) uverbs.Kernel {
				return refusingKernel{k, c.with, &left, &commands}
			}})
			commands.Store(0)
			addRule(t, d, listener(tcp, hostV4, 80))
			takes := commands.Swap(0)
			left.Store(c.many)
			_, err := d.AddRule(listener(tcp, hostV4, 81))
			if c.many > 1 && !errors.Is(err, c.with) {
				t.Fatalf("a refused command: %v", err)
			}
			if c.lost {
				<-d.Done()
				if err := d.Err(); !errors.Is(err, dv.ErrFailed) || !errors.Is(err, c.with) {
					t.Errorf("the device ended with %v", err)
				}
				return
			}
			if c.many == 1 { // the counters of the rule: it goes without
				eventually(t, "one more command", func() bool { return commands.Load() > takes })
			}
			left.Store(0)
			addRule(t, d, listener(tcp, hostV4, 82))
			if err := d.Err(); err != nil {
				t.Errorf("the device ended: %v", err)
			}
		})
	}
}
