package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/dv/simnic/pcie"
)

// VM is a running virtual machine with a software ConnectX in it.
type VM struct {
	*Agent
	cmd     *exec.Cmd
	console *log
	serial  net.Conn
	cancel  context.CancelFunc
	served  chan error // result of the device's Serve
	exited  chan error // result of QEMU
	once    sync.Once
}

// log collects what the guest's console prints.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bootTimeout bounds the way from starting QEMU to the guest's first word.
const bootTimeout = 90 * time.Second

// Start boots m with fn as its PCI device; dir takes the sockets. It returns when the guest's init is ready for
// requests. When ctx ends, machine and device are stopped.
func Start(ctx context.Context, q *QEMU, m Machine, fn *pcie.Function, dir string) (*VM, error) {
	ctx, cancel := context.WithCancel(ctx)
	vm := &VM{console: &log{}, cancel: cancel, served: make(chan error, 1), exited: make(chan error, 1)}
	m.Socket, m.Serial = filepath.Join(dir, "mlx.sock"), filepath.Join(dir, "serial.sock")
	dev, err := listen(m.Socket)
	if err != nil {
		cancel()
		return nil, err
	}
	ser, err := listen(m.Serial)
	if err != nil {
		cancel()
		dev.Close()
		return nil, err
	}
	defer ser.Close()
	go func() { vm.served <- fn.Serve(ctx, dev); dev.Close() }()
	vm.cmd = q.Command(ctx, m)
	vm.cmd.Stdout, vm.cmd.Stderr = vm.console, vm.console
	if err := vm.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	go func() { vm.exited <- vm.cmd.Wait(); ser.Close() }()
	if err := vm.connect(ctx, ser); err != nil {
		vm.Close()
		return nil, fmt.Errorf("%w\n--- console ---\n%s", err, vm.console)
	}
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
	vm.serial = conn
	vm.Agent = NewAgent(conn)
	select {
	case <-vm.ready:
		return nil
	case <-time.After(bootTimeout):
		return errors.New("the guest did not come up")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Console is what the guest's kernel and init have printed so far.
func (vm *VM) Console() string { return vm.console.String() }

// Close powers the machine off, or ends it, and waits for QEMU and the device. The first call's error says whether the
// device failed; later calls return nil.
func (vm *VM) Close() (err error) {
	vm.once.Do(func() { err = vm.close() })
	return err
}

func (vm *VM) close() error {
	if vm.serial != nil {
		io.WriteString(vm.serial, `{"Op":"poweroff"}`+"\n")
	}
	select {
	case <-vm.exited:
	case <-time.After(20 * time.Second):
		vm.cancel()
		<-vm.exited
	}
	vm.cancel()
	if vm.serial != nil {
		vm.serial.Close()
	}
	if err := <-vm.served; err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("device: %w", err)
	}
	return nil
}
