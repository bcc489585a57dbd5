package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The files of testdata/script are sessions of a user, one step per line, split into words:
//
//	need netns tun tool:curl      skip, with the reason, where the machine lacks one of these
//	netns                         what follows runs in a network namespace made for the script
//	nobody                        what follows runs as an ordinary user
//	run ARGS                      rdma-netstack ARGS, until it ends
//	exec PROGRAM ARGS             any program, likewise; it finds rdma-netstack at $PROGRAM
//	code N                        the exit code of the last run, exec, try or end
//	stdout RE, stderr RE          its output matches; ! in front: does not
//	start ARGS                    rdma-netstack ARGS in the background, until the script ends it
//	await RE                      waits until the background's stdout matches
//	try 'COMMAND'                 runs the line of the background's stdout that contains COMMAND
//	signal NAME                   sends it a signal: INT, TERM, KILL
//	end                           waits until it has ended
//	gone                          waits until no descendant of the script's processes runs
//
// Words may be quoted with '. Lines that begin with # are comments. After the steps come files of
// the working directory, each under a line "-- name --".
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			if strings.HasPrefix(filepath.Base(file), "demo") {
				need.Long(t, "demonstrations, 2 to 6 s each")
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			(&script{t: t, dir: t.TempDir()}).play(string(text))
		})
	}
}

// TestMain lets the test binary be the program: when a script runs it, and when the program runs
// itself.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	code, err := runApart(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runApart runs the tests with sockets in a directory that no other server of this machine uses:
// commands that look for the one that runs would find those, too, and --take-over auto replace it.
func runApart(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "rdma-netstack")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("RUNTIME_DIRECTORY", dir); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

const (
	asProgram  = "RDMA_NETSTACK_AS_PROGRAM"
	stepTime   = 90 * time.Second // for one step; the race detector is slow
	nobodyUser = 65534
)

// script is one running session.
type script struct {
	t   *testing.T
	dir string
	net *lab.Net // nil: this process's own

	nobody bool

	stdout, stderr string // of the last step that ran something
	code           int

	background *exec.Cmd
	out, errs  *growing // of the background
}

func (s *script) play(text string) {
	steps := s.unpack(text)
	for n, line := range strings.Split(steps, "\n") {
		words := split(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := s.step(words); err != nil {
			s.t.Fatalf("line %d: %s: %v\nstdout: %s\nstderr: %s", n+1,
				line, err, s.stdout, s.stderr)
		}
	}
	if s.background != nil {
		s.t.Errorf("the script ends with a program still running")
	}
}

// unpack writes the files at the end of the text and returns the steps before them.
func (s *script) unpack(text string) (steps string) {
	mark := regexp.MustCompile(`(?m)^-- (\S+) --\n`)
	at := mark.FindAllStringSubmatchIndex(text, -1)
	steps = text
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		if i == 0 {
			steps = text[:m[0]]
		}
		path := filepath.Join(s.dir, text[m[2]:m[3]])
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text[m[1]:end]), 0o644)); err != nil {
			s.t.Fatal(err)
		}
	}
	return steps
}

// split splits a line into words; text between ' stays one word.
func split(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2])
	}
	return words
}

func (s *script) step(words []string) error {
	verb, args := words[0], words[1:]
	switch verb {
	case "need":
		s.need(args)
		return nil
	case "netns":
		return s.enter()
	case "nobody":
		s.nobody = true
		return nil
	case "run":
		return s.run(s.program(args))
	case "exec":
		return s.run(s.command(args))
	case "code":
		return equal(strconv.Itoa(s.code), args[0])
	case "stdout", "stderr", "!":
		return s.match(words)
	case "start":
		return s.start(args)
	case "await":
		return s.out.await(args[0])
	case "try":
		return s.try(args[0])
	case "signal":
		return s.background.Process.Signal(unix.SignalNum("SIG" + args[0]))
	case "end":
		return s.end()
	case "gone":
		return gone(s.mark())
	}
	return errors.New("no such step")
}

func equal(got, want string) error {
	if got != want {
		return fmt.Errorf("got %s", got)
	}
	return nil
}

