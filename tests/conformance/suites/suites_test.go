package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	out := "\x16=== RUN   TestA\nnoise\x16--- PASS: TestA (0.00s)\n\x16=== RUN   TestB\n\x16=== " +
		"RUN   TestB/part\n" +
		"    \x16--- FAIL: TestB/part (0.00s)\n\x16--- FAIL: TestB (0.01s)\n\x16=== RUN   " +
		"TestC\n--- SKIP: TestC (0.00s)\n\x16=== RUN   TestD\npanic: no\n"
	got := results{}
	open := scan([]byte(out), got)
	want := results{"TestA": passed, "TestB": failed, "TestC": skipped}
	if !maps.Equal(got, want) || len(open) != 1 || open[0] != "TestD" {
		t.Errorf("results %v, want %v; under way %v, want TestD", got, want, open)
	}
}

func TestBlank(t *testing.T) {
	text := "package p\n\nimport (\n\t\"a\"\n\t\"b\"\n)\n\nvar (\n\tx = 1\n\ty = 2\n)\n\nfunc " +
		"f() {\n\tg()\n}\n\nconst (\n\tc = iota\n\td\n)\n"
	for _, tt := range []struct {
		name       string
		line       int
		gone, left string
	}{
		{"import", 4, `"a"`, `"b"`},
		{"variable of a group", 10, "y = 2", "x = 1"},
		{"function", 14, "func f", "const"},
		{"constants go together", 18, "iota", "func f"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := blank("p.go", []byte(text), []int{tt.line})
			if err != nil {
				t.Fatal(err)
			}
			if s := string(got); strings.Contains(s, tt.gone) || !strings.Contains(s, tt.left) ||
				strings.Count(s, "\n") != strings.Count(text, "\n") {
				t.Errorf("left:\n%s", s)
			}
		})
	}
	if _, err := blank("p.go", []byte(text), []int{1}); err == nil {
		t.Error("an error in the package clause: want an error")
	}
}

func TestReport(t *testing.T) {
	one := func(h, s string) []*comparison {
		c := &comparison{suite: "net",
			side: map[string]results{host: {"TestA": h}, onSlice: {"TestA": s}}}
		if h != s {
			c.differ = []difference{{test: "TestA", host: h, slice: s}}
		}
		return []*comparison{c}
	}
	designed := one(passed, failed)
	designed[0].differ[0].reason = "so it is"
	list := map[string]string{"net TestA": "so it is"}
	for _, tt := range []struct {
		name    string
		all     []*comparison
		reasons map[string]string
		want    error
		says    string
	}{
		{"same", one(passed, passed), nil, nil, "net            slice       1"},
		{"differs", one(passed, failed), nil, errDiffers, "NOT BY DESIGN"},
		{"differs by design", designed, list, nil, "by design: so it is"},
		{"by design and does not differ", one(passed, passed), list, errDiffers, "take it out"},
		{"fails on both", one(failed, failed), nil, nil, "on both sides: fail TestA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			if err := report(&out, tt.all, tt.reasons, false); !errors.Is(err, tt.want) ||
				!strings.Contains(out.String(), tt.says) {
				t.Errorf("error %v, want %v; it says:\n%s", err, tt.want, out.String())
			}
		})
	}
}

func TestReasons(t *testing.T) {
	if _, err := readReasons("bydesign"); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "list")
	for _, bad := range []string{"net TestA\n", "TestA: why\n",
		"net TestA: why\nnet TestA: again\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readReasons(file); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}

// TestRunAllGoesOn: the process ends in a test that reports a failure, then in one that reports
// nothing, and then not at all.
func TestRunAllGoesOn(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
case "$*" in
*TestB*) printf '\026=== RUN   TestC\n\026--- PASS: TestC (0.00s)\n' ;;
*TestA*) printf '\026=== RUN   TestB\npanic: b\n'; exit 2 ;;
*) printf '\026=== RUN   TestA\n\026--- FAIL: TestA (0.00s)\npanic: a\n'; exit 2 ;;
esac
`
	s := &suite{name: "p", pkg: "p", dir: dir, bin: dir}
	if err := os.WriteFile(s.binary(host), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	got, _, err := (&workshop{}).runAll(s, host, nil, nil)
	if want := (results{"TestA": failed, "TestB": crashed, "TestC": passed}); err != nil ||
		!maps.Equal(got, want) {
		t.Errorf("results %v, %v; want %v", got, err, want)
	}
	if err := os.WriteFile(s.binary(host), []byte("#!/bin/sh\nexit 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&workshop{}).runAll(s, host, nil, nil); err == nil {
		t.Error("a process that ends before any test: want an error")
	}
}
