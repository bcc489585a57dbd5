//go:build linux

package vm

import (
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// How much a failed test logs of what a program of the guest has printed, of the guest kernel's
// warnings, and of all its messages. CI shows the beginning only, so the warnings come first.
const programLines, warningLines, kernelLines = 60, 60, 400

// logProgram logs the end of a program's output if the test has failed.
func logProgram(t *testing.T, argv []string, output string) {
	t.Helper()
	if t.Failed() {
		t.Logf("--- %s says last ---\n%s", strings.Join(argv, " "),
			lastLines(output, programLines))
	}
}

// logGuest logs the guest kernel's warnings, then what its processors and waiting tasks do, with
// all that it has said lately.
func (w *world) logGuest() {
	w.Helper()
	dmesg := func() string {
		r, err := w.vm.Do(rig.Request{Op: "dmesg", Timeout: 10 * time.Second})
		if err != nil {
			return err.Error()
		}
		return r.Output
	}
	w.Logf("--- guest kernel, warnings ---\n%s", lastLines(warningsOf(dmesg()), warningLines))
	w.Logf("the model's complaints: %q; firmware commands refused: %v", w.nic.Violations(),
		w.refused())
	// w: stacks of the tasks that wait, l: of the processors (linux
	// Documentation/admin-guide/sysrq.rst)
	for _, key := range []string{"w", "l"} {
		w.vm.Do(rig.Request{Op: "write", Path: "/proc/sysrq-trigger", Argv: []string{key}})
	}
	w.Logf("--- guest kernel ---\n%s", lastLines(dmesg(), kernelLines))
	w.Logf("--- guest console ---\n%s", w.vm.Console())
}

// warningsOf returns the lines of a kernel's log of the levels emergency to warning, each of which
// begins with its level (syslog(2)).
func warningsOf(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if len(line) > 2 && line[0] == '<' && line[1] <= '4' && line[2] == '>' {
			b.WriteString(line)
		}
	}
	return b.String()
}

// lastLines returns the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func TestWarningsOf(t *testing.T) {
	const log = "<6>[    0.000000] Linux version 7.2\n<4>[    0.1] one\n<3>[   23.0] two\n" +
		"<5>[   24.0] three\n<0>[   25.0] four\n<12>[   26.0] a process\nno level\n"
	const want = "<4>[    0.1] one\n<3>[   23.0] two\n<0>[   25.0] four\n"
	if got := warningsOf(log); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for n, want := range map[int]string{1: "c", 2: "b\nc", 9: "a\nb\nc"} {
		if got := lastLines("a\nb\nc\n", n); got != want {
			t.Errorf("last %d: %q, want %q", n, got, want)
		}
	}
}
