package backing

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/internal/bpf"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// kind names a filter that many sockets have.
type kind uint8

const (
	dropAll    kind = iota
	passOthers      // what has not come in by the device
	passBegun       // of these what belongs to a connection that has begun: no SYN alone
	kinds
)

// Filters keeps the filters that the sockets of a stack have in common, and the device that they
// are about. Its methods may be called from any goroutine.
//
// Where bpf(2) is allowed while it is made, every filter is one program of the kernel's, which all
// sockets share: a socket attaches it by a descriptor (SO_ATTACH_BPF, socket(7)), and a change of
// the device is one store to a map's memory. Else each socket has a classic filter of its own,
// which the kernel translates and frees one by one. Linux 6.18 loses its worker threads when more
// than 1,024 of these are freed at once, so that sockets give them back by a [pacer].
type Filters struct {
	mu     sync.Mutex
	device Device // guarded by mu

	programs [kinds]int   // descriptors; none if refused is set
	place    *mmio.Region // of the device, which the programs read; see storeDevice
	refused  error
	pacer    pacer

	own atomic.Int64 // sockets that have filters of their own
}

// NewFilters makes the filters. The caller closes them, after the sockets.
func NewFilters(d Device, c clock.Clock) *Filters {
	f := &Filters{pacer: pacer{clock: c, settle: waitForReaders}}
	if f.refused = f.loadAll(); f.refused != nil {
		f.refused = errors.Join(f.refused, f.unload())
	}
	f.SetDevice(d)
	return f
}

// Refused returns why sockets have filters of their own; nil if they share them.
func (f *Filters) Refused() error { return f.refused }

// Own returns how many sockets have a filter of their own now. The kernel frees all of these at
// once when the process is killed. Sockets that another process has given, and whose filter has not
// been renewed, count.
func (f *Filters) Own() int { return int(f.own.Load()) }

// loadAll makes the programs that are shared.
func (f *Filters) loadAll() error {
	for k := range f.programs {
		f.programs[k] = -1
	}
	device, err := bpf.NewMap(unix.BPF_MAP_TYPE_ARRAY, 4, 8, 1, unix.BPF_F_MMAPABLE, "device")
	if err != nil {
		return fmt.Errorf("make a BPF map: %w", err)
	}
	defer unix.Close(device) // the programs and the mapping keep it
	if f.place, err = mmio.MapShared(device, 0, os.Getpagesize(), true); err != nil {
		return err
	}
	for k := range kinds {
		f.programs[k], err = bpf.LoadProgram(unix.BPF_PROG_TYPE_SOCKET_FILTER, 0,
			k.shared(device))
		if err != nil {
			return fmt.Errorf("load a BPF program: %w", err)
		}
	}
	return nil
}

// unload gives up what loadAll has made.
func (f *Filters) unload() (err error) {
	for k, fd := range f.programs {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
		f.programs[k] = -1
	}
	if f.place != nil {
		err = errors.Join(err, f.place.Close())
	}
	f.place = nil
	return err
}

// Close gives the programs up. Sockets that have them keep them.
func (f *Filters) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unload()
}

// SetDevice puts d in the place of the device. Sockets that have come from another process, or have
// filters of their own, follow by [Socket.FollowDevice].
func (f *Filters) SetDevice(d Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.device = d
	if f.place != nil {
		f.place.StoreBE64(0, uint64(d.last())<<32|uint64(uint32(d.Index)))
	}
}

// last returns the largest ifindex that may pass.
func (d Device) last() uint32 { return cmp.Or(uint32(d.Last), math.MaxInt32) }

// current returns the device.
func (f *Filters) current() Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.device
}

// attach gives a socket a filter in place of the one before, which owned says to be one of its own,
// and returns whether the new one is.
func (f *Filters) attach(fd int, k kind, owned bool) (bool, error) {
	if owned {
		f.pacer.waitForTurn()
	}
	if f.refused != nil {
		if err := attach(fd, k.classic(f.current())); err != nil {
			return owned, err
		}
		return true, nil
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, f.programs[k])
	if err != nil {
		return owned, explainAttach("SO_ATTACH_BPF", err)
	}
	return false, nil
}

