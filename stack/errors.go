package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/dhcp"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

var (
	// ErrDuplicateAddress is in the error of [New] and [Open] when another host on the link answers
	// for one of our addresses.
	ErrDuplicateAddress = env.ErrDuplicateAddress

	// ErrNoLease says that no DHCP server gave an address in time.
	ErrNoLease = dhcp.ErrNoLease

	// ErrNoDescriptor is in the error of the File methods. errors.Is(err, errors.ErrUnsupported)
	// too.
	ErrNoDescriptor = fmt.Errorf("the connection lives in this process and has no file "+
		"descriptor: %w", errors.ErrUnsupported)

	// package net has these two but does not export them.
	errMissingAddress = errors.New("missing address")
	errNoSuitable     = errors.New("no suitable address found")
	errLinkDown       = errors.New("the port has no link")
)

// timeout holds what a dial that ran out of time reports: context.DeadlineExceeded, as in package
// net. One that was under way is os.ErrDeadlineExceeded as well, for package net reports one or
// the other, depending on whether its poller or the context is the first to notice.
type timeout struct{ underWay bool }

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
func (t timeout) Is(target error) bool {
	return target == context.DeadlineExceeded || t.underWay && target == os.ErrDeadlineExceeded
}

// canceled holds what a dial reports whose context was cancelled.
type canceled struct{}

func (canceled) Error() string        { return "operation was canceled" }
func (canceled) Is(target error) bool { return target == context.Canceled }

// endedError holds what operations report on a stack whose device has failed.
type endedError struct{ cause error }

func (e endedError) Error() string   { return net.ErrClosed.Error() + ": " + e.cause.Error() }
func (e endedError) Unwrap() []error { return []error{net.ErrClosed, e.cause} }

// fromContext turns a context's error into what package net would report, of a dial that is under
// way or not begun.
func fromContext(err error, underWay bool) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return timeout{underWay}
	case errors.Is(err, context.Canceled):
		return canceled{}
	}
	return err
}

// syscallError returns what the host stack's system call of that name would have returned.
func syscallError(call string, err tcpip.Error) error {
	if _, none := err.(*tcpip.ErrNoPortAvailable); none && call == "connect" {
		return os.NewSyscallError(call, syscall.EADDRNOTAVAIL)
	}
	return os.NewSyscallError(call, env.Errno(err))
}

// udpConnectError is syscallError for connect of a UDP socket: without a free port Linux says that
// it may be tried again.
func udpConnectError(err tcpip.Error) error {
	if _, none := err.(*tcpip.ErrNoPortAvailable); none {
		return os.NewSyscallError("connect", syscall.EAGAIN)
	}
	return syscallError("connect", err)
}

func wouldBlock(err tcpip.Error) bool {
	_, ok := err.(*tcpip.ErrWouldBlock)
	return ok
}

// errByKernel says why DialTCP does not connect.
type errByKernel struct{ to netip.Addr }

func (e errByKernel) Error() string {
	return fmt.Sprintf("the kernel's route to %s does not leave by our netdev, and such a "+
		"connection is a *net.TCPConn: use DialContext", e.to)
}
