package simnic

import (
	"errors"
	"fmt"
)

// Status is the status of a control command, with the numbers of the device's command interface
// (MLX5_CMD_STAT_* in linux include/linux/mlx5/device.h).
type Status uint8

// Statuses that the core returns. Success is a nil error, not a Status.
const (
	StatusInternal   Status = 0x01 // the device failed
	StatusBadParam   Status = 0x03 // a value is outside what the device takes
	StatusBadSystem  Status = 0x04 // the device is in its fatal state
	StatusBadRes     Status = 0x05 // no such object
	StatusResBusy    Status = 0x06 // object is in use by another one
	StatusLimit      Status = 0x08 // no room for one more
	StatusBadState   Status = 0x09 // object is in another state than the command needs
	StatusNoResource Status = 0x0f // out of numbers or memory
)

var statusText = map[Status]string{
	StatusInternal:   "internal error",
	StatusBadParam:   "bad parameter",
	StatusBadSystem:  "bad system state",
	StatusBadRes:     "no such resource",
	StatusResBusy:    "resource busy",
	StatusLimit:      "limit exceeded",
	StatusBadState:   "bad resource state",
	StatusNoResource: "no resources",
}

// Error makes a Status usable with errors.Is: errors.Is(err, StatusResBusy).
func (s Status) Error() string {
	if t, ok := statusText[s]; ok {
		return fmt.Sprintf("%s (status %#02x)", t, uint8(s))
	}
	return fmt.Sprintf("status %#02x", uint8(s))
}

// StatusOf returns the device status inside err, StatusInternal if there is none.
func StatusOf(err error) Status {
	var s Status
	if errors.As(err, &s) {
		return s
	}
	return StatusInternal
}

// errorf returns an error with the status s: what was refused and why.
func errorf(s Status, format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), s)
}
