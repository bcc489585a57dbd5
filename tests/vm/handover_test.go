//go:build linux

package vm

import (
	"bytes"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Where the time goes when the device leaves and comes back. The guest's processors are emulated,
// and it has a clock of its own: what our program does between the kernel's word and its switch is
// told apart from the rest by its log.
//
//	last frame        the kernel       sockets     first frame
//	of the rings      tells us         send        outside
//	  │───── kernel ─────│── our program ──│── guest ──│
//	                     └───── deliveries of the rings ─────▶ sockets receive
//
//	RDMA device there                rings at work
//	  │──── our program, opening it ─────│

// handover is what was seen outside, in ns of Unix time.
type handover struct {
	ringsLast    atomic.Int64 // the last frame of the rings before ...
	standbyFirst atomic.Int64 // the first frame of the virtio netdev
}

// watchHandover looks at both ways until the test ends.
func (w *world) watchHandover(t *testing.T) *handover {
	t.Helper()
	h := new(handover)
	w.watch(t, "wire0", func(now int64) {
		if h.standbyFirst.Load() == 0 {
			h.ringsLast.Store(now)
		}
	})
	w.watch(t, standbyName, func(now int64) { h.standbyFirst.CompareAndSwap(0, now) })
	return h
}

// watch has seen called for each frame of the slice that comes by a port of the bridge, until the
// test ends.
func (w *world) watch(t *testing.T, ifname string, seen func(now int64)) {
	t.Helper()
	mac, err := net.ParseMAC(sliceMAC)
	if err != nil {
		t.Fatal(err)
	}
	var port *lab.Port
	if err := w.outside.Do(func() (err error) {
		port, err = lab.OpenPort(ifname)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var header [14]byte
		for far := time.Now().Add(time.Hour); ; {
			f, err := port.Recv(header[:], far)
			if err != nil {
				return
			}
			if bytes.Equal(f[6:12], mac) {
				seen(time.Now().UnixNano())
			}
		}
	}()
	t.Cleanup(func() {
		port.Close()
		<-ended
	})
}

// guestClock is by how much the guest's clock is ahead of ours, and how wrong that may be.
type guestClock struct{ ahead, doubt time.Duration }

func (w *world) guestClock(t *testing.T) guestClock {
	t.Helper()
	best := guestClock{doubt: time.Hour}
	for range 8 {
		asked := time.Now()
		said := w.must(t, rig.Request{Op: "clock"}).Output
		half := time.Since(asked) / 2
		ns, err := strconv.ParseInt(said, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if half < best.doubt {
			best = guestClock{time.Unix(0, ns).Sub(asked.Add(half)), half}
		}
	}
	return best
}

// ours is a time of the guest in ns of our Unix time.
func (c guestClock) ours(guest time.Time) int64 { return guest.Add(-c.ahead).UnixNano() }

// Lines of our program's log: when it has switched, and how long after the kernel's word, or how
// long it took to open the device.
var (
	awayLine = regexp.MustCompile(
		`time=(\S+) .*msg="the device is away" backend=packet .*receives_after=(\S+)`)
	sendsLine = regexp.MustCompile(
		`time=(\S+) .*msg="the device is away" .*sends_after=(\S+)`)
	openingLine = regexp.MustCompile(`msg="opening a device takes time" device=\S+ (.*)`)
	backLine    = regexp.MustCompile(`time=(\S+) .*msg="the device is back" .*opening=(\S+)`)
)

// logged is the last such line.
func logged(t *testing.T, log string, line *regexp.Regexp) (at time.Time, took time.Duration) {
	t.Helper()
	all := line.FindAllStringSubmatch(log, -1)
	if len(all) == 0 {
		t.Errorf("no line like %v in:\n%s", line, log)
		return
	}
	m := all[len(all)-1]
	at, err := time.Parse(time.RFC3339Nano, m[1])
	if err == nil {
		took, err = time.ParseDuration(m[2])
	}
	if err != nil {
		t.Error(err)
	}
	return at, took
}

// account says where the time went; signals is what /init signals has printed.
func (h *handover) account(t *testing.T, c guestClock, log, signals string) string {
	t.Helper()
	last, first := h.ringsLast.Load(), h.standbyFirst.Load()
	away, receives := logged(t, log, awayLine)
	_, sends := logged(t, log, sendsLine)
	again, opening := logged(t, log, backLine)
	told, serving := c.ours(away)-int64(receives), c.ours(again)
	there := serving - int64(opening)
	for line := range strings.Lines(signals) {
		var ns int64
		var gone bool
		var index int
		// a signal without name and number: an RDMA device has come
		if n, _ := fmt.Sscan(line, &ns, &gone, &index); n == 3 && !gone && index == 0 {
			if at := c.ours(time.Unix(0, ns)); at > first {
				there = min(there, at)
			}
		}
	}
	parts := openingLine.FindAllStringSubmatch(log, -1)
	if len(parts) < 2 { // of the start, and of the return
		t.Errorf("no line like %v of the return in:\n%s", openingLine, log)
		return ""
	}
	ms := func(ns int64) string {
		return time.Duration(ns).Round(100 * time.Microsecond).String()
	}
	return fmt.Sprintf("silence %s: %s until the kernel told, %v until sockets sent (%v until "+
		"they received), %s until their first frame was outside; rings %s after the RDMA device "+
		"was there, %v of it to open it (%s); clocks agree within %v", ms(first-last),
		ms(told-last), sends, receives, ms(first-told-int64(sends)), ms(serving-there), opening,
		parts[len(parts)-1][1], c.doubt.Round(100*time.Microsecond))
}
