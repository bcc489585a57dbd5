//go:build linux

package attack

import (
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

// silence is how long the server may send nothing after one error, and between how many packets: a
// request is sent every few milliseconds, so that an error which shows only when a ring is full
// takes longer.
const (
	silence = 250 * time.Millisecond
	beat    = 5 * time.Millisecond
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
			for i := range singles {
				order("%s 1 0", kind)
				mute = append(mute, w.untilPong(uint16(i)))
			}
			order("none")
			after := some(w.browsers())
			slices.Sort(mute)
			worst := mute[len(mute)-1]
			if worst > silence {
				t.Errorf("after one %s error the server was mute for %v, want at most %v", kind,
					worst, silence)
			}
			w.judge(row{attack: "single " + kind + " errors", during: -1, after: after.share(),
				growth: w.rss() - w.baseline,
				note: fmt.Sprintf("%d, silent for %v median, %v at most", singles,
					mute[len(mute)/2].Round(time.Microsecond), worst.Round(time.Microsecond))})
		})
	}
}

// longestMute is the longest wait for a server that sends nothing.
const longestMute = 10 * time.Second

// untilPong sends echo requests at an interval until one is answered, and returns the time it took.
// The fault hits the first of them.
func (w *world) untilPong(id uint16) time.Duration {
	w.t.Helper()
	p := w.port()
	defer p.Close()
	f := newForge(w.t, p)
	began := time.Now()
	buf := make([]byte, 2048)
	for seq := uint16(0); time.Since(began) < longestMute; seq++ {
		must(w.t, p.Send(f.echo(addr(client4), 0x4000|id, seq)))
		for next := time.Now().Add(beat); ; {
			b, err := p.Recv(buf, next)
			if err != nil {
				break
			}
			if len(b) > 42 && b[12] == 8 && b[13] == 0 && b[23] == 1 && b[34] == 0 &&
				b[38] == 0x40 && b[39] == byte(id) {
				return time.Since(began)
			}
		}
	}
	return time.Since(began)
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