func (s *script) need(what []string) {
	s.t.Helper()
	for _, w := range what {
		kind, name, _ := strings.Cut(w, ":")
		switch kind {
		case "netns":
			need.NetNS(s.t)
		case "userns":
			need.UserNS(s.t)
		case "tun":
			need.TUN(s.t)
		case "root":
			need.Root(s.t)
		case "tool":
			need.Tool(s.t, name)
		default:
			s.t.Fatalf("need %s: unknown", w)
		}
	}
}

func (s *script) enter() (err error) {
	s.net, err = lab.New(s.t.Name())
	if err == nil {
		s.t.Cleanup(func() { s.net.Close() })
	}
	return err
}

// program is rdma-netstack: the test binary, also where its path is out of reach.
func (s *script) program(args []string) *exec.Cmd {
	cmd := s.command(append([]string{"/proc/self/exe"}, args...))
	cmd.Args[0] = "rdma-netstack"
	return cmd
}

func (s *script) command(args []string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(s.t.Context(), stepTime)
	s.t.Cleanup(cancel)
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.mark(), "PROGRAM="+self, "GORACE=atexit_sleep_ms=0")
	if s.nobody && os.Geteuid() == 0 {
		cmd.Dir = "/" // the current directory is not accessible to that user
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUser,
			Gid: nobodyUser}}
	}
	return cmd
}

// mark is in the environment of all processes that the script starts.
func (s *script) mark() string {
	return fmt.Sprintf("%s=%d/%s",
		asProgram, os.Getpid(), s.t.Name())
}

func (s *script) launch(cmd *exec.Cmd) error {
	cmd.WaitDelay = time.Second
	if s.net != nil {
		return s.net.Start(cmd)
	}
	return cmd.Start()
}

func (s *script) run(cmd *exec.Cmd) error {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := s.launch(cmd); err != nil {
		return err
	}
	err := cmd.Wait()
	s.stdout, s.stderr, s.code = out.String(), errs.String(), cmd.ProcessState.ExitCode()
	if s.code < 0 {
		return err
	}
	return nil
}

func (s *script) match(words []string) error {
	want := true
	if words[0] == "!" {
		want, words = false, words[1:]
	}
	text := map[string]string{"stdout": s.stdout, "stderr": s.stderr}[words[0]]
	re, err := regexp.Compile("(?m)" + words[1])
	if err != nil {
		return err
	}
	if re.MatchString(text) != want {
		return errors.New("no, it was otherwise")
	}
	return nil
}

func (s *script) start(args []string) error {
	s.background = s.program(args)
	return s.launchBackground()
}

func (s *script) launchBackground() error {
	s.out, s.errs = newGrowing(), newGrowing()
	s.background.Stdout, s.background.Stderr = s.out, s.errs
	if err := s.launch(s.background); err != nil {
		return err
	}
	s.t.Cleanup(func() {
		if s.background != nil {
			s.background.Process.Kill()
			s.background.Wait()
			s.t.Logf("the background printed:\n%s%s", s.out, s.errs)
		}
	})
	return nil
}

func (s *script) try(command string) error {
	line := regexp.MustCompile(`(?m)^.*` + regexp.QuoteMeta(command) + `.*\n`)
	if err := s.out.await(line.String()); err != nil {
		return err
	}
	words, _, _ := strings.Cut(line.FindString(s.out.String()), "#")
	return s.run(s.command(strings.Fields(words)))
}

func (s *script) end() error {
	err := s.background.Wait()
	s.stdout, s.stderr, s.code = s.out.String(), s.errs.String(),
		s.background.ProcessState.ExitCode()
	ended := s.background.ProcessState.Exited() ||
		s.background.ProcessState.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
	s.background = nil
	if !ended {
		return err
	}
	return nil
}

// growing is a buffer whose growth can be waited for.
type growing struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // one token: look again
}

func newGrowing() *growing { return &growing{more: make(chan struct{}, 1)} }

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case g.more <- struct{}{}:
	default:
	}
	return g.text.Write(p)
}

func (g *growing) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

func (g *growing) await(expr string) error {
	re, err := regexp.Compile("(?m)" + expr)
	if err != nil {
		return err
	}
	timeout := time.After(stepTime)
	for !re.MatchString(g.String()) {
		select {
		case <-g.more:
		case <-timeout:
			return fmt.Errorf("did not come in %v; there was %q", stepTime, g)
		}
	}
	return nil
}
