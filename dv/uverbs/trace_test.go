package uverbs

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// everyCall makes each call once, with one refusal, and closes all objects.
func everyCall(t testing.TB, k Kernel) error {
	t.Helper()
	c, err := Open(k, Options{pageSize: fakePages})
	if err != nil {
		return err
	}
	f := &fixture{c: c}
	f.fill(t)
	if _, err := f.pd.RegMR(region(t, 4096),
		AccessLocalWrite|AccessRelaxedOrdering); !errors.Is(err, unix.EPERM) {
		t.Errorf("the refused registration: %v", err)
	}
	err = errors.Join(f.qp.ToReady(1), f.wq.Ready(), f.cq.Moderate(1, 2))
	packets, frameBytes, err2 := f.counters.Read()
	if err2 == nil && (packets != 11 || frameBytes != 1111) {
		t.Errorf("counters %d, %d", packets, frameBytes)
	}
	err = errors.Join(err, err2)
	f.qp.Reg.Store64(f.qp.RegOffset, 1)
	if n, err := f.channel.Drain(); n != 0 || err != nil {
		t.Errorf("channel: %d, %v", n, err)
	}
	for _, o := range f.closers() {
		err = errors.Join(err, o.close())
	}
	return errors.Join(err, f.channel.Close(), c.Close())
}

// recorded returns the trace of a session.
func recorded(t testing.TB) []byte {
	t.Helper()
	k := newFake(t)
	registrations := 0
	k.refuse = func(c *call) error {
		if c.name == "REG_MR" {
			if registrations++; registrations == 2 {
				return unix.EPERM
			}
		}
		return nil
	}
	var trace bytes.Buffer
	if err := everyCall(t, Record(k, &trace)); err != nil {
		t.Fatal(err)
	}
	if k.closed != 1 {
		t.Errorf("node closed %d times", k.closed)
	}
	return trace.Bytes()
}

