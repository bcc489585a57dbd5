package uverbs

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestQPTransitions tries every transition from every state: allowed ones reach the kernel, others
// do not.
func TestQPTransitions(t *testing.T) {
	allowed := map[[2]QPState]bool{
		{QPReset, QPReset}: true, {QPReset, QPInit}: true,
		{QPInit, QPRTR}: true, {QPRTR, QPRTS}: true,
		{QPInit, QPReset}: true, {QPRTR, QPReset}: true, {QPRTS, QPReset}: true,
		{QPErr, QPReset}: true,
		{QPInit, QPErr}:  true, {QPRTR, QPErr}: true, {QPRTS, QPErr}: true, {QPErr, QPErr}: true,
	}
	k, c := openFake(t, Options{})
	for _, from := range []QPState{QPReset, QPInit, QPRTR, QPRTS, QPErr} {
		for to := QPReset; to <= QPErr+1; to++ {
			qp := &QP{object: object{c: c}, Reg: c.uars[0], state: from}
			before := len(k.names())
			var err error
			if to == QPInit {
				err = qp.Init(1)
			} else {
				err = qp.Modify(to)
			}
			asked := len(k.names()) > before
			if want := allowed[[2]QPState{from, to}]; asked != want || (err == nil) != want ||
				!want && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%v to %v: asked %v, %v", from, to, asked, err)
			}
			if err == nil && qp.state != to {
				t.Errorf("%v to %v left it in %v", from, to, qp.state)
			}
		}
	}
}

func TestQPStateNeedsPort(t *testing.T) {
	_, c := openFake(t, Options{})
	qp := &QP{object: object{c: c}, Reg: c.uars[0]}
	if err := qp.Modify(QPInit); !errors.Is(err, unix.EINVAL) ||
		!strings.Contains(err.Error(), "use Init") {
		t.Errorf("%v", err)
	}
}

// TestQPStaysOnFailure: a refused transition does not change the recorded state.
func TestQPStaysOnFailure(t *testing.T) {
	f := newFixture(t)
	n := 0
	f.k.refuse = func(c *call) error {
		if n++; n == 2 {
			return unix.EINVAL
		}
		return nil
	}
	if err := f.qp.ToReady(1); !errors.Is(err, unix.EINVAL) || f.qp.state != QPInit {
		t.Errorf("%v in %v", err, f.qp.state)
	}
	f.k.refuseWith("", 0)
	if err := errors.Join(f.qp.Modify(QPRTR), f.qp.Modify(QPRTS)); err != nil {
		t.Error(err)
	}
}

// commandsDuring lists the commands f causes.
func commandsDuring(k *fakeKernel, f func() error) ([]string, error) {
	n := len(k.names())
	err := f()
	return k.names()[n:], err
}

func TestQPBringUpBytes(t *testing.T) {
	f := newFixture(t)
	n := len(f.k.calls)
	if err := f.qp.ToReady(2); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		mask  uint32
		state byte
		port  byte
	}{{0x21, 1, 2}, {1, 2, 0}, {1, 3, 0}}
	for i, c := range f.k.calls[n:] {
		b := c.in[0]
		if c.name != "MODIFY_QP" || len(b) != 112 || u32(b[64:]) != f.qp.Handle() ||
			u32(b[68:]) != want[i].mask || b[96] != want[i].state || b[104] != want[i].port {
			t.Errorf("step %d: %s mask %#x state %d port %d", i, c.name, u32(b[68:]), b[96], b[104])
		}
	}
}

func TestQPRecovery(t *testing.T) {
	f := newFixture(t)
	if err := f.qp.ToReady(1); err != nil {
		t.Fatal(err)
	}
	names, err := commandsDuring(f.k, f.qp.Reset)
	if err != nil || !slices.Equal(names, []string{"QUERY_QP", "MODIFY_QP"}) ||
		f.qp.state != QPReset {
		t.Errorf("reset: %v, %v, in %v", names, err, f.qp.state)
	}
	if info, err := f.qp.Query(); err != nil || info != (QPInfo{State: QPRTS, Port: 1}) {
		t.Errorf("query %+v, %v", info, err)
	}
	if err := f.qp.ToReady(1); err != nil {
		t.Error(err)
	}
	var fresh *QP
	a := f.qpAttr
	a.UserIndex = 99
	names, err = commandsDuring(f.k, func() (err error) { fresh, err = f.qp.Replace(a, 1); return })
	if err != nil ||
		!slices.Equal(names,
			[]string{"DESTROY_QP", "CREATE_QP", "MODIFY_QP", "MODIFY_QP", "MODIFY_QP"}) {
		t.Fatalf("replace: %v, %v", names, err)
	}
	if fresh.state != QPRTS || f.qp.Close() != nil || !errors.Is(f.qp.Modify(QPReset), ErrClosed) {
		t.Errorf("after replacement: new %v", fresh.state)
	}
}

// TestQPReplaceFails: nothing is left of the new one.
func TestQPReplaceFails(t *testing.T) {
	for _, step := range []string{"DESTROY_QP", "CREATE_QP", "MODIFY_QP"} {
		f := newFixture(t)
		alive := f.k.alive()
		f.k.refuseWith(step, unix.ENOMEM)
		if qp, err := f.qp.Replace(f.qpAttr, 1); qp != nil || !errors.Is(err, unix.ENOMEM) {
			t.Errorf("%s: %v, %v", step, qp, err)
		}
		want := alive - 1
		if step == "DESTROY_QP" {
			want = alive
		}
		if f.k.alive() != want {
			t.Errorf("%s: %d alive, want %d", step, f.k.alive(), want)
		}
	}
}

