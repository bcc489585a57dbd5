package rig

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A machine fails in ways that a request alone would only show after its own time limit, if at all:
// QEMU goes on when the device's server dies, and its exit code says nothing. What watches here
// ends all requests at once, with both logs.

// Why a machine is over.
var (
	ErrServerGone   = errors.New("the server of the device has ended")
	ErrServerSilent = errors.New("the server of the device does not answer")
	ErrGuestGone    = errors.New("QEMU has ended")
	ErrGuestHangs   = errors.New("the guest hangs")
)

// defaultSilence is how long a guest may say nothing although it is asked every second: much, as
// its processors are emulated and the machine may be busy.
const defaultSilence = 45 * time.Second

// qemuTimeout is what QEMU prints when a register access had no answer in five seconds (QEMU
// hw/vfio-user/proxy.c).
const qemuTimeout = "timed out waiting for reply"

// logLines is how much of each log goes into an error.
const logLines = 40

// watch ends the agent's requests, those that wait and those to come, when the machine is over
// before Close.
func (vm *VM) watch() {
	if err := vm.over(); err != nil {
		vm.fail(vm.withLogs(err))
	}
}

// over waits until the machine is over, and says why; nil if that is Close.
func (vm *VM) over() error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-vm.closing:
			return nil
		case <-vm.served.done:
			return vm.serverGone()
		case <-vm.hungUp:
			return vm.guestGone()
		case <-tick.C:
			if strings.Contains(vm.console.String(), qemuTimeout) {
				return ErrServerSilent
			}
			if s := vm.serial.silence(); s > time.Duration(vm.silence.Load()) {
				return fmt.Errorf("%w: no word for %v", ErrGuestHangs, s.Round(time.Second))
			}
			go vm.Do(Request{Op: "ping"})
		}
	}
}

// guestGone says how QEMU ended, whose end of the line is closed.
func (vm *VM) guestGone() error {
	<-vm.exited.done
	return fmt.Errorf("%w: %v", ErrGuestGone, vm.cmd.ProcessState)
}

// serverGone says how the server of the device ended. A QEMU that ends takes it along, and is the
// cause then.
func (vm *VM) serverGone() error {
	select {
	case <-vm.exited.done:
		return vm.guestGone()
	case <-time.After(time.Second):
	}
	if vm.served.err != nil {
		return fmt.Errorf("%w: %w", ErrServerGone, vm.served.err)
	}
	return ErrServerGone
}

// withLogs adds the ends of both logs.
func (vm *VM) withLogs(err error) error {
	return fmt.Errorf("%w\n--- guest console ---\n%s\n--- model ---\n%s", err,
		vm.console.tail(logLines), vm.m.Log.tail(logLines))
}
