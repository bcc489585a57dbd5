package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// stream is one TCP connection that carries as much as it can from one end to the other.
type stream struct {
	name     string // wire, direction and offloads
	from, to net.Conn
	chunk    []byte
	sink     []byte
	samples  []sample
}

// sample is one measurement of a stream.
type sample struct {
	bytes     int64
	wall, cpu time.Duration
}

// perSecond is MB/s of payload.
func (s sample) perSecond() float64 { return float64(s.bytes) / 1e6 / s.wall.Seconds() }

// perKiB is nanoseconds of processor time of this process per KiB: both ends, the NICs' models and
// the kernel's work for it.
func (s sample) perKiB() float64 { return float64(s.cpu.Nanoseconds()) / (float64(s.bytes) / 1024) }

// sockets are the methods that a stream needs of either end.
type sockets interface {
	Listen(network, address string) (net.Listener, error)
}

// connect makes a stream of a connection from one end to a listener at the other.
func connect(name string, dial func(address string) (net.Conn, error), to sockets,
	address string) (*stream, error) {
	ln, err := to.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	from, err := dial(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	conn, err := ln.Accept()
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return &stream{name: name, from: from, to: conn, chunk: make([]byte, 256<<10),
		sink: make([]byte, 256<<10)}, nil
}

// patience is the longest time without progress of a stream.
const patience = time.Minute

// last is the byte that ends a measurement; all others are 0.
var last = []byte{1}

// run sends for length, waits until everything has arrived, and keeps the sample.
func (s *stream) run(length time.Duration) error {
	start, before := time.Now(), processorTime()
	sent := make(chan error, 1)
	go func() { sent <- s.send(start.Add(length)) }()
	got, err := s.receive()
	if err != nil {
		return errors.Join(err, s.close(), <-sent)
	}
	s.samples = append(s.samples, sample{got, time.Since(start), processorTime() - before})
	return <-sent
}

func (s *stream) send(until time.Time) error {
	for {
		s.from.SetWriteDeadline(time.Now().Add(patience))
		_, err := s.from.Write(s.chunk)
		over := !time.Now().Before(until)
		if err == nil && over {
			_, err = s.from.Write(last)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: send: %w", s.name, err), s.close())
		}
		if over {
			return nil
		}
	}
}

func (s *stream) receive() (got int64, err error) {
	for {
		s.to.SetReadDeadline(time.Now().Add(patience))
		n, err := s.to.Read(s.sink)
		if err != nil {
			return got, fmt.Errorf("%s: receive: %w", s.name, err)
		}
		if got += int64(n); n > 0 && s.sink[n-1] == last[0] {
			return got, nil
		}
	}
}

// close ends the connection at both ends.
func (s *stream) close() error { return errors.Join(s.from.Close(), s.to.Close()) }

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // cannot fail with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
