//go:build linux

package vm

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Failures of a machine, each made by the test. A pending request must fail, with the reason and
// both logs, long before its own timeout.

func testOver(t *testing.T, w *world) {
	w.broken = true
	if slices.Index(rig.KernelVersions(), w.kernel.Version)%2 == 0 {
		testServerDies(t, w)
	} else {
		testGuestHangs(t, w)
	}
}

func testServerDies(t *testing.T, w *world) {
	err := w.duringRequest(t, w.vm.Disconnect)
	if !errors.Is(err, rig.ErrServerGone) {
		t.Errorf("the request ended with: %v", err)
	}
	contains(t, err.Error(), "the server of the device has ended", "--- guest console ---",
		"qemu-system-x86_64: ", "--- model ---", "virtual machine gone")
	if _, err := w.vm.Do(rig.Request{Op: "ping"}); !errors.Is(err, rig.ErrServerGone) {
		t.Errorf("the next request ended with: %v", err)
	}
}

func testGuestHangs(t *testing.T, w *world) {
	err := w.duringRequest(t, func() {
		if err := w.vm.Freeze(); err != nil {
			t.Error(err)
		}
		w.vm.HangsAfter(3 * time.Second)
	})
	if !errors.Is(err, rig.ErrGuestHangs) {
		t.Errorf("the request ended with: %v", err)
	}
	contains(t, err.Error(), "the guest hangs: no word for ", "--- guest console ---",
		"--- model ---", "virtual machine connected")
}

// duringRequest makes the machine fail during a long request, and returns how that request ended.
func (w *world) duringRequest(t *testing.T, breaks func()) error {
	t.Helper()
	job := w.start(t, "ping", "-q", "-c", "3600", "127.0.0.1")
	ended := make(chan error, 1)
	go func() {
		_, err := w.vm.Do(rig.Request{Op: "wait", Job: job, Timeout: time.Hour})
		ended <- err
	}()
	breaks()
	select {
	case err := <-ended:
		if err == nil {
			t.Fatal("the request succeeded")
		}
		return err
	case <-time.After(2 * patience):
		t.Fatal("the request still waits")
		return nil
	}
}
