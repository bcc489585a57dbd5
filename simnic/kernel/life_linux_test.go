package kernel

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// openFDs counts the descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Open, use, close, twice, repeatedly: nothing leaks.
func TestNodeLifetime(t *testing.T) {
	nic := newTestNIC(t, simnic.Config{Seed: 1})
	linux := New(nic, Config{})
	numbers := nic.Objects().Numbers
	warm := func() {
		c := openClient(t, nic, linux)
		ch := must(c.ctx.CreateCompChannel())(t)
		c.receiver(ch)
		c.sender()
		if err := errors.Join(c.ctx.Close(), c.ctx.Close()); err != nil {
			t.Error(err)
		}
		_ = c.mem.Close()
	}
	warm() // the poller takes descriptors of its own the first time
	before := openFDs(t)
	for range 20 {
		warm()
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if p := linux.pinned.Load(); p != 0 {
		t.Errorf("%d pages stay pinned", p)
	}
	if n := nic.Objects().Numbers; n != numbers {
		t.Errorf("%d objects stay in the device", n-numbers)
	}
	if n := nic.Objects().Flows; n != 0 {
		t.Errorf("%d rules stay in force", n)
	}
	if n := nic.Objects().Subscribers; n != 0 {
		t.Errorf("%d files still listen to the port", n)
	}
}

func TestNodeAfterClose(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	page, err := r.node.Mmap(0x300*int64(os.Getpagesize()), os.Getpagesize(), true)
	if err != nil {
		t.Fatal(err)
	}
	r.objects()
	if err := r.node.Close(); err != nil {
		t.Error(err)
	}
	if err := r.node.Close(); err != unix.EBADF {
		t.Errorf("close again: %v", err)
	}
	if errno := r.ioctl(r.command(0, 0)); errno != unix.EBADF {
		t.Errorf("ioctl: %v", errno)
	}
	if _, err := r.node.Mmap(0x300*int64(os.Getpagesize()), os.Getpagesize(),
		true); err != unix.EBADF {
		t.Errorf("mmap: %v", err)
	}
	page.Store64(0x800, 1) // does nothing
	if v := r.linux.nic.Violations(); len(v) != 0 {
		t.Errorf("a store after close reached the device: %v", v)
	}
}

// Two processes have the node open: handles belong to the process, numbers to the device.
func TestTwoFiles(t *testing.T) {
	linux := New(newTestNIC(t, simnic.Config{Seed: 1}), Config{})
	a, b := openRawNode(t, linux), openRawNode(t, linux)
	a.open()
	b.open()
	oa, ob := a.objects(), b.objects()
	if oa.pd != ob.pd || oa.cq != ob.cq {
		t.Errorf("handles %+v and %+v", oa, ob)
	}
	if oa.cqn == ob.cqn || oa.qpn == ob.qpn {
		t.Errorf("numbers %+v and %+v", oa, ob)
	}
	if n := linux.nic.Objects().Flows; n != 2 {
		t.Errorf("%d rules in force", n)
	}
	// A channel of the other file is refused.
	var fd uint32
	for _, r := range []*rawNode{b, a} {
		w := r.must(write{cmd: uverbs.CmdCreateCompChannel,
			core: make([]byte, 8), out: 4, uhwOut: -1})
		fd = u32(w.gotOut, 0)
		defer unix.Close(int(fd))
	}
	cq := b.createCQ()
	put32(cq.core, 16, fd)
	if errno := b.do(&cq); errno != unix.EBADF {
		t.Errorf("a completion queue on another file's channel: %v", errno)
	}
	if err := a.node.Close(); err != nil {
		t.Error(err)
	}
	if n := linux.nic.Objects().Flows; n != 1 {
		t.Errorf("%d rules in force after one closed", n)
	}
	if errno := b.do(&write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8),
		out: 4, uhwOut: 4}); errno != 0 {
		t.Errorf("the other file: %v", errno)
	}
}

