// Package unittest shows how to test a service on a slice without a device, root or a network. The
// service is RFC 865's: who connects gets a quote. Its test runs it on one end of a memory wire,
// with a client on the other:
//
//	go test ./examples/unittest
package unittest

import (
	"errors"
	"io"
	"net"
	"time"
)

// writeTime is how long a client has to take the quote.
const writeTime = 5 * time.Second

// Serve sends the quote to each client of ln until ln is closed, which is no error. It takes any
// listener, so that it runs on a slice as on the kernel's sockets.
func Serve(ln net.Listener, quote string) error {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(writeTime))
			io.WriteString(c, quote) // a client that is gone needs none
		}()
	}
}