// TestQPRegisterOutside: a register on a page that is not mapped is refused, and the queue pair
// destroyed.
func TestQPRegisterOutside(t *testing.T) {
	f := newFixture(t)
	alive := f.k.alive()
	f.k.patch = func(c *call) {
		if c.name == "CREATE_QP" {
			p32(c.out[0x1001], 4000)
		}
	}
	if _, err := f.pd.CreateRawQP(f.qpAttr); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v", err)
	}
	if f.k.alive() != alive {
		t.Errorf("%d alive, want %d", f.k.alive(), alive)
	}
}

func TestRSSQPHasNoStates(t *testing.T) {
	f := newFixture(t)
	names, err := commandsDuring(f.k, func() error { return f.rss.ToReady(1) })
	if !errors.Is(err, unix.ENOSYS) || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
}

func TestWQTransitions(t *testing.T) {
	f := newFixture(t)
	bad := map[[2]WQState]bool{{WQReset, WQErr}: true, {WQErr, WQReady}: true}
	for from := WQReset; from <= WQErr+1; from++ {
		for to := WQReset; to <= WQErr+1; to++ {
			names, err := commandsDuring(f.k, func() error { return f.wq.Modify(from, to) })
			want := !bad[[2]WQState{from, to}] && from <= WQErr && to <= WQErr
			if (len(names) == 1) != want || (err == nil) != want ||
				!want && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%v to %v: %v, %v", from, to, names, err)
			}
		}
	}
}

func TestWQRecoveryBytes(t *testing.T) {
	f := newFixture(t)
	h := byte(f.wq.Handle())
	for _, tc := range []struct {
		name string
		run  func() error
		want []byte
	}{
		{"recover", func() error { return f.wq.Modify(WQErr, WQReset) },
			[]byte{3, 0, 0, 0, h, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"ready", f.wq.Ready,
			[]byte{3, 0, 0, 0, h, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		if err := tc.run(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		same(t, tc.name, f.k.last("MODIFY_WQ").in[0], tc.want)
		same(t, tc.name+", driver part", f.k.last("MODIFY_WQ").in[0x1000], make([]byte, 8))
	}
}

func TestStridingWQBytes(t *testing.T) {
	f := newFixture(t)
	a := f.wqAttr
	a.LogStride, a.Entries = 6, 16
	a.Striding = &Striding{LogStrideBytes: 11, LogStrides: 9, TwoByteShift: 1}
	a.VLANStrip, a.ScatterFCS, a.DelayDrop, a.WriteEndPadding = true, true, true, true
	must[*WQ](t)(f.pd.CreateWQ(a))
	c := f.k.last("CREATE_WQ")
	if u32(c.in[0][24:]) != 16 || u32(c.in[0][28:]) != 3 || u32(c.in[0][32:]) != 15 {
		t.Errorf("core % x", c.in[0])
	}
	for i, want := range []uint32{16, 6, 2, 0, 1, 11, 9, 1} {
		if have := u32(c.in[0x1000][16+4*i:]); have != want {
			t.Errorf("driver part, word at %d: %d, want %d", 16+4*i, have, want)
		}
	}
}

func TestCQFlags(t *testing.T) {
	f := newFixture(t)
	a := f.cqAttr
	a.Channel, a.CQESize, a.Entries = nil, 128, 32
	a.Compression, a.Pad128, a.RealTime, a.Timestamps, a.IgnoreOverrun,
		a.Vector = Mlx5CQEFormatCsum, true, true, true, true, 3
	cq := must[*CQ](t)(f.c.CreateCQ(a))
	c := f.k.last("CREATE_CQ")
	if cq.Entries != 32 || u32(c.in[0][8:]) != 31 || u32(c.in[0][12:]) != 3 ||
		u32(c.in[0][16:]) != 0xffffffff || u32(c.in[0][24:]) != 3 {
		t.Errorf("core % x", c.in[0])
	}
	d := c.in[0x1000]
	if u32(d[16:]) != 128 || d[20] != 1 || d[21] != 2 || u16(d[22:]) != 5 {
		t.Errorf("driver part % x", d)
	}
	if err := cq.Moderate(0x1234, 0x567); err != nil {
		t.Error(err)
	}
	h := byte(cq.Handle())
	same(t, "moderation", f.k.last("MODIFY_CQ").in[0],
		[]byte{h, 0, 0, 0, 1, 0, 0, 0, 0x34, 0x12, 0x67, 0x05, 0, 0, 0, 0})
}

func TestIndirectionTableBytes(t *testing.T) {
	f := newFixture(t)
	two := must[*WQ](t)(f.pd.CreateWQ(f.wqAttr))
	a, b := byte(f.wq.Handle()), byte(two.Handle())
	must[*IndTable](t)(f.c.CreateIndirectionTable([]*WQ{f.wq, two}, 2))
	same(t, "four entries", f.k.last("CREATE_RWQ_IND_TBL").in[0],
		[]byte{0, 0, 0, 0, 2, 0, 0, 0, a, 0, 0, 0, b, 0, 0, 0, a, 0, 0, 0, b, 0, 0, 0})
	must[*IndTable](t)(f.c.CreateIndirectionTable([]*WQ{two}, 0))
	same(t, "one entry", f.k.last("CREATE_RWQ_IND_TBL").in[0],
		[]byte{0, 0, 0, 0, 0, 0, 0, 0, b, 0, 0, 0, 0, 0, 0, 0})
	// larger than the scratch page
	tbl := must[*IndTable](t)(f.c.CreateIndirectionTable([]*WQ{f.wq, two}, 11))
	if n := len(f.k.last("CREATE_RWQ_IND_TBL").in[0]); n != 8+4*2048 || tbl.Entries != 2048 {
		t.Errorf("%d bytes, %d entries", n, tbl.Entries)
	}
}
