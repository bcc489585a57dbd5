package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// A capture as tcpdump writes it: microseconds, and the other byte order.
const (
	pcapLittleMicro = "d4c3b2a10200040000000000000000000000040001000000" +
		"01000000020000000e0000000e000000ffffffffffff0200000000010806"
	pcapBigMicro = "a1b2c3d40002000400000000000000000004000000000001" +
		"00000001000000020000000e0000000effffffffffff0200000000010806"
)

func TestPcapReadsBothOrders(t *testing.T) {
	for name, text := range map[string]string{"little": pcapLittleMicro, "big": pcapBigMicro} {
		t.Run(name, func(t *testing.T) {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			r, err := newPcapReader(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			at, data, err := r.nextFrame()
			if err != nil || !at.Equal(time.Unix(1, 2000)) || len(data) != 14 ||
				data[12] != 8 || data[13] != 6 {
				t.Errorf("frame %x at %v, %v", data, at, err)
			}
			if _, _, err := r.nextFrame(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
		})
	}
}

func TestPcapRefuses(t *testing.T) {
	good, _ := hex.DecodeString(pcapLittleMicro)
	for _, tt := range []struct {
		name string
		edit func([]byte) []byte
		want error
	}{
		{"empty", func(b []byte) []byte { return nil }, ErrNotPcap},
		{"magic", func(b []byte) []byte { b[0] ^= 1; return b }, ErrNotPcap},
		{"link type", func(b []byte) []byte { b[20] = 101; return b }, ErrNotPcap},
		{"huge record", func(b []byte) []byte { b[34] = 0xff; return b }, ErrNotPcap},
		{"cut header", func(b []byte) []byte { return b[:30] }, io.ErrUnexpectedEOF},
		{"cut record", func(b []byte) []byte { return b[:45] }, io.ErrUnexpectedEOF},
		{"record without data", func(b []byte) []byte { return b[:40] }, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := newPcapReader(bytes.NewReader(tt.edit(bytes.Clone(good))))
			if err == nil {
				_, _, err = r.nextFrame()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzPcapReader(f *testing.F) {
	for _, s := range []string{pcapLittleMicro, pcapBigMicro} {
		b, _ := hex.DecodeString(s)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := newPcapReader(bytes.NewReader(b))
		for err == nil {
			_, _, err = r.nextFrame()
		}
	})
}

// What is captured can be replayed, frame for frame, both directions.
func TestCaptureAndReplay(t *testing.T) {
	a, b := Pair()
	var file bytes.Buffer
	w, err := Capture(a, &file, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	atW, atB := newFrameLog(), newFrameLog()
	if err := errors.Join(w.Start(atW.recv), b.Start(atB.recv)); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		from := []Wire{w, b}[i%2]
		if _, err := from.Send([]frame.Frame{numbered(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(atW.all()) != 2 || len(atB.all()) != 2 {
		t.Fatalf("%d and %d frames passed", len(atW.all()), len(atB.all()))
	}
	if err := errors.Join(w.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := NewReplay(bytes.NewReader(file.Bytes()), 1, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	got := newFrameLog()
	if err := r.Start(got.recv); err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	if err := errors.Join(r.Err(), r.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	for i, f := range got.wait(4) {
		if !bytes.Equal(f.Data, numbered(i).Data) {
			t.Errorf("frame %d is %q", i, f.Data)
		}
	}
}

// A replay that would take an hour stops at Close.
func TestReplayStops(t *testing.T) {
	var file bytes.Buffer
	rec, err := NewRecorder(&file)
	if err != nil {
		t.Fatal(err)
	}
	rec.Record(time.Unix(0, 0), numbered(0))
	rec.Record(time.Unix(3600, 0), numbered(1))
	r, err := NewReplay(&file, 1, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	got := newFrameLog()
	if err := r.Start(got.recv); err != nil {
		t.Fatal(err)
	}
	got.wait(1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(r.Err(), ErrClosed) || len(got.all()) != 1 {
		t.Errorf("%v, %d frames", r.Err(), len(got.all()))
	}
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

func TestCaptureErrorDoesNotStopTheWire(t *testing.T) {
	if _, err := Capture(nil, &brokenWriter{}, clock.Clock{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("no header: %v", err)
	}
	a, b := Pair()
	w, err := Capture(a, &brokenWriter{left: 2}, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	got := newFrameLog()
	if err := b.Start(got.recv); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if n, err := w.Send([]frame.Frame{numbered(i)}); n != 1 || err != nil {
			t.Errorf("send: %d, %v", n, err)
		}
	}
	got.wait(3)
	if err := w.Close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("close: %v", err)
	}
}

// tcpdump is the second opinion on the file format.
func TestTcpdumpReadsCapture(t *testing.T) {
	tcpdump := need.Tool(t, "tcpdump")
	name := filepath.Join(t.TempDir(), "x.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := NewRecorder(f)
	if err != nil {
		t.Fatal(err)
	}
	rec.Record(time.Unix(1700000000, 123456789), udpFrame(t, 0))
	if err := errors.Join(rec.Err(), f.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tcpdump, "-r", name, "-n", "-tt", "-vv", "--nano").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"1700000000.123456789",
		"192.168.1.1.1000 > 192.168.1.2.2000", "udp sum ok"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}
