//go:build !linux

package wire

import (
	"errors"
	"fmt"
)

// TAP needs linux.
type TAP struct{ Wire }

// Packet needs linux.
type Packet struct{ Wire }

var errNotLinux = fmt.Errorf("wire: this kind of wire: %w outside linux", errors.ErrUnsupported)

// OpenTAP needs linux.
func OpenTAP(string) (*TAP, error) { return nil, errNotLinux }

// OpenPacket needs linux.
func OpenPacket(string) (*Packet, error) { return nil, errNotLinux }

// Name is never called: there is no TAP.
func (*TAP) Name() string { return "" }

// Name is never called: there is no Packet.
func (*Packet) Name() string { return "" }
