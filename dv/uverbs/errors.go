package uverbs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrClosed says what methods of an object or context return after its Close. errors.Is(err,
// os.ErrClosed) holds too.
var ErrClosed = fmt.Errorf("uverbs object is closed: %w", os.ErrClosed)

// ErrUnsupported marks errors about devices and kernels that can never serve raw packet
// queues.
var ErrUnsupported = errors.New("device cannot serve raw Ethernet queues")

// Error describes a refusal of the kernel (or of the arguments, before the kernel was asked, with
// the errno it would give). errors.Is finds the errno.
type Error struct {
	Cmd    string     // what was tried: "create", "register", "modify"
	Object string     // what it was tried on, with its numbers: "completion queue of 1024 entries"
	Errno  unix.Errno // never 0
	Hint   string     // what to do about it; never empty

	cause error // a failure that is not an errno
}

// Error says what was tried, on what, why it failed and what to do.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %s: %v (%s)", e.Cmd, e.Object, e.Unwrap(), e.Hint)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error {
	if e.cause != nil {
		return e.cause
	}
	return e.Errno
}

// enotsupp is the kernel-internal errno that linux 5.4 lets escape from CREATE_FLOW for EOPNOTSUPP.
const enotsupp = unix.Errno(524)

// Is makes the escaped internal errno of linux 5.4 match EOPNOTSUPP.
func (e *Error) Is(target error) bool {
	return e.Errno == enotsupp && target == unix.EOPNOTSUPP
}

// kernelFailure wraps what a Kernel returned for command o on the object described by noun.
func kernelFailure(o *op, noun string, err error, m memory) *Error {
	e := &Error{Cmd: o.verb, Object: noun, Errno: unix.EIO}
	if !errors.As(err, &e.Errno) {
		e.cause = err
		e.Hint = "the node is not a kernel's: it failed by itself"
		return e
	}
	e.Hint = errnoHint(o, e.Errno, m)
	return e
}

// refuseArgs returns an error about arguments the kernel would refuse too, or, worse, would not
// notice.
func refuseArgs(o *op, noun, format string, args ...any) *Error {
	return &Error{Cmd: o.verb, Object: noun, Errno: unix.EINVAL, Hint: fmt.Sprintf(format, args...)}
}
