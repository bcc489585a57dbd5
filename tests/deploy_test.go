package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const unit = "../deploy/systemd/rdma-netstack@.service"

// exposure has systemd rate a unit file; the second result is false if it is above a limit, in
// tenths, of 100.
func exposure(t *testing.T, file, limit string) (report string, ok bool) {
	t.Helper()
	analyze := need.Tool(t, "systemd-analyze")
	out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold="+limit,
		"--no-pager", file).CombinedOutput()
	return string(out), err == nil
}

// TestUnitExposure: the unit is sandboxed as far as systemd-analyze wants it, 1.8 at most, and a
// unit without the sandbox is not.
func TestUnitExposure(t *testing.T) {
	if report, ok := exposure(t, unit, "18"); !ok {
		t.Errorf("exposed:\n%s", report)
	}
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "open@.service")
	less := strings.ReplaceAll(string(text), "ProtectSystem=strict\n", "")
	less = strings.ReplaceAll(less, "CapabilityBoundingSet=CAP_NET_RAW\n", "")
	if err := os.WriteFile(open, []byte(less), 0o644); err != nil {
		t.Fatal(err)
	}
	if report, ok := exposure(t, open, "20"); ok {
		t.Errorf("a unit with all capabilities passes:\n%s", report)
	}
}

// TestUnitHost: with what a server on the host's own address needs more, CAP_NET_ADMIN and the
// kernel's IP, the unit is at 2.1.
func TestUnitHost(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile("../deploy/systemd/host.conf")
	if err != nil {
		t.Fatal(err)
	}
	both := filepath.Join(t.TempDir(), "host@.service") // as systemd reads a drop-in: appended
	if err := os.WriteFile(both, slices.Concat(text, more), 0o644); err != nil {
		t.Fatal(err)
	}
	report, ok := exposure(t, both, "21")
	if !ok {
		t.Errorf("exposed:\n%s", report)
	}
	for _, need := range []string{"CAP_NET_ADMIN", "CAP_BPF", "SystemCallFilter=bpf"} {
		if !strings.Contains(string(more), need) {
			t.Errorf("%s is missing", need)
		}
	}
}

// TestUnitCalls: the unit allows the system calls by which the server confines itself.
func TestUnitCalls(t *testing.T) {
	analyze := need.Tool(t, "systemd-analyze")
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	var members func(set string) []string
	members = func(set string) (all []string) {
		out, err := exec.Command(analyze, "syscall-filter", "--no-pager", set).Output()
		if err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		for line := range strings.Lines(string(out)) {
			name := strings.TrimSpace(line)
			switch {
			case name == set, name == "", strings.HasPrefix(name, "#"):
			case name[0] == '@':
				all = append(all, members(name)...)
			default:
				all = append(all, name)
			}
		}
		return all
	}
	allowed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "SystemCallFilter=")
		if !ok {
			continue
		}
		list, refused := strings.CutPrefix(list, "~")
		for _, word := range strings.Fields(list) {
			calls := []string{word}
			if word[0] == '@' {
				calls = members(word)
			}
			for _, call := range calls {
				allowed[call] = !refused
			}
		}
	}
	for _, call := range []string{"capset", "prctl", "seccomp", "landlock_create_ruleset",
		"landlock_add_rule", "landlock_restrict_self", "ioctl", "mmap", "bind", "epoll_wait",
		"sysinfo"} {
		if !allowed[call] {
			t.Errorf("%s is refused", call)
		}
	}
	for _, call := range []string{"mount", "ptrace", "setuid", "init_module", "bpf", "reboot"} {
		if allowed[call] {
			t.Errorf("%s is allowed", call)
		}
	}
}

// TestUnitKnown: systemd knows every option of the unit.
func TestUnitKnown(t *testing.T) {
	analyze := need.Tool(t, "systemd-analyze")
	out, _ := exec.Command(analyze, "verify", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "rdma-netstack@") && !strings.Contains(line, "not executable") {
			t.Error(line)
		}
	}
}
