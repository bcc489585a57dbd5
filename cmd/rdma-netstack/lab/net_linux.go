package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Net represents one network namespace: an anonymous one with its loopback interface up, or the
// process's own. All methods may be called from any goroutine.
type Net struct {
	name string
	file *os.File // keeps the namespace alive and is the way in

	mu     sync.Mutex
	closed bool
	work   chan func() // runs on home, the thread that entered the namespace and stays until Close

	home sync.WaitGroup
}

// New makes a namespace. The name is for messages only; the kernel never sees it.
func New(name string) (*Net, error) {
	return start(name, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return Up("lo", Setup{})
	})
}

// Own returns the namespace that this process is in, as it is. Closing it kills the children.
func Own(name string) (*Net, error) { return start(name, func() error { return nil }) }

// start has a thread enter a namespace and stay there.
func start(name string, enter func() error) (*Net, error) {
	n := &Net{name: name, work: make(chan func())}
	ready := make(chan error, 1)
	n.home.Add(1)
	onThread(func() { n.runWork(enter, ready) })
	if err := <-ready; err != nil {
		n.home.Wait()
		return nil, fmt.Errorf("make network namespace %q: %w", name, err)
	}
	return n, nil
}

// runWork enters the namespace and then runs the functions it receives. It is the parent thread of
// every child process of this namespace: they are killed when it ends.
func (n *Net) runWork(enter func() error, ready chan<- error) {
	defer n.home.Done()
	err := enter()
	if err == nil {
		n.file, err = os.Open("/proc/thread-self/ns/net")
	}
	ready <- err
	if err != nil {
		return
	}
	for fn := range n.work {
		fn()
	}
}

// Name returns the name given to New.
func (n *Net) Name() string { return n.name }

// Path returns the path by which another process may enter the namespace, with nsenter --net=PATH,
// while it lives.
func (n *Net) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Do runs fn on a thread inside the namespace and returns its error. Sockets and devices that fn
// makes belong to the namespace for good; goroutines that fn starts do not run in it.
func (n *Net) Do(fn func() error) error {
	return onThreadWait(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %q: %w", n.name, err)
		}
		return fn()
	})
}

// DialContext dials as net.Dialer does, with a kernel socket of the namespace. Addresses are
// literal.
func (n *Net) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens as net.Listen does, with a kernel socket of the namespace.
func (n *Net) Listen(network, address string) (ln net.Listener, err error) {
	err = n.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket listens as net.ListenPacket does, with a kernel socket of the namespace.
func (n *Net) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}

// Start starts the command inside the namespace. It is killed when the namespace is closed and when
// this process ends for any reason. The caller waits for it, as after cmd.Start.
func (n *Net) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error, 1)
	if !n.submit(func() { done <- cmd.Start() }) {
		return fmt.Errorf("start %s in network namespace %q: %w", cmd.Path, n.name, os.ErrClosed)
	}
	return <-done
}

// submit passes fn to the home thread and reports whether that still exists.
func (n *Net) submit(fn func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.work <- fn
	return true
}

// Close releases the namespace: children are killed, and the kernel removes it with all its
// interfaces once none of its sockets and devices is open any more. It may be called twice and from
// any goroutine.
func (n *Net) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.work)
	n.mu.Unlock()
	n.home.Wait()
	return n.file.Close()
}
