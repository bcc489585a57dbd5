package uverbs

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// fixture is one of everything on a fake kernel.
type fixture struct {
	k        *fakeKernel
	c        *Context
	pd       *PD
	mr       *MR
	channel  *CompChannel
	cq       *CQ
	qp, rss  *QP
	wq       *WQ
	table    *IndTable
	counters *Counters
	flow     *Flow
	qpAttr   QPAttr
	cqAttr   CQAttr
	wqAttr   WQAttr
}

// must fails the test on an error.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	k, c := openFake(t, Options{})
	f := &fixture{k: k, c: c}
	f.fill(t)
	return f
}

// fill creates the objects on f.c.
func (f *fixture) fill(t testing.TB) {
	t.Helper()
	c := f.c
	dbr := region(t, 4096)
	f.pd = must[*PD](t)(c.AllocPD())
	f.mr = must[*MR](t)(f.pd.RegMR(region(t, 1<<16), AccessLocalWrite))
	f.channel = must[*CompChannel](t)(c.CreateCompChannel())
	f.cqAttr = CQAttr{Entries: 64, Buf: region(t, 64*64), DBR: dbr.Sub(0, 8),
		Channel: f.channel, UserHandle: 1}
	f.cq = must[*CQ](t)(c.CreateCQ(f.cqAttr))
	f.qpAttr = QPAttr{CQ: f.cq, Entries: 64, SQBuf: region(t, 64*64),
		DBR: dbr.Sub(64, 8), UserIndex: 1}
	f.qp = must[*QP](t)(f.pd.CreateRawQP(f.qpAttr))
	f.wqAttr = WQAttr{CQ: f.cq, Entries: 256, Buf: region(t, 4096),
		DBR: dbr.Sub(128, 8), UserIndex: 2}
	f.wq = must[*WQ](t)(f.pd.CreateWQ(f.wqAttr))
	f.table = must[*IndTable](t)(c.CreateIndirectionTable([]*WQ{f.wq}, 3))
	f.rss = must[*QP](t)(f.pd.CreateRSSQP(RSSAttr{Table: f.table, Fields: HashFieldsIPv4}))
	f.counters = must[*Counters](t)(c.CreateCounters())
	f.flow = must[*Flow](t)(f.rss.CreateFlow(FlowAttr{Specs: []FlowSpec{Count(f.counters)}}))
}

// closers are the objects that have a handle, in an order the kernel accepts.
func (f *fixture) closers() []closer {
	return []closer{
		{"flow", "DESTROY_FLOW", f.flow.Close}, {"counters", "COUNTERS_DESTROY", f.counters.Close},
		{"rss", "DESTROY_QP", f.rss.Close},
		{"table", "DESTROY_RWQ_IND_TBL", f.table.Close}, {"wq", "DESTROY_WQ", f.wq.Close},
		{"qp", "DESTROY_QP", f.qp.Close},
		{"cq", "DESTROY_CQ", f.cq.Close}, {"mr", "DEREG_MR", f.mr.Close},
		{"pd", "DEALLOC_PD", f.pd.Close},
	}
}

type closer struct {
	name, command string
	close         func() error
}

func TestOpenUseClose(t *testing.T) {
	f := newFixture(t)
	if f.k.alive() != 9 {
		t.Errorf("%d objects alive, want 9", f.k.alive())
	}
	if err := f.qp.ToReady(1); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.wq.Ready(), f.cq.Moderate(16, 8)); err != nil {
		t.Error(err)
	}
	if p, b, err := f.counters.Read(); p != 11 || b != 1111 || err != nil {
		t.Errorf("counters read %d, %d, %v", p, b, err)
	}
	if f.mr.LKey == 0 || f.qp.SQN == 0 || f.wq.WQN == 0 || f.cq.CQN == 0 {
		t.Errorf("numbers of MR %+v QP %+v WQ %+v CQ %+v", f.mr, f.qp, f.wq, f.cq)
	}
	f.qp.Reg.Store64(f.qp.RegOffset, 42)
	if !slices.Equal(f.k.stores, []uint64{42}) {
		t.Errorf("doorbell stores %v", f.k.stores)
	}
	for _, o := range f.closers() {
		if err := o.close(); err != nil {
			t.Errorf("close %s: %v", o.name, err)
		}
	}
	if f.k.alive() != 0 || f.c.Pinned() != 0 {
		t.Errorf("%d objects and %d pinned bytes left", f.k.alive(), f.c.Pinned())
	}
	if err := f.c.Close(); err != nil {
		t.Error(err)
	}
	if f.k.closed != 1 {
		t.Errorf("node closed %d times", f.k.closed)
	}
}