// Channels that the client has closed are not kept.
func TestClosedChannelsAreReaped(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	use := func() {
		w := r.must(write{cmd: uverbs.CmdCreateCompChannel,
			core: make([]byte, 8), out: 4, uhwOut: -1})
		fd := u32(w.gotOut, 0)
		create := r.createCQ()
		put32(create.core, 16, fd)
		handle := u32(r.must(create).gotOut, 0)
		if err := unix.Close(int(fd)); err != nil {
			t.Fatal(err)
		}
		_, q, _ := findObject[*cq](r.node, uverbs.ObjectCQ, handle)
		q.channel.completion(1) // dropped
		r.must(destroyCommand(uverbs.CmdDestroyCQ, handle))
		r.at = 0
	}
	use()
	before := openFDs(t)
	for range 50 {
		use()
	}
	if after := openFDs(t); after > before+1 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A descriptor number that was a channel and is now another file.
func TestChannelNumberReused(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	w := r.must(write{cmd: uverbs.CmdCreateCompChannel, core: make([]byte, 8), out: 4, uhwOut: -1})
	fd := int(u32(w.gotOut, 0))
	other, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Dup3(int(other.Fd()), fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	cq := r.createCQ()
	put32(cq.core, 16, uint32(fd))
	if errno := r.do(&cq); errno != unix.EBADF {
		t.Errorf("%v, want %v", errno, unix.EBADF)
	}
}

// Many goroutines use one file, ring its doorbells, and one closes it.
func TestNodeConcurrently(t *testing.T) {
	nic := newTestNIC(t, simnic.Config{Seed: 1})
	for range 10 {
		c := openClient(t, nic, New(nic, Config{}))
		s := c.sender()
		var work sync.WaitGroup
		for range 4 {
			work.Go(func() {
				for range 50 {
					pd, err := c.ctx.AllocPD()
					if err != nil {
						return
					}
					_, _ = c.ctx.QueryPort(1)
					_ = pd.Close()
				}
			})
		}
		work.Go(func() {
			for range 50 {
				s.send()
			}
		})
		work.Go(func() {
			for range 3 {
				nic.SetLink(false)
				nic.SetLink(true)
			}
			_ = c.ctx.Close()
		})
		work.Wait()
	}
}

// One read returns one event, and none is lost when the client does not read for a long time.
func TestEventsAreRecords(t *testing.T) {
	e, errno := newEventFile("test")
	if errno != 0 {
		t.Fatal(errno)
	}
	const n = 3000 // more than a socket holds
	for i := range n {
		e.completion(uint64(i))
	}
	e.mu.Lock()
	waiting := len(e.backlog)
	e.mu.Unlock()
	if waiting == 0 {
		t.Error("the socket holds everything: the backlog is not tested")
	}
	var b [16]byte
	for i := range n {
		e.completion(uint64(n + i)) // while the backlog drains
		got, err := unix.Read(e.fd, b[:])
		if err != nil || got != 8 || u32(b[:], 0) != uint32(i) {
			t.Fatalf("read %d: %d bytes, %x, %v", i, got, b[:got], err)
		}
	}
	for i := range n {
		if got, err := unix.Read(e.fd, b[:]); got != 8 || err != nil ||
			u32(b[:], 0) != uint32(n+i) {
			t.Fatalf("read %d: %d bytes, %x, %v", n+i, got, b[:got], err)
		}
	}
	if err := unix.SetNonblock(e.fd, true); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Read(e.fd, b[:]); err != unix.EAGAIN {
		t.Errorf("nothing more: %v", err)
	}
	e.closeOurEnd()
	if got, err := unix.Read(e.fd, b[:]); got != 0 || err != nil {
		t.Errorf("after the end: %d, %v", got, err)
	}
	if err := unix.Close(e.fd); err != nil {
		t.Fatal(err)
	}
	e.completion(1) // does nothing
}

func TestCompletionEventDoesNotAllocate(t *testing.T) {
	e, errno := newEventFile("test")
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.Close(e.fd)
	defer e.closeOurEnd()
	var b [8]byte
	n := testing.AllocsPerRun(100, func() {
		e.completion(7)
		_, _ = unix.Read(e.fd, b[:])
	})
	if n != 0 || b[0] != 7 {
		t.Errorf("%v allocations for an event", n)
	}
}

// A client that closed its end gets no more events, and the queues go on.
func TestEventToClosedEnd(t *testing.T) {
	e, errno := newEventFile("test")
	if errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.Close(e.fd); err != nil {
		t.Fatal(err)
	}
	e.completion(1)
	e.completion(2)
	if !e.dead {
		t.Error("events are still sent")
	}
	e.closeOurEnd()
}

func TestEventDescriptorFlags(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	w := r.must(write{cmd: uverbs.CmdCreateCompChannel, core: make([]byte, 8), out: 4, uhwOut: -1})
	fd := int(u32(w.gotOut, 0))
	defer unix.Close(fd)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil ||
		flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v: not close-on-exec", flags, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil ||
		flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x, %v: not blocking", flags, err)
	}
}

// Pinned memory is counted in pages, doorbell records share pages, and freed memory can be pinned
// again.
func TestMemlock(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{Memlock: 5 * int64(os.Getpagesize())})
	r.open()
	o := objects{pd: u32(r.must(write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8),
		out: 4, uhwOut: 4}).gotOut, 0)}
	records := r.alloc(1)
	var cqs []uint32
	for i := range 4 {
		w := r.createCQ()
		put64(w.uhw, 8, records+uint64(i)*8)
		cqs = append(cqs, u32(r.must(w).gotOut, 0))
	}
	if got := r.linux.pinned.Load(); got != 5 {
		t.Errorf("%d pages pinned, want 4 of queues and 1 of records", got)
	}
	mr := r.regMR(o)
	if errno := r.do(&mr); errno != unix.ENOMEM {
		t.Errorf("beyond the limit: %v", errno)
	}
	for _, cq := range cqs {
		r.must(destroyCommand(uverbs.CmdDestroyCQ, cq))
	}
	if got := r.linux.pinned.Load(); got != 0 {
		t.Errorf("%d pages stay pinned", got)
	}
	r.must(mr)
}

