//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// run runs a program to its end, or to the timeout, and returns exit code and output.
func run(q rig.Request) (int, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), q.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, q.Argv[0], q.Argv[1:]...)
	cmd.Env = append(os.Environ(), q.Env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return -1, string(out), fmt.Errorf("still running after %v: %s", q.Timeout, out)
	}
	code, err := exitCode(err)
	return code, string(out), err
}

// exitCode turns the error of a program that was started into its exit code; a signal is 128 plus
// its number.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// job is a program in the background.
type job struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan struct{}
	err  error // valid after done

	terminal *os.File // nil: none
}

// lockedBuffer collects output while the program runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a program in the background, on a terminal if there is something to type; the
// request's ID names it.
func (a *agent) start(q rig.Request) error {
	j := &job{cmd: exec.Command(q.Argv[0], q.Argv[1:]...), done: make(chan struct{})}
	j.cmd.Env = append(os.Environ(), q.Env...)
	copied := make(chan struct{})
	var err error
	if q.Input != "" {
		j.terminal, copied, err = startOnTerminal(j.cmd, &j.out, q.Input)
	} else {
		j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
		err = j.cmd.Start()
		close(copied)
	}
	if err != nil {
		return err
	}
	go func() {
		j.err = j.cmd.Wait()
		<-copied
		close(j.done)
	}()
	a.mu.Lock()
	a.jobs[q.ID] = j
	a.mu.Unlock()
	return nil
}

// job returns the background program that a request names.
func (a *agent) job(q rig.Request) (*job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if j := a.jobs[q.Job]; j != nil {
		return j, nil
	}
	return nil, fmt.Errorf("no job %d", q.Job)
}

// stop sends a signal (0: none) to a background program, waits for its end if the signal is one
// that ends it, and returns its output so far.
func (a *agent) stop(q rig.Request) (int, string, error) {
	j, err := a.job(q)
	if err != nil {
		return -1, "", err
	}
	if q.Signal == 0 {
		return 0, j.out.String(), nil
	}
	j.cmd.Process.Signal(unix.Signal(q.Signal))
	return a.wait(q)
}

// signal sends a signal that does not end the program.
func (a *agent) signal(q rig.Request) error {
	j, err := a.job(q)
	if err != nil {
		return err
	}
	return j.cmd.Process.Signal(unix.Signal(q.Signal))
}

// wait waits for the end of a background program, and returns exit code and output.
func (a *agent) wait(q rig.Request) (int, string, error) {
	j, err := a.job(q)
	if err != nil {
		return -1, "", err
	}
	select {
	case <-j.done:
	case <-time.After(q.Timeout):
		return -1, j.out.String(), fmt.Errorf("still running after %v: %s",
			q.Timeout, j.out.String())
	}
	code, err := exitCode(j.err)
	return code, j.out.String(), err
}
