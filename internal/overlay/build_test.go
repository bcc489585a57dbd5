package overlay

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// prepareIn prepares the build of a package in dir.
func prepareIn(t *testing.T, dir, pkg string) (*Plan, error) {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return Prepare(t.Context(), Options{Dir: dir, Package: pkg, Source: source,
		Cache: t.TempDir()})
}

// TestBadInput: what cannot be built is refused in one sentence, which says what to do.
func TestBadInput(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOTOOLCHAIN", "local")
	const program = "package main\nfunc main() {}\n"
	module := func(version string) string { return "module example.org/m\n\ngo " + version + "\n" }
	for _, tt := range []struct {
		name  string
		files map[string]string
		pkg   string
		want  []string
	}{
		{"no go.mod", map[string]string{"main.go": program}, ".",
			[]string{"is in no module: there is no go.mod there or above"}},
		{"no main package", map[string]string{"go.mod": module("1.22"), "m.go": "package m\n"}, ".",
			[]string{". is package m: name a main package"}},
		{"no such folder", map[string]string{"go.mod": module("1.22")}, "./server",
			[]string{"./server is not built by go build either", "directory not found"}},
		{"several", map[string]string{"go.mod": module("1.22"), "a/a.go": program,
			"b/b.go": program}, "./...", []string{"./... are 2 packages: name one"}},
		{"an untidy go.mod", map[string]string{"go.mod": module("1.22"),
			"main.go": "package main\nimport (\n_ \"golang.org/x/time/rate\"\n" +
				"_ \"golang.org/x/text/language\"\n)\nfunc main() {}\n"}, ".",
			[]string{"not built by go build either", "no required module",
				"to add it by \"go get golang.org/x/text/language\"; ", "golang.org/x/time/rate"}},
		{"a newer Go", map[string]string{"go.mod": module("1.99"), "main.go": program}, ".",
			[]string{"not built by go build either", "requires go >= 1.99"}},
		{"text that is not Go", map[string]string{"go.mod": module("1.22"),
			"main.go": "package main\nfunc {\n"}, ".",
			[]string{"not built by go build either", "main.go:2"}},
		{"a file without main", map[string]string{"go.mod": module("1.22"), "m.go": "package m\n"},
			"m.go", []string{"m.go is package m: name a main package"}},
		{"a version of a folder", map[string]string{"go.mod": module("1.22")}, "./a@v1.0.0",
			[]string{"want MODULE/PACKAGE@VERSION"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, tt.files)
			_, err := prepareIn(t, dir, tt.pkg)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("several lines: %v", err)
			}
		})
	}
}

// TestBuildsAtOnce: while a package is built another one of its module may be: neither changes what
// the other one's go command reads.
func TestBuildsAtOnce(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOTOOLCHAIN", "local")
	dir, cache := t.TempDir(), t.TempDir()
	const program = "package main\nfunc main() {}\n"
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/m\n\ngo 1.22\n",
		"a/main.go": program, "b/main.go": program,
		"b/b_test.go": "package main\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n"})
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	type read struct{ work, overlay string }
	reads := func(p *Plan) (r read) {
		var work string
		for _, v := range p.Cmd(t.Context(), "build").Env {
			if of, ok := strings.CutPrefix(v, "GOWORK="); ok {
				work = of // the last one counts
			}
		}
		for name, to := range map[string]*string{work: &r.work, p.flags[1]: &r.overlay} {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			*to = string(text)
		}
		return r
	}
	first := Options{Dir: dir, Package: "./a", Source: source, Cache: cache}
	a, err := Prepare(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	before := reads(a)
	for _, o := range []Options{{Package: "./b"}, {Package: "./b", Test: true},
		{Package: "./a", Sim: true}} {
		o.Dir, o.Source, o.Cache = dir, source, cache
		b, err := Prepare(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if reads(a) != before {
			t.Errorf("%v changes what ./a is built of", o)
		}
		if reads(b).overlay == before.overlay {
			t.Errorf("%v has the overlay of ./a", o)
		}
	}
}

// TestUnknownGo: a GOROOT whose package net has another function is refused, with its name.
func TestUnknownGo(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	root := filepath.Join(t.TempDir(), "goroot")
	if err := linkTree(goroot(t), root); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(root, "src", "net", "fd_posix.go")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil { // it is a link
		t.Fatal(err)
	}
	text = append(text, "\nfunc (fd *netFD) peek() int { return fd.pfd.Sysfd }\n"...)
	if err := os.WriteFile(name, text, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOROOT", root)
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/m\n\ngo 1.22\n",
		"main.go": "package main\nfunc main() {}\n"})
	_, err = prepareIn(t, dir, ".")
	if err == nil || !strings.Contains(err.Error(), "fd_posix.go: netFD.peek uses a descriptor") {
		t.Errorf("got %v", err)
	}
}

// TestOlderGo: a Go that is older than the one that rdma-netstack is built by is refused before the
// go command refuses the workspace.
func TestOlderGo(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOTOOLCHAIN", "local")
	source, dir := t.TempDir(), t.TempDir()
	writeTree(t, source, map[string]string{"go.mod": "module " + Module + "\n\ngo 1.99.3\n"})
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/m\n\ngo 1.22\n",
		"main.go": "package main\nfunc main() {}\n"})
	_, err := Prepare(t.Context(), Options{Dir: dir, Package: ".", Source: source,
		Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "older than the go1.99.3") ||
		!strings.Contains(err.Error(), "GOTOOLCHAIN=local") {
		t.Errorf("got %v", err)
	}
}

// TestOtherMachine: a machine that a slice is not of is refused before anything is compiled.
func TestOtherMachine(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOARCH", "riscv64")
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/m\n\ngo 1.22\n",
		"main.go": "package main\nfunc main() {}\n"})
	_, err := prepareIn(t, dir, ".")
	if err == nil || !strings.Contains(err.Error(), "GOARCH is riscv64: a slice is of a host of") {
		t.Errorf("got %v", err)
	}
}

// TestTestsOfVersion: tests are not those of PACKAGE@VERSION.
func TestTestsOfVersion(t *testing.T) {
	_, err := Prepare(t.Context(), Options{Dir: t.TempDir(), Package: "example.org/m@v1.0.0",
		Test: true, Cache: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "leave out @v1.0.0, or run it in a checkout") {
		t.Errorf("got %v", err)
	}
}

// TestNamedFiles: go build takes no other files of the directory with files that are named.
func TestNamedFiles(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"go.mod": "module example.org/m\n\ngo 1.22\n",
		"cmd/main.go": "package main\nfunc main() { run() }\n",
		"cmd/run.go":  "package main\nfunc run() {}\n", "cmd/no.go": "package main\nfunc {\n"})
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := Prepare(t.Context(), Options{Dir: dir, Package: "./cmd/main.go",
		Patterns: []string{"./cmd/run.go"}, Source: source, Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	words := plan.Cmd(t.Context(), "build").Args
	want := []string{"./cmd/main.go", "./cmd/run.go", "./cmd/" + SeamFile}
	if got := words[len(words)-3:]; !slices.Equal(got, want) {
		t.Errorf("built of %q, want %q", got, want)
	}
}
