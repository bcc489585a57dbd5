package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestRunProgram: a program that runs gets the signals that are sent to rdma-netstack run, and its
// exit code is that of the command.
func TestRunProgram(t *testing.T) {
	sh := need.Tool(t, "sh")
	for signal, want := range map[unix.Signal]int{unix.SIGTERM: 3, unix.SIGHUP: 4} {
		cmd := exec.Command(sh, "-c", "trap 'exit 3' TERM; trap 'exit 4' HUP; trap 'exit 5' INT; "+
			"echo ready; while :; do sleep 0.05; done")
		out := newGrowing()
		cmd.Stdout = out
		ended := make(chan error, 1)
		go func() { ended <- runProgram(cmd) }()
		if err := out.await("ready"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(os.Getpid(), signal); err != nil {
			t.Fatal(err)
		}
		code := exitCode(0)
		if err := <-ended; !errors.As(err, &code) || int(code) != want {
			t.Errorf("%v: %v, want exit code %d", signal, err, want)
		}
	}
}

func TestIsVet(t *testing.T) {
	for flag, want := range map[string]bool{"-vet=off": true, "--vet": true, "-vet": true,
		"-v": false, "vet": false, "-run=vet": false} {
		if isVet(flag) != want {
			t.Errorf("%q: %v", flag, !want)
		}
	}
}