// TryFilters returns why sockets of this process cannot have filters, or nil. It gives a socket of
// TCP one, as Open does, and closes it.
func TryFilters() error {
	f := NewFilters(Device{}, clock.Clock{})
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errors.Join(os.NewSyscallError("socket", err), f.Close())
	}
	_, err = f.attach(fd, dropAll, false)
	return errors.Join(err, unix.Close(fd), f.Close())
}

// DropAll makes the kernel drop all that comes to a socket of the caller's, who closes it by
// closeSocket: that waits where too many filters would be freed at once.
func (f *Filters) DropAll(fd int) (closeSocket func() error, err error) {
	owned, err := f.attach(fd, dropAll, false)
	if err != nil {
		return nil, err
	}
	if !owned {
		return func() error { return os.NewSyscallError("close", unix.Close(fd)) }, nil
	}
	f.own.Add(1)
	return func() error {
		f.pacer.waitForTurn()
		f.own.Add(-1)
		return os.NewSyscallError("close", unix.Close(fd))
	}, nil
}

// Where struct __sk_buff has the ifindex, and the TCP header its flags, at which what a socket of
// TCP filters starts.
const (
	contextIfindex = 40
	atFlags        = 13
	flagSYN        = 0x02
	flagACK        = 0x10
)

// shared returns the program that all sockets share. It reads the device in the map.
func (k kind) shared(device int) []byte {
	a := bpf.NewAssembler()
	if k == dropAll {
		a.SetValue(bpf.R0, 0)
		a.EndProgram()
		return a.ToBytes()
	}
	const key = -4
	a.MoveRegister(bpf.R6, bpf.R1)
	a.LoadField(bpf.OpLoad32, bpf.R7, bpf.R6, contextIfindex)
	a.JumpTo(bpf.OpJumpIfEqualImmediate, bpf.R7, 0, 0, "drop") // as a classic one without a device
	a.SetValue(bpf.R5, 0)
	a.StoreField(bpf.OpStore32, bpf.FramePointer, key, bpf.R5)
	a.LoadMap(bpf.R1, device)
	a.MoveRegister(bpf.R2, bpf.FramePointer)
	a.AddValue(bpf.R2, key)
	a.CallHelper(bpf.HelperMapLookup)
	a.JumpTo(bpf.OpJumpIfEqualImmediate, bpf.R0, 0, 0, "drop") // which the verifier wants
	a.LoadField(bpf.OpLoad64, bpf.R1, bpf.R0, 0)
	a.AppendOp(bpf.OpToBigEndian, bpf.R1, 0, 0, 64)
	a.MoveRegister(bpf.R2, bpf.R1)
	a.AppendOp(bpf.OpShiftRightImmediate, bpf.R2, 0, 0, 32)
	a.JumpTo(bpf.OpJumpIfGreater, bpf.R7, bpf.R2, 0, "drop")
	a.ShiftLeft(bpf.R1, 32)
	a.AppendOp(bpf.OpShiftRightImmediate, bpf.R1, 0, 0, 32)
	a.JumpTo(bpf.OpJumpIfEqual, bpf.R7, bpf.R1, 0, "drop")
	if k == passBegun {
		a.AppendOp(bpf.OpLoadPacket8, 0, 0, 0, atFlags) // drops what is shorter
		a.MaskValue(bpf.R0, flagSYN|flagACK)
		a.JumpTo(bpf.OpJumpIfEqualImmediate, bpf.R0, 0, flagSYN, "drop")
	}
	a.SetValue(bpf.R0, -1)
	a.EndProgram()
	a.PlaceLabel("drop")
	a.SetValue(bpf.R0, 0)
	a.EndProgram()
	return a.ToBytes()
}

// classic returns the program that decides likewise for one device.
func (k kind) classic(d Device) []unix.SockFilter {
	switch k {
	case passOthers:
		return d.others()
	case passBegun:
		return d.begun()
	}
	return silent()
}
