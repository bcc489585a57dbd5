package main

import (
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// A long cable: a relay that holds each frame back, and loses some. Its TAPs have no offloads, so
// that a frame is a packet within the MTU, as on a network.
const (
	wanDelay = 20 * time.Millisecond // in each direction, at least
	wanLoss  = 0.01                  // of the frames in each direction
	wanQueue = 20000                 // frames on their way; more are lost
)

// cable is how a relay opens its TAPs and carries frames.
type cable struct {
	open  func() (int, error)
	carry func(from int, to func(frame []byte))
}

func cableOf(wan bool) cable {
	if wan {
		return cable{openTAP, carryLate} // the kernel segments and computes checksums before
	}
	return cable{vnetTAP, carry}
}

// late is a frame on its way.
type late struct {
	frame []byte
	due   time.Time
}

// carryLate is carry over a long cable. Every cable loses the frames of the same numbers.
func carryLate(from int, to func(frame []byte)) {
	way := make(chan late, wanQueue)
	defer close(way)
	go func() {
		for l := range way {
			time.Sleep(time.Until(l.due))
			to(l.frame)
		}
	}()
	lost, buf := rand.New(rand.NewPCG(1, 2)), make([]byte, 2<<10)
	for {
		n, err := unix.Read(from, buf)
		switch {
		case errors.Is(err, unix.EIO) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil || n == 0:
			return
		case lost.Float64() < wanLoss:
			continue
		}
		select {
		case way <- late{append([]byte(nil), buf[:n]...), time.Now().Add(wanDelay)}:
		default:
		}
	}
}
