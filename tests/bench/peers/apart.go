package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Peers whose server and clients run on separate processors: the decisions of Linux's scheduler
// between two processors then do not affect the figures. On shared processors, a client that a
// frame wakes takes the processor from the server that sent it, while the other processor may be
// idle.

// side is the user of a processor.
type side int

const (
	serverSide side = iota // the server, and its NIC or its cable
	clientSide
)

// processor is the one for a side, of those that this process may use.
func (s side) processor() (int, error) {
	var allowed unix.CPUSet
	// of the first thread, which keepThread never changes
	if err := unix.SchedGetaffinity(os.Getpid(), &allowed); err != nil {
		return 0, fmt.Errorf("ask which processors may be used: %w", err)
	}
	for n, left := 0, int(s); n < 64*len(allowed); n++ {
		if !allowed.IsSet(n) {
			continue
		}
		if left == 0 {
			return n, nil
		}
		left--
	}
	return 0,
		fmt.Errorf("%d processors may be used, two are needed to keep server and clients apart",
			allowed.Count())
}

// keepThread binds this thread, and the processes it starts, to the side's processor.
func (s side) keepThread() error {
	n, err := s.processor()
	if err != nil {
		return err
	}
	return keep(0, n)
}

// keepProcess binds this process to processor n, independent of the parent thread's binding.
func keepProcess(n int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads of this process: %w", err)
	}
	for _, t := range threads { // future threads inherit it
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("thread %q: %w", t.Name(), err)
		}
		if err := keep(id, n); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// keep binds a thread, 0 being this one, to processor n.
func keep(thread, n int) error {
	var set unix.CPUSet
	set.Set(n)
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("keep thread %d on processor %d: %w", thread, n, err)
	}
	return nil
}
