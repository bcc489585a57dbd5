package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/conformance/suites/localhost"
)

// Outcomes of a test.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
	crashed = "crash" // the process ended in it
)

// limit gives the time limit of one run of all of Go's own tests of a package, and alone that of a
// single test of any.
const (
	limit = 4 * time.Minute
	alone = 40 * time.Second
)

// results maps tests to outcomes.
type results map[string]string

func (r results) count(outcome string) (n int) {
	for _, o := range r {
		if o == outcome {
			n++
		}
	}
	return n
}

// verdict is a line of go test -v about a whole test, not a subtest.
var verdict = regexp.MustCompile(`^\x16?--- (PASS|FAIL|SKIP): (Test[^\s/]*) \(`)

var began = regexp.MustCompile(`^\x16?=== RUN   (Test[^\s/]*)$`)

var outcomes = map[string]string{"PASS": passed, "FAIL": failed, "SKIP": skipped}

// runAll runs all tests of one side. When the process ends early, with the panic of a test, the
// running tests count as crashed, and it continues with the rest. Those in apart are run first, one
// by one: they are known to end the process, or to hang. Those in leave are not run.
func (w *workshop) runAll(s *suite, side string, apart, leave []string) (results, string, error) {
	all := results{}
	for _, test := range apart {
		o, err := w.runSome(s, side, test)
		if err != nil {
			return nil, "", err
		}
		all[test] = o
	}
	var log bytes.Buffer
	for known := -1; known < len(all); {
		known = len(all)
		args := []string{"-test.skip", exactly(all, leave)}
		if s.only != "" {
			args = append(args, "-test.run", s.only)
		}
		out, ended, err := w.runOnce(s, side, s.limit, args...)
		log.Write(out)
		if err != nil {
			return nil, "", err
		}
		open := scan(out, all)
		if ended {
			return all, log.String(), nil
		}
		for _, test := range open {
			all[test] = crashed
		}
	}
	return nil, "", fmt.Errorf("%s on the %s: ends before any test does:\n%s",
		s.name, side, tail(log.String()))
}

// runSome runs one test in a process of its own.
func (w *workshop) runSome(s *suite, side, test string) (string, error) {
	out, _, err := w.runOnce(s, side, alone, "-test.run", "^"+regexp.QuoteMeta(test)+"$")
	if err != nil {
		return "", err
	}
	one := results{}
	scan(out, one)
	if one[test] == "" {
		return crashed, nil
	}
	return one[test], nil
}

// runOnce runs the binary and reports whether it completed.
func (w *workshop) runOnce(s *suite, side string, limit time.Duration,
	args ...string) (out []byte, ended bool, err error) {
	args = append([]string{"-test.v=test2json", "-test.timeout", limit.String()}, args...)
	if w.short {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(s.binary(side), args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	if side == onSlice && s.notes != "" {
		cmd.Env = append(cmd.Env, localhost.NotesVariable+"="+s.notes)
	}
	cmd.WaitDelay = time.Second
	out, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, false, fmt.Errorf("run tests of %s on the %s: %w", s.name, side, err)
	}
	return out, err == nil || exit.ExitCode() == 1, nil
}

// scan adds the results in the output, and returns the tests that began and did not end.
func scan(out []byte, all results) (open []string) {
	running := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if i := strings.LastIndexByte(line, 0x16); i > 0 {
			line = line[i:] // after output of a test without a newline
		}
		if m := began.FindStringSubmatch(line); m != nil {
			running[m[1]] = true
		}
		if m := verdict.FindStringSubmatch(line); m != nil {
			all[m[2]] = outcomes[m[1]]
			delete(running, m[2])
		}
	}
	for test := range running {
		open = append(open, test)
	}
	return open
}

// exactly is a pattern that matches these tests only.
func exactly(all results, more []string) string {
	if len(all)+len(more) == 0 {
		return "^$"
	}
	var list []string
	for _, test := range slices.AppendSeq(slices.Clone(more), maps.Keys(all)) {
		list = append(list, regexp.QuoteMeta(test))
	}
	return "^(" + strings.Join(list, "|") + ")$"
}

// tail is the end of a text.
func tail(s string) string { return s[max(0, len(s)-4096):] }

// writeOverlay writes the file that lists the replaced files for go build.
func (w *workshop) writeOverlay() (string, error) {
	text, err := json.Marshal(map[string]any{"Replace": w.over})
	if err != nil {
		return "", err
	}
	return filepath.Join(w.dir, "overlay.json"), w.write("overlay.json", text)
}
