package dv_test

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// spy is a kernel that notes which commands it is given.
type spy struct {
	uverbs.Kernel
	mu       sync.Mutex
	commands []uint32
	cqs      [][]byte // the driver's part of each completion queue request
}

// Ioctl reads the request as the kernel does: a header of 24 bytes, then
// attributes of 16 bytes {id u16, length u16, flags u16, u16, data u64}.
func (s *spy) Ioctl(buf []byte) error {
	s.mu.Lock()
	command, driver := uint32(0), []byte(nil)
	for at := 24; at+16 <= len(buf); at += 16 {
		data := binary.NativeEndian.Uint64(buf[at+8:])
		switch n := int(binary.NativeEndian.Uint16(buf[at+2:])); binary.NativeEndian.Uint16(
			buf[at:]) {
		case 2: // command number
			command = uint32(data)
		case 0x1000: // driver's part
			if n > 8 {
				driver = slices.Clone(mmio.View(data, n).Bytes())
			}
		}
	}
	s.commands = append(s.commands, command)
	if command == uverbs.ExCmdCreateCQ {
		s.cqs = append(s.cqs, driver)
	}
	s.mu.Unlock()
	return s.Kernel.Ioctl(buf)
}

// Send queues are made before receive queues, rules last of all; what is made
// first is destroyed last. Completions have 64 bytes and are not compressed,
// whatever the environment says.
func TestOrder(t *testing.T) {
	t.Setenv("MLX5_CQE_SIZE", "128")
	s := newSim(t, simnic.Config{}, kernel.Config{})
	k := &spy{}
	cfg := s.config(dv.Config{NIC: dv.NIC{RxQueues: 2, TxQueues: 2}})
	cfg.Model.Kernel = func() (_ uverbs.Kernel, err error) {
		k.Kernel, err = s.linux.OpenNode()
		return k, err
	}
	d, err := dv.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	up := slices.Clone(k.commands)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	down := k.commands[len(up):]
	ordered(t, "bring-up", up, uverbs.CmdAllocPD, uverbs.CmdRegMR,
		uverbs.CmdModifyQP, uverbs.ExCmdCreateWQ,
		uverbs.ExCmdModifyWQ, uverbs.ExCmdCreateRWQIndTbl, uverbs.ExCmdCreateFlow)
	ordered(t, "close", down, uverbs.ExCmdDestroyFlow,
		uverbs.ExCmdDestroyRWQIndTbl, uverbs.ExCmdDestroyWQ,
		uverbs.CmdDestroyCQ, uverbs.CmdDeregMR, uverbs.CmdDeallocPD)
	for create, destroy := range map[uint32]uint32{
		uverbs.CmdAllocPD: uverbs.CmdDeallocPD, uverbs.CmdRegMR: uverbs.CmdDeregMR,
		uverbs.ExCmdCreateCQ: uverbs.CmdDestroyCQ,
		uverbs.ExCmdCreateQP: uverbs.CmdDestroyQP, uverbs.ExCmdCreateWQ: uverbs.ExCmdDestroyWQ,
		uverbs.ExCmdCreateRWQIndTbl: uverbs.ExCmdDestroyRWQIndTbl,
		uverbs.ExCmdCreateFlow:      uverbs.ExCmdDestroyFlow,
	} {
		if made, undone := count(up, create), count(down, destroy); made == 0 || made != undone {
			t.Errorf("command %#x given %d times, %#x %d times", create, made, destroy, undone)
		}
	}
	if len(k.cqs) != 4 {
		t.Errorf("%d completion queues, want 4", len(k.cqs))
	}
	// struct mlx5_ib_create_cq: cqe_size at 16, cqe_comp_en at 20; send queues first, which are
	// never compressed
	for i, cq := range k.cqs {
		if size, compressed := binary.NativeEndian.Uint32(cq[16:]), cq[20]; size != 64 ||
			(compressed == 1) != (i >= len(k.cqs)/2) {
			t.Errorf("completion queue %d: entries of %d bytes, compression %d", i, size,
				compressed)
		}
	}
}

// ordered fails unless the last of each command comes before the first of the
// next one; destroyed queues are let off: there, the last comes before the last.
func ordered(t *testing.T, what string, commands []uint32, want ...uint32) {
	t.Helper()
	last := -1
	for _, c := range want {
		first := slices.Index(commands, c)
		if first < 0 {
			t.Fatalf("%s: command %#x was not given", what, c)
		}
		// they alternate with the one before
		if c == uverbs.ExCmdModifyWQ || c == uverbs.CmdDestroyCQ {
			first = max(first, last+1)
		}
		if first <= last {
			t.Errorf("%s: command %#x came too early", what, c)
		}
		for i, have := range commands {
			if have == c {
				last = i
			}
		}
	}
}

func count(commands []uint32, c uint32) int {
	n := 0
	for _, have := range commands {
		if have == c {
			n++
		}
	}
	return n
}
