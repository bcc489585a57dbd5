//go:build linux

package vm

import (
	"context"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// outageLimit is for how long a connection may be without an answer: stack.Config.Uplink.MaxOutage.
const outageLimit = 2 * time.Minute

// testMTU changes the MTU of the netdev, 9000 to 1500 and back, under a server on rings that is in
// the middle of a transfer: that goes on or ends with an error, and new connections are served as
// the kernel's are.
func testMTU(t *testing.T, w *world) {
	w.served(t)
	outside := func(mtu int) {
		t.Helper()
		if err := w.outside.Do(func() error {
			return exec.Command("ip", "link", "set", "wire0", "mtu", strconv.Itoa(mtu)).Run()
		}); err != nil {
			t.Fatal(err)
		}
	}
	guest := func(mtu int) {
		t.Helper()
		w.run(t, "ip", "link", "set", "eth0", "mtu", strconv.Itoa(mtu))
	}
	defer outside(1500)
	defer guest(1500)
	guest(9000)
	outside(9000)
	s := w.serve(t, "http", "--debug-endpoints")
	check := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(w.ctx, outageLimit)
		defer cancel()
		if err := w.client.Download(ctx, url(netdev4, netdevPort), 1<<20); err != nil {
			t.Errorf("%s: a download from the kernel: %v", what, err)
		}
		for _, at := range []string{url(slice4, 80), url(slice6, 80)} {
			if err := w.client.Download(ctx, at, 1<<20); err != nil {
				t.Errorf("%s: a download from %s: %v", what, at, err)
			}
			if err := w.client.Echo(ctx, at, 1<<18); err != nil {
				t.Errorf("%s: an upload to %s: %v", what, at, err)
			}
		}
	}
	// during changes the MTU while a transfer is under way.
	during := func(what string, change func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(w.ctx, outageLimit)
		defer cancel()
		before, ended := w.nic.Counters().Wire.TxPackets, make(chan error, 1)
		go func() { ended <- w.client.Download(ctx, url(slice4, 80), 4*bulk) }()
		eventually(t, func() string { return "a transfer is under way" }, func() bool {
			return w.nic.Counters().Wire.TxPackets > before+200
		})
		change()
		switch err := <-ended; {
		case ctx.Err() != nil:
			t.Errorf("%s: the transfer stands still for %v: %v", what, outageLimit, err)
		case err != nil:
			t.Errorf("%s: the transfer that was under way: %v", what, err)
		}
	}
	check("all at 9000")
	during("the guest lowered to 1500", func() { guest(1500) })
	check("the guest lowered to 1500")
	outside(1500)
	check("all lowered to 1500")
	during("all raised to 9000", func() {
		outside(9000)
		guest(9000)
	})
	check("all raised to 9000")
	s.stop(t)
}
