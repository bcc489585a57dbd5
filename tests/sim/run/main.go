// Command run builds the command worlds so that its runs repeat, and runs it with the same
// arguments:
//
//	go run ./tests/sim/run -seeds 2000          seeds 0 to 1999, on all processors
//	go run ./tests/sim/run -seeds 2000 -twice   each twice, compared
//	go run ./tests/sim/run -only fallback       of 2000 seeds those with such worlds
//	go run ./tests/sim/run -path -seeds 200     datagrams and TCP over a router with a smaller MTU
//	go run ./tests/sim/run -host -seeds 200     hosts on the address of their kernel
//	go run ./tests/sim/run -seed 17             one seed, with its plan and its log
//	go run ./tests/sim/run -seed 17 -twice      where two runs of it differ first
//	go run ./tests/sim/run -seed 17 -minimise   the least work and faults with which it fails
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rdma-netstack/rdma-netstack/tests/sim/build"
)

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit code of worlds, 2 if there is none.
func run(args []string) int {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 2
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "worlds")
	repeats, err := build.World(program, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 2
	}
	if !repeats {
		fmt.Fprintln(os.Stderr, "sim: this version of Go is not the one that tests/sim/build "+
			"knows: one run of a thousand may not repeat")
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // worlds gets it, too, and ends
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = c.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return max(1, exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "sim:", err)
	return 2
}
