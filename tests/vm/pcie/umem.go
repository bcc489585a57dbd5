package pcie

import (
	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// User contexts and UMEMs, with which a program creates objects by commands of its own (DEVX). The
// driver puts the number of the program's user context into such a command and passes it on; rings
// and doorbell records are in memory that the program registered as a UMEM (linux
// drivers/infiniband/hw/mlx5/devx.c; layouts: include/linux/mlx5/mlx5_ifc.h, create_uctx_in,
// umem).
var (
	commandContext = field{16, 16} // uid, in every command
	contextNumber  = field{80, 16} // uid, in CREATE_UCTX's reply and in DESTROY_UCTX
	contextCaps    = field{128, 32}

	umemLogPageSize = field{283, 5}
	umemPageOffset  = field{288, 32}
	umemPageCount   = field{320, 64}
)

const (
	umemPages = 48
	// logMaxContexts and logMaxUMEMs are log_max_uctx and log_max_umem.
	logMaxContexts, logMaxUMEMs = 12, 15
	// maxUMEMPages is how many pages the longest command lists.
	maxUMEMPages = maxCommand / 8
	// contextSendsRaw is MLX5_UCTX_CAP_RAW_TX: send queues of the context may send frames.
	contextSendsRaw = 1 << 0
	// sharedContext is the number that the driver uses for objects which programs share.
	sharedContext = 0xffff
	// ringAlign is the alignment of a ring in a UMEM: that of a CQE and of a send WQE.
	ringAlign, recordAlign = 64, 8
)

// userContext is what a program may do with its objects, as flags.
type userContext struct{ caps uint64 }

// umem is memory that a program registered: pages of guest memory.
type umem struct {
	context uint32 // number of the user context that owns it
	shift   int    // bytes of a page, log2
	offset  uint64 // of the first byte in the first page
	pages   []*mmio.Region
	addrs   []uint64 // of the pages
}

// umemUse is the UMEMs that one object uses; 0 stands for none.
type umemUse struct{ ring, record uint32 }

// umemPlace is where a structure says that memory is at an offset of a UMEM. If valid is not set,
// it is not.
type umemPlace struct{ valid, id, offset field }

// lowestFree returns the lowest number from 1 on that is not in use.
func lowestFree[T any](m map[uint32]T) uint32 {
	for n := uint32(1); ; n++ {
		if _, used := m[n]; !used {
			return n
		}
	}
}

func (f *Function) createContext(in, out []byte) error {
	if len(f.objects.contexts) >= 1<<logMaxContexts {
		return errorf(statusLimit, "all %d user contexts are in use", 1<<logMaxContexts)
	}
	n := lowestFree(f.objects.contexts)
	f.objects.contexts[n] = &userContext{caps: contextCaps.get(in)}
	contextNumber.set(out, uint64(n))
	return nil
}

func (f *Function) destroyContext(in, _ []byte) error {
	n := contextNumber.u32(in)
	if _, err := find(f.objects.contexts, "user context", n); err != nil {
		return err
	}
	for id, u := range f.objects.umems {
		if u.context == n {
			return errorf(statusBusy, "user context %d owns UMEM %d", n, id)
		}
	}
	delete(f.objects.contexts, n)
	return nil
}

// context is the user context that a command belongs to: nil is the driver's own.
func (f *Function) context(in []byte) (*userContext, error) {
	n := commandContext.u32(in)
	if n == 0 || n == sharedContext {
		return nil, nil
	}
	return find(f.objects.contexts, "user context", n)
}

// sendsRaw checks that a command's user context may have queues that send frames.
func (f *Function) sendsRaw(in []byte) error {
	c, err := f.context(in)
	if err != nil || c == nil || c.caps&contextSendsRaw != 0 {
		return err
	}
	return errorf(statusBadParam, "user context %d may not send frames", commandContext.u32(in))
}

func (f *Function) createUMEM(in, out []byte) error {
	if len(f.objects.umems) >= 1<<logMaxUMEMs {
		return errorf(statusLimit, "all %d UMEMs are in use", 1<<logMaxUMEMs)
	}
	u := &umem{context: commandContext.u32(in), shift: 12 + int(umemLogPageSize.get(in)),
		offset: umemPageOffset.get(in)}
	n := umemPageCount.get(in)
	if u.shift > 30 || u.offset >= 1<<u.shift || n == 0 || n > uint64(len(in)-umemPages)/8 {
		return errorf(statusBadParam, "UMEM at %d of %d pages of 2^%d bytes, in a command of %d",
			u.offset, n, u.shift, len(in))
	}
	for _, a := range addresses(in[:umemPages+8*n], umemPages) {
		page, err := f.dma.region(a&^7, 1<<u.shift)
		if err != nil {
			return errorf(statusBadParam, "page of a UMEM: %v", err)
		}
		u.pages, u.addrs = append(u.pages, page), append(u.addrs, a)
	}
	id := lowestFree(f.objects.umems)
	f.objects.umems[id] = u
	number.set(out, uint64(id))
	return nil
}

func (f *Function) destroyUMEM(in, _ []byte) error {
	id := number.u32(in)
	if _, err := find(f.objects.umems, "UMEM", id); err != nil {
		return err
	}
	for n, use := range f.objects.inUMEM {
		if use.ring == id || use.record == id {
			return errorf(statusBusy, "UMEM %d is memory of object %#x", id, n)
		}
	}
	delete(f.objects.umems, id)
	return nil
}

// memory returns size bytes from an offset on, which is a multiple of align in guest memory, too.
func (u *umem) memory(offset uint64, size, align int) (*simnic.Memory, error) {
	all := uint64(len(u.pages))<<u.shift - u.offset
	if offset > all || uint64(size) > all-offset || (u.offset+offset)%uint64(align) != 0 {
		return nil, errorf(statusBadParam, "%d bytes at %d of a UMEM of %d bytes, in units of %d",
			size, offset, all, align)
	}
	at := u.offset + offset
	first, last := at>>u.shift, (at+uint64(max(size, 1))-1)>>u.shift
	return simnic.NewPagedMemory(u.pages[first:last+1], int(at&(1<<u.shift-1)), size)
}

// inUMEM returns size bytes at skip behind the place that b names, and the number of the UMEM; nil
// if b names none.
func (f *Function) inUMEM(p umemPlace, b []byte, skip, size,
	align int) (*simnic.Memory, uint32, error) {
	if !p.valid.is(b) {
		return nil, 0, nil
	}
	id := p.id.u32(b)
	u, err := find(f.objects.umems, "UMEM", id)
	if err != nil {
		return nil, 0, err
	}
	at := p.offset.get(b)
	if at+uint64(skip) < at {
		return nil, 0, errorf(statusBadParam, "place at %d of a UMEM", at)
	}
	mem, err := u.memory(at+uint64(skip), size, align)
	return mem, id, err
}

// pageList is the page list of a command that creates a queue: its place in the command, bytes of
// a page (log2), where in the first page the queue's memory starts, and how far in it the ring.
type pageList struct {
	in                    []byte
	at, shift, skew, skip int
}

// ringOf returns a queue's ring: in the UMEM that b names, or else in the listed pages.
func (f *Function) ringOf(p umemPlace, b []byte, l pageList,
	size int) (*simnic.Memory, uint32, error) {
	mem, id, err := f.inUMEM(p, b, l.skip, size, ringAlign)
	if mem == nil && err == nil {
		mem, err = f.ring(l.in, l.at, l.shift, l.skew+l.skip, size)
	}
	return mem, id, err
}

// recordOf returns a doorbell record: in the UMEM that b names, or else at a guest address.
func (f *Function) recordOf(p umemPlace, b []byte) (*simnic.Memory, uint32, error) {
	mem, id, err := f.inUMEM(p, b, 0, 8, recordAlign)
	if mem == nil && err == nil {
		mem, err = f.record(p.offset.get(b))
	}
	return mem, id, err
}

// uses stores which UMEMs object n uses.
func (t *objectTable) uses(n uint32, use umemUse) {
	delete(t.inUMEM, n)
	if use != (umemUse{}) {
		t.inUMEM[n] = use
	}
}

// pageAddresses are the addresses of a UMEM's pages as pages of 1<<shift bytes, from the one that
// holds an offset on; they hold size bytes from their own offset skew on.
func (u *umem) pageAddresses(offset uint64, shift, skew, size int) ([]uint64, error) {
	all := uint64(len(u.pages)) << u.shift
	if shift > u.shift || offset > all || size>>shift > maxUMEMPages {
		return nil, errorf(statusBadParam, "memory key of %d bytes in pages of 2^%d, at %d of a "+
			"UMEM of %d in pages of 2^%d", size, shift, offset, all, u.shift)
	}
	var out []uint64
	at := (u.offset + offset) &^ (1<<shift - 1)
	for end := at + uint64(skew) + uint64(size); at < end; at += 1 << shift {
		if at >= all {
			return nil, errorf(statusBadParam, "memory key of %d bytes at %d of a UMEM of %d", size,
				offset, all)
		}
		out = append(out, u.addrs[at>>u.shift]+at&(1<<u.shift-1))
	}
	return out, nil
}
