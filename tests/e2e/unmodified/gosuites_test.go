package unmodified

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/overlay"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// TestGoSuites runs Go's own tests of net and net/http with package net as rdma-netstack build
// makes it. Without hooks they do what they do in plain Go. With each socket through the seam, by a
// forwarder to the kernel, all pass but those of testdata/seam.txt. Those of package net need a
// name server to be whole; what plain Go fails does not count.
func TestGoSuites(t *testing.T) {
	if os.Getenv("GO_SUITES") == "" {
		need.That(t, "suites", errors.New("make test-unmodified-go sets GO_SUITES: 5 minutes"))
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(t, err)
	goroot := strings.TrimSpace(string(out))
	files, err := overlay.NetPackage(goroot, overlay.Target{GOARCH: goArch(t)})
	must(t, err)
	noHooks := writeOverlay(t, files)
	text, err := os.ReadFile("testdata/forward.go.txt")
	must(t, err)
	files[filepath.Join(goroot, "src", "net", "zz_forward.go")] = text
	seam := writeOverlay(t, files)
	for _, pkg := range []string{"net", "net/http"} {
		t.Run(pkg, func(t *testing.T) {
			expected := readExpected(t, pkg)
			plain := testStandard(t, pkg, "", nil)
			if len(plain) < 100 {
				t.Fatalf("only %d tests", len(plain))
			}
			t.Run("no hooks", func(t *testing.T) {
				compareResults(t, plain, testStandard(t, pkg, noHooks, nil), nil)
			})
			t.Run("seam", func(t *testing.T) {
				compareResults(t, plain, testStandard(t, pkg, seam, expected), expected)
			})
		})
	}
}

func goArch(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOARCH").Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// writeOverlay writes files and the list for go test -overlay, and returns the list's name.
func writeOverlay(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	for name, text := range files {
		to := filepath.Join(dir, filepath.Base(name))
		must(t, os.WriteFile(to, text, 0o644))
		replace[name] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err)
	name := filepath.Join(dir, "overlay.json")
	must(t, os.WriteFile(name, list, 0o644))
	return name
}

// expectation says what a test does with each socket through the seam: "fails" or "waits".
type expectation map[string]string

func readExpected(t *testing.T, pkg string) expectation {
	t.Helper()
	f, err := os.Open("testdata/seam.txt")
	must(t, err)
	defer f.Close()
	all := expectation{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) < 4 || words[1] != "fails" && words[1] != "waits" {
			t.Fatalf("%q: want PACKAGE, fails or waits, TEST, and a reason", lines.Text())
		}
		if words[0] == pkg {
			all[words[2]] = words[1]
		}
	}
	return all
}

// testStandard runs the short tests of a package of the standard library, and returns the result of
// each by its name. Those that wait are left out.
func testStandard(t *testing.T, pkg, list string, expected expectation) map[string]string {
	t.Helper()
	args := []string{"test", "-json", "-short", "-vet=off", "-count=1", "-timeout=10m"}
	if list != "" {
		args = append(args, "-overlay", list)
	}
	var waits []string
	for name, how := range expected {
		if how == "waits" {
			waits = append(waits, regexp.QuoteMeta(name))
		}
	}
	if len(waits) > 0 {
		args = append(args, "-skip", "^("+strings.Join(waits, "|")+")$")
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, pkg)...)
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	results := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var e struct{ Action, Test, Output string }
		must(t, d.Decode(&e))
		switch {
		case e.Test != "" && !strings.Contains(e.Test, "/") &&
			slices.Contains([]string{"pass", "fail", "skip"}, e.Action):
			results[e.Test] = e.Action
		case strings.HasPrefix(e.Output, "panic: "):
			t.Errorf("%s: %s", pkg, e.Output)
		}
	}
	t.Logf("%s, overlay %q: %d passed, %d failed, %d skipped", pkg, filepath.Base(list),
		countResults(results, "pass"), countResults(results, "fail"),
		countResults(results, "skip"))
	return results
}

func countResults(results map[string]string, which string) (n int) {
	for _, r := range results {
		if r == which {
			n++
		}
	}
	return n
}

// compareResults fails for each test that does not do what it does in plain Go, or what is
// expected.
func compareResults(t *testing.T, plain, now map[string]string, expected expectation) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(plain)) {
		switch was, is := plain[name], now[name]; {
		case expected[name] == "waits" && is == "":
		case expected[name] == "fails" && is == "fail":
		case expected[name] != "":
			t.Errorf("%s: %q, but testdata/seam.txt says that it %s", name, is, expected[name])
		case is != was && was != "fail":
			t.Errorf("%s: %q, in plain Go %q", name, is, was)
		}
	}
}
