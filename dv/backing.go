package dv

import "time"

// backing is what a queue needs from its device: the kernel's part of it, and
// somebody to tell when it is over.
type backing struct {
	// halt makes the NIC let go of the ring: afterwards it reads and writes
	// none of the queue's memory. start gives it the ring, rewound, anew.
	halt, start func() error
	// fail ends the device.
	fail func(error)
	// wakeAfter has a receive queue's owner look at it again after a while.
	wakeAfter func(time.Duration)
	// ended says why the queue must not be used any more.
	ended func() error
}
