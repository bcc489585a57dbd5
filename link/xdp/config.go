package xdp

import (
	"errors"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/link/packet"
)

// Config says which interface to open and how.
type Config struct {
	// Config gives the interface and whose frames come to us. Queues is at most the number of
	// receive queues that the interface has, and by default that: flows are spread over all of
	// them, and what comes by others arrives by packet sockets.
	packet.Config
	Options
	// Await says that another process has the interface's program now and gives it back soon, to
	// which this one succeeds: until then all frames come by packet sockets.
	Await bool
	// Report hears when queues of the interface have no socket of ours, whose frames then come
	// by packet sockets, and with nil when they have; nil: nobody is told.
	Report func(error)

	newSources func() (int, error) // makes the map of prefixes; nil: newSourceMap
}

// Options says how frames are moved.
type Options struct {
	// Send says by what frames leave.
	Send Send
	// Copy makes the kernel copy frames to our memory even where the driver could receive into it.
	Copy bool
}

// Finding tells one of the things that Examine has looked at.
type Finding struct {
	Check string // in a word or two
	Err   error  // what keeps an interface from being served; nil: nothing
	Note  string // what is worth knowing all the same; "": nothing
}

// Send says by what frames leave. It reads and writes text, so that it can be a flag.
type Send uint8

// The ways to send.
const (
	// SendSockets sends by packet sockets: the NIC or the kernel segments and computes checksums.
	SendSockets Send = iota
	// SendRings sends by the AF_XDP sockets: TCP segments are cut up here.
	SendRings
)

var sends = [...]string{SendSockets: "sockets", SendRings: "rings"}

// String implements fmt.Stringer.
func (s Send) String() string {
	if int(s) < len(sends) {
		return sends[s]
	}
	return fmt.Sprintf("Send(%d)", uint8(s))
}

// Validate says in one sentence what is wrong with s, or nil.
func (s Send) Validate() error {
	if int(s) >= len(sends) {
		return fmt.Errorf("there is no %s; use SendSockets or SendRings", s)
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler. It never fails.
func (s Send) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: sockets, rings.
func (s *Send) UnmarshalText(text []byte) error {
	for i, name := range sends {
		if name == string(text) {
			*s = Send(i)
			return nil
		}
	}
	return errors.New("want sockets or rings")
}
