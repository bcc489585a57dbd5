//go:build linux

package rig

import (
	"errors"
	"os/exec"
	"testing"
)

// TestWhoEndedFirst: QEMU aborts at times when the device's server ends, and the server always ends
// when QEMU does. What ended first is reported, whichever of the two is seen first.
func TestWhoEndedFirst(t *testing.T) {
	for name, c := range map[string]struct {
		lost bool
		want error
	}{
		"server": {true, ErrServerGone},
		"QEMU":   {false, ErrGuestGone},
	} {
		t.Run(name, func(t *testing.T) {
			vm := &VM{cmd: exec.Command("sh", "-c", "kill -ABRT $$"), disconnect: func() {}}
			vm.served.done, vm.exited.done = make(chan struct{}), make(chan struct{})
			if c.lost {
				vm.Disconnect()
			}
			vm.exited.is(vm.cmd.Run())
			vm.served.is(nil)
			for _, said := range []error{vm.guestGone(), vm.serverGone()} {
				if !errors.Is(said, c.want) || errors.Is(said, ErrServerGone) != c.lost {
					t.Errorf("%v, want %v", said, c.want)
				}
			}
		})
	}
}