func TestRecordAndReplay(t *testing.T) {
	trace := recorded(t)
	if again := recorded(t); !bytes.Equal(trace, again) {
		t.Errorf("the same session recorded twice differs:\n%s\n%s", trace, again)
	}
	for _, part := range []string{`"name":"CREATE_CQ"`, `"errno":"EPERM"`, `"call":"mmap"`,
		`"offset":3145728`, `"name":"COUNTERS_READ"`} {
		if !bytes.Contains(trace, []byte(part)) {
			t.Errorf("the trace lacks %s", part)
		}
	}
	for line := range bytes.Lines(trace) {
		if bytes.Contains(line, []byte("EPERM")) && bytes.Contains(line, []byte(`"out":`)) {
			t.Errorf("a refusal with an answer: %s", line)
		}
	}
	k, err := Replay(bytes.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	if err := everyCall(t, k); err != nil {
		t.Error(err)
	}
	if d := descriptors(t) - before; d != 0 {
		t.Errorf("%d descriptors leaked", d)
	}
	if err := k.Close(); !errors.Is(err, unix.EBADF) {
		t.Errorf("second close: %v", err)
	}
}

// TestReplayOfReplay: a recording of a replay is the same trace.
func TestReplayOfReplay(t *testing.T) {
	trace := recorded(t)
	k, err := Replay(bytes.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	var second bytes.Buffer
	if err := everyCall(t, Record(k, &second)); err != nil {
		t.Fatal(err)
	}
	compareLines(t, "first trace", string(trace), second.String())
}

// TestReplayNotices: any change of a request is an error that names the call.
func TestReplayNotices(t *testing.T) {
	trace := string(recorded(t))
	for _, tc := range []struct{ name, old, new string }{
		{"an argument",
			`"name":"MODIFY_CQ","ioctl":{"object":0,"method":0,"driver":1,"attrs":[{"id":0,"dir":"in","in":"02000000`,
			`"name":"MODIFY_CQ","ioctl":{"object":0,"method":0,"driver":1,"attrs":[{"id":0,"dir":"in","in":"03000000`},
		{"a page offset", `"offset":3145728`, `"offset":3149824`},
		{"an object", `"object":15,"method":2`, `"object":15,"method":1`},
		{"room for an answer", `"len":304`, `"len":300`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := strings.Replace(trace, tc.old, tc.new, 1)
			if changed == trace {
				t.Fatalf("no %s in the trace", tc.old)
			}
			k, err := Replay(strings.NewReader(changed))
			if err != nil {
				t.Fatal(err)
			}
			if err := everyCall(t, k); !errors.Is(err, ErrReplay) ||
				!strings.Contains(err.Error(), "call ") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestReplayAddresses: addresses may move by pages, not within them.
func TestReplayAddresses(t *testing.T) {
	for addr, want := range map[uint64]uint64{0: 0, 0x7f0000020040: 0x1040,
		0x7f1234567040: 0x1040, 0x5000: 0x1000} {
		if have := maskAddress(addr); have != want {
			t.Errorf("%#x becomes %#x, want %#x", addr, have, want)
		}
	}
}

func TestReplayEnds(t *testing.T) {
	trace := recorded(t)
	lines := bytes.SplitAfter(trace, []byte("\n"))
	k, err := Replay(bytes.NewReader(bytes.Join(lines[:20], nil)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(k, Options{pageSize: fakePages})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errors.Is(err, ErrReplay) ||
		!strings.Contains(err.Error(), "were not made") {
		t.Errorf("early close: %v", err)
	}
	k, err = Replay(bytes.NewReader(bytes.Join(lines[:11], nil)))
	if err != nil {
		t.Fatal(err)
	}
	if c, err = Open(k, Options{pageSize: fakePages}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocPD(); !errors.Is(err, ErrReplay) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := c.QueryPort(1); !errors.Is(err, ErrReplay) {
		t.Errorf("after the difference: %v", err)
	}
	c.Close()
}

func TestReplayBadTraces(t *testing.T) {
	for name, trace := range map[string]string{
		"not JSON": "{", "neither": `{"call":"ioctl"}`, "both": `{"ioctl":{},"mmap":{}}`,
		"wrong type": `{"call":3}`,
	} {
		if _, err := Replay(strings.NewReader(trace)); err == nil ||
			!strings.Contains(err.Error(), "call 1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if k, err := Replay(strings.NewReader("")); err != nil || k.Close() != nil {
		t.Errorf("empty trace: %v", err)
	}
}

// failingWriter accepts n bytes and then fails.
type failingWriter struct{ n int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.n -= len(b); w.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// TestRecordFailure: calls still succeed if the trace cannot be written, and Close reports it.
func TestRecordFailure(t *testing.T) {
	k := newFake(t)
	k.refuse = func(c *call) error {
		if c.name == "REG_MR" && len(k.handles) > 1 {
			return unix.EPERM
		}
		return nil
	}
	if err := everyCall(t, Record(k, &failingWriter{2000})); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
	if k.closed != 1 {
		t.Errorf("node closed %d times", k.closed)
	}
}

func TestErrnoNames(t *testing.T) {
	for e := unix.Errno(1); e < 600; e++ {
		if e == unix.EWOULDBLOCK || e == unix.EDEADLK {
			continue // other names of the same numbers
		}
		if have := errnoByName(errnoName(e)); have != e {
			t.Errorf("%d is written %q and read %v", int(e), errnoName(e), have)
		}
	}
	if errnoName(nil) != "" || errnoByName("") != nil || errnoByName("EWHAT") != unix.EIO ||
		errnoName(io.EOF) != "EIO" {
		t.Error("names of no errno")
	}
}

// FuzzReplay feeds traces: reading one may fail but not panic, nor may calls to the replayed
// Kernel.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(`{"call":"mmap","mmap":{"offset":3145728,"length":4096,"writable":true}}`))
	f.Add([]byte(`{"call":"ioctl","ioctl":{"object":0,"method":3,"driver":1,"attrs":[{"id":0,"dir":"out","len":4,"out":"08"},{"id":1,"dir":"out","len":8,"out":"zz"}]}}`))
	f.Add([]byte(`{"call":"ioctl","ioctl":{"attrs":[]}}` + "\n{}"))
	f.Add(recorded(f))
	f.Fuzz(func(t *testing.T, trace []byte) {
		k, err := Replay(bytes.NewReader(trace))
		if err != nil {
			return
		}
		c, err := Open(k, Options{pageSize: fakePages})
		if err != nil {
			return
		}
		c.AllocPD()
		c.CreateCompChannel()
		c.CreateCounters()
		c.Close()
	})
}
