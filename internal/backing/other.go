//go:build !linux

package backing

import (
	"errors"
	"net"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/clock"
)

// Protocol is TCP or UDP.
type Protocol uint8

// The protocols.
const (
	TCP Protocol = iota
	UDP
)

// Device needs linux.
type Device struct{ Index, Last int }

// Socket needs linux.
type Socket struct{}

// Filters needs linux.
type Filters struct{}

// NewFilters needs linux.
func NewFilters(Device, clock.Clock) *Filters { return &Filters{} }

// Refused needs linux.
func (*Filters) Refused() error { return errors.ErrUnsupported }

// Own needs linux.
func (*Filters) Own() int { return 0 }

// SetDevice needs linux.
func (*Filters) SetDevice(Device) {}

// TryFilters needs linux.
func TryFilters() error { return errors.ErrUnsupported }

// DropAll needs linux.
func (*Filters) DropAll(int) (func() error, error) { return nil, errors.ErrUnsupported }

// Close needs linux.
func (*Filters) Close() error { return nil }

// Open needs linux.
func Open(Protocol, netip.AddrPort, *Filters) (*Socket, error) { return nil, errors.ErrUnsupported }

// Listener needs linux.
func (*Socket) Listener(int) (*net.TCPListener, error) { return nil, errors.ErrUnsupported }

// Conn needs linux.
func (*Socket) Conn() (*net.UDPConn, error) { return nil, errors.ErrUnsupported }

// FollowDevice needs linux.
func (*Socket) FollowDevice() error { return errors.ErrUnsupported }

// Silence needs linux.
func (*Socket) Silence() error { return errors.ErrUnsupported }

// Refuse needs linux.
func (*Socket) Refuse() error { return errors.ErrUnsupported }

// Adopt needs linux.
func Adopt(Protocol, netip.AddrPort, *Filters, int) *Socket { return nil }

// MaxOthers needs linux.
const MaxOthers = 0

// PassAllBut needs linux.
func (*Socket) PassAllBut([]netip.AddrPort) error { return errors.ErrUnsupported }

// PassNone needs linux.
func (*Socket) PassNone() error { return errors.ErrUnsupported }

// Duplicate needs linux.
func (*Socket) Duplicate() (int, error) { return -1, errors.ErrUnsupported }

// Waiting needs linux.
func (*Socket) Waiting() int { return 0 }

// Close needs linux.
func (*Socket) Close() error { return errors.ErrUnsupported }

// LimitRate needs linux.
func LimitRate(*net.TCPConn, uint64) error { return errors.ErrUnsupported }
