package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
)

// VM is a running virtual machine with a software ConnectX in it.
type VM struct {
	*Agent
	m          Machine
	cmd        *exec.Cmd
	console    *Log
	serial     *line
	cancel     context.CancelFunc // of everything
	disconnect context.CancelFunc // of the device's server
	served     outcome            // of the device's Serve
	exited     outcome            // of QEMU
	closing    chan struct{}
	once       sync.Once
	lost       atomic.Bool  // Disconnect was called
	silence    atomic.Int64 // longest time without a line from the guest, a time.Duration
}

// outcome is how something ended; err is valid when done is closed.
type outcome struct {
	done chan struct{}
	err  error
}

func (o *outcome) is(err error) { o.err = err; close(o.done) }

// bootTimeout bounds the time from starting QEMU to the guest's first line. Linux 5.10 takes 15 s
// of processor time until then, which a busy machine may give in minutes.
const bootTimeout = 4 * time.Minute

// Start boots m with fn as its PCI device; dir takes the sockets. It returns when the guest's init
// accepts requests. When ctx ends, machine and device are stopped.
func Start(ctx context.Context, q *QEMU, m Machine, fn *pcie.Function, dir string) (*VM, error) {
	m.Socket, m.Serial = filepath.Join(dir, "mlx.sock"), filepath.Join(dir, "serial.sock")
	m.Monitor = filepath.Join(dir, "monitor.sock")
	if m.Log == nil {
		m.Log = &Log{}
	}
	dev, err := listen(m.Socket)
	if err != nil {
		return nil, err
	}
	ser, err := listen(m.Serial)
	if err != nil {
		dev.Close()
		return nil, err
	}
	defer ser.Close()
	vm := &VM{m: m, console: &Log{}, closing: make(chan struct{})}
	vm.served.done, vm.exited.done = make(chan struct{}), make(chan struct{})
	ctx, vm.cancel = context.WithCancel(ctx)
	vm.HangsAfter(defaultSilence)
	vm.cmd = q.Command(ctx, m)
	vm.cmd.Stdout, vm.cmd.Stderr = vm.console, vm.console
	if err := vm.cmd.Start(); err != nil {
		vm.cancel()
		dev.Close()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	serving, stop := context.WithCancel(ctx)
	vm.disconnect = stop
	go func() { vm.served.is(fn.Serve(serving, dev)); dev.Close() }()
	go func() { vm.exited.is(vm.cmd.Wait()); ser.Close() }()
	if err := vm.connect(ctx, ser); err != nil {
		err = vm.withLogs(err)
		vm.Close()
		return nil, err
	}
	go vm.watch()
	return vm, nil
}

func listen(path string) (*net.UnixListener, error) {
	os.Remove(path)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// connect waits for QEMU to open the serial port and for the guest's hello.
func (vm *VM) connect(ctx context.Context, ser *net.UnixListener) error {
	conn, err := ser.Accept()
	if err != nil {
		return fmt.Errorf("QEMU did not open its serial port: %w", err)
	}
	vm.serial = newLine(conn)
	vm.Agent = NewAgent(vm.serial)
	select {
	case <-vm.ready:
		return nil
	case <-vm.served.done:
		return vm.serverGone()
	case <-vm.hungUp:
		return vm.guestGone()
	case <-time.After(bootTimeout):
		return fmt.Errorf("the guest did not come up in %v; its serial line gave %s\n%s",
			bootTimeout, vm.serial.received(), vm.processors())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Console is what the guest's kernel and init have printed so far.
func (vm *VM) Console() string { return vm.console.String() }

// Disconnect ends the device's server, as if its process had died.
func (vm *VM) Disconnect() { vm.lost.Store(true); vm.disconnect() }

// HangsAfter sets the longest time that the guest may send nothing.
func (vm *VM) HangsAfter(d time.Duration) { vm.silence.Store(int64(d)) }

// Freeze stops QEMU's process, so that all processors of the guest stop.
func (vm *VM) Freeze() error { return vm.cmd.Process.Signal(unix.SIGSTOP) }

// Close powers the machine off, or cleans up if it has ended already, and waits for QEMU and the
// device. The first call's error says whether the device failed; later calls return nil.
func (vm *VM) Close() (err error) {
	vm.once.Do(func() { err = vm.close() })
	return err
}

func (vm *VM) close() error {
	close(vm.closing)
	if vm.Agent != nil && vm.Agent.Err() == nil {
		io.WriteString(vm.serial, `{"Op":"poweroff"}`+"\n")
		select {
		case <-vm.exited.done:
		case <-time.After(20 * time.Second):
		}
	}
	vm.cancel()
	<-vm.exited.done
	if vm.serial != nil {
		vm.serial.Close()
	}
	<-vm.served.done
	if err := vm.served.err; err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("device: %w", err)
	}
	return nil
}