func TestCloseTwice(t *testing.T) {
	f := newFixture(t)
	for _, o := range f.closers() {
		if err := errors.Join(o.close(), o.close()); err != nil {
			t.Errorf("close %s twice: %v", o.name, err)
		}
	}
	if err := errors.Join(f.channel.Close(), f.channel.Close(), f.c.Close(),
		f.c.Close()); err != nil {
		t.Error(err)
	}
	if f.k.closed != 1 {
		t.Errorf("node closed %d times", f.k.closed)
	}
}

func TestCloseConcurrently(t *testing.T) {
	f := newFixture(t)
	for _, o := range append(f.closers(), closer{"channel", "", f.channel.Close},
		closer{"context", "", f.c.Close}) {
		before := len(f.k.names())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := o.close(); err != nil {
					t.Errorf("close %s: %v", o.name, err)
				}
			})
		}
		wg.Wait()
		if n := len(f.k.names()) - before; o.command != "" && n != 1 {
			t.Errorf("%d commands to close %s", n, o.name)
		}
	}
}

// TestCloseContextFirst: the kernel destroys all objects with the node, so later Closes have no
// effect.
func TestCloseContextFirst(t *testing.T) {
	f := newFixture(t)
	if err := f.c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, o := range f.closers() {
		if err := o.close(); err != nil {
			t.Errorf("close %s: %v", o.name, err)
		}
	}
	if slices.Contains(f.k.names(), "DESTROY_CQ") {
		t.Error("commands were sent to a closed node")
	}
}

// TestCloseAgainstUse runs commands while objects and context are closed: none may use a freed
// handle or a closed node, which the fake kernel would report.
func TestCloseAgainstUse(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for _, m := range methods() {
		wg.Go(func() {
			if err := m.run(f); err != nil && !errors.Is(err, ErrClosed) &&
				!errors.Is(err, unix.EINVAL) {
				t.Errorf("%s: %v", m.name, err)
			}
		})
	}
	for _, o := range f.closers() {
		wg.Go(func() { o.close() })
	}
	wg.Go(func() { f.c.Close() })
	wg.Wait()
}

