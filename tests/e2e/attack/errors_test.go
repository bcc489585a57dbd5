//go:build linux

package attack

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func mustMAC() net.HardwareAddr {
	mac, err := net.ParseMAC(serverMAC)
	if err != nil {
		panic(err)
	}
	return mac
}

// newFaulty starts this program as a server whose NIC fails on request.
func newFaulty(t *testing.T, queues int) (w *world, order func(format string, args ...any)) {
	t.Helper()
	w = newWorld(t)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childEnv, queues))
	in, writer, err := os.Pipe()
	must(t, err)
	defer in.Close()
	cmd.Stdin = in
	t.Cleanup(func() { writer.Close() })
	w.answers = make(chan string, 16)
	if !w.run(cmd, "serving ") {
		text, _ := w.log.written()
		t.Fatalf("the server did not start: %s", text)
	}
	return w, func(format string, args ...any) {
		fmt.Fprintf(writer, format+"\n", args...)
		select {
		case <-w.answers:
		case <-time.After(startTime):
			t.Error("the faulty server does not take orders")
		}
	}
}

// singles is the number of single errors that are injected, one after another.
const singles = 20

// beat is the time between two requests after an error, so that an error which shows only when a
// ring is full takes longer. The requests are counted, not the time: on a busy machine this program
// waits for a processor, too.
const (
	beat     = 5 * time.Millisecond
	mostLost = 50  // of one error: the first answer is to the one after these at the latest
	mostSent = 200 // until the first answer
)

// TestSingleErrors: after one error completion on an idle server it answers again at once.
func TestSingleErrors(t *testing.T) {
	for _, kind := range []string{"send", "receive"} {
		t.Run(kind, func(t *testing.T) {
			w, order := newFaulty(t, 1)
			before := some(w.browsers())
			if before.share() < 1 {
				t.Fatalf("before: %v", before)
			}
			w.baseline = w.rss()
			var mute []time.Duration
			lost, sent := 0, 0
			for i := range singles {
				order("%s 1 0", kind)
				began := time.Now()
				l, s := w.untilPong(uint16(i))
				mute = append(mute, time.Since(began))
				lost, sent = max(lost, l), max(sent, s)
			}
			order("none")
			after := some(w.browsers())
			slices.Sort(mute)
			if lost > mostLost || sent > mostSent {
				t.Errorf("after one %s error %d requests are lost, and %d are sent until one is "+
					"answered: want at most %d and %d", kind, lost, sent, mostLost, mostSent)
			}
			w.judge(row{attack: "single " + kind + " errors", during: -1, after: after.share(),
				growth: w.rss() - w.baseline,
				note: fmt.Sprintf("%d, each lost at most %d requests; silent for %v median",
					singles, lost, mute[len(mute)/2].Round(time.Microsecond))})
		})
	}
}

// longestMute is the longest wait for a server that sends nothing.
const longestMute = 10 * time.Second

// untilPong sends echo requests at an interval until one is answered, and returns the number of
// those before that one, and of all. The fault hits the first of them.
func (w *world) untilPong(id uint16) (lost, sent int) {
	w.t.Helper()
	p := w.port()
	defer p.Close()
	f := newForge(w.t, p)
	buf := make([]byte, 2048)
	for began := time.Now(); time.Since(began) < longestMute; sent++ {
		must(w.t, p.Send(f.echo(addr(client4), 0x4000|id, uint16(sent))))
		for next := time.Now().Add(beat); ; {
			b, err := p.Recv(buf, next)
			if err != nil {
				break
			}
			if len(b) > 42 && b[12] == 8 && b[13] == 0 && b[23] == 1 && b[34] == 0 &&
				b[38] == 0x40 && b[39] == byte(id) {
				return int(binary.BigEndian.Uint16(b[40:])), sent + 1
			}
		}
	}
	return sent, sent
}

// TestErrorRate: a fifth of all WQEs fails for a while; a second after the end, everything works as
// before.
func TestErrorRate(t *testing.T) {
	for _, tt := range []struct {
		kind   string
		queues int
	}{{"send", 1}, {"send", 4}, {"receive", 1}, {"receive", 4}} {
		name := fmt.Sprintf("one %s of five fails, %d queues", tt.kind, tt.queues)
		t.Run(name, func(t *testing.T) {
			w, order := newFaulty(t, tt.queues)
			r := w.under(name, w.browsers(), func(done <-chan struct{}) {
				order("%s 0 0.2", tt.kind)
				<-done
				order("none")
			})
			_, size := w.log.written()
			if size > logLimit {
				t.Errorf("the server logged %d bytes, want at most %d", size, logLimit)
			}
			r.note = fmt.Sprintf(
				"%d KiB of log; %s served during, which is not judged: each error resets the queue",
				size>>10, percent(r.during))
			r.during = -1
			w.judge(r)
		})
	}
}
