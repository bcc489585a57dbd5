package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/overlay"
)

// unmodifiedLong ends the help of build, run and test.
const unmodifiedLong = `

The program's sockets are the kernel's until its environment says otherwise:

    RDMA_NETSTACK_DEVICE=enp1s0f0   RDMA device, network interface, or sim
    RDMA_NETSTACK_ADDRESS=host      the interface's own addresses; or addresses of the
                                    slice's own, such as 192.0.2.10/24; or auto

docs/unmodified.md has the other variables, what works and what does not.`

func buildCommand(out streams) *cobra.Command {
	var f programFlags
	cmd := &cobra.Command{Use: "build [flags] PACKAGE [-- FLAGS OF go build]",
		Short: "build a Go program, unmodified, for a slice",
		Long: `Builds a Go program, whose source is not touched, so that its TCP and UDP sockets can be a slice's.
PACKAGE is a main package, such as ./cmd/server, or its Go files, or one of another module with its
version, such as example.org/server/cmd/server@v1.2.3. The standard library's package net, of your
own Go, gets a few lines at the start of functions by go build -overlay; neither it nor go.mod is
written.` +
			unmodifiedLong,
		RunE: func(cmd *cobra.Command, words []string) error {
			words, f.goFlags = splitAtDashes(cmd, words)
			return f.build(cmd.Context(), words, out)
		}, Annotations: map[string]string{goFlagsPlace: "flags of go build come after --"}}
	addFlags(cmd, "Flags", opt("o,output", "FILE", &f.output, "the program (default the last word "+
		"of the package's path)"))
	f.addTo(cmd)
	return cmd
}

func runCommand(out streams) *cobra.Command {
	var f programFlags
	cmd := &cobra.Command{Use: "run [flags] PACKAGE [ARGUMENT ...]",
		Short: "build and run a Go program, unmodified, on a slice",
		Long: `Builds a Go program as "rdma-netstack build" does and runs it. Flags for go build are those in
GOFLAGS.` + unmodifiedLong,
		RunE: func(cmd *cobra.Command, words []string) error {
			return f.run(cmd.Context(), words, out)
		}, Annotations: map[string]string{goFlagsPlace: "flags of go build are those in GOFLAGS"}}
	f.addTo(cmd)
	cmd.Flags().SetInterspersed(false) // the others are the program's
	return cmd
}

func testCommand(out streams) *cobra.Command {
	var f programFlags
	cmd := &cobra.Command{Use: "test [flags] PACKAGE ... [-- FLAGS OF go test]",
		Short: "run tests of Go packages, unmodified, on a slice",
		Long: `Runs the tests of Go packages with package net as "rdma-netstack build" makes it: their sockets are
a slice's where the environment says so. Warns of what goes round package net, and refuses nothing.` +
			unmodifiedLong,
		RunE: func(cmd *cobra.Command, words []string) error {
			words, f.goFlags = splitAtDashes(cmd, words)
			return f.test(cmd.Context(), words, out)
		}, Annotations: map[string]string{goFlagsPlace: "flags of go test come after --"}}
	f.addTo(cmd)
	return cmd
}

// programFlags holds those of build, run and test.
type programFlags struct {
	source, output            string
	sim, pin, scan, printOnly bool
	allow                     []string
	goFlags                   []string // after --
}

func (f *programFlags) addTo(cmd *cobra.Command) {
	addFlags(cmd, "Flags",
		opt("source", "DIR", &f.source, "source of rdma-netstack, which the program is linked "+
			"with (default the checkout that this command lies in, or its own version from the "+
			"module cache)"),
		opt("sim", "", &f.sim, "link the software ConnectX as well, for RDMA_NETSTACK_DEVICE=sim"),
		opt("allow", "KIND", &f.allow, "build it although it has sockets that go round package "+
			"net: socket (makes IP sockets by system calls), poller (waits for them by itself); "+
			"or do not warn of: inherit (takes sockets over by descriptor), file (asks for a "+
			"socket's descriptor), cgo. Repeat the flag for more", kindWords),
		opt("pin", "", &f.pin, "refuse to raise the version of a module that the program is built "+
			"of"),
		opt("scan", "", &f.scan, "only list what in its packages goes round package net"),
		opt("n,dry-run", "", &f.printOnly, "only print the go command"))
}

// kindWords returns what --allow takes.
func kindWords() (known []string) {
	for _, k := range overlay.Kinds() {
		known = append(known, string(k))
	}
	return known
}

