//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// openTerminal opens a pseudo-terminal: the end for us, and the end for a program.
func openTerminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("unlock pseudo-terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// startOnTerminal starts a program on a terminal of its own, so that it prints each line at once,
// and types. copied is closed when all of the program's output has been read.
func startOnTerminal(cmd *exec.Cmd, out io.Writer, typed string) (*os.File, chan struct{}, error) {
	ours, theirs, err := openTerminal()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, nil, err
	}
	copied := make(chan struct{})
	go func() {
		io.Copy(out, ours) // ends with EIO when the program has closed its end
		ours.Close()
		close(copied)
	}()
	_, err = ours.WriteString(typed)
	return ours, copied, err
}

// typeText types on the terminal of a background program.
func (a *agent) typeText(q rig.Request) error {
	j, err := a.job(q)
	if err != nil {
		return err
	}
	if j.terminal == nil {
		return fmt.Errorf("job %d has no terminal", q.Job)
	}
	_, err = j.terminal.WriteString(q.Input)
	return err
}
