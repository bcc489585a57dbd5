//go:build !linux

package need

import "errors"

var errNotLinux = errors.New("this is not linux")

func probeNetNS() error  { return errNotLinux }
func probeUserNS() error { return errNotLinux }
func probeTUN() error    { return errNotLinux }