// Memory that may not be written cannot be registered for receiving.
func TestReadOnlyMemory(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.open()
	o := objects{pd: u32(r.must(write{cmd: uverbs.CmdAllocPD, core: make([]byte, 8),
		out: 4, uhwOut: 4}).gotOut, 0)}
	if err := unix.Mprotect(r.queue.Slice(0, wholePages(8192)), unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	w := r.regMR(o)
	if errno := r.do(&w); errno != unix.EFAULT {
		t.Errorf("local write to read-only memory: %v", errno)
	}
	put32(w.core, 36, 0)
	if errno := r.do(&w); errno != 0 {
		t.Errorf("read-only: %v", errno)
	}
	if err := unix.Mprotect(r.queue.Slice(wholePages(8192), wholePages(8192)),
		unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	w = r.regMR(o)
	put32(w.core, 36, 0)
	if errno := r.do(&w); errno != unix.EFAULT {
		t.Errorf("memory nobody may read: %v", errno)
	}
}

func TestFlowCounters(t *testing.T) {
	a, b := newClient(t, simnic.Config{Seed: 1}, Config{}),
		newClient(t, simnic.Config{Seed: 2}, Config{})
	connect(t, a, b)
	r, s := b.receiver(nil), a.sender()
	n := must(b.ctx.CreateCounters())(t)
	if _, _, err := n.Read(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("read before there is a rule: %v", err)
	}
	if err := r.flow.Close(); err != nil {
		t.Fatal(err)
	}
	f := must(r.rss.CreateFlow(toTestMAC(uverbs.Count(n))))(t)
	for range 3 {
		s.send()
	}
	if packets, bytes, err := n.Read(); packets != 3 || bytes != 300 || err != nil {
		t.Errorf("counted %d packets, %d bytes, %v", packets, bytes, err)
	}
	if err := n.Close(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("close in use: %v", err)
	}
	if err := errors.Join(f.Close(), n.Close()); err != nil {
		t.Error(err)
	}
}
