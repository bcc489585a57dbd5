package dv

import (
	"errors"
	"fmt"
	"os"
)

// Errors of a running device.
var (
	// ErrClosed: the device was stopped or closed.
	ErrClosed = fmt.Errorf("device is closed: %w", os.ErrClosed)
	// ErrFailed: the device or one of its queues failed for good; Device.Err
	// has the cause. Close it and open it again.
	ErrFailed = errors.New("device failed")
	// ErrRingFull: no room for this packet now. Flush, Reclaim, try again.
	ErrRingFull = errors.New("send ring is full")
	// ErrFrameSize: shorter than an Ethernet header or longer than the device sends.
	ErrFrameSize = errors.New("frame size out of range")
	// ErrNotSupported: the device or the kernel lacks what was asked for.
	ErrNotSupported = fmt.Errorf("device lacks the feature: %w", errors.ErrUnsupported)
)

// Errors of Open. Each message says what to do; these are for errors.Is.
var (
	// ErrConfig: a Config field has a value out of its range.
	ErrConfig = errors.New("bad configuration")
	// ErrNotFound: no RDMA device or netdev has this name.
	ErrNotFound = errors.New("no such device")
	// ErrNoRDMA: the netdev exists and has no RDMA device, or the machine has none.
	ErrNoRDMA = errors.New("no RDMA device")
	// ErrNotMlx5: an RDMA device of another make.
	ErrNotMlx5 = errors.New("not an mlx5 device")
	// ErrInfiniBand: the port runs InfiniBand.
	ErrInfiniBand = errors.New("port is InfiniBand")
	// ErrPermission: the node or a privilege is missing. errors.Is(err, os.ErrPermission) too.
	ErrPermission = fmt.Errorf("no permission: %w", os.ErrPermission)
	// ErrMemlock: RLIMIT_MEMLOCK is too low.
	ErrMemlock = errors.New("locked memory limit is too low")
	// ErrDown: the port's netdev is down.
	ErrDown = errors.New("netdev is down")
	// ErrMAC: the MAC address may not be taken, or another device has it: then
	// errors.Is(err, unix.EEXIST) too.
	ErrMAC = errors.New("MAC address refused")
)

// refusal wraps an error with a text of its own that errors.Is also finds to be kind and cause.
type refusal struct {
	kind, cause error
	text        string
}

func (r *refusal) Error() string   { return r.text }
func (r *refusal) Unwrap() []error { return []error{r.kind, r.cause} }

// withKind makes err be kind as well, and leaves its text alone.
func withKind(kind, err error) error {
	if errors.Is(err, kind) {
		return err
	}
	return &refusal{kind, err, err.Error()}
}

// errorOfKind returns a new error of a kind.
func errorOfKind(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &refusal{kind, err, err.Error()}
}

// inInfiniBand returns the refusal of a port that runs the other protocol. linkType is its number
// for mlxconfig.
func inInfiniBand(device string, port uint8, linkType int) error {
	return errorOfKind(ErrInfiniBand,
		"port %d of %s is InfiniBand: set LINK_TYPE_P%d=ETH with mlxconfig and reboot", port,
		device, linkType)
}

// asPermission makes an EPERM or EACCES of the kernel an ErrPermission, unless
// it was about the limit of locked memory.
func asPermission(err error) error {
	if errors.Is(err, os.ErrPermission) && !errors.Is(err, ErrMemlock) {
		return withKind(ErrPermission, err)
	}
	return err
}
