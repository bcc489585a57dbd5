// Command rdma-netstack runs ordinary Go servers on a slice of an mlx5 port: its frames go from the
// NIC's descriptor rings to a TCP/IP stack in this process and never enter the Linux kernel, which
// keeps the rest of the port. With the software NIC all of this works on a machine without such a
// NIC; see "rdma-netstack demo".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if looks(os.Args[1:]) {
		standAside()
	}
	setGCPercent(context.Background(), os.Getenv("GOGC"))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run does what args request and returns the exit code. SIGINT and SIGTERM end it in order; a
// second one ends it at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	out := &output{to: stdout}
	if asksExtcap(args) {
		return report(nil, extcap(ctx, args, streams{out, stderr}), out, stderr)
	}
	cmd, rest, err := find(args)
	if err == nil {
		err = cmd.run(ctx, rest, streams{out, stderr})
	}
	return report(cmd, err, out, stderr)
}

// report prints the error, if any, and returns the exit code.
func report(cmd *command, err error, stdout *output, stderr io.Writer) int {
	if errors.Is(err, errHelp) {
		fmt.Fprint(stdout, cmd.help)
		err = nil
	}
	if err == nil {
		err = stdout.err()
	}
	var wrong usageError
	var code exitCode
	name := "rdma-netstack"
	if cmd != nil && cmd.name != "" {
		name += " " + cmd.name
	}
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "%s: %v (see %s --help)\n", name, err, name)
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return exitFailed
}

// command is one command of the program.
type command struct {
	name string // as typed
	line string // what it does, in half a line
	help string
	run  func(ctx context.Context, args []string, out streams) error
	// looks says that it looks at a running server, and gives way to it.
	looks bool
}

// streams are where a command prints: results and errors.
type streams struct {
	stdout *output
	stderr io.Writer
}

func commands() []command {
	return []command{
		demoCommand(),
		serveHTTPCommand(),
		serveDNSCommand(),
		serveIperf3Command(),
		pktgenTxCommand(),
		pktgenRxCommand(),
		xconnectCommand(),
		ssCommand(),
		topCommand(),
		captureCommand(),
		statsCommand(),
		netstatCommand(),
		errorsCommand(),
		rulesCommand(),
		healthCommand(),
		profileCommand(),
		compareCommand(),
		devicesCommand(),
		doctorCommand(),
		completionCommand(),
		manCommand(),
		versionCommand(),
	}
}

// usageError is an error that the user corrects by another command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode ends the program without a further message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

var errHelp = errors.New("help asked for")