// splitAtDashes splits arguments at "--".
func splitAtDashes(cmd *cobra.Command, words []string) (before, after []string) {
	if i := cmd.ArgsLenAtDash(); i >= 0 {
		return words[:i], words[i:]
	}
	return words, nil
}

// kinds returns those of --allow.
func (f *programFlags) kinds() (all []overlay.Kind, err error) {
	for _, list := range f.allow {
		for _, name := range strings.Split(list, ",") {
			k := overlay.Kind(name)
			if !slices.Contains(overlay.Kinds(), k) {
				return nil, usageError{fmt.Errorf("--allow %q: want one of %s", name,
					strings.Join(kindWords(), ", "))}
			}
			all = append(all, k)
		}
	}
	return all, nil
}

// prepare plans the build of packages and tells the user what it changes.
func (f *programFlags) prepare(ctx context.Context, packages []string, test bool,
	out streams) (*overlay.Plan, error) {
	if runtime.GOOS != "linux" && os.Getenv("GOOS") == "" {
		return nil, errors.New("a slice is of a Linux host: run this command there, or set " +
			"GOOS=linux")
	}
	cache, err := overlay.CacheDir()
	if err != nil {
		return nil, err
	}
	if f.source == "" {
		exe, _ := os.Executable()
		if exe, err = filepath.EvalSymlinks(exe); err != nil {
			exe = "/"
		}
		f.source, err = overlay.FindSource(ctx, thisBuild().Version, cache, filepath.Dir(exe))
		if err != nil {
			return nil, err
		}
	}
	if f.source, err = filepath.Abs(f.source); err != nil {
		return nil, err
	}
	plan, err := overlay.Prepare(ctx, overlay.Options{Package: packages[0],
		Patterns: packages[1:], Test: test, Flags: f.goFlags, Source: f.source, Cache: cache,
		Sim: f.sim})
	if err != nil {
		return nil, err
	}
	for _, note := range plan.Notes {
		fmt.Fprintln(out.stderr, "note:", note)
	}
	if len(plan.Raised) == 0 {
		return plan, nil
	}
	if f.pin {
		return nil, fmt.Errorf("--pin: rdma-netstack needs modules of a higher version than the "+
			"program has:\n\t%s", strings.Join(plan.Raised, "\n\t"))
	}
	fmt.Fprintf(out.stderr, "note: modules that rdma-netstack raises: %s\n",
		strings.Join(plan.Raised, ", "))
	return plan, nil
}

// judge prints warnings of what is in the program binary and refuses what Verdict does.
func (f *programFlags) judge(plan *overlay.Plan, binary string, out streams) error {
	kinds, err := f.kinds()
	if err != nil {
		return err
	}
	findings, err := plan.Findings(binary)
	if err != nil {
		return err
	}
	warnings, err := overlay.Verdict(findings, kinds)
	for _, w := range warnings {
		fmt.Fprintln(out.stderr, "warning:", w)
	}
	return err
}

// look does what --scan and -n ask for.
func (f *programFlags) look(plan *overlay.Plan, cmd *exec.Cmd, out streams) error {
	if f.printOnly {
		dir, err := filepath.Abs(cmd.Dir)
		if err != nil {
			return err
		}
		words := slices.Concat([]string{"env"}, cmd.Env[len(os.Environ()):], cmd.Args)
		fmt.Fprintf(out.stdout, "cd %s && %s\n", shellWords(dir), shellWords(words...))
		return out.stdout.err()
	}
	findings, err := plan.Findings("")
	if err != nil {
		return err
	}
	for _, found := range findings {
		fmt.Fprintln(out.stdout, found)
	}
	return out.stdout.err()
}

// shellWords writes words as a shell reads them.
func shellWords(words ...string) string {
	const special = " \t\n'\"\\$&|;<>()*?[]{}~#!`"
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; word == "" || strings.ContainsAny(word, special) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// runGo runs a go command that says itself what is wrong.
func runGo(cmd *exec.Cmd, out streams) error {
	cmd.Stdout, cmd.Stderr = out.stdout, out.stderr
	err := cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return exitCode(exitFailed)
	}
	return err
}

func (f *programFlags) build(ctx context.Context, words []string, out streams) error {
	if err := onePackage(words); err != nil {
		return err
	}
	if _, err := f.kinds(); err != nil {
		return err
	}
	plan, err := f.prepare(ctx, words, false, out)
	if err != nil {
		return err
	}
	if f.output == "" {
		f.output = programName(words[0])
	}
	to, err := filepath.Abs(f.output)
	if err != nil {
		return err
	}
	if f.scan || f.printOnly {
		return f.look(plan, plan.Cmd(ctx, "build", "-o", to), out)
	}
	return f.buildTo(ctx, plan, to, out)
}