func TestDestroyErrors(t *testing.T) {
	for _, tc := range []struct {
		errno unix.Errno
		again bool // whether Close sends the command again
	}{{unix.EBUSY, true}, {unix.EINVAL, true}, {unix.EIO, false}, {unix.ENOENT, false}} {
		f := newFixture(t)
		for _, o := range f.closers() {
			f.k.refuseWith(o.command, tc.errno)
			err := o.close()
			var e *Error
			if !errors.Is(err, tc.errno) || !errors.As(err, &e) ||
				e.Cmd != "destroy" || e.Object == "" {
				t.Errorf("close %s with %v: %v", o.name, tc.errno, err)
			}
			f.k.refuseWith("", 0)
			before := len(f.k.names())
			if err := o.close(); err != nil {
				t.Errorf("close %s after %v: %v", o.name, tc.errno, err)
			}
			if again := len(f.k.names()) > before; again != tc.again {
				t.Errorf("close %s after %v asked again: %v", o.name, tc.errno, again)
			}
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	for _, m := range methods() {
		t.Run(m.name, func(t *testing.T) {
			f := newFixture(t)
			f.c.Close()
			if err := m.run(f); !errors.Is(err, ErrClosed) || !errors.Is(err, os.ErrClosed) {
				t.Errorf("on a closed context: %v", err)
			}
		})
	}
	f := newFixture(t)
	for _, o := range f.closers() {
		o.close()
	}
	n := len(f.k.names())
	for _, m := range methods() {
		if m.on == "" {
			continue
		}
		if err := m.run(f); !errors.Is(err, ErrClosed) {
			t.Errorf("%s on a closed %s: %v", m.name, m.on, err)
		}
	}
	if names := f.k.names()[n:]; len(names) != 0 {
		t.Errorf("commands about closed objects: %v", names)
	}
}

// method is one call that ends in one command.
type method struct {
	name    string
	command string // as the fake kernel names it
	on      string // object it is a method of, "" for the context
	run     func(f *fixture) error
}

func methods() []method {
	return []method{
		{"QueryPort", "QUERY_PORT", "",
			func(f *fixture) error { _, err := f.c.QueryPort(1); return err }},
		{"AllocPD", "ALLOC_PD", "", func(f *fixture) error { _, err := f.c.AllocPD(); return err }},
		{"CreateCompChannel", "CREATE_COMP_CHANNEL", "",
			func(f *fixture) error { _, err := f.c.CreateCompChannel(); return err }},
		{"CreateCQ", "CREATE_CQ", "", func(f *fixture) error {
			a := f.cqAttr
			a.Channel = nil
			_,
				err := f.c.CreateCQ(a)
			return err
		}},
		{"CreateCounters", "COUNTERS_CREATE", "",
			func(f *fixture) error { _, err := f.c.CreateCounters(); return err }},
		{"RegMR", "REG_MR", "pd", func(f *fixture) error {
			_,
				err := f.pd.RegMR(f.cqAttr.Buf, AccessLocalWrite)
			return err
		}},
		{"Moderate", "MODIFY_CQ", "cq", func(f *fixture) error { return f.cq.Moderate(1, 1) }},
		{"CreateRawQP", "CREATE_QP", "pd",
			func(f *fixture) error { _, err := f.pd.CreateRawQP(f.qpAttr); return err }},
		{"CreateRSSQP", "CREATE_QP", "pd", func(f *fixture) error {
			_,
				err := f.pd.CreateRSSQP(RSSAttr{Table: f.table})
			return err
		}},
		{"Init", "MODIFY_QP", "qp", func(f *fixture) error { return f.qp.Init(1) }},
		{"ToReady", "MODIFY_QP", "qp", func(f *fixture) error { return f.qp.ToReady(1) }},
		{"Query", "QUERY_QP", "qp", func(f *fixture) error { _, err := f.qp.Query(); return err }},
		{"Reset", "QUERY_QP", "qp", func(f *fixture) error { return f.qp.Reset() }},
		{"CreateWQ", "CREATE_WQ", "pd",
			func(f *fixture) error { _, err := f.pd.CreateWQ(f.wqAttr); return err }},
		{"Ready", "MODIFY_WQ", "wq", func(f *fixture) error { return f.wq.Ready() }},
		{"CreateIndirectionTable", "CREATE_RWQ_IND_TBL", "wq", func(f *fixture) error {
			_, err := f.c.CreateIndirectionTable([]*WQ{f.wq}, 0)
			return err
		}},
		{"CreateFlow", "CREATE_FLOW", "rss",
			func(f *fixture) error { _, err := f.rss.CreateFlow(FlowAttr{}); return err }},
		{"ReadCounters", "COUNTERS_READ", "counters",
			func(f *fixture) error { _, _, err := f.counters.Read(); return err }},
	}
}

// TestErrnoTable combines all errnos of a kernel with all commands.
func TestErrnoTable(t *testing.T) {
	errnos := []unix.Errno{unix.EPERM, unix.ENOENT, unix.EINTR, unix.EIO, unix.EBADF, unix.EAGAIN,
		unix.ENOMEM, unix.EACCES, unix.EFAULT, unix.EBUSY,
		unix.EEXIST, unix.ENODEV, unix.EINVAL, unix.EMFILE, unix.ENOTTY, unix.ENOSPC, unix.ENOSYS,
		unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, enotsupp, unix.ETIMEDOUT}
	f := newFixture(t)
	for _, m := range methods() {
		for _, errno := range errnos {
			f.k.refuseWith(m.command, errno)
			err := m.run(f)
			var e *Error
			if !errors.Is(err, errno) || !errors.As(err, &e) {
				t.Errorf("%s with %v: %v", m.name, errno, err)
				continue
			}
			if e.Hint == "" || e.Cmd == "" || e.Object == "" || e.Errno != errno {
				t.Errorf("%s with %v: %+v", m.name, errno, e)
			}
			if errno == enotsupp && !errors.Is(err, unix.EOPNOTSUPP) {
				t.Errorf("%s with errno 524 is not EOPNOTSUPP: %v", m.name, err)
			}
		}
		f.k.refuseWith("", 0)
		if f.c.Pinned() != newFixture(t).c.Pinned() {
			t.Fatalf("%s: %d bytes pinned after failures", m.name, f.c.Pinned())
		}
	}
}
