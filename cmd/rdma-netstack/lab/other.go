//go:build !linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"
)

var errNotLinux = fmt.Errorf("network namespaces: %w outside Linux", errors.ErrUnsupported)

// ErrNoUserNamespaces is never returned outside Linux.
var ErrNoUserNamespaces = errors.New("user namespaces are not to be had")

// CanMakeNets fails outside Linux.
func CanMakeNets() error { return errNotLinux }

// RunAsNamespaceRoot fails outside Linux.
func RunAsNamespaceRoot([]string, io.Writer, io.Writer, ...*os.File) (code int, err error) {
	return 1, errNotLinux
}

// Given returns nil.
func Given() *os.File { return nil }

// Setup describes an interface.
type Setup struct {
	MAC       net.HardwareAddr
	MTU       int
	Addresses []netip.Prefix
	OnLink    []netip.Addr
}

// Up fails outside Linux.
func Up(string, Setup) error { return errNotLinux }

// Cable fails outside Linux.
func Cable(*Net, string, *Net, string) error { return errNotLinux }

// Net cannot be made outside Linux, so its methods are never called there.
type Net struct{}

// New fails outside Linux.
func New(string) (*Net, error) { return nil, errNotLinux }

// Own fails.
func Own(string) (*Net, error) { return nil, errNotLinux }

// Name returns "".
func (*Net) Name() string { return "" }

// Path returns "".
func (*Net) Path() string { return "" }

// Do fails.
func (*Net) Do(func() error) error { return errNotLinux }

// DialContext fails.
func (*Net) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errNotLinux
}

// Listen fails.
func (*Net) Listen(string, string) (net.Listener, error) { return nil, errNotLinux }

// ListenPacket fails.
func (*Net) ListenPacket(string, string) (net.PacketConn, error) { return nil, errNotLinux }

// Start fails.
func (*Net) Start(*exec.Cmd) error { return errNotLinux }

// Close does nothing.
func (*Net) Close() error { return nil }

// Port cannot be opened outside Linux.
type Port struct{ MAC net.HardwareAddr }

// OpenPort fails outside Linux.
func OpenPort(string) (*Port, error) { return nil, errNotLinux }

// LeaveOutTCP fails.
func (*Port) LeaveOutTCP() error { return errNotLinux }

// Send fails.
func (*Port) Send([]byte) error { return errNotLinux }

// Recv fails.
func (*Port) Recv([]byte, time.Time) ([]byte, error) { return nil, errNotLinux }

// Close does nothing.
func (*Port) Close() error { return nil }
