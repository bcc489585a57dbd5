package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// commit gives frames to a tap as a batch of one queue.
func commit(tap *capture.Tap, d capture.Direction, queue int, frames ...capture.Frame) {
	var b capture.Batch
	if b.Begin([]*capture.Tap{tap}, d, queue) {
		for i := range frames {
			b.Add(&frames[i])
		}
		b.Commit()
	}
}

func newTap(t testing.TB, o capture.Options) *capture.Tap {
	t.Helper()
	tap, err := capture.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tap
}

// fileOf ends the tap and returns its file.
func fileOf(t testing.TB, tap *capture.Tap, limit int) []byte {
	t.Helper()
	tap.Close()
	var file bytes.Buffer
	about := capture.About{Program: "prog", Name: "net0", Description: "d", Hardware: "mlx5_0"}
	if err := tap.WriteTo(t.Context(), &file, about, limit); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// dissect has tshark print fields of each frame of a file, one line each.
func dissect(t *testing.T, file []byte, fields ...string) []string {
	t.Helper()
	tshark := need.Tool(t, "tshark")
	path := filepath.Join(t.TempDir(), "f.pcapng")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-r", path, "-T", "fields", "-E", "separator=|", "-o",
		"tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	out, err := exec.Command(tshark, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Fatalf("tshark: %v: %s", err, failed.Stderr)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// TestFile has tshark read all that a file says of its frames.
func TestFile(t *testing.T) {
	tap := newTap(t, capture.Options{Snaplen: 64})
	frame := ip4(17, 0, 0, 53, 0, 80, 0, 12, 0, 0, 1, 2, 3, 4)
	long := append(ip4(6, 0, l4(1, 2)...), make([]byte, 200)...)
	var b capture.Batch
	b.Begin([]*capture.Tap{tap}, capture.In, 3)
	b.Add(&capture.Frame{Bufs: [][]byte{frame[:20], frame[20:]}})
	b.Add(&capture.Frame{Bufs: [][]byte{long}, Tag: 0x6064, Tagged: true})
	b.Drop(1, "it is of another VLAN")
	b.Commit()
	commit(tap, capture.Out, 1, capture.Frame{Bufs: [][]byte{frame}, Unsummed: true})
	file := fileOf(t, tap, 0)
	got := dissect(t, file, "frame.interface_name", "frame.packet_flags_direction",
		"frame.interface_queue", "frame.len", "frame.cap_len", "frame.comment", "vlan.id",
		"udp.checksum.status")
	want := []string{"net0|0x00000001|3|46|46|||2", // not verified: 0 means none in IPv4's UDP
		"net0|0x00000001|3|258|64|it is of another VLAN|100|",
		"net0|0x00000002|1|46|46|||1"}
	for i := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], want[i][:len(want[i])-1]) {
			t.Fatalf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if !strings.HasSuffix(got[2], "|1") {
		t.Errorf("the checksum of what was sent is not completed: %s", got[2])
	}
	if !bytes.Contains(file, []byte("it is of another VLAN")) || len(got) != 3 {
		t.Errorf("%d frames", len(got))
	}
}

// TestCut has one segment of three, and tshark follow its sequence numbers and sums.
func TestCut(t *testing.T) {
	headers := ip4(6, 0x4000, l4(1000, 80)...)
	headers[14+20+12], headers[14+20+13] = 5<<4, 0x10|0x08|0x01
	binary.BigEndian.PutUint16(headers[14+2:], 20+20+2400)
	whole := append(bytes.Clone(headers[:14+20+20]), bytes.Repeat([]byte("abcdefgh"), 300)...)
	for _, wire := range []bool{true, false} {
		tap := newTap(t, capture.Options{Wire: wire})
		commit(tap, capture.Out, 0, capture.Frame{Bufs: [][]byte{whole}, Unsummed: true, MSS: 1000,
			Headers: 54})
		got := dissect(t, fileOf(t, tap, 0), "frame.len", "tcp.len", "tcp.seq", "tcp.flags",
			"ip.id", "tcp.checksum.status")
		want := []string{"1054|1000|1|0x0010|0x0001|1", "1054|1000|1001|0x0010|0x0002|1",
			"454|400|2001|0x0019|0x0003|1"}
		if !wire {
			want = []string{"2454|2400|1|0x0019|0x0001|0"}
			got[0] = got[0][:len(got[0])-1] + "0" // no sum: the NIC computes those of the segments
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("wire %v:\n%s\nwant\n%s", wire, strings.Join(got, "\n"),
				strings.Join(want, "\n"))
		}
	}
}

// TestCutDatagrams makes three datagrams of one, and tshark follow their lengths and sums.
func TestCutDatagrams(t *testing.T) {
	headers := ip4(17, 0x4000, 0, 7, 0, 9, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(headers[14+2:], 20+8+2400)
	binary.BigEndian.PutUint16(headers[14+20+4:], 8+2400)
	whole := append(headers, bytes.Repeat([]byte("abcdefgh"), 300)...)
	for _, wire := range []bool{true, false} {
		tap := newTap(t, capture.Options{Wire: wire})
		commit(tap, capture.Out, 0, capture.Frame{Bufs: [][]byte{whole}, Unsummed: true, MSS: 1000,
			Headers: 42})
		got := dissect(t, fileOf(t, tap, 0), "frame.len", "udp.length", "ip.id",
			"udp.checksum.status")
		want := []string{"1042|1008|0x0001|1", "1042|1008|0x0002|1", "442|408|0x0003|1"}
		if !wire {
			want = []string{"2442|2408|0x0001|0"}
			got[0] = got[0][:len(got[0])-1] + "0" // no sum: the NIC computes those of the datagrams
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("wire %v:\n%s\nwant\n%s", wire, strings.Join(got, "\n"),
				strings.Join(want, "\n"))
		}
	}
}

// TestTapCounts: direction, queues, filter, limit, and what does not fit.
func TestTapCounts(t *testing.T) {
	frame := capture.Frame{Bufs: [][]byte{ip4(6, 0, l4(1, 80)...)}}
	large := capture.Frame{Bufs: [][]byte{append(ip4(17, 0, l4(1, 80)...), make([]byte, 60000)...)}}
	for _, tc := range []struct {
		name  string
		opts  capture.Options
		limit int
		n     int // frames of each kind
		want  capture.Counts
		wrote int
	}{
		{"all", capture.Options{}, 0, 5, capture.Counts{Seen: 20, Accepted: 20}, 20},
		{"received", capture.Options{Direction: capture.In}, 0, 5,
			capture.Counts{Seen: 10, Accepted: 10}, 10},
		{"sent by queue 7", capture.Options{Direction: capture.Out, Queues: []int{7}}, 0, 5,
			capture.Counts{Seen: 10, Accepted: 10}, 10},
		{"queue 9", capture.Options{Queues: []int{9}}, 0, 5, capture.Counts{}, 0},
		{"filter", capture.Options{Filter: "udp"}, 0, 5,
			capture.Counts{Seen: 20, Accepted: 10}, 10},
		{"limit", capture.Options{}, 3, 5, capture.Counts{Seen: 20, Accepted: 20}, 3},
		{"no room", capture.Options{Buffer: capture.MinBuffer, Filter: "udp"}, 0, 10,
			capture.Counts{Seen: 40, Accepted: 20, Lost: 16}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tap := newTap(t, tc.opts)
			for range tc.n {
				commit(tap, capture.In, 2, frame, large)
				commit(tap, capture.Out, 7, frame, large)
			}
			wrote, lost := blocks(t, fileOf(t, tap, tc.limit))
			if got := tap.Counts(); got != tc.want || wrote != tc.wrote || lost != tc.want.Lost {
				t.Errorf("%+v, %d written, %d lost; want %+v, %d", got, wrote, lost, tc.want,
					tc.wrote)
			}
		})
	}
}

// blocks counts the frames of a file and what its statistics say was lost.
func blocks(t *testing.T, file []byte) (frames int, lost uint64) {
	t.Helper()
	for len(file) >= 12 {
		n := binary.LittleEndian.Uint32(file[4:])
		if int(n) > len(file) || binary.LittleEndian.Uint32(file[n-4:]) != n {
			t.Fatalf("a block of %d bytes", n)
		}
		switch binary.LittleEndian.Uint32(file) {
		case 6:
			frames++
		case 5:
			lost = binary.LittleEndian.Uint64(file[20+12+12+12+4:])
		}
		file = file[n:]
	}
	if len(file) != 0 {
		t.Fatalf("%d bytes behind the last block", len(file))
	}
	return frames, lost
}

// TestConcurrent has four queues commit while the file is written: frames are in the order of their
// times, and none is missing.
func TestConcurrent(t *testing.T) {
	tap := newTap(t, capture.Options{Buffer: 64 << 20})
	var file bytes.Buffer
	done := make(chan error)
	go func() { done <- tap.WriteTo(context.Background(), &file, capture.About{}, 0) }()
	var queues sync.WaitGroup
	frame := capture.Frame{Bufs: [][]byte{ip4(6, 0, l4(1, 80)...)}}
	for q := range 4 {
		queues.Go(func() {
			for range 2000 {
				commit(tap, capture.In, q, frame)
			}
		})
	}
	queues.Wait()
	tap.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, lost := blocks(t, file.Bytes()); n != 8000 || lost != 0 {
		t.Errorf("%d frames, %d lost", n, lost)
	}
	commit(tap, capture.In, 0, frame) // after its end
	tap.Close()
}

// TestWriterFails: the capture ends with the error.
func TestWriterFails(t *testing.T) {
	tap := newTap(t, capture.Options{})
	err := tap.WriteTo(t.Context(), full{}, capture.About{}, 0)
	var b capture.Batch
	if err != errFull || b.Begin([]*capture.Tap{tap}, capture.In, 0) {
		t.Errorf("%v; the tap is still open", err)
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestOptions: what is wrong is said.
func TestOptions(t *testing.T) {
	for want, o := range map[string]capture.Options{
		"snapshot length of -1": {Snaplen: -1}, "is too small": {Buffer: 5},
		"direction 9": {Direction: 9}, "no port": {Filter: "port x"}} {
		if _, err := capture.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	if _, err := json.Marshal(capture.Counts{}); err != nil {
		t.Error(err)
	}
}

// TestCommitAllocates nothing once the buffers have grown.
func TestCommitAllocates(t *testing.T) {
	tap := newTap(t, capture.Options{Filter: "tcp port 80 or (udp and not port 53)", Wire: true,
		Snaplen: 96})
	taps := []*capture.Tap{tap}
	f := capture.Frame{Bufs: [][]byte{append(ip4(6, 0, l4(1, 80)...), make([]byte, 1400)...)},
		NICTime: time.Now()}
	var b capture.Batch
	one := func() {
		b.Begin(taps, capture.In, 0)
		for range 32 {
			b.Add(&f)
		}
		b.Commit()
	}
	for range 1000 { // until it is full
		one()
	}
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}
