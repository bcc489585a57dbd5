//go:build linux

package vm

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// paces makes the guest's kernel give a send queue of a program a rate, which the model keeps it
// to.
func (w *world) paces(t *testing.T) {
	t.Helper()
	var mu sync.Mutex
	var first, last time.Time // when the model executed them
	w.nic.SetHooks(&simnic.Hooks{SendWQE: func(sq *simnic.SQ, _ uint16) (uint8, uint8) {
		mu.Lock()
		defer mu.Unlock()
		if !sq.Attr().Netdev {
			if last = time.Now(); first.IsZero() {
				first = last
			}
		}
		return 0, 0
	}})
	defer w.nic.SetHooks(nil)
	before := w.fn.Commands()["SET_PP_RATE_LIMIT"]
	const frames = 300 // of 1000 bytes: a millisecond each
	out := w.run(t, "/init", "pace", "-mac", sliceMAC, "-rate", "8000000", "-frames",
		fmt.Sprint(frames))
	c := w.nic.Caps().Pacing
	want := fmt.Sprintf("posted\nsent %d, %d to %d kbit/s\n", frames, c.MinKbps, c.MaxKbps)
	if out != want {
		t.Errorf("the guest says %q, want %q", out, want)
	}
	mu.Lock()
	defer mu.Unlock()
	// The first may be seen late, and those that were due meanwhile follow it at once.
	if took := last.Sub(first); took < frames*2/3*time.Millisecond {
		t.Errorf("%d frames left within %v", frames, took)
	}
	after := w.fn.Commands()["SET_PP_RATE_LIMIT"]
	if n := after.Done - before.Done; n != 4 || after.Refused != 0 {
		t.Errorf("the table was written %d times, refused %d: want two rates set and freed", n,
			after.Refused)
	}
}
