package world

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// Patience is the time limit of one step of a client, such as a run of a program, while frames keep
// moving.
const Patience = 3 * time.Minute

// Run runs a program on the client and returns its output. The program must exit with 0.
func (w *World) Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	return w.Feed(t, nil, program, args...)
}

// Feed is Run with standard input.
func (w *World) Feed(t testing.TB, stdin io.Reader, program string, args ...string) string {
	t.Helper()
	out, err := w.Try(t, stdin, program, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(out))
	}
	return out
}

// Try is Feed for programs that may fail. It fails a program during which nothing moves for
// moving.Limit.
func (w *World) Try(t testing.TB, stdin io.Reader, program string, args ...string) (string, error) {
	t.Helper()
	return w.try(t, moving.Limit, stdin, program, args...)
}

// try is Try with a limit for the time without movement.
func (w *World) try(t testing.TB, limit time.Duration, stdin io.Reader, program string,
	args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	if w.stack {
		var stop func()
		ctx, stop = w.moved.Watch(ctx, limit)
		defer stop()
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, need.Tool(t, program), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SSLKEYLOGFILE=")
	err := w.Client.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil && ctx.Err() != nil { // it was killed
		err = fmt.Errorf("%w, %w", context.Cause(ctx), err)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out.String(), err
}

// tail is the end of what a program printed.
func tail(s string) string { return s[max(0, len(s)-4000):] }

// Want fails the test if a program's output does not match a regular expression.
func Want(t testing.TB, out, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(out) {
		t.Errorf("want %s in\n%s", pattern, tail(out))
	}
}

// Tool skips the test where the program is missing. Otherwise it records the program's version: the
// match of the pattern's group in the output for these arguments.
func Tool(t testing.TB, program, pattern string, args ...string) {
	t.Helper()
	// some exit with an error
	out, _ := exec.Command(need.Tool(t, program), args...).CombinedOutput()
	m := regexp.MustCompile(pattern).FindSubmatch(out)
	if m == nil {
		t.Fatalf("version of %s: no %s in %s", program, pattern, out)
	}
	record(t, program+" "+string(m[1]))
}

// Module records the version of a module that the test's own module, in the current directory,
// requires.
func Module(t testing.TB, path string) {
	t.Helper()
	mod, err := os.ReadFile("go.mod")
	must(t, err)
	m := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(path) +
		` (\S+)`).FindSubmatch(mod)
	if m == nil {
		t.Fatalf("go.mod does not require %s", path)
	}
	record(t, path+" "+string(m[1]))
}

// GoVersion records the version of the standard library.
func GoVersion(t testing.TB) {
	t.Helper()
	record(t, runtime.Version())
}

// record logs a version and appends it to the file SERVICES_LOG names, since go test without -v
// shows no logs.
func record(t testing.TB, version string) {
	t.Helper()
	t.Log(version)
	name := os.Getenv("SERVICES_LOG")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	defer f.Close()
	fmt.Fprintln(f, version)
}
