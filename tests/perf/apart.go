package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A peer whose server and clients are kept apart: what Linux's scheduler makes of their threads on
// two processors is then no part of the figures. On a machine that is shared, a client woken by a
// frame takes the processor from the server that sent it, while the other one may be idle.

// side is who a processor is for.
type side int

const (
	serverSide side = iota // the server, and what is its NIC or its cable
	clientSide
)

// processor is the one for a side, of those this process may use.
func (s side) processor() (int, error) {
	var allowed unix.CPUSet
	// of the first thread, which is never kept
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

// keepThread has this thread, and the processes it starts, run on the side's processor.
func (s side) keepThread() error {
	n, err := s.processor()
	if err != nil {
		return err
	}
	return keep(0, n)
}

// keepProcess has this process run on processor n only, whichever its parent's thread had.
func keepProcess(n int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads of this process: %w", err)
	}
	for _, t := range threads { // threads to come inherit it
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

// keep has a thread, 0 being this one, run on processor n only.
func keep(thread, n int) error {
	var set unix.CPUSet
	set.Set(n)
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("keep thread %d on processor %d: %w", thread, n, err)
	}
	return nil
}
