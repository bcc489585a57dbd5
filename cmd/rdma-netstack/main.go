// Command rdma-netstack runs ordinary Go servers on a slice of an mlx5 port: its frames go from the
// NIC's descriptor rings to a TCP/IP stack in this process and never enter the Linux kernel, which
// keeps the rest of the port. With the software NIC all of this works on a machine without such a
// NIC; see "rdma-netstack demo".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
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
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run does what args request and returns the exit code. SIGINT and SIGTERM end it in order; a
// second one ends it at once.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	out := &output{to: stdout}
	root := rootCommand(streams{out, stderr, args})
	root.SetArgs(withExtcap(args))
	cmd, err := root.ExecuteContextC(ctx)
	return report(cmd, err, out, stderr)
}

// looks says whether args have a command that looks at a running server.
func looks(args []string) bool {
	cmd, _, _ := rootCommand(streams{stdout: &output{to: io.Discard}, stderr: io.Discard}).
		Find(withExtcap(args))
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.GroupID == groupRunning {
			return true
		}
	}
	return false
}

// report prints the error, if any, and returns the exit code.
func report(cmd *cobra.Command, err error, stdout *output, stderr io.Writer) int {
	if err == nil {
		err = stdout.err()
	}
	var wrong usageError
	var code exitCode
	name := cmd.CommandPath()
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

// streams holds where a command prints results and errors, and how it was called.
type streams struct {
	stdout *output
	stderr io.Writer
	args   []string // the whole command line, for running it again
}

// Groups of commands, as the help lists them. Those of groupRunning look at a running server, and
// give way to it.
const (
	groupServe   = "serve"
	groupRunning = "running"
	groupRings   = "rings"
	groupMachine = "machine"
	groupProgram = "program"
)

// rootCommand returns the program. What it prints goes to out.
func rootCommand(out streams) *cobra.Command {
	root := &cobra.Command{
		Use:     "rdma-netstack COMMAND",
		Version: thisBuild().Version,
		Long: `Runs Go servers on a TCP/IP stack in this process, on a slice of a Mellanox/NVIDIA ConnectX port:
the frames of one MAC address. Linux keeps the port's network interface and all other frames.

Exit codes: 0 success, 1 failure, 2 wrong usage.`,
		Short:             "Go servers on a slice of an RDMA port",
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	root.SetOut(out.stdout)
	root.SetErr(out.stderr)
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, out.stdout) })
	addGroup(root, groupServe, "Servers", demoCommand(out), serveCommand(out), buildCommand(out),
		runCommand(out), testCommand(out))
	addGroup(root, groupRunning, "Running servers", statusCommand(out), reportCommand(out),
		ssCommand(out), topCommand(out), captureCommand(out), filterCommand(out),
		profileCommand(out), extcapCommand(out))
	for _, c := range statusSections(out) {
		c.Hidden, c.GroupID = true, groupRunning
		root.AddCommand(c)
	}
	addGroup(root, groupRings, "Rings without TCP/IP", pktgenCommand(out), xconnectCommand(out))
	addGroup(root, groupMachine, "This machine", devicesCommand(out), doctorCommand(out),
		compareCommand(out))
	addGroup(root, groupProgram, "This program", manCommand(out), versionCommand(out))
	root.SetHelpCommandGroupID(groupProgram)
	root.SetCompletionCommandGroupID(groupProgram)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	refuseOthers(root)
	return root
}

// addGroup adds commands that the help lists under a title.
func addGroup(root *cobra.Command, id, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, c := range commands {
		c.GroupID = id
	}
	root.AddCommand(commands...)
}

func serveCommand(out streams) *cobra.Command {
	cmd := &cobra.Command{Use: "serve COMMAND", Short: "run a server: http, dns, iperf3",
		Long: "Runs a server on a slice of an RDMA port."}
	cmd.AddCommand(serveHTTPCommand(out), serveDNSCommand(out), serveIperf3Command(out))
	return cmd
}

// refuseOthers has a command without an action, and those below it, name its commands where it is
// given none of them, or another. It completes what package cobra adds by itself.
func refuseOthers(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseOthers(c)
	}
	switch {
	case cmd.Name() == "help":
		cmd.Run, cmd.Long = nil, "Prints the help of a command."
		cmd.RunE = func(help *cobra.Command, words []string) error {
			found, left, err := help.Root().Find(words)
			if err != nil || len(left) > 0 {
				return unknownCommand(found, left)
			}
			found.HelpFunc()(found, nil)
			return nil
		}
	case cmd.HasParent() && cmd.Parent().Name() == "completion":
		cmd.Args = noWords
	case cmd.Name() == "completion":
		cmd.Short = "completion for bash, fish, powershell and zsh"
		fallthrough
	case !cmd.Runnable():
		cmd.Args = cobra.ArbitraryArgs
		cmd.FParseErrWhitelist.UnknownFlags = true
		cmd.DisableFlagsInUseLine = true
		cmd.RunE = unknownCommand
	}
}

// unknownCommand names the commands that there are in place of words.
func unknownCommand(cmd *cobra.Command, words []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	cmd.SuggestionsMinimumDistance = 1
	all := "want one of " + strings.Join(names, ", ")
	if len(words) == 0 {
		return usageError{errors.New("no command given: " + all)}
	}
	if near := cmd.SuggestionsFor(words[0]); len(near) > 0 {
		all = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{fmt.Errorf("no command %q: %s", words[0], all)}
}

// noWords refuses arguments that are no flags.
func noWords(_ *cobra.Command, words []string) error {
	if len(words) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", words[0])}
	}
	return nil
}

// usageError describes an error that the user corrects by another command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode ends the program without a further message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// output wraps the standard output and keeps the first error, which becomes the program's: results
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

func versionCommand(out streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "print the version of this build", Args: noWords,
		Long: "Prints the version, commit, Go release and gVisor release of this build.",
		RunE: func(*cobra.Command, []string) error { return printVersion(asJSON, out) }}
	addFlags(cmd, "Flags", opt("json", "", &asJSON, "print one JSON object"))
	return cmd
}

type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // the tree had changes on top of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
	GVisor   string `json:"gvisor,omitempty"`

	date string // of the commit, such as 2026-11-22
}

func printVersion(asJSON bool, out streams) error {
	b := thisBuild()
	if asJSON {
		return json.NewEncoder(out.stdout).Encode(b)
	}
	commit := ""
	if b.Commit != "" {
		commit = ", commit " + b.Commit
	}
	if b.Modified {
		commit += " with changes"
	}
	_, err := fmt.Fprintf(out.stdout, "rdma-netstack %s%s, %s, %s, gVisor %s\n", b.Version, commit,
		b.Go, b.Platform, b.GVisor)
	return err
}

func thisBuild() build {
	b := build{
		Version:  "(devel)",
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			b.date, _, _ = strings.Cut(s.Value, "T")
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			b.GVisor = m.Version
		}
	}
	return b
}