// buildTo builds the program, and puts it at to if it is not refused.
func (f *programFlags) buildTo(ctx context.Context, plan *overlay.Plan, to string,
	out streams) error {
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		return fmt.Errorf("-o %s is a directory: name a file", to)
	}
	fresh := to + ".new"
	defer os.Remove(fresh)
	if err := runGo(plan.Cmd(ctx, "build", "-o", fresh), out); err != nil {
		if ctx.Err() == nil && errors.Is(err, exitCode(exitFailed)) {
			err = plan.WhoseFault(ctx)
		}
		return err
	}
	if err := f.judge(plan, fresh, out); err != nil {
		return err
	}
	return os.Rename(fresh, to)
}

// onePackage wants one word, or the names of Go files.
func onePackage(words []string) error {
	if len(words) == 0 {
		return usageError{errors.New("PACKAGE is missing: a main package, such as ./cmd/server")}
	}
	for _, word := range words[1:] {
		if !strings.HasSuffix(word, ".go") || !strings.HasSuffix(words[0], ".go") {
			return usageError{fmt.Errorf("unexpected argument %q: name one main package, or its "+
				"files; flags of go build come after --", word)}
		}
	}
	return nil
}

// programName returns the name that go build would choose.
func programName(pkg string) string {
	pkg, _, _ = strings.Cut(pkg, "@")
	if abs, err := filepath.Abs(pkg); err == nil && strings.HasPrefix(pkg, ".") {
		pkg = abs
	}
	return strings.TrimSuffix(filepath.Base(pkg), ".go")
}

func (f *programFlags) run(ctx context.Context, words []string, out streams) error {
	if len(words) == 0 {
		return onePackage(nil)
	}
	if _, err := f.kinds(); err != nil {
		return err
	}
	n := 1 // names of files come first, as of go run
	for n < len(words) && strings.HasSuffix(words[0], ".go") && strings.HasSuffix(words[n], ".go") {
		n++
	}
	plan, err := f.prepare(ctx, words[:n], false, out)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rdma-netstack-run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, programName(words[0]))
	if f.scan || f.printOnly {
		return f.look(plan, plan.Cmd(ctx, "build", "-o", to), out)
	}
	if err := f.buildTo(ctx, plan, to, out); err != nil {
		return err
	}
	cmd := exec.Command(to, words[n:]...)
	cmd.Stdin = os.Stdin
	cmd.Stdout, cmd.Stderr = out.stdout, out.stderr
	if f, ok := out.stdout.to.(*os.File); ok {
		cmd.Stdout = f
	}
	return runProgram(cmd)
}

// runProgram runs a program until it ends, and sends on to it the signals that this process gets
// alone.
func runProgram(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s == unix.SIGTERM || !inForeground() { // a terminal sends it the others itself
				_ = cmd.Process.Signal(s) // it may have ended
			}
		case err := <-ended:
			failed, ok := errors.AsType[*exec.ExitError](err)
			if ok && failed.ExitCode() >= 0 {
				return exitCode(failed.ExitCode())
			}
			return err
		}
	}
}

// inForeground reports whether this process is of the group that the terminal's keys signal.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// isVet reports whether a flag is -vet of go test.
func isVet(flag string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
	return strings.HasPrefix(flag, "-") && name == "vet"
}

func (f *programFlags) test(ctx context.Context, words []string, out streams) error {
	if len(words) == 0 {
		return usageError{errors.New("PACKAGE is missing: such as ./... for all")}
	}
	kinds, err := f.kinds()
	if err != nil {
		return err
	}
	plan, err := f.prepare(ctx, words, true, out)
	if err != nil {
		return err
	}
	var args []string
	if !slices.ContainsFunc(f.goFlags, isVet) {
		args = []string{"-vet=off"} // vet cannot enter directories of the overlay
	}
	cmd := plan.Cmd(ctx, "test", args...)
	if f.scan || f.printOnly {
		return f.look(plan, cmd, out)
	}
	findings, err := plan.Findings("")
	if err != nil {
		return err
	}
	for _, found := range findings {
		if !slices.Contains(kinds, found.Kind) {
			fmt.Fprintln(out.stderr, "warning:", found)
		}
	}
	return runGo(cmd, out)
}
