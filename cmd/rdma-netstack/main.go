// Command rdma-netstack runs ordinary Go servers on a slice of an mlx5 port: its frames go from the NIC's descriptor rings to
// a TCP/IP stack in this process and never enter the Linux kernel, which keeps the rest of the port. With the software NIC it
// does all of it on a machine that has none; see "rdma-netstack demo".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	rareGC(os.Getenv("GOGC"))
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run does what args ask for and returns the exit code. SIGINT and SIGTERM end it in order; a second one ends it at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	cmd, rest, err := find(args)
	if err == nil && cmd == nil {
		fmt.Fprint(stdout, usage())
		return exitDone
	}
	if err == nil {
		err = cmd.run(ctx, rest, streams{stdout, stderr})
	}
	return report(cmd, err, stdout, stderr)
}

// report tells the user how it ended and returns the exit code.
func report(cmd *command, err error, stdout, stderr io.Writer) int {
	var wrong usageError
	var code exitCode
	name := "rdma-netstack"
	if cmd != nil {
		name += " " + cmd.name
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errHelp):
		fmt.Fprint(stdout, cmd.help)
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &wrong):
		fmt.Fprintf(stderr, "%s: %v (%s --help has all about it)\n", name, err, name)
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return exitFailed
}

// command is one thing the program does.
type command struct {
	name string // as typed
	line string // what it does, in half a line
	help string
	run  func(ctx context.Context, args []string, out streams) error
}

// streams are where a command prints: results and errors.
type streams struct{ stdout, stderr io.Writer }

func commands() []command {
	return []command{
		demoCommand(),
		serveHTTPCommand(),
		serveDNSCommand(),
		serveIperf3Command(),
		pktgenTxCommand(),
		pktgenRxCommand(),
		xconnectCommand(),
		compareCommand(),
		devicesCommand(),
		versionCommand(),
	}
}

// find returns the command that args begin with and what follows it; none when help was asked for.
func find(args []string) (*command, []string, error) {
	if len(args) == 0 {
		return nil, nil, usageError{errors.New("what is to be done? one of " + names())}
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		return nil, nil, nil
	}
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return &c, args[len(words):], nil
		}
	}
	return nil, nil, usageError{fmt.Errorf("no command %q; there are %s", strings.Join(args[:min(2, len(args))], " "), names())}
}

func names() string {
	var all []string
	for _, c := range commands() {
		all = append(all, c.name)
	}
	return strings.Join(all, ", ")
}

func usage() string {
	var b strings.Builder
	b.WriteString("Usage: rdma-netstack COMMAND [flags]\n\nOrdinary Go servers on a slice of an mlx5 port, beside Linux.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-12s %s\n", c.name, c.line)
	}
	b.WriteString("\n\"rdma-netstack COMMAND --help\" says more. Exit codes: 0 done, 1 failed, 2 wrong usage.\n")
	return b.String()
}

// usageError is the user's to mend by typing something else.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode ends the program without a further word.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

var errHelp = errors.New("help asked for")
