package rig

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Some failures of a machine would show in a request only when it times out, if at all: QEMU
// continues when the device's server dies, and its exit code says nothing. The code here detects
// such failures and ends all requests at once, with both logs.

// Reasons why a machine ended.
var (
	ErrServerGone   = errors.New("the server of the device has ended")
	ErrServerSilent = errors.New("the server of the device does not answer")
	ErrGuestGone    = errors.New("QEMU has ended")
	ErrGuestHangs   = errors.New("the guest hangs")
)

// defaultSilence is the longest time that a guest may send nothing although it gets a ping every
// second. It is long because its processors are emulated and the machine may be busy.
const defaultSilence = 45 * time.Second

// qemuTimeout is what QEMU prints when a register access gets no answer for five seconds (QEMU
// hw/vfio-user/proxy.c).
const qemuTimeout = "timed out waiting for reply"

// logLines is how much of each log goes into an error.
const logLines = 40

// watch ends the agent's requests, pending and future ones, when the machine ends before Close.
func (vm *VM) watch() {
	if err := vm.over(); err != nil {
		vm.fail(vm.withLogs(err))
	}
}

// over waits until the machine ends, and returns why; nil if Close ended it.
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
				return fmt.Errorf("%w: no word for %v\n%s", ErrGuestHangs, s.Round(time.Second),
					vm.processors())
			}
			go vm.Do(Request{Op: "ping"})
		}
	}
}

// guestGone says how QEMU ended after it closed its end of the line. QEMU may abort when it loses
// the device's server (hw/vfio-user/proxy.c passes an error on that is set already, which
// util/error.c does not allow): then the server's end is reported as the cause.
func (vm *VM) guestGone() error {
	<-vm.exited.done
	end := fmt.Errorf("%w: %v", ErrGuestGone, vm.cmd.ProcessState)
	if vm.lost.Load() {
		return fmt.Errorf("%w, then %w", ErrServerGone, end)
	}
	return end
}

// serverGone says how the device's server ended. When QEMU ends the server ends too: then QEMU's
// end is reported as the cause.
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

// withLogs adds the last lines of both logs.
func (vm *VM) withLogs(err error) error {
	return fmt.Errorf("%w\n--- guest console ---\n%s\n--- model ---\n%s", err,
		vm.console.tail(logLines), vm.m.Log.tail(logLines))
}
