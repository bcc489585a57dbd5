// Command rdma-netstack runs ordinary Go servers on a slice of an mlx5 port: its frames go from the
// NIC's descriptor rings to a TCP/IP stack in this process and never enter the Linux kernel, which
// keeps the rest of the port. With the software NIC all of this works on a machine without such a
// NIC; see "rdma-netstack demo".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"

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

// command describes one command of the program.
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
		buildCommand(),
		runCommand(),
		testCommand(),
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

// usageError describes an error that the user corrects by another command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode ends the program without a further message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

var errHelp = errors.New("help asked for")

// find returns the command at the start of args and its arguments.
func find(args []string) (*command, []string, error) {
	if len(args) == 0 {
		return nil, nil,
			usageError{errors.New("no command given: want one of " + names(commands()))}
	}
	if asksHelp(args[0]) {
		if len(args) == 1 {
			return helpFor("", usageText()), nil, nil
		}
		args = append(slices.Clone(args[1:]), "--help") // help serve http
	}
	for _, c := range commands() {
		words := strings.Fields(c.name)
		if len(args) >= len(words) && slices.Equal(args[:len(words)], words) {
			return &c, args[len(words):], nil
		}
	}
	return findGroup(args)
}

// looks says whether args have a command that looks at a running server.
func looks(args []string) bool {
	cmd, _, err := find(args)
	return asksExtcap(args) || err == nil && cmd.looks
}

// findGroup reports an unknown or missing second word of a command of two words. It returns the
// help of the group if that is requested.
func findGroup(args []string) (*command, []string, error) {
	group := groupOf(args[0])
	switch {
	case len(group) == 0:
		return nil, nil, usageError{
			fmt.Errorf(
				"no command %q: want one of %s",
				strings.Join(args[:min(2, len(args))], " "),
				names(commands()),
			),
		}
	case len(args) == 1:
		return nil, nil,
			usageError{fmt.Errorf("%s needs a command: one of %s", args[0], names(group))}
	case asksHelp(args[1]):
		text := "Usage: rdma-netstack " + args[0] + " COMMAND [flags]\n\n" + lines(group) +
			"\n\"rdma-netstack " + args[0] + " COMMAND --help\" lists the flags of a command.\n"
		return helpFor(args[0], text), nil, nil
	}
	return nil, nil, usageError{
		fmt.Errorf("no command %q: want one of %s", args[0]+" "+args[1], names(group)),
	}
}

// groupOf returns the commands of two words that begin with this one.
func groupOf(first string) (group []command) {
	for _, c := range commands() {
		if strings.HasPrefix(c.name, first+" ") {
			group = append(group, c)
		}
	}
	return group
}

// helpFor returns a command that only has a help text.
func helpFor(name, text string) *command {
	return &command{
		name: name,
		help: text,
		run:  func(context.Context, []string, streams) error { return errHelp },
	}
}

func asksHelp(arg string) bool {
	return slices.Contains([]string{"help", "-h", "-help", "--help"}, arg)
}

func names(of []command) string {
	var all []string
	for _, c := range of {
		all = append(all, c.name)
	}
	return strings.Join(all, ", ")
}

func lines(of []command) string {
	var b strings.Builder
	for _, c := range of {
		fmt.Fprintf(&b, "  %-12s  %s\n", c.name, c.line)
	}
	return b.String()
}

func usageText() string {
	return `Usage: rdma-netstack COMMAND [flags]

Runs Go servers on a TCP/IP stack in this process, on a slice of a Mellanox/NVIDIA ConnectX port:
the frames of one MAC address. Linux keeps the port's network interface and all other frames.

` + lines(commands()) + `
"rdma-netstack COMMAND --help" lists the flags of a command.
Exit codes: 0 success, 1 failure, 2 wrong usage.
`
}

// newFlags makes an empty set of flags that prints nothing by itself.
func newFlags() *flag.FlagSet {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parse parses args, which may be flags only. Its errors are usage errors, or errHelp.
func parse(fs *flag.FlagSet, args []string) error {
	words, err := parseWords(fs, args)
	if err == nil && len(words) > 0 {
		err = usageError{fmt.Errorf("unexpected argument %q", words[0])}
	}
	return err
}

// parseWords parses args, which may be flags and words in any order, and returns the words. Its
// errors are usage errors, or errHelp.
func parseWords(fs *flag.FlagSet, args []string) (words []string, err error) {
	for {
		err := fs.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, errHelp
		case err != nil:
			return nil, usageError{errors.New(rewordFlagError(err.Error()))}
		case fs.NArg() == 0:
			return words, nil
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:]
	}
}

// rewordFlagError rewrites the messages of package flag: two dashes, as in the help texts.
func rewordFlagError(message string) string {
	message = strings.Replace(message, "flag provided but not defined: -", "unknown flag --", 1)
	message = strings.Replace(message, "flag needs an argument: -",
		"missing value after --", 1)
	return strings.Replace(message, "for flag -", "for --", 1)
}

// givenFlags reports which flags were on the command line.
func givenFlags(fs *flag.FlagSet) map[string]bool {
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	return set
}

// addrList is a flag that may be given several times.
func addrList(fs *flag.FlagSet, name string, list *[]netip.Addr) {
	fs.Func(name, "", func(s string) error {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return errors.New("want an IP address, such as 192.0.2.1 or 2001:db8::1")
		}
		*list = append(*list, a)
		return nil
	})
}

// stringList is a flag that may be given several times.
func stringList(fs *flag.FlagSet, name string, list *[]string) {
	fs.Func(name, "", func(s string) error {
		*list = append(*list, s)
		return nil
	})
}

// output is the standard output. It keeps the first error, which becomes the program's: results
// that cannot be written are a failure. It may be used from any goroutine.
type output struct {
	to io.Writer

	mu     sync.Mutex
	failed error // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err == nil {
		return n, nil
	}
	err = fmt.Errorf("write to standard output: %w", err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = err
	}
	return n, err
}

func (o *output) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// cleanup holds the list of what was opened, closed in reverse order.
type cleanup struct{ actions []func() error }

func (l *cleanup) add(undo func() error) { l.actions = append(l.actions, undo) }

// close may be called again; then it does nothing.
func (l *cleanup) close() error {
	var errs []error
	for _, undo := range slices.Backward(l.actions) {
		errs = append(errs, undo())
	}
	l.actions = nil
	return errors.Join(errs...)
}
