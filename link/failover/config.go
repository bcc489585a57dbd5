package failover

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/link/rdma"
)

// Endpoint works on the backends; *rdma.Endpoint is one.
type Endpoint interface {
	Switch(to rdma.Backend) error
	// SendsSince says when the backend began to send. Switch takes longer.
	SendsSince() time.Time
	// Regroup tells the backend our groups. It may wait for the kernel, so it comes last.
	Regroup() error
}

// Device is a device or port that a backend is on: *dv.Device and each packet.Interface are. Nobody
// uses it any more when Close is called. One whose MTU may change has MTUChanged, too, as
// packet.MTUTeller.
type Device interface {
	LinkUp() bool
	LinkChanged() <-chan struct{}
	Done() <-chan struct{}
	Err() error
	Close() error
}

// Port is a Device that can be kept for later: each packet.Interface is one.
type Port interface {
	Device
	Mute() error
	Unmute() error
}

// Opened is a device at work.
type Opened struct {
	Device
	Backend rdma.Backend
	// Name is the RDMA device's, such as mlx5_0, and Ifindex the number of its netdev, for signals;
	// "" and 0 if there are none.
	Name    string
	Ifindex int
}

// OpenedPort is a packet port at work, muted.
type OpenedPort struct {
	Port
	Backend rdma.Backend
	Name    string // of the netdev
}

// Config says what a Link is to do. The zero value of every field but Endpoint and Open is useful.
type Config struct {
	Endpoint Endpoint
	// Open opens the device, which may have another name by now, or be another model. It is called
	// after each loss until it works; the error is the reason that [Link.Status] tells.
	Open func(context.Context) (Opened, error)
	// OpenPort opens the packet port, muted; nil: there is none, and frames are dropped while the
	// device is away. It is called before each Open while there is no port.
	OpenPort func() (OpenedPort, error)
	// Joined says that the device's backend receives by the packet port as well, so that without
	// the port the device is lost, too.
	Joined bool
	// Signals are the kernel's, see Watch; nil: there are none.
	Signals <-chan Signal
	// MaxOutage says how long there may be neither device nor port before Changed is told Expired;
	// 0: for ever.
	MaxOutage time.Duration
	// Grace says how long a device that has come back must work: one that fails sooner is not
	// opened again before Recover. 0: it always is.
	Grace time.Duration
	// Changed is told every change, in order, by the link's goroutine, which waits for it. It must
	// not call Close.
	Changed func(Change)
	// Clock gives the time that pauses and limits go by; the zero value is the system's.
	Clock clock.Clock
	// Logger receives a line per change. Nil is silence.
	Logger *slog.Logger
}

// State says where a Link is.
type State uint8

// The states, see the package comment.
const (
	Up State = iota
	Lost
	Fallback
	Probing
)

var stateNames = [...]string{"up", "lost", "fallback", "probing"}

// String implements fmt.Stringer.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Change describes a change of the state or of the backend. Attempts that fail are none.
type Change struct {
	State   State
	Backend rdma.BackendKind // at work from now on
	LinkUp  bool             // of what is at work
	Cause   error            // why the device or the port is not used any more; nil if it came back
	// Expired: there has been neither device nor port for MaxOutage.
	Expired bool
	// Away is for how long the device has been away.
	Away time.Duration
	// Rerouted: state and backend are as before, but netdevs have changed while the packet port
	// carries frames. The port's may send by another one now, such as the standby of net_failover:
	// what was sent meanwhile may be lost, and neighbours and switches may send elsewhere.
	Rerouted bool
}

// Cause says what made another backend come into use.
type Cause uint8

// The causes.
const (
	DeviceFailed   Cause = iota // the device told itself that it had failed or was gone
	DeviceRemoved               // the kernel told first that it removes device or netdev
	DeviceReturned              // it was opened again
	PortLost                    // the packet port ended while the device was away
	PortReturned                // the packet port was opened while the device was away
)

var causeNames = [...]string{"device_failed", "device_removed", "device_returned", "port_lost",
	"port_returned"}

// String implements fmt.Stringer.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return fmt.Sprintf("Cause(%d)", uint8(c))
}

// Switch describes a change from one backend to another.
type Switch struct {
	From, To rdma.BackendKind
	Cause    Cause
}

// spend adds time that has passed since the last change.
func (s *Status) spend(d time.Duration) {
	if s.State == Up {
		return
	}
	s.Away += d
	if s.Backend == rdma.BackendNone {
		s.Dark += d
	}
}

// Status holds a snapshot of a Link.
type Status struct {
	State   State
	Backend rdma.BackendKind
	Since   time.Time // of this backend
	Reason  error     // why the device is not at work; nil when Up
	Expired bool      // as in Change
	Held    bool      // the device failed within Config.Grace, and is opened on Recover only
	// Losses says how often the device was lost, Returns how often it came back, Refused how often
	// it could not be opened, PortLosses how often the packet port ended.
	Losses, Returns, Refused, PortLosses uint64
	// Failed and Removed are the Losses that the device itself told, and those that the kernel
	// told first, which removes the device or its netdev.
	Failed, Removed uint64
	// Moves says how often the device's netdev has left for another network namespace.
	Moves uint64
	// Holds says how often Held became true, Recovers how often Recover was called, Expirations how
	// often Expired became true.
	Holds, Recovers, Expirations uint64
	// Away is for how long the device has been away, all in all, and Dark for how long there was no
	// packet port meanwhile either.
	Away, Dark  time.Duration
	LinkChanges uint64 // told by what was at work
	// Switches counts the changes of the backend.
	Switches map[Switch]uint64
	// FallbackTook says how long after the last loss was known frames were sent by the packet port,
	// and ReceiveTook how long after it they were received: the device's are delivered first.
	// OpenTook says how long it took to open the device that came back last. 0: never yet.
	FallbackTook, ReceiveTook, OpenTook time.Duration
}
